"""Asking again and again until something is so, without holding a worker (K16)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from loom_mq.errors import ConditionTimeoutError, ConfigurationError, InputError
from loom_mq.flows.step import Step

T = TypeVar("T")


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How patiently `Context.wait_until` asks again.

    Nothing of it is random, so every re-run takes the same pauses.

    Attributes:
        initial: seconds between the first and the second poll.
        factor: each pause is this many times the one before.
        maximum: longest pause in seconds.

    Raises:
        ConfigurationError: a figure is out of range.
    """

    initial: float = 1.0
    factor: float = 2.0
    maximum: float = 60.0

    def __post_init__(self) -> None:
        for name in ("initial", "maximum"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"Backoff.{name} must be more than 0 s, not {value}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ConfigurationError(f"Backoff.factor must be 1 or more, not {self.factor}")

    def after(self, pause: float) -> float:
        """The pause that follows one of `pause` seconds."""
        return min(pause * self.factor, self.maximum)


DEFAULT_BACKOFF = Backoff()


class Durable(Protocol):
    """What polling asks of the flow's context."""

    @property
    def execution_id(self) -> str:
        """The execution, for errors."""

    def run(self, step: Step[..., T], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T]:
        """Run a step once and remember what it returned."""

    def now(self) -> Coroutine[Any, Any, datetime]:
        """The journal's time, recorded."""

    def sleep(self, duration: timedelta | float, /) -> Coroutine[Any, Any, None]:
        """Sleep durably."""


async def poll(
    ctx: Durable,
    step: Step[..., T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    ready: Callable[[T], object],
    backoff: Backoff,
    timeout: timedelta | None,
) -> T:
    """See `Context.wait_until`.

    Raises:
        ConditionTimeoutError: not ready by the end of `timeout`.
    """
    if inspect.iscoroutinefunction(ready):
        raise InputError(
            f"wait_until({step.name}): ready must be a plain function of the result, not an "
            "async one; what has to be asked belongs into the step"
        )
    # recorded, so that a re-run gives up, or does not, just where this run did
    deadline = None if timeout is None else await ctx.now() + timeout
    pause = min(backoff.initial, backoff.maximum)
    polls = 0
    while True:
        value = await ctx.run(step, *args, **kwargs)
        polls += 1
        if ready(value):
            return value
        wait = pause
        if deadline is not None:
            left = (deadline - await ctx.now()).total_seconds()
            if left <= 0:
                raise ConditionTimeoutError(
                    f"execution {ctx.execution_id!r}: step {step.name!r} was polled {polls} times "
                    f"within {timeout}, and what it returned was never ready",
                    execution_id=ctx.execution_id,
                )
            wait = min(pause, left)
        await ctx.sleep(wait)
        pause = backoff.after(pause)
