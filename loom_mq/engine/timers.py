"""The timer service: publishes a wake package for every due timer, and fires schedules (F9).

Any number of them share the table: a due timer is held while its package is on the
way, and its row goes after the broker's confirm. A fire that comes twice meets an
execution that no longer waits, and does nothing.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from loom_mq.broker.protocol import Broker
from loom_mq.clock import Clock
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.schedules import ScheduleRunner
from loom_mq.engine.waking import Waker
from loom_mq.errors import LoomError
from loom_mq.journal.protocol import Journal
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import Metrics

_log = structlog.get_logger(__name__)


class TimerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a timer service works. Durations in seconds.

    Attributes:
        poll: longest pause between two looks; bounds how late a new timer fires.
        batch: timers per look.
        schedules: schedules per look.
        hold: how long a due timer is kept from the other services; a service that dies
            between taking it and publishing its wake delays it by so much.
    """

    poll: float = 0.25
    batch: int = 500
    schedules: int = 100
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
        self._broker = broker
        self._options = options
        self._outbox = Outbox(broker, metrics)
        self._waker = Waker(
            journal,
            broker,
            self._outbox,
            batch=options.batch,
            hold=options.hold,
            poll=options.poll,
            clock=clock,
            metrics=metrics,
        )
        self._schedules = ScheduleRunner(
            journal,
            broker,
            self._outbox,
            limit=options.schedules,
            hold=options.hold,
            metrics=metrics,
        )
        self._loop: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.ensure_future(self._run())

    async def drain(self, timeout: float) -> None:
        """Finish the round under way, and send what waits for its turn."""
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

    async def once(self) -> int:
        """Fire what is due, all of it at once; how many timers and schedules were found."""
        fired, problem = 0, None
        try:
            fired = await self._waker.once()
        except LoomError as error:  # neither keeps the other from its turn
            problem = error
        fired += await self._look_at_schedules()
        if problem is not None:
            raise problem
        return fired

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = await self._round()
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
        try:
            await self._waker.flush()
        except LoomError as error:
            _log.warning("timers.round_failed", error=str(error))

    async def _round(self) -> float:
        """Fire what is due and may go now; how many seconds there is nothing to do then."""
        pause, problem = self._options.poll, None
        if not self._broker.health().takes_messages:
            return pause  # what it took and could not send, nobody else would send either
        try:
            pause = await self._waker.paced()
        except LoomError as error:  # neither keeps the other from its turn
            problem = error
        looked_at = await self._look_at_schedules()
        if problem is not None:
            raise problem
        return pause if looked_at < self._options.schedules else 0.0

    async def _look_at_schedules(self) -> int:
        return await self._schedules.once()
