"""Keeps a process's lease alive, whatever the process's own code does (F7, C05).

User code may block the event loop for a minute; the lease must not lapse for that. So
it is renewed on an event loop of its own in a daemon thread, over a connection of its
own. A store that lives on the main loop is renewed by a task there instead, through
the very same code.

A lost lease ends nothing here: whatever another has taken refuses our next append by
its fence (J2), and what nobody has taken goes on. So after a loss the keeper opens the
lease again and says what happened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec
import structlog

from loom_mq.clock import MICROS, Clock
from loom_mq.errors import JournalUnreachableError
from loom_mq.journal.protocol import LeaseSession, Renewal
from loom_mq.model.execution import WorkerRecord
from loom_mq.observe.checks import Check
from loom_mq.observe.limiter import once_per
from loom_mq.observe.metrics import Metrics

RENEWALS_PER_LEASE: Final = 3
_SHORTEST_ATTEMPT: Final = 0.5
_FIRST_ATTEMPT: Final = 10.0
"""Nothing is held yet that could lapse, so a slow disk may take its time."""
_LONGEST_RETRY_PAUSE: Final = 1.0
_GOODBYE: Final = 1.0
"""Seconds for ending the lease in the journal, and for closing its connection."""
_WORST_ROUND_TRIP: Final = 0.25
"""A slower answer says too little about the journal's clock."""
_NOTABLE_OFFSET: Final = 1.0

_log = structlog.get_logger(__name__)


class SynchronisedClock(Clock, Protocol):
    """A clock that takes over the journal's time; see `clock.JournalClock`."""

    def synchronise(self, journal_now: int) -> float:
        """Take over the journal's time; returns how far ahead this clock was, in seconds."""


class Leases(Protocol):
    """Where leases are kept; see `journal.protocol.Journal`."""

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        """Register a process and open its lease, `ttl` seconds long."""


