"""The end of a log, read backwards: how often it was recovered since anything happened (F8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from loom_mq.journal.protocol import Journal
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import ExecutionKey

TAIL_PAGE: Final = 50
"""Events per read: an execution that gets nowhere writes few between two recoveries."""
PROGRESS: Final = frozenset(
    {EventKind.STEP_COMPLETED, EventKind.EXECUTION_SUSPENDED, EventKind.EXECUTION_RESUMED}
)
"""What ends the count: it moved on, or somebody let it begin anew (ADR 0105 D5)."""


async def recoveries_since_progress(
    journal: Journal, key: ExecutionKey, last_seq: int, *, stop_at: int, page: int = TAIL_PAGE
) -> int:
    """How many recoveries a log ends in, since the last sign of progress.

    Reads no further than it must, so it costs what was written since then. A log that was
    cut can hide some, never add any.

    Args:
        journal: where the log is.
        key: whose.
        last_seq: its newest event; later ones are not looked at.
        stop_at: a count that is enough.
        page: events per read.

    Raises:
        JournalError: the journal cannot be asked.
    """
    count = 0
    async for event in _backwards(journal, key, last_seq, page):
        if event.kind in PROGRESS:
            break
        count += event.kind == EventKind.EXECUTION_RECOVERED
        if count >= stop_at:
            break
    return count


async def _backwards(
    journal: Journal, key: ExecutionKey, last_seq: int, page: int
) -> AsyncIterator[Envelope]:
    """Events from `last_seq` down; a page that the journal cuts short is read on."""
    high = last_seq
    while high >= 0:
        low = max(0, high - page + 1)
        events = await journal.read(key, first=low, limit=high - low + 1)
        while events and events[-1].seq < high:
            more = await journal.read(key, first=events[-1].seq + 1, limit=high - events[-1].seq)
            if not more:
                break
            events += more
        for event in reversed(events):
            if event.seq <= high:
                yield event
        if not events or events[0].seq > low:
            return  # the log begins here
        high = low - 1
