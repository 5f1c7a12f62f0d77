"""Undoing what was done when the rest cannot be done (K15).

Compensations are ordinary steps at places of the flow's own, so a crash in the middle
goes on where it was and each of them completes once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import structlog

from loom_mq.errors import CompensationFailedError, ConfigurationError, UnsupportedInFlowError
from loom_mq.flows.activation import Activation
from loom_mq.flows.step import Step
from loom_mq.kernel.fold import FrameStatus, OpKind

_log = structlog.get_logger(__name__)

T = TypeVar("T")

Arguments = Callable[[], tuple[Any, ...]]


class Durable(Protocol):
    """What a saga asks of the flow's context."""

    @property
    def execution_id(self) -> str:
        """The execution, for errors."""

    def run(self, step: Step[..., T], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T]:
        """Run a step once and remember what it returned."""

    def shield(self) -> AbstractAsyncContextManager[object]:
        """Let durable calls go on although the execution is being cancelled (K13)."""


class Compensation:
    """One step that undoes another, once it is `armed`.

    Args:
        step: what undoes.

    Raises:
        ConfigurationError: it is no step.
    """

    def __init__(self, step: Step[..., Any]) -> None:
        if not isinstance(step, Step):
            raise ConfigurationError(
                f"saga: {step!r} is no step; what undoes a step must be one itself (@step), or "
                "nobody would remember that it ran"
            )
        self.step = step
        self.armed = False
        self._args: Arguments = tuple
        self._kwargs: dict[str, Any] = {}

    def arm(self, args: Arguments, kwargs: dict[str, Any] | None = None) -> None:
        """From now on it runs when the saga is undone."""
        self._args = args
        self._kwargs = kwargs or {}
        self.armed = True

    async def run(self, ctx: Durable) -> None:
        """Run it; the function that makes its arguments is part of what can fail."""
        args = self._args()
        if not isinstance(args, tuple):
            raise ConfigurationError(
                f"saga: undo_args for {self.step.name!r} made {type(args).__name__}, not a tuple"
            )
        await ctx.run(self.step, *args, **self._kwargs)


