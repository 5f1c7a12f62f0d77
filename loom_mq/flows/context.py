"""`Context`: what flow code may ask for, all of it durable."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from contextvars import Token
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

from loom_mq.clock import MICROS
from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import InputError
from loom_mq.flows.activation import Activation
from loom_mq.flows.desk import shielded
from loom_mq.flows.polling import DEFAULT_BACKOFF, Backoff, poll
from loom_mq.flows.saga import Saga
from loom_mq.flows.step import Step
from loom_mq.ids import check_id
from loom_mq.kernel.fold import OpKind

P = ParamSpec("P")
T = TypeVar("T")

MAX_SLEEP = timedelta(days=365 * 100)
"""Longest sleep or gate timeout: what any clock and column here can hold with room to spare."""


class Shield:
    """See `Context.shield`. Can be used again, also within itself."""

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    async def __aenter__(self) -> None:
        self._tokens.append(shielded.set(True))

    async def __aexit__(self, *_error: object) -> None:
        shielded.reset(self._tokens.pop())


class Context:
    """Given to every flow as its first argument.

    Each method takes its place in the flow's control flow when it is *called* and does
    its work when it is awaited, so `asyncio.gather(ctx.run(a), ctx.run(b))` is as
    repeatable as one after the other (K3). What a method returned once it returns
    again on every re-run.
    """

    def __init__(self, activation: Activation) -> None:
        self._activation = activation

    @property
    def execution_id(self) -> str:
        """This execution's id."""
        return self._activation.log.key.execution_id

    @property
    def tenant(self) -> str:
        """The tenant that this execution belongs to."""
        return self._activation.log.key.tenant

    @property
    def labels(self) -> dict[str, str]:
        """Labels given at the start."""
        return dict(self._activation.log.state.labels)

    def run(self, step: Step[P, T], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Run a step once and remember what it returned (K2, K4).

        Raises (when awaited):
            Exception: what the step raised on its last attempt.
            StepTimeoutError: the last attempt took too long.
            StepFailedError: its error was no ordinary exception.
            CodecError: its result cannot be stored.
        """
        place = self._activation.place(OpKind.STEP, step.name)
        return self._activation.run_step(place, step, args, kwargs)

    def decide(
        self, name: str, make: Callable[[], T], *, type: object = None
    ) -> Coroutine[Any, Any, T]:
        """Make a choice once and repeat it on every re-run.

        Args:
            name: for the log.
            make: a plain function; called only the first time.
            type: type of the value; its own built-in types by default.
        """
        place = self._activation.place(OpKind.DECISION, check_id(name, "decision name"))
        codec = codec_for(Any if type is None else type)
        return cast("Coroutine[Any, Any, T]", self._activation.decide(place, name, codec, make))

    def patched(self, name: str) -> bool:
        """Tell code before a change from code after it, so that executions which are under
        way go on as they began (K3)::

            if ctx.patched("fraud-check"):
                await ctx.run(check_fraud, order)

        True for whoever comes to this point for the first time with the changed code, and
        then for ever at this point; False for those that went past it with the old code.
        Once no execution of the old code is left, the condition can go and the new branch
        stay.

        Args:
            name: of the change, for the log.

        Raises:
            UnsupportedInFlowError: called from a step or from outside the flow.
        """
        return self._activation.patched(check_id(name, "patch name"))

    def shield(self) -> Shield:
        """A block in which a cancelled flow may still run steps, sleep and wait (K13)::

            try:
                await ctx.run(reserve, order)
                ...
            finally:
                async with ctx.shield():
                    await ctx.run(release, order)

        The cancellation is final when the flow has ended, shielded blocks included. It
        bounds them by nothing; give their steps timeouts.
        """
        return Shield()

    def saga(self) -> Saga:
        """A block whose steps are undone when it does not end normally (K15)::

            async with ctx.saga() as saga:
                receipt = await saga.run(charge, order, undo=refund)
                await saga.run(ship, order, undo=call_back, undo_args=(order,))

        Leaving it by an exception or a cancellation runs what was given as `undo`, in
        reverse order and inside a shield, and then the exception goes on. Should some of
        that fail for good, the rest runs all the same and a `CompensationFailedError` names
        what failed.
        """
        return Saga(self, self._activation)

    def wait_until(
        self,
        step: Step[..., T],
        *args: Any,
        ready: Callable[[T], object],
        backoff: Backoff = DEFAULT_BACKOFF,
        timeout: timedelta | float | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]:
        """Run a step again and again until what it returns is ready, and return that (K16).

        Each poll is a step of its own, with its own retries. Between two polls the execution
        sleeps durably and holds no worker. A poll puts some five events on the log, so what
        may take weeks wants long pauses. Places are taken as it goes, not when it is called.

        Args:
            step: asks how things stand.
            args: its arguments.
            kwargs: its arguments by name.
            ready: a pure function of what the step returned: true when it is to be returned.
            backoff: the pauses between polls.
            timeout: seconds or timedelta after which to give up, after one last poll; by the
                journal's clock. It ends no poll that is under way: give the step a timeout.

        Raises (when awaited):
            ConditionTimeoutError: not ready in time; it is a `TimeoutError`.
            InputError: `timeout` is no duration, or `ready` is async.
            Exception: what the step raised on the last attempt of a poll.
        """
        within = timeout if timeout is None else _micros(timeout, f"wait_until({step.name})")
        limit = None if within is None else timedelta(microseconds=within)
        return poll(self, step, args, kwargs, ready=ready, backoff=backoff, timeout=limit)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """The journal's time at the first call, in UTC."""
        return self.decide(
            "now",
            lambda: datetime.fromtimestamp(self._activation.now() / MICROS, UTC),
            type=datetime,
        )

    def uuid(self) -> Coroutine[Any, Any, UUID]:
        """A UUIDv7 made at the first call."""
        return self.decide("uuid", lambda: UUID(bytes=self._activation.ids.envelope()), type=UUID)

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number from 0 to 1 made at the first call."""
        return self.decide("random", self._activation.ids.fraction, type=float)

    def sleep(self, duration: timedelta | float) -> Coroutine[Any, Any, None]:
        """Sleep durably: nothing is held in memory, and it ends on time by the journal's
        clock wherever a worker is then (F9). Zero or less returns at once.

        Args:
            duration: a timedelta, or seconds; 100 years at most.

        Raises:
            InputError: not a number, infinite or too long.
        """
        micros = _micros(duration, "sleep")
        place = self._activation.place(OpKind.WAIT, "")
        return self._sleep(place, micros)

    async def _sleep(self, place: str, micros: int) -> None:
        if micros > 0:
            await self._activation.waits.sleep_until(place, self._activation.now() + micros)

    def sleep_until(self, moment: datetime) -> Coroutine[Any, Any, None]:
        """Sleep durably until a moment; one in the past returns at once.

        Args:
            moment: must say its time zone: a wall time without one is another moment
                on every host.

        Raises:
            InputError: naive, or more than 100 years away.
        """
        if moment.tzinfo is None or moment.utcoffset() is None:
            raise InputError(
                f"sleep_until({moment!r}) has no time zone; write "
                "datetime(..., tzinfo=timezone.utc) or another zone"
            )
        due = round((moment - _EPOCH) / timedelta(microseconds=1))
        if due - self._activation.now() > MAX_SLEEP / timedelta(microseconds=1):
            raise InputError(f"sleep_until({moment!r}) is more than 100 years away")
        place = self._activation.place(OpKind.WAIT, "")
        return self._sleep_until(place, due)

    async def _sleep_until(self, place: str, due: int) -> None:
        if not await self._activation.has_passed(place, due):
            await self._activation.waits.sleep_until(place, due)

    def suspend(
        self,
        *,
        on: str,
        type: type[T],
        timeout: timedelta | float | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Wait at a gate for an answer from outside, for as long as it takes (K7).

        An answer that came before the gate opened is taken at once. An answer that
        does not fit `type` is refused to its sender and the gate stays open.

        Args:
            on: the gate's name.
            type: what an answer must decode to.
            timeout: seconds or timedelta after which the gate gives up.

        Raises (when awaited):
            GateTimeoutError: no answer in time; it is a `TimeoutError`.
        """
        check_id(on, "gate name")
        micros = None if timeout is None else max(0, _micros(timeout, f"gate {on!r}: timeout"))
        place = self._activation.place(OpKind.WAIT, on)
        return cast("Coroutine[Any, Any, T]", self._suspend(place, on, type, micros))

    async def _suspend(self, place: str, on: str, type: object, micros: int | None) -> object:
        due = None if micros is None else self._activation.now() + micros
        name = getattr(type, "__name__", str(type))
        return await self._activation.waits.gate(place, on, codec_for(type), name, due)

    def emit(self, topic: str, value: object, *, type: object = None) -> Coroutine[Any, Any, None]:
        """Put something on the log for whoever follows this execution, once.

        Args:
            topic: what it is about.
            value: any value that can be stored.
            type: its type; its own built-in types by default.
        """
        place = self._activation.place(OpKind.EMIT, check_id(topic, "emit topic"))
        codec: ValueCodec = codec_for(Any if type is None else type)
        return self._activation.emit(place, topic, codec, value)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _micros(duration: timedelta | float, what: str) -> int:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if math.isnan(seconds) or seconds > MAX_SLEEP.total_seconds():
        raise InputError(f"{what} of {duration!r} is not a duration of up to 100 years")
    return round(max(seconds, 0.0) * MICROS)
