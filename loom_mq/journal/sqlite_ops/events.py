"""The rows of the logs: written one per append, read by the page."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Final

from loom_mq.errors import DuplicateEnvelopeIdError
from loom_mq.journal.packing import pack_events, page_range, slice_page
from loom_mq.journal.sqlite_ops import rows
from loom_mq.journal.statements import load_statements
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow

_SQL: Final = load_statements("sqlite", "events")
_CHUNK: Final = 200
"""Events to a row of a log that is written whole: a page unpacks few that it leaves out."""


def insert(db: Connection, key: ExecutionKey, events: tuple[Envelope, ...]) -> bool:
    """Write one row; whether its first id was new."""
    first, last = events[0], events[-1]
    inserted = db.execute(
        _SQL["insert"], (*key, first.seq, last.seq, first.id, pack_events(events))
    )
    return inserted.rowcount == 1


def write_log(db: Connection, key: ExecutionKey, events: tuple[Envelope, ...]) -> None:
    """Write a whole log in place of the one that is there.

    Raises:
        DuplicateEnvelopeIdError: an id stands in it twice.
    """
    clear(db, key)
    for place in range(0, len(events), _CHUNK):
        if not insert(db, key, events[place : place + _CHUNK]):
            raise DuplicateEnvelopeIdError(key.execution_id, envelope_id=events[place].id.hex())


def clear(db: Connection, key: ExecutionKey) -> None:
    """Delete a log."""
    db.execute(_SQL["clear"], key)


def rename(db: Connection, key: ExecutionKey, execution_id: str) -> None:
    """Move a log to another id."""
    db.execute(_SQL["rename"], (execution_id, *key))


def between(db: Connection, key: ExecutionKey, low: int, high: int) -> list[Envelope]:
    """What is kept of the events from `low` up to, not including, `high`."""
    if low >= high:
        return []
    found = db.execute(
        _SQL["page"],
        {"tenant": key.tenant, "execution_id": key.execution_id, "low": low, "high": high},
    )
    return slice_page((packed for (packed,) in found), low, high)


def page(
    db: Connection, row: ExecutionRow, *, first: int, limit: int, newest: bool = False
) -> list[Envelope]:
    """A page of a log.

    Args:
        db: inside a transaction that has read `row`.
        row: says how far the log goes.
        first: lowest sequence wanted.
        limit: events at most.
        newest: the last ones instead of the first ones.
    """
    if first <= row.last_seq:
        (begin,) = db.execute(_SQL["begin"], row.key).fetchone()
        first = max(first, row.last_seq + 1 if begin is None else begin)
    low, high = page_range(row.last_seq, first=first, limit=limit, newest=newest)
    return between(db, row.key, low, high)


def newest(db: Connection, row: ExecutionRow) -> Envelope | None:
    """The last event of a log, None when none is kept."""
    return next(iter(page(db, row, first=0, limit=1, newest=True)), None)


def read(db: Connection, key: ExecutionKey, first: int, limit: int, newest: bool) -> list[Envelope]:
    """See `Journal.read`."""
    row = rows.get(db, key)
    return [] if row is None else page(db, row, first=first, limit=limit, newest=newest)
