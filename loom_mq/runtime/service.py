"""The life of one service: connect, work, drain, stop, each in bounded time (C06, C60)."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import structlog

from loom_mq.broker.protocol import Broker
from loom_mq.clock import JournalClock
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.ids import RandomIds
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import WorkerRecord
from loom_mq.observe.checks import Check
from loom_mq.observe.limiter import once_per
from loom_mq.observe.metrics import Metrics
from loom_mq.runtime.connecting import Target, connect, connect_both, leave
from loom_mq.runtime.health import HealthServer, Version
from loom_mq.runtime.loopwatch import LoopWatch
from loom_mq.runtime.part import Build, ExitCode, Part, Ports
from loom_mq.runtime.ports import Openers, leases_from_thread
from loom_mq.runtime.settings import ServiceSettings

HOUSEKEEPING: Final = 2.0
"""Seconds between two looks at journal and broker."""
CRASH_SECONDS: Final = 3.0
"""Seconds to let go after a crash."""
_CLOSING: Final = 1.1
"""Seconds of the end that are kept for the lease and the connections."""
_LEASE_GOODBYE: Final = 0.5
_CUT: Final = 0.1
_SHORTEST_STOP: Final = 0.5

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class State(enum.StrEnum):
    """Where a service is in its life."""

    CONNECTING = "connecting"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"


class AskedToStop(Exception):  # no error: somebody asked
    """A signal came before the service was ready."""


class Service:
    """See the module's docstring. Lives on one event loop.

    Args:
        record: this process, as the fleet shall know it.
        settings: everything that can be set.
        build: makes the part that does the work.
        openers: make the connections.
        metrics: this process's own.
        seconds_left: until the process leaves by force; None when nobody has asked.
        limit: sets that limit in seconds from now.
    """

    def __init__(
        self,
        record: WorkerRecord,
        settings: ServiceSettings,
        build: Build,
        *,
        openers: Openers,
        metrics: Metrics,
        seconds_left: Callable[[], float | None],
        limit: Callable[[float], None],
    ) -> None:
        self._record = record
        self._settings = settings
        self._build = build
        self._openers = openers
        self._metrics = metrics
        self._seconds_left = seconds_left
        self._limit = limit
        self._state = State.CONNECTING
        self._asked = asyncio.Event()
        self._at_once = asyncio.Event()
        self._failure: BaseException | None = None
        self._clock = JournalClock()
        self._once = once_per(60.0)
        self._journal_check = Check(False, "not connected yet")
        self._broker: Broker | None = None
        self._lease: LeaseKeeper | None = None
        self._part: Part | None = None

    # ---- what may happen to it; all on the loop ------------------------------------

    def ask_to_stop(self) -> None:
        """Drain and stop."""
        self._asked.set()

    def stop_at_once(self) -> None:
        """Stop without finishing what is in hand."""
        self._asked.set()
        self._at_once.set()

    def fail(self, error: BaseException) -> None:
        """The part cannot go on."""
        self._failure = self._failure or error
        self.stop_at_once()

    def checks(self) -> dict[str, Check]:
        """Everything that must be right for this service to be ready."""
        checks = {
            "service": Check(self._state is State.READY, self._state.value),
            "journal": self._journal_check,
            "broker": _broker_check(self._broker),
        }
        if self._lease is not None and self._lease.started:
            checks["lease"] = self._lease.check()
        if self._part is not None:
            checks |= self._part.checks()
        return checks

    # ---- its life ------------------------------------------------------------------

    async def run(self) -> ExitCode:
        """From the first connection to the last.

        Raises:
            LoomError: it could not start; the sentence says what to do.
        """
        watch = LoopWatch(asyncio.get_running_loop(), self._metrics)
        watch.start()
        try:
            async with AsyncExitStack() as stack:
                if self._settings.http_port is not None:
                    await stack.enter_async_context(self._health(self._settings.http_port))
                return await self._connected_life()
        except AskedToStop:
            _log.info("service.stopped", reason="asked to before it was ready")
            return ExitCode.CLEAN
        finally:
            watch.stop()

    def _health(self, port: int) -> HealthServer:
        return HealthServer(
            self._settings.http_host,
            port,
            version=Version(self._record.role, self._record.owner, self._record.release),
            checks=self.checks,
            metrics=self._metrics,
        )

    async def _connected_life(self) -> ExitCode:
        settings = self._settings
        journal, broker = await self._unless_asked(
            connect_both(
                connect(
                    Target("journal", "LOOM_JOURNAL", settings.journal),
                    lambda: self._openers.journal(settings, self._clock),
                    patience=settings.startup_timeout,
                    prepare=lambda: self._openers.prepare(settings),
                ),
                connect(
                    Target("broker", "LOOM_BROKER", settings.broker),
                    lambda: self._openers.broker(settings, self._record.owner),
                    patience=settings.startup_timeout,
                ),
            )
        )
        self._broker = broker
        self._state = State.STARTING
        housekeeping = asyncio.ensure_future(self._keep_house(journal, broker))
        try:
            return await self._working_life(journal, broker)
        finally:
            housekeeping.cancel()
            await asyncio.gather(leave(broker, "broker"), leave(journal, "journal"))
            _log.info("service.stopped")

    async def _working_life(self, journal: Journal, broker: Broker) -> ExitCode:
        lease = self._lease = LeaseKeeper(
            journal,
            self._record,
            self._settings.lease,
            clock=self._clock,
            metrics=self._metrics,
            threaded=leases_from_thread(self._settings),
        )
        try:
            part = self._part = await self._build(
                Ports(
                    owner=self._record.owner,
                    journal=journal,
                    broker=broker,
                    lease=lease,
                    clock=self._clock,
                    ids=RandomIds(),
                    metrics=self._metrics,
                    fail=self.fail,
                )
            )
            await self._unless_asked(self._start(part, lease))
            self._state = State.READY
            _log.info("service.ready", release=self._record.release)
            await self._asked.wait()
            return await self._drain(part)
        finally:
            self._state = State.STOPPING
            await self._let_go(lease)

    async def _start(self, part: Part, lease: LeaseKeeper) -> None:
        await part.start()
        if not lease.started:
            await lease.start()

    # ---- its end -------------------------------------------------------------------

    async def _drain(self, part: Part) -> ExitCode:
        if self._failure is not None:
            return self._crashed(self._failure)
        seconds = self._settings.drain
        self._state = State.DRAINING
        if self._lease is not None:
            self._lease.drain()
        _log.info("service.draining", seconds=seconds)
        began = time.monotonic()
        drain = asyncio.ensure_future(part.drain(seconds))
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((drain, at_once), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        took = time.monotonic() - began
        if drain.done():
            drain.result()
            if took < max(seconds - 0.05, 0.05):
                _log.info("service.drained", seconds=round(took, 3))
                return ExitCode.CLEAN
        drain.cancel()
        await asyncio.wait((drain,), timeout=_CUT)
        return self._cut(took)

    def _cut(self, took: float) -> ExitCode:
        if self._failure is not None:
            return self._crashed(self._failure)
        by_signal = self._at_once.is_set()
        reason = "a second signal came" if by_signal else "the time was over"
        _log.warning("service.drain_cut", reason=reason, seconds=round(took, 3))
        return ExitCode.INTERRUPTED if by_signal else ExitCode.GAVE_UP

    def _crashed(self, error: BaseException) -> ExitCode:
        self._limit(CRASH_SECONDS)
        _log.critical("service.crashed", exc_info=error)
        return ExitCode.CRASHED

    async def _let_go(self, lease: LeaseKeeper) -> None:
        """Stop the part, then end the lease, within what is left of the time."""
        left = self._seconds_left()
        if left is None:
            self._limit(CRASH_SECONDS)
            left = CRASH_SECONDS
        if self._part is not None:
            await self._bounded(self._part.stop(), left - _CLOSING, "part")
        await self._bounded(lease.retire(), _LEASE_GOODBYE, "lease")

    async def _bounded(self, work: Awaitable[None], seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(max(seconds, _SHORTEST_STOP)):
                await work
        except TimeoutError:
            _log.warning("service.stop_cut", what=what, seconds=round(seconds, 3))
        except Exception:  # whatever it is, the rest must still be let go of
            _log.exception("service.stop_failed", what=what)

    async def _unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that a signal may end.

        Raises:
            AskedToStop: a signal came first.
        """
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait((task,), timeout=_LEASE_GOODBYE)
            raise AskedToStop
        finally:
            asked.cancel()

    # ---- what it keeps an eye on ---------------------------------------------------

    async def _keep_house(self, journal: Journal, broker: Broker) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.command_timeout):
                    await journal.now()
            except Exception as error:  # a check tells what is wrong, whatever it is
                self._journal_check = Check(False, f"{type(error).__name__}: {error}")
                held_back = self._once.admit("journal")
                if held_back is not None:
                    _log.warning("journal.unreachable", error=error, held_back=held_back)
            else:
                self._journal_check = Check(True)
            health = broker.health()
            self._metrics.broker(health.connected, health.blocked)
            await asyncio.sleep(HOUSEKEEPING)


def _broker_check(broker: Broker | None) -> Check:
    if broker is None:
        return Check(False, "not connected yet")
    health = broker.health()
    if not health.connected:
        return Check(False, health.reason or "not connected")
    if health.blocked:
        return Check(False, health.reason or "the broker takes no messages")
    if not health.consuming:
        return Check(False, health.reason or "a consumer is not confirmed")
    return Check(True)
