"""What of an execution is somebody's data, and what takes its place (J8). Pure.

Kinds, ids, sequences, times, names, places and the classes of errors stay, so that what
is left still folds and still reads as a history. For every log, the fold of the scrubbed
log is the scrubbed fold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from loom_mq.codec.plain import ERASED
from loom_mq.kernel.fold import Answer, ExecutionState, Frame, decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope
from loom_mq.model.failures import CauseLine, Failure

ERASED_TEXT: Final = "erased"
"""Stands for a text that was erased; an empty text stays empty."""

_encode: Final = msgspec.msgpack.Encoder().encode

_Event = TypeVar("_Event", bound=msgspec.Struct)


def scrub_event(event: Envelope) -> Envelope | None:
    """An event without anybody's data; None when a newer release wrote it, so that nobody
    here knows what it holds.

    Raises:
        msgspec.MsgspecError: its payload is damaged.
    """
    payload = decode_payload(event)
    scrub = _scrubbers.get(type(payload))
    if payload is None or scrub is None:
        return None
    scrubbed = _encode(scrub(payload))
    return Envelope(
        event.id,
        event.seq,
        event.kind,
        event.at,
        event.fence,
        event.kernel,
        event.schema,
        scrubbed,
    )


def scrub_state(state: ExecutionState) -> ExecutionState:
    """A fold without anybody's data; `state` itself stays as it is."""
    return replace(
        state,
        input=ERASED,
        labels=scrub_labels(state.labels),
        frames={place: _frame(frame) for place, frame in state.frames.items()},
        decisions=dict.fromkeys(state.decisions, ERASED),
        answers={
            wait: answer if answer.payload is None else Answer(ERASED)
            for wait, answer in state.answers.items()
        },
        cancelling=None if state.cancelling is None else _text(state.cancelling),
        result=None if state.result is None else ERASED,
        failure=None if state.failure is None else scrub_failure(state.failure),
        reason=_text(state.reason),
    )


def scrub_labels(labels: dict[str, str]) -> dict[str, str]:
    """Labels that tell nothing but that they were there."""
    return dict.fromkeys(labels, ERASED_TEXT)


def scrub_failure(failure: Failure) -> Failure:
    """A failure that tells nothing but its class and those of its causes."""
    return replace(
        failure,
        message=_text(failure.message),
        traceback="",
        causes=tuple(CauseLine(cause.type, _text(cause.message)) for cause in failure.causes),
        payload=None if failure.payload is None else ERASED,
    )


def _frame(frame: Frame) -> Frame:
    return replace(
        frame,
        result=None if frame.result is None else ERASED,
        failure=None if frame.failure is None else scrub_failure(frame.failure),
        arguments=0,
    )


def _text(text: str) -> str:
    return ERASED_TEXT if text else ""


def _nothing(event: _Event) -> _Event:
    return event


def _failed(
    event: ev.ExecutionFailed | ev.StepFailed | ev.StepRetrying,
) -> ev.ExecutionFailed | ev.StepFailed | ev.StepRetrying:
    return replace(event, failure=scrub_failure(event.failure))


def _valued(
    event: ev.DecisionRecorded | ev.CustomEmitted,
) -> ev.DecisionRecorded | ev.CustomEmitted:
    return replace(event, value=ERASED)


# Keyed by payload class like the fold's table; a kind that is missing cannot be erased, so
# a kind that is new must be thought about here, too.
_scrubbers: Final[dict[type[object], Callable[..., msgspec.Struct]]] = {
    ev.ExecutionStarted: lambda event: replace(
        event, input=ERASED, labels=scrub_labels(event.labels)
    ),
    ev.ExecutionRecovered: _nothing,
    ev.ExecutionSuspended: _nothing,
    ev.ExecutionResumed: _nothing,
    ev.AnswerTaken: lambda event: replace(event, answer=ERASED, actor=_text(event.actor)),
    ev.ExecutionCompleted: lambda event: replace(event, result=ERASED),
    ev.ExecutionFailed: _failed,
    ev.ExecutionCancelled: lambda event: replace(event, reason=_text(event.reason)),
    # a checksum confirms a guess at what it was made of
    ev.StepStarted: lambda event: replace(event, arguments=0),
    ev.StepCompleted: lambda event: replace(event, result=ERASED),
    ev.StepFailed: _failed,
    ev.StepCancelled: _nothing,
    ev.StepTold: _nothing,
    ev.StepRetrying: _failed,
    ev.DecisionRecorded: _valued,
    ev.CustomEmitted: _valued,
    ev.CancelRequested: lambda event: replace(
        event, reason=_text(event.reason), actor=_text(event.actor)
    ),
    ev.EffectInDoubt: _nothing,
    ev.VerdictTaken: lambda event: replace(
        event, message=_text(event.message), actor=_text(event.actor)
    ),
}
