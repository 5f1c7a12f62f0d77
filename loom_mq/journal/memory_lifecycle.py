"""The journal in memory: snapshots, and whole executions planted, rewritten and deleted."""

from __future__ import annotations

from collections.abc import Sequence

from loom_mq.errors import ExecutionAlreadyExistsError, LoomError
from loom_mq.journal import transitions, verdicts
from loom_mq.journal.memory_fleet import MemoryFleet
from loom_mq.journal.protocol import Planting, Rewrite
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.snapshots import Snapshot


class MemoryLifecycle(MemoryFleet):
    """The part of `MemoryJournal` that replaces logs, or stands in for them (J7, J8)."""

    async def save_snapshots(self, snapshots: Sequence[tuple[ExecutionKey, Snapshot]]) -> None:
        """Keep stored folds, one per execution, the newest (J7)."""
        for key, snapshot in snapshots:
            entry = self._store.entries.get(key)
            if entry is None:
                continue
            kept = None if entry.snapshot is None else entry.snapshot.seq
            if verdicts.is_newer(snapshot, row=entry.row, kept=kept):
                entry.snapshot = snapshot

    async def snapshot(self, key: ExecutionKey) -> Snapshot | None:
        """The newest snapshot."""
        entry = self._store.entries.get(key)
        return None if entry is None else entry.snapshot

    async def plant(self, plantings: Sequence[Planting]) -> list[LoomError | None]:
        """Create executions with ready logs (J8)."""
        return [self._plant(each) for each in plantings]

    def _plant(self, planting: Planting) -> LoomError | None:
        row = planting.row
        if row.key in self._store.entries:
            return ExecutionAlreadyExistsError(row.execution_id)
        entry = self._store.add(row, planting.start)
        entry.set_log(planting.events)
        entry.snapshot = planting.snapshot
        for due in planting.timers:
            self._store.arm(entry, due)
        return None

    async def rewrite(self, rewrites: Sequence[Rewrite]) -> list[LoomError | None]:
        """Replace the logs of executions that have ended (J8)."""
        return [self._rewrite(each) for each in rewrites]

    def _rewrite(self, rewrite: Rewrite) -> LoomError | None:
        entry = self._store.entries.get(rewrite.key)
        newest = None if entry is None or not entry.events else entry.events[-1]
        refusal = verdicts.judge_rewrite(
            None if entry is None else entry.row,
            rewrite,
            last_id=None if newest is None else newest.id,
        )
        if entry is None or refusal is not None:
            return refusal
        entry.set_log(rewrite.events)
        entry.snapshot = rewrite.snapshot
        self._store.put(entry, transitions.rewritten(entry.row, rewrite))
        return None

    async def delete(self, keys: Sequence[ExecutionKey]) -> list[LoomError | None]:
        """Delete executions that have ended, with all that belongs to them (J8)."""
        return [self._delete(key) for key in keys]

    def _delete(self, key: ExecutionKey) -> LoomError | None:
        entry = self._store.entries.get(key)
        refusal = verdicts.judge_delete(None if entry is None else entry.row, key)
        if entry is not None and refusal is None:
            self._store.remove(entry)
        return refusal
