"""The fold: what a log says about its execution (K1, J6). Pure.

`apply` is the only place that knows what an event means. It changes the state in
place, because the writer of a log folds each event as it writes it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind, Wait, WaitKind
from loom_mq.model.execution import Status
from loom_mq.model.failures import Failure
from loom_mq.model.verdicts import VerdictKind

TOLD = (WaitKind.GATE, WaitKind.TIMER)
"""The waits whose end the flow is told; the others are the engine's own."""


CANCEL_PLACE = "!cancel"
"""Stands for the cancellation among what a flow is told; no place of a flow reads so."""


class FrameStatus(enum.StrEnum):
    """Where a step stands."""

    RUNNING = "running"
    RETRYING = "retrying"
    IN_DOUBT = "in-doubt"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Frame(msgspec.Struct, gc=False):
    """The folded record of one step.

    Attributes:
        attempts: how often its effect was started.
        failures: how many attempts failed.
        due: journal time of the next attempt while retrying.
        failed_at: sequence of the failure that ended it, -1 before one.
        arguments: checksum of the arguments of its newest start, 0 for none.
        once: its effect must not run twice (K6).
    """

    name: str
    status: FrameStatus
    attempts: int = 0
    failures: int = 0
    result: bytes | None = None
    failure: Failure | None = None
    due: int = 0
    failed_at: int = -1
    arguments: int = 0
    once: bool = False


class Answer(msgspec.Struct, frozen=True, gc=False):
    """How a wait ended: with an answer, or (None) by its time."""

    payload: bytes | None


class OpKind(enum.StrEnum):
    """The kinds of operation that take a place in a flow's control flow (K3)."""

    STEP = "step"
    DECISION = "decision"
    WAIT = "wait"
    EMIT = "emit"


# Members that most events need, looked up once: on Python 3.11 each look-up on its class
# costs as much as the rest of an event's folding.
_RUNNING: Final = Status.RUNNING
_SUSPENDED: Final = Status.SUSPENDED
_STEP_RUNNING: Final = FrameStatus.RUNNING
_STEP_RETRYING: Final = FrameStatus.RETRYING
_STEP_COMPLETED: Final = FrameStatus.COMPLETED
_STEP_FAILED: Final = FrameStatus.FAILED
_OP_STEP: Final = OpKind.STEP
_OP_DECISION: Final = OpKind.DECISION
_OP_WAIT: Final = OpKind.WAIT
_OP_EMIT: Final = OpKind.EMIT


class ExecutionState(msgspec.Struct):
    """A folded log. Times are microseconds of journal time.

    Attributes:
        run: tells executions apart that have been started under the same id.
        ops: what stands at each place of the control flow, to tell a changed flow (K3).
        waits: every wait that a park has named, by wait id.
        parked_on: the waits of the present park.
        answers: ended waits, by wait id.
        newest_place: sequence at which the newest place was taken.
        told_at: sequence at which the newest turn began.
        parked_at: sequence of the newest park, -1 before one.
        turn: number of the newest turn, 0 before the first.
        settled: in which turn the flow was told of each place, in the order of telling.
        recoveries: recoveries since the last progress (F8).
        cancelling: why it is being cancelled, None when it is not (K13).
        failed_while_parked: the mark of K8.
    """

    status: Status = Status.PENDING
    last_seq: int = -1
    flow: str = ""
    version: str = ""
    input: bytes = b""
    features: tuple[str, ...] = ()
    parent: str | None = None
    labels: dict[str, str] = {}
    run: str = ""
    ops: dict[str, tuple[OpKind, str]] = {}
    frames: dict[str, Frame] = {}
    decisions: dict[str, bytes] = {}
    waits: dict[str, Wait] = {}
    parked_on: tuple[Wait, ...] = ()
    answers: dict[str, Answer] = {}
    newest_place: int = -1
    told_at: int = -1
    parked_at: int = -1
    turn: int = 0
    settled: dict[str, int] = {}
    recoveries: int = 0
    cancelling: str | None = None
    failed_while_parked: bool = False
    result: bytes | None = None
    failure: Failure | None = None
    reason: str = ""
    started_at: int | None = None
    updated_at: int = 0
    ended_at: int | None = None

    def went_past(self, frame: Frame) -> bool:
        """Whether the log shows that the flow has seen this failure and gone on.

        It has when anything was called or told since, or the execution has parked or
        ended. What the flow then did may belong to the failure, so a re-run must meet the
        failure again (K3).
        """
        return self.status.terminal or max(self.newest_place, self.told_at, self.parked_at) > (
            frame.failed_at
        )

    def serves(self, place: str) -> bool:
        """Whether a re-run is told what the log holds for this place, rather than finding
        out anew (K2, K5).
        """
        frame = self.frames.get(place)
        if frame is None:
            return place in self.answers or place == CANCEL_PLACE
        if frame.status is FrameStatus.FAILED:
            known = frame.once or (frame.failure is not None and frame.failure.channel)
            return bool(known) or self.went_past(frame)
        return frame.status in (FrameStatus.COMPLETED, FrameStatus.CANCELLED)

    def script(self) -> list[tuple[int, list[str]]]:
        """What a re-run has to be told before anything new begins: per turn, the places in
        the order of telling (K3).
        """
        turns: list[tuple[int, list[str]]] = []
        for place, turn in self.settled.items():
            if not self.serves(place):
                continue
            if turns and turns[-1][0] == turn:
                turns[-1][1].append(place)
            else:
                turns.append((turn, [place]))
        return turns

    def take_place(self, place: str, kind: OpKind, name: str) -> None:
        """Note what stands at a place; called in the order of the log."""
        if place not in self.ops:
            self.newest_place = self.last_seq
        self.ops[place] = (kind, name)

    def settle(self, place: str, turn: int) -> None:
        """Note that the flow was told of a place; called in the order of telling."""
        if turn == ev.UNTOLD:
            return
        if turn != self.turn or not turn:
            self.told_at = self.last_seq
            self.turn = turn = turn or self.turn + 1
        self.settled.pop(place, None)
        self.settled[place] = turn

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """Names of the steps for which the present park waits for a verdict (K6)."""
        return tuple(wait.name for wait in self.parked_on if wait.kind is WaitKind.VERDICT)

    @property
    def gates(self) -> tuple[str, ...]:
        """Names of the gates that the present park waits at."""
        return tuple(wait.name for wait in self.parked_on if wait.kind is WaitKind.GATE)

    @property
    def wake_at(self) -> int | None:
        """Earliest due time of the present park."""
        return min((wait.due for wait in self.parked_on if wait.due is not None), default=None)


