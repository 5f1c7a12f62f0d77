"""`@flow`: an ``async def`` that describes a piece of work."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import cached_property
from typing import Any, Generic, TypeVar, cast, overload

from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import ConfigurationError
from loom_mq.flows.annotations import annotations_of, positive_seconds
from loom_mq.flows.context import Context
from loom_mq.ids import MAX_QUEUE_BYTES, check_id
from loom_mq.model.execution import DEFAULT_QUEUE

In = TypeVar("In")
Out = TypeVar("Out")


class Flow(Generic[In, Out]):
    """An ``async def`` that describes a piece of work. Known by name and version."""

    def __init__(
        self,
        function: Callable[[Context, In], Awaitable[Out]] | Callable[[Context], Awaitable[Out]],
        *,
        name: str | None,
        version: str,
        queue: str,
        attempt_timeout: float | timedelta | None,
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"flow {getattr(function, '__qualname__', function)} must be an `async def`"
            )
        self.function = function
        own_name = name or getattr(function, "__name__", None)
        if own_name is None:
            raise ConfigurationError(
                f"flow {function!r} has no name of its own; give it one: @flow(name=...)"
            )
        self.name = check_id(own_name, "flow name")
        self.version = check_id(version, f"flow {self.name}: version", 64)
        self.queue = check_id(queue, f"flow {self.name}: queue", MAX_QUEUE_BYTES)
        self.attempt_timeout = positive_seconds(
            attempt_timeout, f"flow {self.name}: attempt_timeout"
        )
        parameters = list(inspect.signature(function).parameters.values())
        if len(parameters) not in (1, 2):
            raise ConfigurationError(
                f"flow {self.name} must take the context and at most one input, "
                f"not {len(parameters)} parameters"
            )
        self._input_name = parameters[1].name if len(parameters) == 2 else None
        self.__doc__ = function.__doc__
        self.__name__ = own_name
        self.__module__ = function.__module__

    @property
    def takes_input(self) -> bool:
        """Whether the function has a second parameter."""
        return self._input_name is not None

    @cached_property
    def input_codec(self) -> ValueCodec:
        """Encodes the flow's input, by its annotation."""
        if self._input_name is None:
            return codec_for(None)
        return codec_for(
            annotations_of(self.function, f"flow {self.name}").get(self._input_name, Any)
        )

    @cached_property
    def result_codec(self) -> ValueCodec:
        """Encodes what the flow returns, by its return annotation."""
        return codec_for(annotations_of(self.function, f"flow {self.name}").get("return", Any))

    def body(self, ctx: Context, value: object) -> Coroutine[Any, Any, Out]:
        """The flow's coroutine for one run."""
        function: Callable[..., Any] = self.function
        return cast(
            "Coroutine[Any, Any, Out]",
            function(ctx, value) if self.takes_input else function(ctx),
        )

    def __repr__(self) -> str:
        return f"<flow {self.name!r} version {self.version!r}>"


class FlowDecorator:
    """What `@flow(...)` with options returns."""

    def __init__(
        self,
        name: str | None,
        version: str,
        queue: str,
        attempt_timeout: float | timedelta | None,
    ) -> None:
        self._name = name
        self._version = version
        self._queue = queue
        self._attempt_timeout = attempt_timeout

    @overload
    def __call__(
        self, function: Callable[[Context, In], Coroutine[Any, Any, Out]], /
    ) -> Flow[In, Out]: ...

    @overload
    def __call__(
        self, function: Callable[[Context], Coroutine[Any, Any, Out]], /
    ) -> Flow[None, Out]: ...

    def __call__(self, function: Callable[..., Coroutine[Any, Any, Any]], /) -> Flow[Any, Any]:
        """Make `function` a flow with these options."""
        return Flow(
            function,
            name=self._name,
            version=self._version,
            queue=self._queue,
            attempt_timeout=self._attempt_timeout,
        )


@overload
def flow(function: Callable[[Context, In], Coroutine[Any, Any, Out]], /) -> Flow[In, Out]: ...


@overload
def flow(function: Callable[[Context], Coroutine[Any, Any, Out]], /) -> Flow[None, Out]: ...


@overload
def flow(
    *,
    name: str | None = None,
    version: str = "1",
    queue: str = DEFAULT_QUEUE,
    attempt_timeout: float | timedelta | None = None,
) -> FlowDecorator: ...


def flow(
    function: Callable[..., Coroutine[Any, Any, Any]] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    queue: str = DEFAULT_QUEUE,
    attempt_timeout: float | timedelta | None = None,
) -> Flow[Any, Any] | FlowDecorator:
    """Make an ``async def`` a flow.

    Args:
        function: takes the `Context` and at most one input.
        name: how messages and logs know it; the function's name by default.
        version: changes when the code changes in a way that running executions of the
            old code could not follow.
        queue: which workers run it.
        attempt_timeout: seconds after which one attempt that has made no progress
            counts as wedged and may be taken over from a worker that is alive.

    Raises:
        ConfigurationError: the function or an option cannot be used.
    """
    decorator = FlowDecorator(name, version, queue, attempt_timeout)
    return decorator if function is None else decorator(function)
