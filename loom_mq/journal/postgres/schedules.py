"""Schedules on PostgreSQL (F9)."""

from __future__ import annotations

import asyncpg

from loom_mq.journal.postgres.store import Store, micros
from loom_mq.journal.schedule_rules import by_due, exists, stale, unknown
from loom_mq.model.schedules import ScheduleKey, ScheduleRow

_COLUMNS = "(schedule).*"


class PostgresSchedules(Store):
    """The part of `PostgresJournal` that keeps schedules."""

    async def put_schedule(self, row: ScheduleRow, expected: int | None) -> ScheduleRow:
        """Write a schedule by compare-and-set on its revision (F9, J4).

        Raises:
            ScheduleExistsError: it was to be new, and is there.
            StaleScheduleError: somebody else has changed it.
            UnknownScheduleError: it is gone.
        """
        record = await self._write_row(
            self._sql.call("put_schedule_v1", 8, f"verdict, {_COLUMNS}"),
            row.tenant,
            row.schedule_id,
            row.flow,
            row.paused,
            row.definition,
            row.state,
            row.due,
            expected,
        )
        match record["verdict"]:
            case "stored":
                return _schedule_row(record)
            case "exists":
                raise exists(row.key)
            case "unknown":
                raise unknown(row.key)
            case _:
                raise stale(row.key, expected, record["revision"])

    async def drop_schedule(self, key: ScheduleKey, expected: int | None = None) -> bool:
        """Delete a schedule."""
        records = await self._write_rows(self._sql["drop_schedule"], *key, expected)
        if records or expected is None:
            return bool(records)
        there = await self.schedule(key)
        if there is not None:
            raise stale(key, expected, there.revision)
        return False

    async def schedule(self, key: ScheduleKey) -> ScheduleRow | None:
        """One schedule."""
        records = await self._read_rows(self._sql["schedule"], *key)
        return _schedule_row(records[0]) if records else None

    async def schedules(
        self, tenant: str | None = None, *, after: ScheduleKey | None = None, limit: int = 100
    ) -> list[ScheduleRow]:
        """Schedules by tenant and id."""
        first = ScheduleKey(tenant or "", "") if after is None else after
        records = await self._read_rows(self._sql["schedules"], tenant, *first, limit)
        return [_schedule_row(record) for record in records]

    async def due_schedules(self, *, limit: int, hold: float) -> list[ScheduleRow]:
        """Schedules that are due, earliest first, held for `hold` seconds (F9)."""
        records = await self._write_rows(self._sql.call("due_schedules_v1", 2), limit, micros(hold))
        # they come by when they may be looked at, which is later where a hold has run out
        return sorted((_schedule_row(record) for record in records), key=by_due)


def _schedule_row(record: asyncpg.Record) -> ScheduleRow:
    return ScheduleRow(
        tenant=record["tenant"],
        schedule_id=record["schedule_id"],
        flow=record["flow"],
        paused=record["paused"],
        revision=record["revision"],
        definition=record["definition"],
        state=record["state"],
        due=record["due"],
        created_at=record["created_at"],
        updated_at=record["updated_at"],
    )
