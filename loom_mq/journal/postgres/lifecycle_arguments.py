"""Whole executions as the functions of the journal take them: one array per column (J8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from loom_mq.journal.packing import pack_events
from loom_mq.journal.postgres.arguments import shown
from loom_mq.journal.postgres.rows import pack_pairs, pack_texts
from loom_mq.journal.requests import Planting, Rewrite
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionRow
from loom_mq.model.snapshots import Snapshot

ROW_EVENTS: Final = 64
ROW_BYTES: Final = 256_000
"""What is put together in one row of a log that is written as a whole: a page that needs one
event of it reads all of them."""


def plant_arguments(batch: Sequence[Planting]) -> tuple[list[object], ...]:
    """The arguments of ``plant_v1``: 30 columns by execution, its events and timers."""
    rows = [each.row for each in batch]
    timers = [(item, due) for item, each in enumerate(batch, start=1) for due in each.timers]
    return (
        [row.tenant for row in rows],
        [row.execution_id for row in rows],
        [row.flow for row in rows],
        [row.version for row in rows],
        [row.queue for row in rows],
        [row.status for row in rows],
        [row.last_seq for row in rows],
        [row.wake_at for row in rows],
        [pack_texts(row.gates) for row in rows],
        [shown(row.error) for row in rows],
        [row.recoveries for row in rows],
        [row.parent for row in rows],
        [pack_texts(row.features) for row in rows],
        [pack_pairs(row.labels) for row in rows],
        [row.created_at for row in rows],
        [row.updated_at for row in rows],
        [row.started_at for row in rows],
        [row.ended_at for row in rows],
        [row.fence for row in rows],
        [row.attempt for row in rows],
        [row.deadline for row in rows],
        [row.hint_at for row in rows],
        [row.hints for row in rows],
        [row.input_digest for row in rows],
        [pack_texts(row.in_doubt) for row in rows],
        [shown(row.trouble) for row in rows],
        [each.start for each in batch],
        *_snapshots([each.snapshot for each in batch]),
        *_logs([each.events for each in batch]),
        [item for item, _due in timers],
        [due for _item, due in timers],
    )


def rewrite_arguments(
    batch: Sequence[Rewrite], rows: Sequence[ExecutionRow]
) -> tuple[list[object], ...]:
    """The arguments of ``rewrite_v1``.

    Args:
        batch: what to write.
        rows: the executions as they were seen when that was found to be lawful.
    """
    return (
        [row.tenant for row in rows],
        [row.execution_id for row in rows],
        [row.fence for row in rows],
        [row.last_seq for row in rows],
        [shown(each.error) for each in batch],
        [pack_pairs(each.labels) for each in batch],
        [each.input_digest for each in batch],
        *_snapshots([each.snapshot for each in batch]),
        *_logs([each.events for each in batch]),
    )


def _snapshots(snapshots: Sequence[Snapshot | None]) -> Iterator[list[object]]:
    yield [None if each is None else each.seq for each in snapshots]
    yield [None if each is None else each.fold for each in snapshots]
    yield [None if each is None else each.state for each in snapshots]


def _logs(logs: Sequence[Sequence[Envelope]]) -> Iterator[list[object]]:
    rows = [(item, row) for item, log in enumerate(logs, start=1) for row in _rows(log)]
    yield [item for item, _row in rows]
    yield [row[0].seq for _item, row in rows]
    yield [row[-1].seq for _item, row in rows]
    yield [row[0].id for _item, row in rows]
    yield [pack_events(tuple(row)) for _item, row in rows]


def _rows(log: Sequence[Envelope]) -> Iterator[list[Envelope]]:
    """A log in pieces, each of which makes one row."""
    row: list[Envelope] = []
    size = 0
    for event in log:
        if row and (len(row) == ROW_EVENTS or size + len(event.payload) > ROW_BYTES):
            yield row
            row, size = [], 0
        row.append(event)
        size += len(event.payload)
    if row:
        yield row