def fold(envelopes: Iterable[Envelope], state: ExecutionState | None = None) -> ExecutionState:
    """Fold a log, or the tail of one onto a state of its beginning."""
    state = state if state is not None else ExecutionState()
    for envelope in envelopes:
        reader = _readers.get(envelope.kind)
        state.last_seq = envelope.seq
        state.updated_at = at = envelope.at
        if reader is not None:  # else as in `apply`, a kind from a newer release
            decode, handle = reader
            handle(state, decode(envelope.payload), at)
    return state


def apply(state: ExecutionState, payload: msgspec.Struct | None, seq: int, at: int) -> None:
    """Fold one event into `state`.

    Args:
        state: changed in place.
        payload: the event's payload; None for a kind from a newer release, which
            changes nothing but the time of the last change (J1).
        seq: its sequence.
        at: its time.
    """
    state.last_seq = seq
    state.updated_at = at
    if payload is not None:
        _handlers[type(payload)](state, payload, at)


def decode_payload(envelope: Envelope) -> msgspec.Struct | None:
    """The payload of an event, None for a kind from a newer release."""
    reader = _readers.get(envelope.kind)
    return None if reader is None else reader[0](envelope.payload)


def _started(state: ExecutionState, event: ev.ExecutionStarted, at: int) -> None:
    state.status = _RUNNING
    state.flow = event.flow
    state.version = event.version
    state.input = event.input
    state.features = event.features
    state.parent = event.parent
    state.labels = event.labels
    state.run = event.run
    state.started_at = at


def _recovered(state: ExecutionState, _event: ev.ExecutionRecovered, _at: int) -> None:
    state.recoveries += 1


def _suspended(state: ExecutionState, event: ev.ExecutionSuspended, _at: int) -> None:
    state.status = _SUSPENDED
    state.parked_on = event.waits
    state.parked_at = state.last_seq
    state.failed_while_parked = False
    state.recoveries = 0
    for wait in event.waits:
        if wait.kind in TOLD:
            state.waits[wait.id] = wait
            state.take_place(wait.id, _OP_WAIT, wait.name)


def _unpark(state: ExecutionState) -> None:
    state.parked_on = ()
    state.failed_while_parked = False


def _resumed(state: ExecutionState, event: ev.ExecutionResumed, _at: int) -> None:
    state.recoveries = 0
    if state.status is not _SUSPENDED:
        return
    state.status = _RUNNING
    _unpark(state)
    turn = event.turn or state.turn + 1
    for wait_id in event.ended:
        state.answers.setdefault(wait_id, Answer(None))
        if wait_id in state.waits:
            state.settle(wait_id, turn)


def _answered(state: ExecutionState, event: ev.AnswerTaken, _at: int) -> None:
    state.answers.setdefault(event.wait_id, Answer(event.answer))
    state.take_place(event.wait_id, _OP_WAIT, event.gate)
    state.settle(event.wait_id, event.turn)


