"""What becomes of an attempt that failed: recorded, tried again, or raised (K4, K5)."""

from __future__ import annotations

import builtins
from typing import Any

import msgspec

from loom_mq.clock import MICROS
from loom_mq.codec.failures import describe_exception
from loom_mq.errors import InputError, StepFailedError
from loom_mq.flows.failure import TypedFailure
from loom_mq.flows.step import Step
from loom_mq.flows.surroundings import Surroundings
from loom_mq.journal.log import ExecutionLog
from loom_mq.kernel.fold import Frame
from loom_mq.kernel.retry import next_delay
from loom_mq.model import events as ev
from loom_mq.model.failures import Failure


def settle_failure(
    log: ExecutionLog,
    around: Surroundings,
    place: str,
    step: Step[..., Any],
    frame: Frame,
    error: BaseException,
) -> str:
    """Record a failed attempt; ``retrying`` or ``failed``."""
    failure = describe_exception(error)
    if isinstance(error, TypedFailure) and step.failures.get(error.channel) is type(error):
        try:
            payload = error.payload_codec.encode(
                error.payload,
                what=f"failure {error.channel} of step {step.name}",
                limit=around.payload_limit,
            )
        except InputError as unfit:
            failure = describe_exception(unfit)
        else:
            failure = msgspec.structs.replace(failure, channel=error.channel, payload=payload)
        log.emit(ev.StepFailed(place, failure))
        return "failed"
    failures = frame.failures + 1
    delay = next_delay(step.retry, failures, error, around.ids.fraction())
    if delay is None:
        log.emit(ev.StepFailed(place, failure))
        return "failed"
    due = around.clock.now() + int(delay * MICROS)
    log.emit(ev.StepRetrying(place, failure, failures, due))
    around.metrics.step_retried(log.state.flow, step.name, type(error).__name__)
    return "retrying"


def recorded_failure(step: Step[..., Any], failure: Failure, execution_id: str) -> Exception:
    """The failure that the log holds, as an error that the flow can catch as it did before.

    A typed failure is rebuilt as the class that the step declares (K5). Any other is
    rebuilt with its message when its class is built in, or one that the step's own module
    knows by name; no module is imported for it. Else it is a `StepFailedError`.
    """
    kind = step.failures.get(failure.channel or "")
    if kind is not None and failure.payload is not None:
        return kind.rebuild(failure.payload)
    known = _known_class(step, failure)
    if known is None:
        return StepFailedError(
            f"step {step.name!r} failed with {failure.headline}", execution_id=execution_id
        )
    # its own __init__ may want what nobody recorded (C18)
    error = known.__new__(known)
    Exception.__init__(error, failure.message)
    return error


def _known_class(step: Step[..., Any], failure: Failure) -> type[Exception] | None:
    names = vars(builtins) if failure.module == "builtins" else step.function.__globals__
    for found in (names.get(failure.type), *names.values()):
        if (
            isinstance(found, type)
            and issubclass(found, Exception)
            and (found.__module__, found.__name__) == (failure.module, failure.type)
        ):
            return found
    return None
