"""Cutting the logs of ended executions behind a snapshot (J7, J8)."""

from __future__ import annotations

from loom_mq.journal import verdicts
from loom_mq.journal.protocol import Journal, Rewrite
from loom_mq.kernel.snapshots import encode_state
from loom_mq.lifecycle.reading import fetch, state_of
from loom_mq.model.execution import ExecutionKey


async def truncate_prefix(journal: Journal, key: ExecutionKey) -> int:
    """Keep of an ended execution's log its fold and its last event only (J8).

    The snapshot and the shorter log are written together. Its fold, its outcome and its
    index row stay as they were (J7); how it came about can no longer be read, and it can
    no longer be forked. Archive it first to keep that.

    Args:
        journal: where it is.
        key: which.

    Returns:
        How many events are gone; 0 when it was cut before.

    Raises:
        ExecutionNotEndedError: it has not ended; nothing was touched.
        UnknownExecutionError: there is none.
        InputError: it has not begun.
        ArchiveError: its log cannot be folded by this release.
    """
    found = await fetch(journal, key)
    if not found.row.status.terminal:
        raise verdicts.not_ended(found.row)
    if len(found.events) <= 1:
        return 0
    row = found.row
    [refusal] = await journal.rewrite(
        [
            Rewrite(
                key=key,
                events=found.events[-1:],
                snapshot=encode_state(state_of(found)),
                error=row.error,
                labels=row.labels,
            )
        ]
    )
    if refusal is not None:
        raise refusal
    return len(found.events) - 1
