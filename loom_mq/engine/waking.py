"""Wakes executions whose timers have come due (F9), as a part of the timer service.

A due timer is held while its package is on the way, and its row goes after the broker's
confirm. Bursts are paced; see `loom_mq.engine.pacing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker, QueueDepth
from loom_mq.clock import MICROS, Clock
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.pacing import Pacer
from loom_mq.engine.packages import PackageSender
from loom_mq.errors import BrokerError
from loom_mq.journal.protocol import DueTimer, Journal
from loom_mq.model.execution import Status
from loom_mq.model.messages import Cause
from loom_mq.observe.metrics import Metrics

LOOK: Final = 0.04
"""Seconds between two looks at a queue that is full."""
WAITING: Final = 2000
"""Timers that this process keeps in hand while their queue is full."""
LONGER: Final = 3
"""Holds that those are kept from others for: they are to be sent from here, and once."""
MARGIN: Final = 1.0
"""Seconds of its hold that one has left when it is let go of."""


class Waker:
    """See the module's docstring.

    Args:
        journal: where the timers are.
        broker: asked how full queues are.
        outbox: how wakes get to their queues.
        batch: timers per statement.
        hold: seconds that a due timer is kept from the other services.
        poll: longest pause between two looks, in seconds.
        clock: the journal's.
        metrics: what is counted.
    """

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        outbox: Outbox,
        *,
        batch: int,
        hold: float,
        poll: float,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._journal = journal
        self._broker = broker
        self._packages = PackageSender(broker, outbox)
        self._batch = batch
        self._hold = hold
        self._poll = poll
        self._clock = clock
        self._metrics = metrics
        self._pacer = Pacer(WAITING)

    async def once(self) -> int:
        """Fire what is due, a batch at most and all of it at once; how many there were.

        Raises:
            LoomError: the journal cannot be asked.
        """
        due = await self._journal.due_timers(limit=self._batch, hold=self._hold)
        await self._fire(due)
        return len(due)

    async def paced(self) -> float:
        """Fire what is due and may go now; how many seconds there is nothing to do then.

        Raises:
            LoomError: the journal cannot be asked.
        """
        self._pacer.let_go(self._clock.monotonic())
        taking = asyncio.ensure_future(self._take_in())
        if not self._pacer.waiting:
            await asyncio.wait([taking])
        # else the workers need not wait for the statement
        more, sent = await asyncio.gather(taking, self._send_out(), return_exceptions=True)
        if sent is not None:
            raise sent
        if isinstance(more, BaseException):
            raise more
        if more:
            return 0.0
        return LOOK if self._pacer.waiting else await self._pause()

    async def flush(self) -> None:
        """Fire what waits, all of it: somebody else would be late with it.

        Raises:
            LoomError: the journal cannot be told; what was sent fires once more.
        """
        await self._fire(self._pacer.take_all())

    async def _take_in(self) -> bool:
        """Take what is due, as far as there is room; whether there may be more."""
        limit = min(self._batch, WAITING // 4)
        if self._pacer.room < limit:
            return False
        hold = self._hold * LONGER if self._pacer.waiting else self._hold
        until = self._clock.monotonic() + hold - MARGIN
        due = await self._journal.due_timers(limit=limit, hold=hold)
        self._pacer.add(due, until)
        return len(due) == limit

    async def _send_out(self) -> None:
        """Fire what may go now."""
        chosen = self._pacer.few()
        for queue in self._pacer.queues():
            depth = await self._depth(queue)
            chosen += self._pacer.take(queue, depth, self._clock.monotonic())
        await self._fire(chosen)

    async def _depth(self, queue: str) -> QueueDepth | None:
        try:
            return await self._broker.depth(topology.work(queue).name)
        except BrokerError:
            return None  # then what is sent tells more

    async def _fire(self, timers: Sequence[DueTimer]) -> None:
        sent = await asyncio.gather(*(self._wake(timer) for timer in timers))
        gone = [
            (timer.row.key, timer.due) for timer, done in zip(timers, sent, strict=True) if done
        ]
        if gone:
            await self._journal.drop_timers(gone)

    async def _wake(self, timer: DueTimer) -> bool:
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
            return self._poll
        until = (soonest - self._clock.now()) / MICROS
        return min(self._poll, max(until, 0.001))