class Saga:
    """Collects compensations; made by `Context.saga`, used with ``async with``.

    Leaving the block by an exception or a cancellation runs them in the reverse of the
    order in which they were asked for, and then the exception goes on. Leaving it
    normally runs none: what was done stays.
    """

    def __init__(self, ctx: Durable, activation: Activation) -> None:
        self._ctx = ctx
        self._activation = activation
        self._compensations: list[Compensation] = []
        self._entered = False
        self._open = False
        self._under_way = 0
        self._settled: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        """Begin.

        Raises:
            UnsupportedInFlowError: entered twice.
        """
        if self._entered:
            raise UnsupportedInFlowError(
                "a saga can be entered once; make another with ctx.saga()",
                execution_id=self._ctx.execution_id,
            )
        self._entered = self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo everything when the block did not end normally.

        Raises:
            CompensationFailedError: a compensation failed for good; its cause is what ended
                the block.
        """
        self._open = False
        # a coroutine that is thrown away must not wait any more
        if error is None or isinstance(error, GeneratorExit):
            return
        failures = await self._undo()
        if failures:
            raise self._failed(failures) from error

    def run(
        self,
        step: Step[..., T],
        /,
        *args: Any,
        undo: Step[..., Any],
        undo_args: tuple[Any, ...] | Callable[[T], tuple[Any, ...]] | None = None,
        undo_if_unsure: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]:
        """Run a step like `Context.run`, and remember how to undo it.

        Args:
            step: what to do.
            args: its arguments.
            kwargs: its arguments by name; a parameter of its own that is called like one of
                the following must be given by position.
            undo: the step that undoes it.
            undo_args: what to call `undo` with: a tuple, or a pure function that makes one of
                the result. The result alone by default.
            undo_if_unsure: also undo it when it was not seen to complete: it failed, or was
                interrupted by a cancellation, so its effect may have taken place. `undo` must
                then bear that there is nothing to undo, and `undo_args` must be a tuple,
                since there may be no result.

        Raises:
            ConfigurationError: `undo` is no step, or `undo_args` does not fit.
            UnsupportedInFlowError: the block has not been entered, or has been left.
            Exception (when awaited): what the step raised on its last attempt.
        """
        fixed = isinstance(undo_args, tuple)
        if undo_if_unsure and not fixed:
            raise ConfigurationError(
                f"saga: undo_if_unsure of step {step.name!r} needs undo_args as a tuple: when "
                "nobody knows how the step ended there is no result to undo it with"
            )
        if not (undo_args is None or fixed or callable(undo_args)):
            raise ConfigurationError(
                f"saga: undo_args of step {step.name!r} must be a tuple or a function that makes "
                "one of the result"
            )
        compensation = self._remember(undo)
        place = self._activation.place(OpKind.STEP, step.name)
        call = self._activation.run_step(place, step, args, kwargs)
        arguments = partial(_arguments, undo_args, partial(self._result, place, step))
        return self._run(call, place, compensation, arguments, early=undo_if_unsure)

    async def _run(
        self,
        call: Coroutine[Any, Any, T],
        place: str,
        compensation: Compensation,
        arguments: Arguments,
        *,
        early: bool,
    ) -> T:
        if early:
            compensation.arm(arguments)
        self._under_way += 1
        try:
            return await call
        finally:
            # what the log says counts: a branch that is cancelled in the very turn in which
            # its step completed is not told so
            frame = self._activation.log.state.frames.get(place)
            if frame is not None and frame.status is FrameStatus.COMPLETED:
                compensation.arm(arguments)
            self._under_way -= 1
            self._settle()

    def _result(self, place: str, step: Step[..., Any]) -> object:
        frame = self._activation.log.state.frames[place]
        return step.result_codec.decode(frame.result or b"", what=f"step {step.name}")

    def add(self, step: Step[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Register a compensation by hand, before or after what it undoes.

        Args:
            step: what undoes it.
            args: its arguments.
            kwargs: its arguments by name.

        Raises:
            ConfigurationError: it is no step.
            UnsupportedInFlowError: the block has not been entered, or has been left.
        """
        self._remember(step).arm(lambda: args, kwargs)

    async def undo(self) -> None:
        """Run the compensations now, in reverse order, each once; for a failure that the
        flow caught and goes on after. What is registered later can be undone later.

        Raises:
            CompensationFailedError: some failed for good; the others have run.
        """
        failures = await self._undo()
        if failures:
            errors = [error for _, error in failures]
            cause = errors[0] if len(errors) == 1 else ExceptionGroup("undo steps failed", errors)
            raise self._failed(failures) from cause

    def _remember(self, step: Step[..., Any]) -> Compensation:
        if not self._open:
            raise UnsupportedInFlowError(
                "a saga takes compensations inside its block only (async with ctx.saga() as "
                "saga: ...): outside of it nothing would run them",
                execution_id=self._ctx.execution_id,
            )
        compensation = Compensation(step)
        self._compensations.append(compensation)
        return compensation

    async def _undo(self) -> list[tuple[str, Exception]]:
        failures: list[tuple[str, Exception]] = []
        async with self._ctx.shield():
            while self._under_way:
                # a branch beside us may complete yet, and then it is to be undone, too
                settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._settled.append(settled)
                await settled
            while (compensation := self._next()) is not None:
                compensation.armed = False
                try:
                    await compensation.run(self._ctx)
                except Exception as error:
                    failures.append((compensation.step.name, error))
                except BaseException:
                    compensation.armed = True  # interrupted, so it is still to be done
                    raise
        return failures

    def _next(self) -> Compensation | None:
        return next((each for each in reversed(self._compensations) if each.armed), None)

    def _settle(self) -> None:
        if self._under_way:
            return
        for settled in self._settled:
            if not settled.done():
                settled.set_result(None)
        self._settled.clear()

    def _failed(self, failures: list[tuple[str, Exception]]) -> CompensationFailedError:
        told = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failures)
        key = self._activation.log.key
        # a cancelled execution ends cancelled, so its outcome does not say this
        _log.warning(
            "saga.not_undone", tenant=key.tenant, execution_id=key.execution_id, error=told
        )
        return CompensationFailedError(
            f"execution {self._ctx.execution_id!r}: undo steps failed for good, so what they were "
            f"to undo is still done: {told}",
            execution_id=self._ctx.execution_id,
            steps=tuple(name for name, _ in failures),
        )


def _arguments(
    undo_args: tuple[Any, ...] | Callable[[Any], tuple[Any, ...]] | None,
    result: Callable[[], object],
) -> tuple[Any, ...]:
    if isinstance(undo_args, tuple):
        return undo_args
    return (result(),) if undo_args is None else undo_args(result())
