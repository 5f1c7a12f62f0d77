"""Index rows to and from the `executions` table."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any, Final

import msgspec

from loom_mq.journal.statements import load_statements
from loom_mq.journal.verdicts import Standing
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status, Waiter

_SQL: Final = load_statements("sqlite", "rows")
_encode = msgspec.msgpack.Encoder().encode
_NOTHING: Final = _encode(())
_NO_LABELS: Final = _encode({})
_texts = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_labels = msgspec.msgpack.Decoder(dict[str, str]).decode
_waiters = msgspec.msgpack.Decoder(tuple[Waiter, ...]).decode
_status: Final = {status.value: status for status in Status}

ROW_COLUMNS: Final = 28
"""Columns of an index row; what a statement selects after them stands behind it."""

# the module's type for what sqlite3 hands out; every column is checked by its STRICT table
Columns = Sequence[Any]


def pack_texts(values: Sequence[str]) -> bytes:
    """A list of texts as a column."""
    return _encode(values) if values else _NOTHING


def unpack_texts(column: bytes) -> tuple[str, ...]:
    """A list of texts from a column."""
    return () if column == _NOTHING else _texts(column)


def pack_labels(labels: dict[str, str]) -> bytes:
    """A map of texts as a column."""
    return _encode(labels) if labels else _NO_LABELS


def unpack_labels(column: bytes) -> dict[str, str]:
    """A map of texts from a column."""
    return {} if column == _NO_LABELS else _labels(column)


def to_row(columns: Columns) -> ExecutionRow:
    """An index row from the columns that every statement lists in the same order."""
    return ExecutionRow(
        tenant=columns[0],
        execution_id=columns[1],
        flow=columns[2],
        version=columns[3],
        queue=columns[4],
        status=_status[columns[5]],
        last_seq=columns[6],
        wake_at=columns[7],
        gates=unpack_texts(columns[8]),
        error=columns[9],
        recoveries=columns[10],
        parent=columns[11],
        features=unpack_texts(columns[12]),
        labels=unpack_labels(columns[13]),
        created_at=columns[14],
        updated_at=columns[15],
        started_at=columns[16],
        ended_at=columns[17],
        fence=columns[18],
        owner=columns[19],
        attempt=columns[20],
        deadline=columns[21],
        hint_at=columns[22],
        hints=columns[23],
        inbox=columns[24],
        input_digest=columns[25],
        in_doubt=unpack_texts(columns[26]),
        trouble=columns[27],
    )


def insert(db: Connection, row: ExecutionRow, start: bytes | None) -> None:
    """A new row, without waiters."""
    db.execute(
        _SQL["insert"],
        (
            row.tenant,
            row.execution_id,
            row.flow,
            row.version,
            row.queue,
            row.status.value,
            row.last_seq,
            row.wake_at,
            pack_texts(row.gates),
            row.error,
            row.recoveries,
            row.parent,
            pack_texts(row.features),
            pack_labels(row.labels),
            row.created_at,
            row.updated_at,
            row.started_at,
            row.ended_at,
            row.fence,
            row.owner,
            row.attempt,
            row.deadline,
            row.hint_at,
            row.hints,
            row.inbox,
            row.input_digest,
            pack_texts(row.in_doubt),
            row.trouble,
            start,
        ),
    )


def get(db: Connection, key: ExecutionKey) -> ExecutionRow | None:
    """The row of an execution."""
    columns = db.execute(_SQL["get"], key).fetchone()
    return None if columns is None else to_row(columns)


def get_standing(db: Connection, key: ExecutionKey, now: int) -> Standing | None:
    """The row of an execution, and whether its owner's lease runs."""
    columns = db.execute(_SQL["get_standing"], key).fetchone()
    if columns is None:
        return None
    return Standing(to_row(columns), columns[ROW_COLUMNS] > now)


def put(db: Connection, old: ExecutionRow, new: ExecutionRow) -> ExecutionRow:
    """Replace a row. What never changes after its insert is not written again.

    The indexes are left alone when nothing that they hold has changed, which is so for
    most appends.
    """
    progress = (
        new.last_seq,
        new.wake_at,
        pack_texts(new.gates),
        new.error,
        new.recoveries,
        new.updated_at,
        new.started_at,
        new.ended_at,
        new.fence,
        new.attempt,
        new.deadline,
        new.hints,
        new.inbox,
    )
    if _indexed(new) == _indexed(old):
        db.execute(_SQL["update_progress"], (*progress, *new.key))
    else:
        db.execute(_SQL["update"], (*progress, *_indexed(new), *new.key))
    return new


def _indexed(row: ExecutionRow) -> tuple[object, ...]:
    return row.status.value, row.owner, row.hint_at, pack_texts(row.in_doubt), row.trouble


def put_lasting(db: Connection, row: ExecutionRow) -> None:
    """Write what nothing changes but another log for what has ended (J8)."""
    columns = (row.error, pack_labels(row.labels), row.input_digest)
    db.execute(_SQL["update_lasting"], (*columns, *row.key))


def exists(db: Connection, key: ExecutionKey) -> bool:
    """Whether there is such an execution."""
    return db.execute(_SQL["exists"], key).fetchone() is not None


def rename(db: Connection, key: ExecutionKey, execution_id: str) -> None:
    """Give an execution another id, which must be free; its log is not touched."""
    db.execute(_SQL["rename"], (execution_id, *key))


def delete(db: Connection, key: ExecutionKey) -> None:
    """Delete an index row."""
    db.execute(_SQL["delete"], key)


def get_start(db: Connection, key: ExecutionKey) -> bytes | None:
    """The start payload, None once the log has begun."""
    columns = db.execute(_SQL["get_start"], key).fetchone()
    start: bytes | None = None if columns is None else columns[0]
    return start


def drop_start(db: Connection, key: ExecutionKey) -> None:
    """The log has begun and holds the start payload itself."""
    db.execute(_SQL["drop_start"], key)


def get_waiters(db: Connection, key: ExecutionKey) -> tuple[Waiter, ...]:
    """Who wants to hear of the end."""
    columns = db.execute(_SQL["get_waiters"], key).fetchone()
    return () if columns is None else _waiters(columns[0])


def set_waiters(db: Connection, key: ExecutionKey, waiters: tuple[Waiter, ...]) -> None:
    """Replace those who want to hear of the end."""
    db.execute(_SQL["set_waiters"], (_encode(waiters), *key))
