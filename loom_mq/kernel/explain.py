"""Why an execution is where it is: one reason, in words. Pure.

The first rule that fits gives the reason. What only the broker knows (messages ready in
a queue, its consumers) is not seen here, and no sentence claims it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from loom_mq.clock import MICROS
from loom_mq.kernel.fold import ExecutionState, FrameStatus
from loom_mq.kernel.wording import command, span
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import (
    ExecutionRow,
    FlowRecord,
    InboxItem,
    InboxKind,
    Status,
    WorkerRecord,
)

MAX_RECOVERIES: Final = 10
"""What dispatchers use unless they are told otherwise (F8)."""
OVERDUE: Final = 2 * MICROS
"""A timer that is later than this has been missed."""
PATIENCE: Final = 10 * MICROS
"""Waiting longer than this for a worker that is alive is worth a look."""


class ReasonCode(enum.StrEnum):
    """Why an execution is where it is; stable, for programs."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    GATE_WAITING = "gate_waiting"
    TIMER_WAITING = "timer_waiting"
    DISPATCHING = "dispatching"
    NO_COMPATIBLE_WORKER = "no_compatible_worker"
    QUEUE_NO_CONSUMERS = "queue_no_consumers"
    QUEUE_BACKLOG = "queue_backlog"
    LEASE_EXPIRED = "lease_expired"
    ATTEMPT_OVERDUE = "attempt_overdue"
    RECOVERY_EXHAUSTED = "recovery_exhausted"
    NO_DISPATCHER = "no_dispatcher"
    NO_TIMER = "no_timer"
    TIMER_OVERDUE = "timer_overdue"
    ANSWER_UNTAKEN = "answer_untaken"


_NORMAL: Final = frozenset(
    {
        ReasonCode.COMPLETED,
        ReasonCode.FAILED,
        ReasonCode.CANCELLED,
        ReasonCode.RUNNING,
        ReasonCode.BACKING_OFF,
        ReasonCode.GATE_WAITING,
        ReasonCode.TIMER_WAITING,
        ReasonCode.DISPATCHING,
    }
)


class Reason(msgspec.Struct, frozen=True):
    """The one reason.

    Attributes:
        code: for programs.
        sentence: for people. Holds names as users gave them, control characters included.
        since: journal time in microseconds; None when that is not known.
        next: what to do about it, a command where there is one; empty when nothing is
            to be done.
    """

    code: ReasonCode
    sentence: str
    since: int | None = None
    next: str = ""

    @property
    def stuck(self) -> bool:
        """Whether somebody should look: true for all but the ordinary waits."""
        return self.code not in _NORMAL


def explain(
    row: ExecutionRow,
    workers: Sequence[WorkerRecord],
    flows: Sequence[FlowRecord],
    now: int,
    *,
    state: ExecutionState | None = None,
    mail: Sequence[InboxItem] = (),
    embedded: bool = False,
    max_recoveries: int = MAX_RECOVERIES,
) -> Reason:
    """Why an execution is where it is.

    Args:
        row: its index row.
        workers: processes whose lease runs.
        flows: flows that any worker has ever registered.
        now: journal time.
        state: its folded log, for a sentence that names steps and types.
        mail: unread items of its inbox.
        embedded: one process is dispatcher, worker and timer at once.
        max_recoveries: what the dispatchers use (F8).
    """
    fleet = _Fleet(workers, flows, now, embedded=embedded)
    match row.status:
        case Status.PENDING:
            return _unheld(row, fleet, "It has not begun")
        case Status.RUNNING:
            return _running(row, fleet, state, max_recoveries)
        case Status.SUSPENDED:
            return _suspended(row, fleet, state, mail)
        case _:
            return _ended(row, now)


class _Fleet:
    """Who is there."""

    def __init__(
        self,
        workers: Sequence[WorkerRecord],
        flows: Sequence[FlowRecord],
        now: int,
        *,
        embedded: bool,
    ) -> None:
        self.now = now
        self.embedded = embedded
        self._workers = workers
        self._flows = flows

    def lives(self, owner: str) -> bool:
        return any(worker.owner == owner for worker in self._workers)

    def has(self, role: str) -> bool:
        if self.embedded:
            return bool(self._workers)
        return any(worker.role == role for worker in self._workers)

    def serving(self, queue: str) -> int:
        return sum(
            queue in worker.queues and not worker.draining
            for worker in self._workers
            if worker.role == "worker"
        )

    def versions(self, flow: str) -> list[str]:
        return sorted(record.version for record in self._flows if record.flow == flow)

    def ago(self, at: int) -> str:
        return span((self.now - at) / MICROS)

    def ahead(self, at: int) -> str:
        return span((at - self.now) / MICROS)

    def start(self, role: str) -> str:
        """How to bring back what is missing."""
        return "loom dev FILE" if self.embedded else f"python -m services.{role}"


