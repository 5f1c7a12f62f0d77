"""The journal in memory: schedules (F9)."""

from __future__ import annotations

from loom_mq.clock import Clock
from loom_mq.journal import schedule_rules, transitions
from loom_mq.model.schedules import ScheduleKey, ScheduleRow


class MemorySchedules:
    """The part of `MemoryJournal` that keeps schedules.

    Args:
        clock: journal time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._schedules: dict[ScheduleKey, ScheduleRow] = {}
        self._held: dict[ScheduleKey, int] = {}

    async def put_schedule(self, row: ScheduleRow, expected: int | None) -> ScheduleRow:
        """Write a schedule by compare-and-set on its revision (F9, J4)."""
        found = self._schedules.get(row.key)
        written = schedule_rules.written(found, row, expected, self._clock.now())
        if written is not found:
            self._schedules[row.key] = written
            self._held.pop(row.key, None)
        return written

    async def drop_schedule(self, key: ScheduleKey, expected: int | None = None) -> bool:
        """Delete a schedule."""
        if not schedule_rules.may_go(self._schedules.get(key), key, expected):
            return False
        del self._schedules[key]
        self._held.pop(key, None)
        return True

    async def schedule(self, key: ScheduleKey) -> ScheduleRow | None:
        """One schedule."""
        return self._schedules.get(key)

    async def schedules(
        self, tenant: str | None = None, *, after: ScheduleKey | None = None, limit: int = 100
    ) -> list[ScheduleRow]:
        """Schedules by tenant and id."""
        keys = sorted(
            (key for key in self._schedules if tenant is None or key.tenant == tenant),
            key=schedule_rules.by_bytes,
        )
        if after is not None:
            last = schedule_rules.by_bytes(after)
            keys = [key for key in keys if schedule_rules.by_bytes(key) > last]
        return [self._schedules[key] for key in keys[:limit]]

    async def due_schedules(self, *, limit: int, hold: float) -> list[ScheduleRow]:
        """Schedules that are due, earliest first, held for `hold` seconds (F9)."""
        now = self._clock.now()
        due = sorted((at, key) for at, key in self._waiting(now) if at <= now)
        for _at, key in due[:limit]:
            self._held[key] = transitions.after(now, hold)
        return [self._schedules[key] for _at, key in due[:limit]]

    def next_schedule(self, now: int) -> int | None:
        """The earliest due time of a schedule that is not held."""
        return min((at for at, _key in self._waiting(now)), default=None)

    def _waiting(self, now: int) -> list[tuple[int, ScheduleKey]]:
        return [
            (row.due, key)
            for key, row in self._schedules.items()
            if row.due is not None and self._held.get(key, 0) <= now
        ]
