"""The fold: what a log says about its execution (K1, J6). Pure.

`apply` is the only place that knows what an event means. It changes the state in
place, because the writer of a log folds each event as it writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from loom_mq.kernel.state import (
    CANCEL_PLACE,
    TOLD,
    Answer,
    ExecutionState,
    Frame,
    FrameStatus,
    OpKind,
)
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import Status
from loom_mq.model.verdicts import VerdictKind

__all__ = [
    "CANCEL_PLACE",
    "TOLD",
    "Answer",
    "ExecutionState",
    "Frame",
    "FrameStatus",
    "OpKind",
    "apply",
    "decode_payload",
    "fold",
]

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
    # what nobody went past is found out anew (K2), and stays so: what the flow does from here
    # on is no going past it
    for place, frame in state.frames.items():
        if frame.status is _STEP_FAILED and not state.serves(place):
            frame.status = _STEP_RETRYING
            frame.due = 0
            state.settled.pop(place, None)


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
    else:
        # it is found out anew: what a flow was told of it before is told no more
        state.settled.pop(event.step_id, None)
    frame.status = _STEP_RUNNING
    frame.attempts = event.attempt
    frame.arguments = event.arguments
    frame.once = event.once
    frame.withdrawn = False


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
        if frame.status in (_STEP_COMPLETED, _STEP_FAILED):
            frame.withdrawn = True
        else:
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
    if event.turn:
        state.settle(event.op_id, event.turn)


def _emitted(state: ExecutionState, event: ev.CustomEmitted, _at: int) -> None:
    state.take_place(event.op_id, _OP_EMIT, event.topic)
    if event.turn:
        state.settle(event.op_id, event.turn)


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
