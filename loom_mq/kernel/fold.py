"""The fold: what a log says about its execution (K1, J6). Pure.

`apply` is the only place that knows what an event means. It changes the state in
place, because the writer of a log folds each event as it writes it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import msgspec

from loom_mq.kernel.identity import strand_of
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind, Wait, WaitKind
from loom_mq.model.execution import Status
from loom_mq.model.failures import Failure


class FrameStatus(enum.StrEnum):
    """Where a step stands."""

    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Frame(msgspec.Struct):
    """The folded record of one step.

    Attributes:
        attempts: how often its effect was started.
        failures: how many attempts failed.
        due: journal time of the next attempt while retrying.
        failed_at: sequence of the failure that ended it, -1 before one.
    """

    name: str
    status: FrameStatus
    attempts: int = 0
    failures: int = 0
    result: bytes | None = None
    failure: Failure | None = None
    due: int = 0
    failed_at: int = -1


class Answer(msgspec.Struct, frozen=True):
    """How a wait ended: with an answer, or (None) by its time."""

    payload: bytes | None


class OpKind(enum.StrEnum):
    """The kinds of operation that take a place in a flow's control flow (K3)."""

    STEP = "step"
    DECISION = "decision"
    WAIT = "wait"
    EMIT = "emit"


class ExecutionState(msgspec.Struct):
    """A folded log. Times are microseconds of journal time.

    Attributes:
        ops: what stands at each place of the control flow, to tell a changed flow (K3).
        waits: every wait that a park has named, by wait id.
        parked_on: the waits of the present park.
        answers: ended waits, by wait id.
        newest_places: sequence of the newest place of each strand.
        parked_at: sequence of the newest park, -1 before one.
        recoveries: recoveries since the last progress (F8).
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
    ops: dict[str, tuple[OpKind, str]] = {}
    frames: dict[str, Frame] = {}
    decisions: dict[str, bytes] = {}
    waits: dict[str, Wait] = {}
    parked_on: tuple[Wait, ...] = ()
    answers: dict[str, Answer] = {}
    newest_places: dict[str, int] = {}
    parked_at: int = -1
    recoveries: int = 0
    failed_while_parked: bool = False
    result: bytes | None = None
    failure: Failure | None = None
    reason: str = ""
    started_at: int | None = None
    updated_at: int = 0
    ended_at: int | None = None

    def went_past(self, place: str, frame: Frame) -> bool:
        """Whether the log shows that the flow has seen this step's failure and gone on.

        It has when it took another place since, in the step's own strand or in one that
        this was made in, or has parked. What it then did belongs to the failure, so a
        re-run must meet the failure again (K3).
        """
        strand = strand_of(place)
        newest = self.parked_at
        while True:
            newest = max(newest, self.newest_places.get(strand, -1))
            if not strand:
                return newest > frame.failed_at
            strand = strand.rpartition("~")[0]

    def take_place(self, place: str, kind: OpKind, name: str) -> None:
        """Note what stands at a place; called in the order of the log."""
        if place not in self.ops:
            self.newest_places[strand_of(place)] = self.last_seq
        self.ops[place] = (kind, name)

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
        payload_type = ev.type_of_kind.get(envelope.kind)
        payload = None if payload_type is None else _decoders[payload_type].decode(envelope.payload)
        apply(state, payload, envelope.seq, envelope.at)
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
    payload_type = ev.type_of_kind.get(envelope.kind)
    return None if payload_type is None else _decoders[payload_type].decode(envelope.payload)


def _started(state: ExecutionState, event: ev.ExecutionStarted, at: int) -> None:
    state.status = Status.RUNNING
    state.flow = event.flow
    state.version = event.version
    state.input = event.input
    state.features = event.features
    state.parent = event.parent
    state.labels = event.labels
    state.started_at = at


def _recovered(state: ExecutionState, _event: ev.ExecutionRecovered, _at: int) -> None:
    state.recoveries += 1


def _suspended(state: ExecutionState, event: ev.ExecutionSuspended, _at: int) -> None:
    state.status = Status.SUSPENDED
    state.parked_on = event.waits
    state.parked_at = state.last_seq
    state.failed_while_parked = False
    state.recoveries = 0
    for wait in event.waits:
        if wait.kind is not WaitKind.BACKOFF:
            state.waits[wait.id] = wait
            state.take_place(wait.id, OpKind.WAIT, wait.name)


def _unpark(state: ExecutionState) -> None:
    state.parked_on = ()
    state.failed_while_parked = False


def _resumed(state: ExecutionState, event: ev.ExecutionResumed, _at: int) -> None:
    state.recoveries = 0
    if state.status is not Status.SUSPENDED:
        return
    state.status = Status.RUNNING
    _unpark(state)
    for wait_id in event.ended:
        state.answers.setdefault(wait_id, Answer(None))


def _answered(state: ExecutionState, event: ev.AnswerTaken, _at: int) -> None:
    state.answers.setdefault(event.wait_id, Answer(event.answer))
    state.take_place(event.wait_id, OpKind.WAIT, event.gate)


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
        frame = state.frames[event.step_id] = Frame(event.name, FrameStatus.RUNNING)
        state.take_place(event.step_id, OpKind.STEP, event.name)
    frame.status = FrameStatus.RUNNING
    frame.attempts = event.attempt


def _step_completed(state: ExecutionState, event: ev.StepCompleted, _at: int) -> None:
    state.recoveries = 0
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = FrameStatus.COMPLETED
        frame.result = event.result


def _step_failed(state: ExecutionState, event: ev.StepFailed, _at: int) -> None:
    if state.status is Status.SUSPENDED:
        state.failed_while_parked = True
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = FrameStatus.FAILED
        frame.failure = event.failure
        frame.failures += 1
        frame.failed_at = state.last_seq


def _step_cancelled(state: ExecutionState, event: ev.StepCancelled, _at: int) -> None:
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = FrameStatus.CANCELLED


def _step_retrying(state: ExecutionState, event: ev.StepRetrying, _at: int) -> None:
    if (frame := state.frames.get(event.step_id)) is not None:
        frame.status = FrameStatus.RETRYING
        frame.failure = event.failure
        frame.failures = event.failures
        frame.due = event.due


def _decided(state: ExecutionState, event: ev.DecisionRecorded, _at: int) -> None:
    state.take_place(event.op_id, OpKind.DECISION, event.name)
    state.decisions[event.op_id] = event.value


def _emitted(state: ExecutionState, event: ev.CustomEmitted, _at: int) -> None:
    state.take_place(event.op_id, OpKind.EMIT, event.topic)


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
}

_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in _handlers}

assert set(_handlers) == {ev.type_of_kind[kind] for kind in EventKind}
