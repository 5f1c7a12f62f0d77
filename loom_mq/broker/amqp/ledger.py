"""What a channel has delivered and what has been settled (F10).

Settling is fire and forget on the channel that delivered. Once that channel is gone the
broker delivers the message again, the journal makes that harmless, and settling it here
does nothing.
"""

from __future__ import annotations

import asyncio

import msgspec
from pamqp.commands import Basic
from pamqp.frame import marshal

from loom_mq.broker.amqp.outbox import Outbox


class ConsumeCounts(msgspec.Struct):
    """What consumers did, since the start."""

    delivered: int = 0
    stale: int = 0
    """Settled after their channel was gone: dropped."""
    registered: int = 0


class Ledger:
    """Settles the deliveries of one channel, several acknowledgements in one frame.

    Delivery tags count from 1. `_low` is the highest tag up to which everything is
    settled: acknowledgements up to there need one frame, those above it one each.

    Args:
        number: the channel's number.
        outbox: of the channel's connection.
        counts: told of what is settled too late.
    """

    def __init__(self, number: int, outbox: Outbox, counts: ConsumeCounts) -> None:
        self._number = number
        self._outbox = outbox
        self._low = 0
        self._settled: set[int] = set()
        self._acked: list[int] = []
        self._highest = 0
        self._scheduled = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._counts = counts

    @property
    def in_hand(self) -> int:
        """Deliveries not yet settled."""
        return self._highest - self._low - len(self._settled)

    def delivered(self, tag: int) -> None:
        """A delivery has come."""
        self._highest = max(self._highest, tag)
        self._idle.clear()

    def ack(self, tag: int) -> None:
        """Done with it; sent at the end of this tick."""
        if not self._settle(tag):
            return
        self._acked.append(tag)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Give it back, or leave it to the queue's own dead-lettering."""
        if self._settle(tag):
            frame = Basic.Reject(delivery_tag=tag, requeue=requeue)
            self._outbox.write(marshal(frame, self._number))

    def flush(self) -> None:
        """Send the acknowledgements collected so far."""
        self._scheduled = False
        acked, self._acked = self._acked, []
        if self._closed or not acked:
            return
        acked.sort()
        together = 0
        for tag in acked:
            if tag > self._low:
                self._outbox.write(marshal(Basic.Ack(delivery_tag=tag), self._number))
            else:
                together = tag  # it must be one that the broker still waits for
        if together:
            multiple = together != acked[0]
            self._outbox.write(
                marshal(Basic.Ack(delivery_tag=together, multiple=multiple), self._number)
            )

    def close(self) -> None:
        """The channel is gone."""
        self._closed = True
        self._idle.set()

    async def settled(self) -> None:
        """Wait until nothing is in hand or the channel is gone."""
        await self._idle.wait()

    def _settle(self, tag: int) -> bool:
        if self._closed:
            self._counts.stale += 1
            return False
        self._settled.add(tag)
        while self._low + 1 in self._settled:
            self._low += 1
            self._settled.discard(self._low)
        if not self.in_hand:
            self._idle.set()
        return True
