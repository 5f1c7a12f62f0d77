"""Schedules (F9)."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Any, Final

from loom_mq.journal import schedule_rules, transitions
from loom_mq.journal.statements import load_statements
from loom_mq.model.schedules import ScheduleKey, ScheduleRow

_SQL: Final = load_statements("sqlite", "schedules")


def put_schedule(db: Connection, now: int, row: ScheduleRow, expected: int | None) -> ScheduleRow:
    """See `Journal.put_schedule`."""
    found = schedule(db, now, row.key)
    written = schedule_rules.written(found, row, expected, now)
    if written is not found:
        db.execute(
            _SQL["put"],
            (
                written.tenant,
                written.schedule_id,
                written.flow,
                written.paused,
                written.revision,
                written.definition,
                written.state,
                written.due,
                written.created_at,
                written.updated_at,
            ),
        )
    return written


def drop_schedule(db: Connection, now: int, key: ScheduleKey, expected: int | None) -> bool:
    """See `Journal.drop_schedule`."""
    there = schedule_rules.may_go(schedule(db, now, key), key, expected)
    if there:
        db.execute(_SQL["drop"], key)
    return there


def schedule(db: Connection, _now: int, key: ScheduleKey) -> ScheduleRow | None:
    """See `Journal.schedule`."""
    columns = db.execute(_SQL["get"], key).fetchone()
    return None if columns is None else _row(columns)


def schedules(
    db: Connection, _now: int, tenant: str | None, after: ScheduleKey | None, limit: int
) -> list[ScheduleRow]:
    """See `Journal.schedules`."""
    first = ScheduleKey(tenant or "", "") if after is None else after
    found = db.execute(
        _SQL["list"],
        {
            "tenant": tenant,
            "after_tenant": first.tenant,
            "after_id": first.schedule_id,
            "limit": limit,
        },
    )
    return [_row(columns) for columns in found]


def due_schedules(db: Connection, now: int, limit: int, hold: float) -> list[ScheduleRow]:
    """See `Journal.due_schedules`."""
    found = [_row(each) for each in db.execute(_SQL["due"], {"now": now, "limit": limit})]
    until = transitions.after(now, hold)
    db.executemany(_SQL["hold"], [(until, *row.key) for row in found])
    return found


def next_schedule(db: Connection, now: int) -> int | None:
    """The earliest due time of a schedule that is not held."""
    columns = db.execute(_SQL["next"], (now,)).fetchone()
    due: int | None = None if columns is None else columns[0]
    return due


def _row(columns: tuple[Any, ...]) -> ScheduleRow:
    tenant, name, flow, paused, revision, definition, state, due, created, updated = columns
    return ScheduleRow(
        tenant=tenant,
        schedule_id=name,
        flow=flow,
        paused=bool(paused),
        revision=revision,
        definition=definition,
        state=state,
        due=due,
        created_at=created,
        updated_at=updated,
    )
