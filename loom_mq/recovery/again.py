"""Sending out again what was given up (F4, F8)."""

from __future__ import annotations

from typing import Final

import msgspec

from loom_mq.errors import HeldByLiveOwnerError, InputError
from loom_mq.ids import Ids
from loom_mq.journal import verdicts
from loom_mq.journal.protocol import Append, IndexUpdate, Journal
from loom_mq.journal.transitions import REPAIR_GRACE
from loom_mq.model.events import EVENT_SCHEMA, Envelope, EventKind, ExecutionResumed
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from loom_mq.recovery.predicates import HolderGone

_NOBODY: Final = ""


async def send_again(journal: Journal, key: ExecutionKey, *, ids: Ids) -> ExecutionRow:
    """Let an execution that nobody drives begin its recoveries anew, and have it sent out.

    The count is on the log (J6), so what ends it is on the log, too: an
    `EXECUTION_RESUMED`, which moves no status of a running execution and counts as
    progress (ADR 0105 D5). It is written under a fence of its own, so whoever drove the
    execution before can write nothing afterwards. A dispatcher sends the package.

    Args:
        journal: where it is.
        key: which; running or pending.
        ids: for the event.

    Returns:
        Its row afterwards.

    Raises:
        UnknownExecutionError: there is none.
        ExecutionEndedError: it has ended.
        InputError: it is parked: it waits for something, and nobody has given it up.
        HeldByLiveOwnerError: a living process drives it (F7).
        StaleFenceError: somebody else took it at this very moment.
    """
    [row] = await journal.get([key])
    if row is None:
        raise verdicts.unknown(key)
    if row.status.terminal:
        raise verdicts.ended(row)
    if row.status is Status.SUSPENDED:
        raise InputError(
            f"execution {key.execution_id!r} is suspended: it waits for something and nobody has "
            f"given it up; `loom why {key.execution_id}` says for what",
            execution_id=key.execution_id,
        )
    if row.owner is not None and not await HolderGone(journal)(row):
        raise HeldByLiveOwnerError(key.execution_id, owner=row.owner)
    # whatever comes between now and the end, a dispatcher sends it out
    owner = _NOBODY if row.owner is None else row.owner
    await journal.defer([key], owner, REPAIR_GRACE if row.last_seq >= 0 else 0.0, [row.fence])
    if row.last_seq >= 0:
        await _resume(journal, row, ids)
    [left] = await journal.get([key])
    if left is None:
        raise verdicts.unknown(key)
    return left


async def _resume(journal: Journal, row: ExecutionRow, ids: Ids) -> None:
    fence = await journal.acquire_fence(row.key, row.fence)
    [now] = await journal.get([row.key])
    if now is None or now.status is not Status.RUNNING:
        return  # its last holder was not dead after all, and has come to a park or to the end
    row = now
    event = Envelope(
        ids.envelope(),
        row.last_seq + 1,
        EventKind.EXECUTION_RESUMED,
        await journal.now(),
        fence,
        True,
        EVENT_SCHEMA,
        msgspec.msgpack.encode(ExecutionResumed()),
    )
    # of what the row is derived from, the event moves only the count
    index = IndexUpdate(
        status=row.status,
        wake_at=row.wake_at,
        gates=row.gates,
        error=row.error,
        recoveries=0,
        in_doubt=row.in_doubt,
    )
    append = Append(key=row.key, fence=fence, events=(event,), index=index, release=True)
    [verdict] = await journal.append([append])
    if verdict.error is not None:
        raise verdict.error
