"""One tenant's view of a journal: schedules (F9, J9)."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from loom_mq.journal.protocol import Journal
from loom_mq.journal.tenant_scope import Scope
from loom_mq.model.execution import DEFAULT_TENANT
from loom_mq.model.schedules import ScheduleKey, ScheduleRow

_ROUNDS: Final = 20
"""Looks at most for a limit among the schedules of other tenants."""


class TenantSchedules:
    """The part of `TenantScopedJournal` that keeps schedules. Refusals name a schedule by its id
    alone, so they are the caller's own as they come.

    Args:
        inner: the journal.
        tenant: the tenant within it.

    Raises:
        InvalidIdError: the tenant's name breaks the rule of J10.
    """

    def __init__(self, inner: Journal, tenant: str) -> None:
        self._inner = inner
        self._scope = Scope(tenant)

    async def put_schedule(self, row: ScheduleRow, expected: int | None) -> ScheduleRow:
        """See `Journal.put_schedule`."""
        inward = replace(row, tenant=self._scope.only(row.tenant))
        return _outward(await self._inner.put_schedule(inward, expected))

    async def drop_schedule(self, key: ScheduleKey, expected: int | None = None) -> bool:
        """See `Journal.drop_schedule`."""
        return await self._inner.drop_schedule(self._inward(key), expected)

    async def schedule(self, key: ScheduleKey) -> ScheduleRow | None:
        """See `Journal.schedule`."""
        row = await self._inner.schedule(self._inward(key))
        return None if row is None else _outward(row)

    async def schedules(
        self, tenant: str | None = None, *, after: ScheduleKey | None = None, limit: int = 100
    ) -> list[ScheduleRow]:
        """The tenant's; see `Journal.schedules`."""
        own = self._scope.tenant if tenant is None else self._scope.only(tenant)
        first = None if after is None else self._inward(after)
        rows = await self._inner.schedules(own, after=first, limit=limit)
        return [_outward(row) for row in rows]

    async def due_schedules(self, *, limit: int, hold: float) -> list[ScheduleRow]:
        """The tenant's; those of others stay held for `hold` seconds, then are due again."""
        due: list[ScheduleRow] = []
        for _ in range(_ROUNDS):
            wanted = limit - len(due)
            found = await self._inner.due_schedules(limit=wanted, hold=hold)
            due += [_outward(row) for row in found if row.tenant == self._scope.tenant]
            if len(found) < wanted or len(due) >= limit:
                break
        return due

    def _inward(self, key: ScheduleKey) -> ScheduleKey:
        return ScheduleKey(self._scope.only(key.tenant), key.schedule_id)


def _outward(row: ScheduleRow) -> ScheduleRow:
    return replace(row, tenant=DEFAULT_TENANT)