def _ended(row: ExecutionRow, now: int) -> Reason:
    code = ReasonCode(row.status.value)
    at = row.ended_at if row.ended_at is not None else row.updated_at
    error = f": {row.error}" if row.error else ""
    verb = {Status.COMPLETED: "completed", Status.FAILED: "failed"}.get(row.status, "was cancelled")
    return Reason(code, f"It {verb} {span((now - at) / MICROS)} ago{error}.", at)


# ---- nobody holds it ------------------------------------------------------------------------


def _unheld(row: ExecutionRow, fleet: _Fleet, begin: str) -> Reason:
    """Runnable, and waiting for a worker."""
    versions = fleet.versions(row.flow)
    since = row.created_at if row.status is Status.PENDING else row.updated_at
    if row.version not in versions:
        known = f" (known: {', '.join(versions)})" if versions else ""
        return Reason(
            ReasonCode.NO_COMPATIBLE_WORKER,
            f"{begin}: no worker has ever registered flow {row.flow!r} version "
            f"{row.version!r}{known}.",
            since,
            fleet.start("worker"),
        )
    serving = fleet.serving(row.queue)
    if not serving:
        return Reason(
            ReasonCode.QUEUE_NO_CONSUMERS,
            f"{begin}: no living worker serves queue {row.queue!r}.",
            since,
            fleet.start("worker"),
        )
    if not fleet.has("dispatcher"):
        return _no_dispatcher(f"{begin}, and", since, fleet)
    workers = f"{serving} worker{'s serve' if serving > 1 else ' serves'} queue {row.queue!r}"
    sent = f", and {row.hints} packages were sent again" if row.hints else ""
    due = max(since, row.hint_at if row.hint_at is not None else since)
    if fleet.now - due <= PATIENCE and row.hints < 2:
        return Reason(
            ReasonCode.DISPATCHING, f"{begin}: it is on its way to a worker; {workers}.", since
        )
    return Reason(
        ReasonCode.QUEUE_BACKLOG,
        f"{begin}: it waits since {fleet.ago(since)} for a worker to take it; {workers}{sent}. "
        "How many wait before it is known to the broker only.",
        since,
        "loom workers",
    )


def _no_dispatcher(begin: str, since: int, fleet: _Fleet) -> Reason:
    return Reason(
        ReasonCode.NO_DISPATCHER,
        f"{begin} no dispatcher is alive that would send it to a worker.",
        since,
        fleet.start("dispatcher"),
    )


# ---- running --------------------------------------------------------------------------------


def _running(
    row: ExecutionRow, fleet: _Fleet, state: ExecutionState | None, max_recoveries: int
) -> Reason:
    at = row.updated_at
    if row.owner is None:
        return _unheld(row, fleet, "Its last worker let go of it")
    if not fleet.lives(row.owner):
        if row.recoveries >= max_recoveries:
            return Reason(
                ReasonCode.RECOVERY_EXHAUSTED,
                f"It was recovered {row.recoveries} times without any progress since and is no "
                f"longer tried; its last worker was {row.owner}.",
                at,
                f"mend the flow, then {command('cancel', row.execution_id)} and start it again",
            )
        if not fleet.has("dispatcher"):
            return _no_dispatcher(f"Its worker {row.owner} is gone, and", at, fleet)
        return Reason(
            ReasonCode.LEASE_EXPIRED,
            f"Its worker {row.owner} is gone; a dispatcher gives it to another one in its "
            "next pass.",
            at,
        )
    if row.deadline is not None and row.deadline <= fleet.now:
        return Reason(
            ReasonCode.ATTEMPT_OVERDUE,
            f"Its attempt on {row.owner} passed its time limit {fleet.ago(row.deadline)} ago; a "
            "dispatcher gives it to another worker in its next pass.",
            row.deadline,
        )
    return _in_hand(row, fleet, state)


def _in_hand(row: ExecutionRow, fleet: _Fleet, state: ExecutionState | None) -> Reason:
    """A living worker drives it."""
    frames = [] if state is None else list(state.frames.values())
    busy = sorted({frame.name for frame in frames if frame.status is FrameStatus.RUNNING})
    if busy:
        what = f"{' and '.join(map(repr, busy))} {'run' if len(busy) > 1 else 'runs'}"
    else:
        retrying = [frame for frame in frames if frame.status is FrameStatus.RETRYING]
        if retrying:
            frame = min(retrying, key=lambda each: each.due)
            return _backing_off(row, fleet, frame.name, frame.due, state)
        what = "It runs"
    return Reason(
        ReasonCode.RUNNING,
        f"{what} on {row.owner}, which is alive; the last event is {fleet.ago(row.updated_at)} "
        "old.",
        row.updated_at,
    )


