"""What a reason is, and the ones that an execution shares whatever state it is in. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from loom_mq.clock import MICROS
from loom_mq.kernel.fold import ExecutionState
from loom_mq.kernel.wording import span
from loom_mq.model.execution import ExecutionRow, FlowRecord, Status, WorkerRecord

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
    IN_DOUBT = "in_doubt"
    CODE_MISMATCH = "code_mismatch"


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


class Fleet:
    """Who is there, and when that was."""

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
        """Whether a process is alive."""
        return any(worker.owner == owner for worker in self._workers)

    def has(self, role: str) -> bool:
        """Whether any process of a role is alive."""
        if self.embedded:
            return bool(self._workers)
        return any(worker.role == role for worker in self._workers)

    def serving(self, queue: str) -> int:
        """How many workers take from a queue."""
        return sum(
            queue in worker.queues and not worker.draining
            for worker in self._workers
            if worker.role == "worker"
        )

    def versions(self, flow: str) -> list[str]:
        """The versions of a flow that any worker has registered."""
        return sorted(record.version for record in self._flows if record.flow == flow)

    def ago(self, at: int) -> str:
        """How long a time lies back."""
        return span((self.now - at) / MICROS)

    def ahead(self, at: int) -> str:
        """How far a time lies ahead."""
        return span((at - self.now) / MICROS)

    def start(self, role: str) -> str:
        """How to bring back what is missing."""
        return "loom dev FILE" if self.embedded else f"python -m services.{role}"


# ---- nobody holds it ------------------------------------------------------------------------


def unheld(row: ExecutionRow, fleet: Fleet, begin: str) -> Reason:
    """Runnable, and waiting for a worker.

    Args:
        row: its index row.
        fleet: who is there.
        begin: how the sentence begins; what follows says why it is not taken.
    """
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
        return no_dispatcher(f"{begin}, and", since, fleet)
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


def no_dispatcher(begin: str, since: int, fleet: Fleet) -> Reason:
    """Nobody would send it to a worker."""
    return Reason(
        ReasonCode.NO_DISPATCHER,
        f"{begin} no dispatcher is alive that would send it to a worker.",
        since,
        fleet.start("dispatcher"),
    )


# ---- a step that failed ------------------------------------------------------------------------


def backing_off(
    row: ExecutionRow, fleet: Fleet, step: str, due: int, state: ExecutionState | None
) -> Reason:
    """A step failed and is tried again."""
    failed = [] if state is None else [f for f in state.frames.values() if f.name == step]
    newest = max(failed, key=lambda frame: frame.due, default=None)
    times = f" failed {newest.failures} times" if newest is not None else " failed"
    why = f": {newest.failure.headline}" if newest is not None and newest.failure else ""
    return Reason(
        ReasonCode.BACKING_OFF,
        f"{step!r}{times}, next try in {fleet.ahead(due)}{why}.",
        row.updated_at,
    )
