"""`@step`: a plain function with the policies that go with it (K4)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from loom_mq.codec.own import OwnCodec, ResultCodec, StepCodec
from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import ConfigurationError, UnsupportedInFlowError
from loom_mq.flows.annotations import annotations_of, positive_seconds
from loom_mq.flows.failure import TypedFailure
from loom_mq.flows.scope import current_strand
from loom_mq.ids import check_id
from loom_mq.model.policies import NO_RETRY, Retry

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function with side effects that a flow runs through `ctx.run`.

    Called directly it is the plain function, which is what a unit test wants; inside a
    flow a direct call is refused, because nobody would remember it.
    """

    def __init__(
        self,
        function: Callable[P, R] | Callable[P, Awaitable[R]],
        *,
        name: str | None,
        retry: Retry | None,
        timeout: float | timedelta | None,
        failures: tuple[type[TypedFailure[Any]], ...],
        idempotent: bool = True,
        codec: StepCodec | None = None,
    ) -> None:
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                f"step {function.__qualname__} is a generator; a step returns one value"
            )
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        own_name = name or getattr(function, "__name__", None)
        if own_name is None:
            raise ConfigurationError(
                f"step {function!r} has no name of its own; give it one: @step(name=...)"
            )
        self.name = check_id(own_name, "step name")
        self.idempotent = idempotent
        self.retry = retry or (Retry() if idempotent else NO_RETRY)
        self.timeout = positive_seconds(timeout, f"step {self.name}: timeout")
        self.failures = {kind.channel: kind for kind in failures}
        self._own = None if codec is None else OwnCodec(codec, f"step {self.name}", self._by_type)
        update_wrapper(self, function)

    @cached_property
    def result_codec(self) -> ResultCodec:
        """Encodes what the step returns: its own codec, or one by its return annotation."""
        return self._own or self._by_type()

    def _by_type(self) -> ValueCodec:
        return codec_for(annotations_of(self.function, f"step {self.name}").get("return", Any))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function.

        Raises:
            UnsupportedInFlowError: called from flow code.
        """
        if current_strand.get() is not None:
            raise UnsupportedInFlowError(
                f"step {self.name!r} was called directly inside a flow, where nobody would "
                f"remember that it ran; write `await ctx.run({self.name}, ...)`"
            )
        return cast("R", self.function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


class StepDecorator:
    """What `@step(...)` with options returns."""

    def __init__(
        self,
        name: str | None,
        retry: Retry | None,
        timeout: float | timedelta | None,
        failures: tuple[type[TypedFailure[Any]], ...],
        idempotent: bool = True,
        codec: StepCodec | None = None,
    ) -> None:
        self._name = name
        self._retry = retry
        self._timeout = timeout
        self._failures = failures
        self._idempotent = idempotent
        self._codec = codec

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...

    def __call__(self, function: Callable[P, Any], /) -> Step[P, Any]:
        """Make `function` a step with these options."""
        return Step(
            function,
            name=self._name,
            retry=self._retry,
            timeout=self._timeout,
            failures=self._failures,
            idempotent=self._idempotent,
            codec=self._codec,
        )


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    failures: tuple[type[TypedFailure[Any]], ...] = (),
    idempotent: bool = True,
    codec: StepCodec | None = None,
) -> StepDecorator: ...


def step(
    function: Callable[P, Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    failures: tuple[type[TypedFailure[Any]], ...] = (),
    idempotent: bool = True,
    codec: StepCodec | None = None,
) -> Step[P, Any] | StepDecorator:
    """Make a function a step: run once, remembered, at least once when interrupted (K4, K6).

    Args:
        function: ``async def``, or plain ``def``, which runs in a thread.
        name: how the log knows it; the function's name by default. Renaming a step
            that running executions have recorded is a changed flow (K3).
        retry: how failures are tried again; three attempts by default, `NO_RETRY` for one,
            which is the default of a step that is not idempotent.
        timeout: seconds per attempt, none by default. A plain ``def`` cannot be
            stopped: its thread goes on, its result is dropped.
        failures: typed failures that this step may raise; recorded with their payload
            and raised again on a re-run without calling the function (K5).
        idempotent: False for an effect that must not run twice. When such a step was
            interrupted, so that nobody knows whether its effect took place, its execution
            waits for an operator's verdict instead of running it again (K6).
        codec: stores what the step returns, instead of the codec for its return
            annotation; an object with ``encode(value) -> bytes`` and
            ``decode(bytes) -> value`` (K16).

    Raises:
        ConfigurationError: the function or an option cannot be used.
    """
    decorator = StepDecorator(name, retry, timeout, failures, idempotent, codec)
    return decorator if function is None else decorator(function)