def _end(state: ExecutionState, status: Status, at: int) -> None:
    state.status = status
    state.ended_at = at
    _unpark(state)


def _completed(state: ExecutionState, event: ev.ExecutionCompleted, at: int) -> None:
    _end(state, Status.COMPLETED, at)
    state.result = event.result


def _failed(state: ExecutionState, event: ev.ExecutionFailed, at: int) -> None:
    _end(state, Status.FAILED, at)
    state.failure = event.failure


def _cancelled(state: ExecutionState, event: ev.ExecutionCancelled, at: int) -> None:
    _end(state, Status.CANCELLED, at)
    state.reason = event.reason


def _step_started(state: ExecutionState, event: ev.StepStarted, _at: int) -> None:
    frame = state.frames.get(event.step_id)
    if frame is None:
        frame = state.frames[event.step_id] = Frame(event.name, _STEP_RUNNING)
        state.take_place(event.step_id, _OP_STEP, event.name)
    frame.status = _STEP_RUNNING
    frame.attempts = event.attempt
    frame.arguments = event.arguments
    frame.once = event.once


def _step_completed(state: ExecutionState, event: ev.StepCompleted, _at: int) -> None:
    state.recoveries = 0
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = _STEP_COMPLETED
        frame.result = event.result
        state.settle(event.step_id, event.turn)


def _step_failed(state: ExecutionState, event: ev.StepFailed, _at: int) -> None:
    if state.status is _SUSPENDED:
        state.failed_while_parked = True
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = _STEP_FAILED
        frame.failure = event.failure
        frame.failures += 1
        frame.failed_at = state.last_seq
        state.settle(event.step_id, event.turn)


def _step_cancelled(state: ExecutionState, event: ev.StepCancelled, _at: int) -> None:
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = FrameStatus.CANCELLED
        state.settle(event.step_id, event.turn)


def _told(state: ExecutionState, event: ev.StepTold, _at: int) -> None:
    state.settle(event.step_id, event.turn)


def _step_retrying(state: ExecutionState, event: ev.StepRetrying, _at: int) -> None:
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = _STEP_RETRYING
        frame.failure = event.failure
        frame.failures = event.failures
        frame.due = event.due


def _decided(state: ExecutionState, event: ev.DecisionRecorded, _at: int) -> None:
    state.take_place(event.op_id, _OP_DECISION, event.name)
    state.decisions[event.op_id] = event.value


def _emitted(state: ExecutionState, event: ev.CustomEmitted, _at: int) -> None:
    state.take_place(event.op_id, _OP_EMIT, event.topic)


def _cancelling(state: ExecutionState, event: ev.CancelRequested, _at: int) -> None:
    if state.cancelling is None:
        state.cancelling = event.reason
        state.settle(CANCEL_PLACE, event.turn)


def _in_doubt(state: ExecutionState, event: ev.EffectInDoubt, _at: int) -> None:
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = FrameStatus.IN_DOUBT


def _judged(state: ExecutionState, event: ev.VerdictTaken, _at: int) -> None:
    # what the other verdicts say is told by the event of the step that follows them
    frame = state.frames.get(event.step_id)
    if frame is not None and event.verdict is VerdictKind.RUN_AGAIN:
        frame.status = _STEP_RETRYING
        frame.due = 0


# The table is keyed by payload class, so a kind can never reach another kind's
# handler; that pairing is what the type checker cannot see.
_handlers: dict[type[msgspec.Struct], Callable[..., None]] = {
    ev.ExecutionStarted: _started,
    ev.ExecutionRecovered: _recovered,
    ev.ExecutionSuspended: _suspended,
    ev.ExecutionResumed: _resumed,
    ev.AnswerTaken: _answered,
    ev.ExecutionCompleted: _completed,
    ev.ExecutionFailed: _failed,
    ev.ExecutionCancelled: _cancelled,
    ev.StepStarted: _step_started,
    ev.StepCompleted: _step_completed,
    ev.StepFailed: _step_failed,
    ev.StepCancelled: _step_cancelled,
    ev.StepRetrying: _step_retrying,
    ev.DecisionRecorded: _decided,
    ev.CustomEmitted: _emitted,
    ev.StepTold: _told,
    ev.CancelRequested: _cancelling,
    ev.EffectInDoubt: _in_doubt,
    ev.VerdictTaken: _judged,
}

# What `fold` needs of a kind, in one look-up: a log is folded faster than it is read.
_readers: dict[str, tuple[Callable[[bytes], msgspec.Struct], Callable[..., None]]] = {
    str(kind): (msgspec.msgpack.Decoder(payload).decode, _handlers[payload])
    for kind, payload in ev.type_of_kind.items()
}

assert set(_handlers) == {ev.type_of_kind[kind] for kind in EventKind}
