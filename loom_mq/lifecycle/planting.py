"""Executions that come into a journal with a log of their own (J8)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from loom_mq.ids import Ids
from loom_mq.journal.protocol import Journal, Planting
from loom_mq.kernel.fold import ExecutionState
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionRow, Status
from loom_mq.model.snapshots import Snapshot


def planted(
    row: ExecutionRow,
    state: ExecutionState,
    now: int,
    *,
    events: tuple[Envelope, ...] = (),
    snapshot: Snapshot | None = None,
) -> Planting:
    """A planting whose row says what its fold says (J6) and that nobody holds.

    Args:
        row: names, labels, fence and times of the new execution.
        state: the fold of what is planted.
        now: journal time; a running execution is due at once, so that a dispatcher
            sends it, a suspended one when its timers are.
        events: the log.
        snapshot: the fold that it begins with.
    """
    suspended = state.status is Status.SUSPENDED
    dues = {wait.due for wait in state.parked_on if wait.due is not None} if suspended else set()
    return Planting(
        row=replace(
            row,
            status=state.status,
            last_seq=state.last_seq,
            wake_at=state.wake_at,
            gates=state.gates,
            in_doubt=state.in_doubt,
            error=None if state.failure is None else state.failure.headline,
            recoveries=state.recoveries,
            updated_at=state.updated_at,
            started_at=state.started_at,
            ended_at=state.ended_at,
            owner=None,
            deadline=None,
            hint_at=now if state.status is Status.RUNNING else None,
            hints=0,
            inbox=0,
            trouble=None,
        ),
        events=events,
        snapshot=snapshot,
        timers=tuple(sorted(dues)),
    )


def renamed(events: Iterable[Envelope], ids: Ids) -> tuple[Envelope, ...]:
    """The same events under ids of their own, for another execution."""
    return tuple(
        Envelope(
            ids.envelope(),
            event.seq,
            event.kind,
            event.at,
            event.fence,
            event.kernel,
            event.schema,
            event.payload,
        )
        for event in events
    )


async def plant(journal: Journal, planting: Planting) -> None:
    """Plant one execution.

    Raises:
        ExecutionAlreadyExistsError: the id is taken.
    """
    [refusal] = await journal.plant([planting])
    if refusal is not None:
        raise refusal