class LeaseKeeper:
    """See the module's docstring. Made, started and retired on the main event loop.

    Args:
        journal: where the lease is kept.
        record: this process.
        ttl: length of the lease in seconds; it is renewed three times in it.
        clock: synchronised with the journal's at each renewal.
        metrics: counts renewals.
        threaded: renew from a thread of its own; False for a store that lives on the
            main loop.
    """

    def __init__(
        self,
        journal: Leases,
        record: WorkerRecord,
        ttl: float,
        *,
        clock: SynchronisedClock,
        metrics: Metrics,
        threaded: bool = True,
    ) -> None:
        self._journal = journal
        self._record = record
        self._ttl = ttl
        self._clock = clock
        self._metrics = metrics
        self._threaded = threaded
        self._once = once_per(60.0)
        self._offset = 0.0
        self._synchronised = False
        self._session: LeaseSession | None = None
        self._held_until = float("-inf")
        self._lost = False
        self._problem = ""
        self._shown = False
        self._retiring = False
        self._stirred: asyncio.Event | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._on_renewal: Callable[[Renewal], None] = _ignore_renewal
        self._on_lost: Callable[[], None] = _ignore_loss

    @property
    def owner(self) -> str:
        """Name of this run of the process."""
        return self._record.owner

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._ready is not None

    @property
    def seconds_left(self) -> float:
        """How long the lease surely runs, counted from when its renewal was sent."""
        return max(0.0, self._held_until - self._clock.monotonic())

    def check(self) -> Check:
        """Whether the lease runs."""
        left = self.seconds_left
        if left > 0 and not self._lost:
            return Check(True, f"{left:.1f} s left")
        return Check(False, f"the lease has lapsed: {self._problem or 'not renewed in time'}")

    async def start(
        self,
        on_renewal: Callable[[Renewal], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """Take the lease; returns when the first renewal is answered.

        Args:
            on_renewal: called on the main loop with each renewal.
            on_lost: called on the main loop, once per loss, when the lease was taken
                away or is known to have lapsed.

        Raises:
            LoomError: the journal refuses or does not answer.
        """
        if self._ready is not None:
            raise RuntimeError("a lease is started once")
        self._on_renewal = on_renewal or _ignore_renewal
        self._on_lost = on_lost or _ignore_loss
        self._main = asyncio.get_running_loop()
        self._ready = self._main.create_future()
        self._metrics.watch_lease(lambda: self.seconds_left)
        if self._threaded:
            threading.Thread(target=self._in_thread, name="loom-lease", daemon=True).start()
        else:
            self._task = self._main.create_task(self._keep())
        await self._ready

    def drain(self) -> None:
        """Let the journal show that this process takes nothing new; soon, and not waited for."""
        self._record = msgspec.structs.replace(self._record, draining=True)
        self._stir()

    async def retire(self) -> None:
        """End the lease at once, so that nobody waits for it to lapse.

        Returns within about two seconds, whatever the journal does.
        """
        if self._ready is None:
            return
        self._retiring = True
        self._stir()
        try:
            async with asyncio.timeout(2 * _GOODBYE + 0.2):
                await self._ended.wait()
        except TimeoutError:
            _log.warning("lease.not_retired", error="the journal did not answer in time")

    def _in_thread(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._own_loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        try:
            try:
                held = await self._renew(max(self._ttl, _FIRST_ATTEMPT))
            except Exception as error:  # whatever it is belongs to the one who called start
                self._post(self._refuse_start, _telling(error))
                return
            self._post(self._confirm_start)
            while not await self._told_to_end(self._pause(held)):
                held = await self._renew_patiently()
            await self._say_goodbye()
        finally:
            await self._drop_session()
            self._post(self._ended.set)

    def _pause(self, held: bool) -> float:
        period = self._ttl / RENEWALS_PER_LEASE
        return period if held else min(period, _LONGEST_RETRY_PAUSE) / 2

    def _stir(self) -> None:
        if self._own_loop is not None and self._stirred is not None:
            _call(self._own_loop, self._stirred.set)

    async def _told_to_end(self, pause: float) -> bool:
        assert self._stirred is not None
        try:
            async with asyncio.timeout(0.0 if self._retiring else pause):
                await self._stirred.wait()
        except TimeoutError:
            pass
        self._stirred.clear()
        return self._retiring

    async def _renew_patiently(self) -> bool:
        try:
            return await self._renew(max(self._ttl / RENEWALS_PER_LEASE, _SHORTEST_ATTEMPT))
        except Exception as error:  # the lease outlives every error of its storage
            telling = _telling(error)
            self._problem = str(telling)
            self._metrics.lease_renewed("failed")
            held_back = self._once.admit((type(error), self._problem[:200]))
            if held_back is not None:
                _log.warning(
                    "lease.late",
                    error=telling,
                    cause=telling.__cause__,
                    seconds_left=round(self.seconds_left, 3),
                    held_back=held_back,
                )
            if self.seconds_left == 0:
                # until then the session mends itself, and keeps what proves its life
                await self._drop_session()
                self._lose("not renewed in time")
            return False

    async def _renew(self, within: float) -> bool:
        async with asyncio.timeout(within):
            if self._session is None:
                self._session = await self._journal.lease(self._record, self._ttl)
            sent = self._clock.monotonic()
            renewal = await self._session.renew(self._ttl)
        self._synchronise(renewal.now, self._clock.monotonic() - sent)
        if not renewal.held:
            self._metrics.lease_renewed("lost")
            await self._drop_session()
            self._held_until = float("-inf")
            self._lose("another took it for dead")
            return False
        self._metrics.lease_renewed("renewed")
        self._held_until = sent + self._ttl
        self._problem = ""
        if self._lost:
            self._lost = False
            _log.info("lease.regained")
        self._post(self._on_renewal, renewal)
        if self._record.draining and not self._shown:
            self._shown = await _bounded(self._session.drain())  # else at the next renewal
        return True

    def _lose(self, why: str) -> None:
        if self._lost:
            return
        self._lost = True
        self._problem = self._problem or why
        _log.warning("lease.lost", reason=why)
        self._post(self._on_lost)

    def _synchronise(self, journal_now: int, round_trip: float) -> None:
        if self._synchronised and round_trip > _WORST_ROUND_TRIP:
            return
        self._synchronised = True
        ahead = self._clock.synchronise(journal_now + int(round_trip / 2 * MICROS))
        # the first answer tells how wrong the host's clock was, later ones what was added
        self._offset += ahead
        self._metrics.clock_offset(self._offset)
        if abs(ahead) > _NOTABLE_OFFSET and self._once.admit("clock") is not None:
            _log.warning("clock.corrected", seconds_ahead=round(ahead, 3))

    async def _say_goodbye(self) -> None:
        if self._session is None:
            return
        if await _bounded(self._session.retire()):
            self._held_until = float("-inf")
            _log.info("lease.retired")

    async def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await _bounded(session.close())

    def _confirm_start(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _refuse_start(self, error: Exception) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)

    def _post(self, callback: Callable[..., object], *args: object) -> None:
        if self._main is not None:
            _call(self._main, callback, *args)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        return  # that loop is closed: nobody is left to be told


async def _bounded(work: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(_GOODBYE):
            await work
    except Exception as error:  # an end must not fail
        _log.debug("lease.goodbye_failed", error=error)
        return False
    return True


def _telling(error: Exception) -> Exception:
    if isinstance(error, TimeoutError):
        telling = JournalUnreachableError("the journal did not answer the renewal in time")
        telling.__cause__ = error
        return telling
    return error


def _ignore_renewal(_renewal: Renewal) -> None:
    """Nobody wants to hear of renewals."""


def _ignore_loss() -> None:
    """Nobody wants to hear of a loss."""
