"""From deliveries to packages, and back to one settlement per delivery.

A message may carry many packages; it is acknowledged when the claim of each is
durable or refused (claim before ack), and given back whole when one could not be
looked at: the others are then duplicates, which the journal makes harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loom_mq.broker.protocol import Delivery
from loom_mq.codec import wire
from loom_mq.errors import InputError
from loom_mq.model.messages import Package, PackageMessage


class Settlement:
    """Counts the packages of one delivery down to its one acknowledgement."""

    __slots__ = ("_delivery", "_left", "_requeue")

    def __init__(self, delivery: Delivery, packages: int) -> None:
        self._delivery = delivery
        self._left = packages
        self._requeue = False

    @property
    def redelivered(self) -> bool:
        """Whether somebody may have begun with it, and died."""
        return self._delivery.redelivered

    def done(self, *, requeue: bool = False) -> None:
        """One package was claimed or refused, or (`requeue`) could not be looked at."""
        self._left -= 1
        self._requeue = self._requeue or requeue
        if self._left == 0:
            if self._requeue:
                self._delivery.requeue()
            else:
                self._delivery.ack()


class Once:
    """Settles one package of a delivery once, however often it is asked to."""

    __slots__ = ("_settlement", "redelivered")

    def __init__(self, settlement: Settlement) -> None:
        self._settlement: Settlement | None = settlement
        self.redelivered = settlement.redelivered

    def done(self, *, requeue: bool = False) -> None:
        """See `Settlement.done`."""
        settlement, self._settlement = self._settlement, None
        if settlement is not None:
            settlement.done(requeue=requeue)


class Intake:
    """Keeps packages waiting for a free slot.

    Args:
        begin: takes a package; called only while there is room.
        slots: packages in hand at once.
        malformed: counts messages that cannot be read.
    """

    def __init__(
        self,
        begin: Callable[[Package, Settlement], None],
        slots: int,
        malformed: Callable[[InputError], None],
    ) -> None:
        self._begin = begin
        self._malformed = malformed
        self._free = slots
        self._waiting: deque[tuple[Package, Settlement]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Packages that wait for a slot."""
        return len(self._waiting)

    def handle(self, delivery: Delivery) -> None:
        """Take a delivery from a work queue."""
        if self._closed:
            delivery.requeue()
            return
        try:
            message = wire.decode(PackageMessage, delivery.body, delivery.content_type)
        except InputError as error:
            self._malformed(error)
            delivery.dead_letter(f"{error.code}: {error.message}")
            return
        if not message.items:
            delivery.ack()
            return
        settlement = Settlement(delivery, len(message.items))
        self._waiting.extend((package, settlement) for package in message.items)
        self._fill()

    def release(self) -> None:
        """A slot became free."""
        self._free += 1
        self._fill()

    def close(self) -> None:
        """Give back what waits and take nothing more."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft()[1].done(requeue=True)

    def _fill(self) -> None:
        while self._free > 0 and self._waiting:
            self._free -= 1
            self._begin(*self._waiting.popleft())
