"""The timer service: publishes a wake package for every due timer (F9).

Any number of them share the table: a due timer is held while its package is on the
way, and its row goes after the broker's confirm. A fire that comes twice meets an
execution that no longer waits, and does nothing.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from loom_mq.broker.protocol import Broker
from loom_mq.clock import MICROS, Clock
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.packages import PackageSender
from loom_mq.errors import LoomError
from loom_mq.journal.protocol import DueTimer, Journal
from loom_mq.model.execution import Status
from loom_mq.model.messages import Cause
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import Metrics

_log = structlog.get_logger(__name__)


class TimerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a timer service works. Durations in seconds.

    Attributes:
        poll: longest pause between two looks; bounds how late a new timer fires.
        batch: timers per look.
        hold: how long a due timer is kept from the other services; a service that dies
            between taking it and publishing its wake delays it by so much.
    """

    poll: float = 0.25
    batch: int = 500
    hold: float = 5.0


class TimerService:
    """See the module's docstring."""

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        *,
        options: TimerOptions,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._journal = journal
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._outbox = Outbox(broker, metrics)
        self._packages = PackageSender(broker, self._outbox)
        self._loop: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.ensure_future(self._run())

    async def drain(self, timeout: float) -> None:
        """Finish the round under way."""
        self._stopping.set()
        if self._loop is not None:
            await asyncio.wait([self._loop], timeout=timeout)

    async def stop(self) -> None:
        """Let go of everything. Bounded; what is held fires elsewhere in time."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.cancel()
        self._outbox.abort()

    @property
    def running(self) -> bool:
        """Whether it is looking."""
        return self._loop is not None and not self._loop.done()

    def checks(self) -> dict[str, Check]:
        """What must be so for it to do its work; by name."""
        return {"looking": Check(self.running)}

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                fired = await self.once()
                pause = 0.0 if fired >= self._options.batch else await self._pause()
            except LoomError as error:
                _log.warning("timers.round_failed", error=str(error))
                pause = 1.0
            except Exception:  # a fault of ours in one round must not be the last round
                _log.exception("timers.round_crashed")
                pause = 1.0
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def once(self) -> int:
        """Fire what is due; returns how many timers were found."""
        due = await self._journal.due_timers(limit=self._options.batch, hold=self._options.hold)
        if not due:
            return 0
        fired = await asyncio.gather(*(self._fire(timer) for timer in due))
        gone = [(timer.row.key, timer.due) for timer, done in zip(due, fired, strict=True) if done]
        if gone:
            await self._journal.drop_timers(gone)
        return len(due)

    async def _fire(self, timer: DueTimer) -> bool:
        """Publish one wake; whether the row may go."""
        if timer.row.status is not Status.SUSPENDED:
            return True  # it waits for something else by now, or for nothing
        if not await self._packages.send(timer.row, Cause.WAKE):
            return False
        self._metrics.timer_fired((self._clock.now() - timer.due) / MICROS)
        return True

    async def _pause(self) -> float:
        soonest = await self._journal.next_timer()
        if soonest is None:
            return self._options.poll
        until = (soonest - self._clock.now()) / MICROS
        return min(self._options.poll, max(until, 0.001))
