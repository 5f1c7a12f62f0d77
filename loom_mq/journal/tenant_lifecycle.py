"""One tenant's view of a journal: snapshots and whole executions (J7, J8, J9)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from loom_mq.errors import LoomError
from loom_mq.journal.protocol import Planting, Rewrite
from loom_mq.journal.tenant_schedules import TenantSchedules
from loom_mq.journal.tenant_scope import own_error
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.snapshots import Snapshot


class TenantLifecycle(TenantSchedules):
    """The part of `TenantScopedJournal` that replaces logs, or stands in for them."""

    async def save_snapshots(self, snapshots: Sequence[tuple[ExecutionKey, Snapshot]]) -> None:
        """See `Journal.save_snapshots`."""
        await self._inner.save_snapshots(
            [(self._scope.inward(key), snapshot) for key, snapshot in snapshots]
        )

    async def snapshot(self, key: ExecutionKey) -> Snapshot | None:
        """See `Journal.snapshot`."""
        return await self._inner.snapshot(self._scope.inward(key))

    async def plant(self, plantings: Sequence[Planting]) -> list[LoomError | None]:
        """See `Journal.plant`."""
        refusals = await self._inner.plant(
            [replace(each, row=self._scope.inward_row(each.row)) for each in plantings]
        )
        return _own([each.row.key for each in plantings], refusals)

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[LoomError | None]:
        """See `Journal.rewrite`."""
        refusals = await self._inner.rewrite([self._scope.request(each) for each in rewrites])
        return _own([each.key for each in rewrites], refusals)

    async def delete(self, keys: Sequence[ExecutionKey]) -> list[LoomError | None]:
        """See `Journal.delete`."""
        return _own(keys, await self._inner.delete([self._scope.inward(key) for key in keys]))


def _own(
    keys: Sequence[ExecutionKey], refusals: Sequence[LoomError | None]
) -> list[LoomError | None]:
    return [own_error(refusal, key) for key, refusal in zip(keys, refusals, strict=True)]
