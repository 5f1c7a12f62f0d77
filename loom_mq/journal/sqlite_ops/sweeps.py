"""What the sweeps and the timer service take, and lists for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from sqlite3 import Connection
from typing import Final

from loom_mq.journal import transitions
from loom_mq.journal.protocol import DueTimer, ListQuery, Runnable
from loom_mq.journal.sqlite_ops import rows, schedules
from loom_mq.journal.statements import load_statements
from loom_mq.journal.verdicts import has_labels
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status

_SWEEPS: Final = load_statements("sqlite", "sweeps")
_TIMERS: Final = load_statements("sqlite", "timers")
_LISTING: Final = load_statements("sqlite", "listing")
_ENDLESS: Final = (1 << 63) - 1


def take_abandoned(
    db: Connection, now: int, limit: int, resend_after: float, max_recoveries: int
) -> list[Runnable]:
    """See `Journal.take_abandoned`."""
    taken = []
    for columns in _abandoned(db, now, least=0, below=max_recoveries, limit=limit):
        row = rows.to_row(columns)
        taken.append(
            Runnable(
                rows.put(db, row, transitions.detached(row, resend_after, now)),
                columns[rows.ROW_COLUMNS],
                row.owner,
            )
        )
    return taken


def exhausted(db: Connection, now: int, max_recoveries: int, limit: int) -> list[ExecutionRow]:
    """See `Journal.exhausted`."""
    found = _abandoned(db, now, least=max_recoveries, below=_ENDLESS, limit=limit)
    return [rows.to_row(columns) for columns in found]


def _abandoned(
    db: Connection, now: int, *, least: int, below: int, limit: int
) -> list[rows.Columns]:
    """Executions of dead or wedged holders whose recoveries lie in a range."""
    return db.execute(
        _SWEEPS["abandoned"], {"now": now, "least": least, "below": below, "limit": limit}
    ).fetchall()


def take_unsent(
    db: Connection,
    now: int,
    limit: int,
    resend_after: float,
    backoff_limit: float,
    queues: Sequence[str] | None,
) -> list[Runnable]:
    """See `Journal.take_unsent`."""
    wanted = None if queues is None else json.dumps(list(queues), ensure_ascii=False)
    found = db.execute(_SWEEPS["unsent"], {"now": now, "queues": wanted, "limit": limit}).fetchall()
    taken = []
    for columns in found:
        row = rows.to_row(columns)
        hinted = rows.put(db, row, transitions.hinted(row, resend_after, backoff_limit, now))
        taken.append(Runnable(hinted, columns[rows.ROW_COLUMNS]))
    return taken


# ---- timers -------------------------------------------------------------------------------


def due_timers(db: Connection, now: int, limit: int, hold: float) -> list[DueTimer]:
    """See `Journal.due_timers`."""
    until = transitions.after(now, hold)
    found = db.execute(_TIMERS["due"], {"now": now, "limit": limit}).fetchall()
    timers = []
    for tenant, execution_id, due in found:
        db.execute(_TIMERS["hold"], (until, tenant, execution_id, due))
        row = rows.get(db, ExecutionKey(tenant, execution_id))
        if row is not None:
            sent = rows.put(db, row, transitions.fired(row, hold, now))
            timers.append(DueTimer(sent, due))
    return timers


def drop_timers(db: Connection, _now: int, timers: Sequence[tuple[ExecutionKey, int]]) -> None:
    """See `Journal.drop_timers`."""
    db.executemany(_TIMERS["drop"], [(*key, due) for key, due in timers])


def arm_timers(db: Connection, _now: int, timers: Sequence[tuple[ExecutionKey, int]]) -> list[bool]:
    """See `Journal.arm_timers`."""
    return [
        db.execute(_TIMERS["arm_missing"], {"due": due, "tenant": tenant, "id": name}).rowcount > 0
        for (tenant, name), due in timers
    ]


def next_timer(db: Connection, now: int) -> int | None:
    """See `Journal.next_timer`."""
    columns = db.execute(_TIMERS["next"], (now,)).fetchone()
    times = [None if columns is None else columns[0], schedules.next_schedule(db, now)]
    return min((due for due in times if due is not None), default=None)


# ---- lists --------------------------------------------------------------------------------


def newest(db: Connection, query: ListQuery) -> list[ExecutionRow]:
    """See `Journal.find`."""
    before_at, before_id = query.before if query.before is not None else (_ENDLESS, "")
    found = db.execute(
        _LISTING[_statement(query)],
        {
            "tenant": query.tenant,
            "status": None if query.status is None else query.status.value,
            "flow": query.flow,
            "version": query.version,
            "queue": query.queue,
            "ended_before": query.ended_before,
            "in_doubt": query.in_doubt,
            "troubled": query.troubled,
            "before_at": before_at,
            "before_id": before_id,
            "limit": _ENDLESS if query.labels else query.limit,
        },
    )
    fitting = (row for row in map(rows.to_row, found) if has_labels(row.labels, query.labels))
    return list(islice(fitting, query.limit))


def _statement(query: ListQuery) -> str:
    """The statement whose index leaves the fewest to look through."""
    if query.in_doubt:
        return "newest_in_doubt"
    if query.troubled:
        return "newest_troubled"
    return "newest" if query.status is None else "newest_with_status"


def count(db: Connection, tenant: str | None) -> dict[Status, int]:
    """See `Journal.count`."""
    found = db.execute(_LISTING["count"], {"tenant": tenant})
    return {Status(status): number for status, number in found}
