"""What a running step may know about itself, and the call of its function (K4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import msgspec

from loom_mq.errors import StepTimeoutError, UnsupportedInFlowError
from loom_mq.flows.scope import outside_flow
from loom_mq.flows.step import Step


class _Flag:
    """Raised once; read from any thread."""

    __slots__ = ("up",)

    def __init__(self) -> None:
        self.up = False


class StepInfo(msgspec.Struct, frozen=True):
    """What a step can read about its own run.

    Attributes:
        execution_id: the execution that it belongs to.
        name: the step's name.
        attempt: 1 for the first start of its effect, one more for each further one.
        idempotency_key: the same on every re-run of this very step; give it to
            services that can tell a repeated request by its key.
    """

    tenant: str
    execution_id: str
    name: str
    attempt: int
    idempotency_key: str
    _interrupted: _Flag = msgspec.field(default_factory=_Flag)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this attempt any more: the execution is being cancelled,
        or the attempt took too long. A plain ``def``, which cannot be interrupted, should
        look from time to time and return; an ``async def`` gets a `CancelledError`.
        """
        return self._interrupted.up


_ordered = msgspec.msgpack.Encoder(order="deterministic").encode


def checksum(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """A number that tells arguments apart and is the same in every process; 0 for
    arguments that have none, such as objects of a library.
    """
    if not args and not kwargs:
        return 0
    try:
        return crc32(_ordered((args, kwargs))) or 1
    except Exception:  # whatever an argument does when it is looked at, the step still runs
        return 0


_current: ContextVar[StepInfo | None] = ContextVar("loom_step", default=None)


def current_step() -> StepInfo:
    """What the running step knows about itself.

    Raises:
        UnsupportedInFlowError: called outside a step.
    """
    info = _current.get()
    if info is None:
        raise UnsupportedInFlowError("current_step() was called outside a step")
    return info


class Threads(Protocol):
    """Where plain ``def`` steps run."""

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function beside the event loop."""


async def call_step(
    step: Step[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    info: StepInfo,
    threads: Threads,
) -> Any:
    """Call a step's function once, within its timeout.

    Raises:
        StepTimeoutError: the attempt took too long.
        BaseException: whatever the function raises.
    """
    current = _current.set(info)
    try:
        with outside_flow():
            if step.timeout is None:
                return await _call(step, args, kwargs, threads)
            try:
                async with asyncio.timeout(step.timeout) as limit:
                    return await _call(step, args, kwargs, threads)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise StepTimeoutError(
                    f"step {step.name!r}: attempt {info.attempt} took longer than "
                    f"{step.timeout:g} s",
                    execution_id=info.execution_id,
                ) from error
    except (asyncio.CancelledError, StepTimeoutError):
        info._interrupted.up = True
        raise
    finally:
        _current.reset(current)


async def _call(
    step: Step[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], threads: Threads
) -> Any:
    context = copy_context()
    function = partial(step.function, *args, **kwargs)

    def call() -> Any:
        return context.run(function)

    if step.is_async:
        return await _InContext(call(), context)
    return await threads.call(call)


class _InContext:
    """Awaits a coroutine in a context of its own: what an effect sets is no affair of its
    flow, whose re-runs would not see it (C74).
    """

    def __init__(self, coro: Coroutine[Any, Any, Any], context: Context) -> None:
        self._coro = coro
        self._context = context

    def __await__(self) -> Generator[Any, None, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is None:
                    awaited = self._context.run(self._coro.send, None)
                else:
                    awaited = self._context.run(self._coro.throw, thrown)
            except StopIteration as stop:
                return stop.value
            try:
                yield awaited
                thrown = None
            except BaseException as error:
                thrown = error
