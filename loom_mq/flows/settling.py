"""What becomes of an attempt that failed: recorded, tried again, or raised (K4, K5)."""

from __future__ import annotations

import builtins
from functools import partial
from types import ModuleType
from typing import Any

import msgspec

from loom_mq import errors
from loom_mq.clock import MICROS
from loom_mq.codec.failures import describe_exception
from loom_mq.codec.plain import FAILED
from loom_mq.errors import FlowError, InputError, LoomError, StepFailedError
from loom_mq.flows.failure import TypedFailure
from loom_mq.flows.step import Step
from loom_mq.flows.surroundings import Surroundings
from loom_mq.kernel.fold import Frame
from loom_mq.kernel.retry import next_delay
from loom_mq.model import events as ev
from loom_mq.model.failures import Failure


class Attempted(msgspec.Struct, frozen=True):
    """How one attempt ended.

    Attributes:
        outcome: ``completed``, ``failed``, ``retrying`` or ``cancelled``; for the metrics.
        event: what to record when the flow is told; None when it was interrupted.
        retrying: what to record when it is to be tried again.
        value: what the flow gets when completed.
        error: what the flow gets when failed.
    """

    outcome: str
    event: ev.StepCompleted | ev.StepFailed | None = None
    retrying: ev.StepRetrying | None = None
    value: object = None
    error: BaseException | None = None

    @property
    def error_type(self) -> str:
        """Name of the error's class."""
        return type(self.error).__name__


def attempted(
    around: Surroundings, step: Step[..., Any], frame: Frame, place: str, error: BaseException
) -> Attempted:
    """What an error makes of an attempt."""
    failure = describe_exception(error)
    failures = frame.failures + 1
    if isinstance(error, TypedFailure) and step.failures.get(error.channel) is type(error):
        failure = _with_payload(around, step, error, failure)
    else:
        delay = next_delay(step.retry, failures, error, around.ids.fraction())
        if delay is not None:
            due = around.clock.now() + int(delay * MICROS)
            again = ev.StepRetrying(place, failure, failures, due)
            return Attempted("retrying", retrying=again, error=error)
    return Attempted("failed", ev.StepFailed(place, failure), error=error)


def _with_payload(
    around: Surroundings, step: Step[..., Any], error: TypedFailure[Any], failure: Failure
) -> Failure:
    try:
        payload = error.payload_codec.encode(
            error.payload,
            what=f"failure {error.channel} of step {step.name}",
            limit=around.payload_limit,
        )
    except InputError as unfit:
        return describe_exception(unfit)
    return msgspec.structs.replace(failure, channel=error.channel, payload=payload)


def thrown_failure(
    step: Step[..., Any], failure: Failure, execution_id: str, original: BaseException
) -> Exception:
    """What the flow catches on the first run: built from the record, so that it is what a
    re-run will catch (C18), with the traceback and the causes of the original.
    """
    error = recorded_failure(step, failure, execution_id)
    if isinstance(original, Exception) and _same_class(error, original):
        error.__cause__, error.__context__ = original.__cause__, original.__context__
        error.__suppress_context__ = original.__suppress_context__
        return error.with_traceback(original.__traceback__)
    error.__cause__ = original
    return error


def stored_failure(error: Exception) -> bytes:
    """What is recorded of a decision that raised `error`."""
    return FAILED + msgspec.msgpack.encode(describe_exception(error))


def choice_failure(data: bytes, execution_id: str) -> Exception:
    """The error of such a decision, for the first run and for every other: of its own class
    when that is built in or one of this package, else a `FlowError` that names it.
    """
    failure = msgspec.msgpack.decode(data[1:], type=Failure)
    home = {"builtins": builtins, errors.__name__: errors}.get(failure.module)
    kind = None if home is None else vars(home).get(failure.type)
    if isinstance(kind, type) and issubclass(kind, Exception):
        rebuilt = _rebuilt(kind, failure.message, execution_id)
        if rebuilt is not None:
            return rebuilt
    return FlowError(f"a decision failed with {failure.headline}", execution_id=execution_id)


def recorded_failure(step: Step[..., Any], failure: Failure, execution_id: str) -> Exception:
    """The failure that the log holds, as an error that the flow can catch as it did before.

    A typed failure is rebuilt as the class that the step declares (K5). Any other is
    rebuilt with its message when its class is built in, one of this package, or one that
    the step's own module can name (`Name`, or `module.Name` of a module that it imports); no
    module is imported for it. Else it is a `StepFailedError`.
    """
    kind = step.failures.get(failure.channel or "")
    if kind is not None and failure.payload is not None:
        return kind.rebuild(failure.payload)
    known = _known_class(step, failure)
    if known is None:
        return StepFailedError(
            f"step {step.name!r} failed with {failure.headline}", execution_id=execution_id
        )
    rebuilt = _rebuilt(known, failure.message, execution_id)
    if rebuilt is None:
        return StepFailedError(
            f"step {step.name!r} failed with {failure.headline}", execution_id=execution_id
        )
    return rebuilt


def _rebuilt(kind: type[Exception], message: str, execution_id: str) -> Exception | None:
    """An error of this class with this message; None when it cannot be had."""
    try:
        # its own __init__ may want what nobody recorded (C18)
        error = kind.__new__(kind)
        Exception.__init__(error, message)
    except Exception:  # a group, for one, wants its parts
        return None
    if isinstance(error, LoomError):
        error.execution_id = execution_id
    return error if _reads(error, message) else _worded(kind, message)


def _reads(error: Exception, message: str) -> bool:
    try:
        return str(error) == message
    except Exception:  # its text is made of what nobody recorded
        return False


def _worded(kind: type[Exception], message: str) -> Exception:
    """One of a class whose text is made of attributes: it says what was recorded."""

    def say(_self: Exception) -> str:
        return message

    members = {"__str__": say, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    worded: type[Exception] = type(kind.__name__, (kind,), members)
    error = worded.__new__(worded)
    Exception.__init__(error, message)
    return error


def _known_class(step: Step[..., Any], failure: Failure) -> type[Exception] | None:
    home = {"builtins": builtins, errors.__name__: errors}.get(failure.module)
    names = _globals_of(step.function) if home is None else vars(home)
    modules = (each for each in names.values() if isinstance(each, ModuleType))
    for found in (
        names.get(failure.type),
        *names.values(),
        *(vars(module).get(failure.type) for module in modules),
    ):
        if (
            isinstance(found, type)
            and issubclass(found, Exception)
            and (found.__module__, found.__name__) == (failure.module, failure.type)
        ):
            return found
    return None


def _globals_of(function: object) -> dict[str, Any]:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__globals__", {})


def _same_class(error: Exception, original: Exception) -> bool:
    kind = type(original)
    return type(error) is kind or kind in type(error).__bases__
