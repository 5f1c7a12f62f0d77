"""The dispatcher's sweeps: what a lost hint or a dead holder would have left lying (F7).

A sweep holds no state: any number of dispatchers sweep, and killing one costs nothing.
One bad row never strands the rest, and a journal that is away is asked again in the
next round (C63).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker
from loom_mq.clock import MICROS, Clock
from loom_mq.engine.admission import KnownFlows
from loom_mq.engine.packages import PackageSender
from loom_mq.errors import LoomError
from loom_mq.journal.protocol import Journal, Runnable
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import Cause
from loom_mq.recovery.abandoned import RecoverySummary, recover_abandoned
from loom_mq.recovery.predicates import HolderGone
from loom_mq.recovery.sources import LeaseSweep

_log = structlog.get_logger(__name__)

GIVEN_UP_EVERY: Final = 60.0
"""Seconds between two looks for what was given up: it stays where it is and can wait."""

AFTER_A_LAPSE: Final = 0.05
"""Seconds after the end of a lease at which to look: clocks are never quite the same."""


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the sweeps are. Durations in seconds.

    Attributes:
        interval: between two rounds.
        resend_after: how long a package may stay without a claim.
        resend_limit: longest pause between two packages for the same execution.
        backlog_resend: the same for a queue that still has packages waiting.
        max_recoveries: recoveries without progress before an execution is given up (F8).
        batch: executions per statement.
    """

    interval: float = 1.0
    resend_after: float = 5.0
    resend_limit: float = 300.0
    backlog_resend: float = 60.0
    max_recoveries: int = 10
    batch: int = 500


class Sweeper:
    """Finds runnable executions that nobody drives, and sends packages for them."""

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        packages: PackageSender,
        flows: KnownFlows,
        options: SweepOptions,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._broker = broker
        self._packages = packages
        self._flows = flows
        self._options = options
        self._clock = clock
        self._backlog_swept_at = clock.monotonic()
        self._abandoned = HolderGone(journal)
        self._given_up: set[ExecutionKey] = set()
        self._given_up_told_at = -GIVEN_UP_EVERY

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(await self._pause())

    async def once(self) -> int:
        """One round; returns how many packages went out.

        Without a broker that takes them nothing is looked for: each look puts off the next one,
        and a dispatcher that has a broker would come too late for it.
        """
        sent = 0
        if not self._broker.health().takes_messages:
            return sent
        for sweep in (self.abandoned, self._unsent):
            try:
                sent += await sweep()
            except LoomError as error:
                _log.warning("sweep.failed", sweep=sweep.__name__, error=str(error))
            except Exception:  # a fault of ours in one round must not be the last round
                _log.exception("sweep.crashed", sweep=sweep.__name__)
        return sent

    async def _pause(self) -> float:
        """Until the next round; not past the moment at which a lease runs out.

        While everybody lives there is none: leases are renewed long before.
        """
        interval = self._options.interval
        try:
            workers = await self._journal.workers()
        except LoomError:
            return interval
        soonest = min((each.lease_until for each in workers), default=None)
        if soonest is None:
            return interval
        left = (soonest - self._clock.now()) / MICROS
        return min(interval, max(left, 0.0) + AFTER_A_LAPSE)

    async def abandoned(self) -> int:
        """Executions of dead or wedged holders: the recovery pass with the lease as predicate."""
        telling = self._clock.monotonic() - self._given_up_told_at >= GIVEN_UP_EVERY
        given_up: set[ExecutionKey] = set()

        def note(key: ExecutionKey, recoveries: int) -> None:
            given_up.add(key)
            if key not in self._given_up:
                _log.error(
                    "execution.given_up",
                    tenant=key.tenant,
                    execution_id=key.execution_id,
                    recoveries=recoveries,
                )

        summary = await recover_abandoned(
            self._journal,
            self._recover,
            LeaseSweep(batch=self._options.batch, exhausted=telling),
            self._abandoned,
            max_recoveries=self._options.max_recoveries,
            on_exhausted=note,
            resend_after=self._options.resend_after,
        )
        if telling:
            self._given_up, self._given_up_told_at = given_up, self._clock.monotonic()
        self._note_failures(summary)
        return summary.recovered

    async def _recover(self, runnable: Runnable) -> bool:
        row = runnable.row
        _log.info(
            "execution.taken_over",
            tenant=row.tenant,
            execution_id=row.execution_id,
            lost_owner=runnable.lost_owner,
            fence=row.fence,
        )
        return await self._packages.send(row, Cause.RECOVER, runnable.start)

    def _note_failures(self, summary: RecoverySummary) -> None:
        if summary.failed:
            _log.warning(
                "sweep.failed",
                sweep="abandoned",
                error=f"{summary.failed} not sent, such as {summary.failures[0].why}",
            )

    async def _unsent(self) -> int:
        """Executions whose package was lost, or was never sent.

        A queue with packages waiting is merely slow: sending more would only make it
        slower, so it is looked at seldom.
        """
        await self._flows.refresh()
        now = self._clock.monotonic()
        if now - self._backlog_swept_at >= self._options.backlog_resend:
            self._backlog_swept_at = now
            return await self._resend(None)
        idle = []
        for queue in sorted(self._flows.queues):
            depth = await self._broker.depth(topology.work(queue).name)
            if depth is None or depth.ready == 0:
                idle.append(queue)
        return await self._resend(idle) if idle else 0

    async def _resend(self, queues: Sequence[str] | None) -> int:
        options = self._options
        found = await self._journal.take_unsent(
            limit=options.batch,
            resend_after=options.resend_after,
            backoff_limit=options.resend_limit,
            queues=queues,
        )
        return await self._send(found, Cause.RESEND)

    async def _send(self, found: Sequence[Runnable], cause: Cause) -> int:
        """One that cannot be sent is sent by its next hint, and keeps no other from going."""
        fates = await asyncio.gather(
            *(self._packages.send(each.row, cause, each.start) for each in found),
            return_exceptions=True,
        )
        faults = [fate for fate in fates if isinstance(fate, Exception)]
        if faults:
            why = f"{len(faults)} not sent, such as {faults[0]}"
            _log.warning("sweep.failed", sweep=cause.value, error=why)
        return sum(fate is True for fate in fates)
