"""What several commands read: an execution's row, its log, its folded state, the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from loom_mq.cli import brokering, letters
from loom_mq.cli.reach import Reach
from loom_mq.errors import SchemaVersionError, UnknownExecutionError
from loom_mq.journal.protocol import CLAIM_PAGE, Journal
from loom_mq.kernel.explain import SLOW_AT_LEAST, Reason, explain
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.lifecycle.analysis import histories, profile
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow

LETTERS: Final = 1000
"""The newest dead letters, among which an execution's are sought."""
_COMPARED: Final = 20
"""The newest executions of a flow, by which a slow step is told."""
_SELDOM: Final = 5


async def explained(
    reach: Reach, journal: Journal, key: ExecutionKey
) -> tuple[ExecutionRow, ExecutionState, Reason, int]:
    """An execution with the reason why it is where it is, and the time of that."""
    row = await existing(journal, key)
    state = await folded(journal, key)
    if row.status.terminal:
        now = await journal.now()
        return row, state, explain(row, (), (), now), now
    broker = await brokering.facts(reach, [row.queue])
    dead = letters.dead_packages(await journal.dead_letters(LETTERS))
    workers, flows = await journal.workers(), await journal.flows()
    [mail] = await journal.inbox([key])
    now = await journal.now()
    slow = row.owner is not None and now - row.updated_at > SLOW_AT_LEAST
    usual = await usual_times(journal, row) if slow else {}
    reason = explain(
        row,
        workers,
        flows,
        now,
        state=state,
        mail=mail,
        embedded=reach.embedded,
        broker=broker,
        dead=dead.get(row.key),
        usual=usual,
    )
    return row, state, reason, now


async def usual_times(journal: Journal, row: ExecutionRow) -> dict[str, int]:
    """How long each step of an execution's flow takes at most, as a rule, in microseconds.

    By the newest executions of that flow; of a step that has run seldom nothing is usual.
    """
    logs = await histories(journal, row.flow, limit=_COMPARED, tenant=row.tenant)
    return {
        step.name: step.p99
        for step in profile(logs).steps
        if step.p99 is not None and step.count > _SELDOM
    }


async def folded(journal: Journal, key: ExecutionKey) -> ExecutionState:
    """The state that a log says, from its newest snapshot on (J7).

    Raises:
        SchemaVersionError: the log was cut behind a snapshot of a newer release.
    """
    snapshot = await journal.snapshot(key)
    state = None if snapshot is None else decode_snapshot(snapshot)
    first = 0 if state is None else state.last_seq + 1
    state = ExecutionState() if state is None else state
    async for page in pages(journal, key, first):
        if page[0].seq > first:
            raise _newer(key)
        fold(page, state)
        first = page[-1].seq + 1
    if snapshot is not None and state.last_seq < snapshot.seq:
        raise _newer(key)
    return state


def _newer(key: ExecutionKey) -> SchemaVersionError:
    return SchemaVersionError(
        f"the log of execution {key.execution_id!r} begins with a snapshot that a newer release "
        "wrote; look with that release",
        execution_id=key.execution_id,
    )


async def existing(journal: Journal, key: ExecutionKey) -> ExecutionRow:
    """The index row of an execution.

    Raises:
        UnknownExecutionError: there is none.
    """
    [row] = await journal.get([key])
    if row is None:
        raise UnknownExecutionError(
            f"there is no execution {key.execution_id!r}", execution_id=key.execution_id
        )
    return row


async def pages(
    journal: Journal, key: ExecutionKey, first: int = 0
) -> AsyncIterator[list[Envelope]]:
    """A log from an event on, page by page."""
    while page := await journal.read(key, first=first):
        yield page
        first = page[-1].seq + 1
        if len(page) < CLAIM_PAGE:
            return