def _backing_off(
    row: ExecutionRow, fleet: _Fleet, step: str, due: int, state: ExecutionState | None
) -> Reason:
    failed = [] if state is None else [f for f in state.frames.values() if f.name == step]
    newest = max(failed, key=lambda frame: frame.due, default=None)
    times = f" failed {newest.failures} times" if newest is not None else " failed"
    why = f": {newest.failure.headline}" if newest is not None and newest.failure else ""
    return Reason(
        ReasonCode.BACKING_OFF,
        f"{step!r}{times}, next try in {fleet.ahead(due)}{why}.",
        row.updated_at,
    )


# ---- suspended ------------------------------------------------------------------------------


def _suspended(
    row: ExecutionRow,
    fleet: _Fleet,
    state: ExecutionState | None,
    mail: Sequence[InboxItem],
) -> Reason:
    if row.owner is not None:
        return Reason(
            ReasonCode.DISPATCHING, f"{row.owner} is about to go on with it.", row.updated_at
        )
    wanted = [item for item in mail if item.kind is InboxKind.CANCEL or item.gate in row.gates]
    if wanted:
        what = "A cancel" if wanted[0].kind is InboxKind.CANCEL else "An answer"
        if fleet.serving(row.queue) and fleet.has("dispatcher"):
            return Reason(
                ReasonCode.ANSWER_UNTAKEN, f"{what} arrived and was not taken yet.", row.hint_at
            )
        return _unheld(row, fleet, f"{what} arrived and waits to be taken")
    if row.wake_at is not None and fleet.now - row.wake_at > OVERDUE:
        return _overdue(row, row.wake_at, fleet)
    waits = _waits(row, state)
    gates = [wait for wait in waits if wait.kind is WaitKind.GATE]
    if gates:
        return _at_gates(row, gates, fleet)
    backoffs = [wait for wait in waits if wait.kind is WaitKind.BACKOFF]
    if backoffs and backoffs[0].due is not None:
        return _backing_off(row, fleet, backoffs[0].name, backoffs[0].due, state)
    if row.wake_at is None:
        return Reason(ReasonCode.DISPATCHING, "It is about to go on.", row.updated_at)
    return Reason(
        ReasonCode.TIMER_WAITING,
        f"It sleeps since {fleet.ago(row.updated_at)} and wakes in {fleet.ahead(row.wake_at)}.",
        row.updated_at,
    )


def _waits(row: ExecutionRow, state: ExecutionState | None) -> tuple[Wait, ...]:
    if state is not None:
        return state.parked_on
    return tuple(Wait("", WaitKind.GATE, name) for name in row.gates)


def _overdue(row: ExecutionRow, wake_at: int, fleet: _Fleet) -> Reason:
    late = f"It was due {fleet.ago(wake_at)} ago"
    if not fleet.has("timer"):
        return Reason(
            ReasonCode.NO_TIMER,
            f"{late}, and no timer service is alive that would wake it.",
            wake_at,
            fleet.start("timer"),
        )
    if not fleet.serving(row.queue):
        return _unheld(row, fleet, late)
    again = ""
    if row.hint_at is not None and row.hint_at > fleet.now:
        again = f"; it is sent to a worker again in {fleet.ahead(row.hint_at)}"
    return Reason(
        ReasonCode.TIMER_OVERDUE,
        f"{late} and has not gone on yet{again}.",
        wake_at,
        "loom workers",
    )


def _at_gates(row: ExecutionRow, gates: Sequence[Wait], fleet: _Fleet) -> Reason:
    names = " and ".join(
        f"{gate.name!r}" + (f" ({gate.answer_type})" if gate.answer_type else "") for gate in gates
    )
    until = "" if row.wake_at is None else f"; it goes on by itself in {fleet.ahead(row.wake_at)}"
    example = _EXAMPLES.get(gates[0].answer_type, "JSON")
    return Reason(
        ReasonCode.GATE_WAITING,
        f"It waits at gate{'s' if len(gates) > 1 else ''} {names} since "
        f"{fleet.ago(row.updated_at)}{until}.",
        row.updated_at,
        command("resume", row.execution_id, gates[0].name, example),
    )


_EXAMPLES: Final = {"bool": "true", "int": "1", "float": "1.5", "str": '"text"'}
