"""What a reason is, and the ones that an execution shares whatever state it is in. Pure."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from loom_mq.clock import MICROS
from loom_mq.kernel.facts import DeadPackage, Depth, Fleet
from loom_mq.kernel.fold import ExecutionState
from loom_mq.kernel.wording import command, counted
from loom_mq.model.execution import ExecutionRow, Status

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
    BROKER_UNREACHABLE = "broker_unreachable"
    BROKER_ALARM = "broker_alarm"
    DEAD_LETTERED = "dead_lettered"
    DISPATCH_LOST = "dispatch_lost"
    STEP_SLOW = "step_slow"
    TIMER_ROW_MISSING = "timer_row_missing"
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
        evidence: what it rests on, a fact each; nothing for what has ended.
    """

    code: ReasonCode
    sentence: str
    since: int | None = None
    next: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def stuck(self) -> bool:
        """Whether somebody should look: true for all but the ordinary waits."""
        return self.code not in _NORMAL


# ---- nobody holds it ------------------------------------------------------------------------


def unheld(
    row: ExecutionRow, fleet: Fleet, begin: str, *, dead: DeadPackage | None = None
) -> Reason:
    """Runnable, and waiting for a worker.

    Args:
        row: its index row.
        fleet: who is there.
        begin: how the sentence begins; what follows says why it is not taken.
        dead: the newest of its packages that nobody could use.
    """
    since = row.created_at if row.status is Status.PENDING else row.updated_at
    return (
        _undeliverable(row, fleet, begin, since, dead)
        or _unserved(row, fleet, begin, since)
        or _on_its_way(row, fleet, begin, since)
    )


def _undeliverable(
    row: ExecutionRow, fleet: Fleet, begin: str, since: int, dead: DeadPackage | None
) -> Reason | None:
    broker = fleet.broker
    if broker is not None and broker.unreachable:
        return Reason(
            ReasonCode.BROKER_UNREACHABLE,
            f"{begin}, and the broker that would carry its package cannot be reached: "
            f"{broker.unreachable.rstrip('.')}.",
            since,
            "loom doctor",
        )
    if broker is not None and broker.alarm:
        return Reason(
            ReasonCode.BROKER_ALARM,
            f"{begin}, and the broker takes no messages: {broker.alarm.rstrip('.')}.",
            since,
            "free memory or disk space of the broker, then loom doctor",
        )
    if dead is not None and dead.at >= since:
        return Reason(
            ReasonCode.DEAD_LETTERED,
            f"{begin}: its package was dead-lettered {fleet.ago(dead.at)} ago: "
            f"{dead.reason.rstrip('.')}.",
            dead.at,
            command("dlq", "show", dead.id),
        )
    return None


def _unserved(row: ExecutionRow, fleet: Fleet, begin: str, since: int) -> Reason | None:
    versions = fleet.versions(row.flow)
    if row.version not in versions:
        known = f" (known: {', '.join(versions)})" if versions else ""
        return Reason(
            ReasonCode.NO_COMPATIBLE_WORKER,
            f"{begin}: no worker has ever registered flow {row.flow!r} version "
            f"{row.version!r}{known}.",
            since,
            fleet.start("worker"),
        )
    serving, depth = fleet.serving(row.queue), fleet.depth(row.queue)
    if not serving:
        return Reason(
            ReasonCode.QUEUE_NO_CONSUMERS,
            f"{begin}: no living worker serves queue {row.queue!r}{_waiting_there(depth)}.",
            since,
            fleet.start("worker"),
        )
    if depth is not None and depth.ready and not depth.consumers:
        return Reason(
            ReasonCode.QUEUE_NO_CONSUMERS,
            f"{begin}: queue {row.queue!r} has {counted(depth.ready, 'message')} and no consumer, "
            f"though by the journal {_serve(serving)} it.",
            since,
            "loom workers",
        )
    if not fleet.has("dispatcher"):
        return no_dispatcher(f"{begin}, and", since, fleet)
    return None


def _on_its_way(row: ExecutionRow, fleet: Fleet, begin: str, since: int) -> Reason:
    if row.hint_at is None and row.status is not Status.SUSPENDED:
        lost = fleet.now - row.updated_at > PATIENCE
        return Reason(
            ReasonCode.DISPATCH_LOST if lost else ReasonCode.DISPATCHING,
            f"{begin}: nobody drives it, and no package is due for it.",
            since,
            command("recover", row.execution_id, options=("--again",)) if lost else "",
        )
    workers = f"{_serve(fleet.serving(row.queue))} queue {row.queue!r}"
    sent = f", and {row.hints} packages were sent again" if row.hints else ""
    due = max(since, row.hint_at if row.hint_at is not None else since)
    if fleet.now - due <= PATIENCE and row.hints < 2:
        return Reason(
            ReasonCode.DISPATCHING, f"{begin}: it is on its way to a worker; {workers}.", since
        )
    depth = fleet.depth(row.queue)
    before = "How many wait before it is known to the broker only."
    if depth is not None:
        before = f"{_messages_wait(depth.ready)} in it to be taken."
    return Reason(
        ReasonCode.QUEUE_BACKLOG,
        f"{begin}: it waits since {fleet.ago(since)} for a worker to take it; {workers}{sent}. "
        f"{before}",
        since,
        "loom queues",
    )


def _serve(serving: int) -> str:
    return f"{counted(serving, 'worker')} {'serves' if serving == 1 else 'serve'}"


def _waiting_there(depth: Depth | None) -> str:
    return "" if depth is None else f", where {_messages_wait(depth.ready)}"


def _messages_wait(number: int) -> str:
    return f"{counted(number, 'message')} {'waits' if number == 1 else 'wait'}"


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
