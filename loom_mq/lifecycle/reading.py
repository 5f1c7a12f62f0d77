"""Whole executions, read page by page while others may write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from loom_mq.errors import ArchiveError, InputError
from loom_mq.journal import verdicts
from loom_mq.journal.protocol import CLAIM_PAGE, Journal
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.model.snapshots import Snapshot

_TRIES: Final = 3


class ArchivedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """All that a journal keeps of an execution that has begun.

    What lies in its inbox and who waits for its end are no part of it.

    Attributes:
        row: the index row.
        events: its log up to `row.last_seq`. It begins at 0 unless it was cut behind the
            snapshot.
        snapshot: the newest stored fold, if there is one.
    """

    row: ExecutionRow
    events: tuple[Envelope, ...]
    snapshot: Snapshot | None = None

    @property
    def key(self) -> ExecutionKey:
        """Tenant and id."""
        return self.row.key

    @property
    def whole(self) -> bool:
        """Whether the log begins with the first event: it was never cut."""
        return bool(self.events) and self.events[0].seq == 0


async def fetch(journal: Journal, key: ExecutionKey) -> ArchivedExecution:
    """Read an execution: one row and the very log that it stands for (J6, J8).

    Args:
        journal: where from.
        key: which, ended or not.

    Raises:
        UnknownExecutionError: there is none.
        InputError: it has not begun, so it has no log.
        ArchiveError: its log has a gap, which no lawful writer leaves.
    """
    gap = ""
    for _ in range(_TRIES):
        [row] = await journal.get([key])
        if row is None:
            raise verdicts.unknown(key)
        if row.last_seq < 0:
            raise InputError(
                f"execution {key.execution_id!r} has not begun, so it has no log yet",
                execution_id=key.execution_id,
            )
        events = await read_log(journal, key, last=row.last_seq)
        snapshot = await journal.snapshot(key)
        if snapshot is not None and snapshot.seq > row.last_seq:
            # it went on meanwhile; what is read stays as of the row
            snapshot = None
        gap = gap_in(events, snapshot, row.last_seq)
        if not gap:
            return ArchivedExecution(row=row, events=events, snapshot=snapshot)
        # cut, erased or replaced between the reads: look again
    raise ArchiveError(
        f"execution {key.execution_id!r}: the journal does not give its log whole: {gap}",
        execution_id=key.execution_id,
    )


async def read_log(
    journal: Journal, key: ExecutionKey, *, last: int | None = None
) -> tuple[Envelope, ...]:
    """All events of a log, or those up to the sequence `last`."""
    events: list[Envelope] = []
    first = 0
    while last is None or first <= last:
        page = await journal.read(key, first=first, limit=CLAIM_PAGE)
        events.extend(page if last is None else (each for each in page if each.seq <= last))
        if not page:
            break
        first = page[-1].seq + 1
    return tuple(events)


def gap_in(events: Sequence[Envelope], snapshot: Snapshot | None, last_seq: int) -> str:
    """What is missing of a log, in words; empty when nothing is."""
    reach = -1 if snapshot is None else snapshot.seq
    expected = min(events[0].seq, reach + 1) if events else reach + 1
    for event in events:
        if event.seq != expected:
            return f"event {expected} is missing"
        expected += 1
    if expected <= last_seq:
        return f"event {expected} is missing"
    if expected > last_seq + 1:
        return f"it goes on to {expected - 1}, past its end at {last_seq}"
    return ""


def state_of(archived: ArchivedExecution) -> ExecutionState:
    """The fold of an execution's log, from its snapshot where the log was cut (J7).

    Raises:
        ArchiveError: a newer release wrote the snapshot that the log was cut behind, or
            an event's payload is damaged.
    """
    name = archived.row.execution_id
    state, events = None, archived.events
    if not archived.whole:
        snapshot = archived.snapshot
        state = None if snapshot is None else decode_snapshot(snapshot)
        if snapshot is None or state is None:
            raise ArchiveError(
                f"execution {name!r}: its log was cut behind a snapshot that this release cannot "
                "read; use the newer release that wrote it",
                execution_id=name,
            )
        events = tuple(event for event in events if event.seq > snapshot.seq)
    try:
        return fold(events, state)
    except msgspec.MsgspecError as error:
        raise ArchiveError(
            f"execution {name!r}: an event of its log is damaged: {error}", execution_id=name
        ) from error
