"""A queue inside the process: order, fairness, redelivery and dead-lettering as RabbitMQ's."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Final

import msgspec
import structlog

from loom_mq.broker.deadletter import (
    BROKER_QUEUE_HEADER,
    BROKER_REASON_HEADER,
    DELIVERY_LIMIT_REASON,
    EXPIRED_REASON,
    death_headers,
)
from loom_mq.broker.protocol import Handler, Outgoing, Queue, QueueDepth, QueueKind

_BURST: Final = 32
"""Deliveries in one turn of the event loop; others get theirs in between."""
_log = structlog.get_logger(__name__)

Forward = Callable[[Outgoing], None]
"""Puts a message into another queue, if that exists."""


class Stored:
    """A message on a queue."""

    __slots__ = ("message", "returns")

    def __init__(self, message: Outgoing) -> None:
        self.message = message
        self.returns = 0


class MemoryQueue:
    """Messages of one queue and who consumes them.

    What was given back goes out before what never went out, as on a quorum queue.

    Args:
        spec: how it was declared.
        forward: where dead-lettered messages go.
        emptied: told when nobody consumes it any more.
    """

    def __init__(
        self, spec: Queue, forward: Forward, emptied: Callable[[MemoryQueue], None]
    ) -> None:
        self.spec = spec
        self._forward = forward
        self._emptied = emptied
        self._fresh: deque[Stored] = deque()
        self._returned: deque[Stored] = deque()
        self._consumers: deque[MemoryRegistration] = deque()
        self._scheduled = False

    @property
    def depth(self) -> QueueDepth:
        """Messages ready and consumers."""
        return QueueDepth(len(self._fresh) + len(self._returned), len(self._consumers))

    @property
    def registrations(self) -> list[MemoryRegistration]:
        """Who consumes it, next one first."""
        return list(self._consumers)

    def put(self, message: Outgoing) -> None:
        """Take a message."""
        self._fresh.append(Stored(message))
        self.schedule()

    def give_back(self, returned: Iterable[Stored]) -> None:
        """Take back what was delivered and not settled, in order."""
        limit = self.spec.delivery_limit
        for stored in returned:
            stored.returns += 1
            if limit is not None and stored.returns > limit:
                self._die(stored, DELIVERY_LIMIT_REASON)
            elif self.spec.kind is QueueKind.TOKEN:
                self._die(stored, EXPIRED_REASON)  # it may not wait, not even for a moment
            else:
                self._returned.append(stored)
        self.schedule()

    def bury(self, stored: Stored, reason: str) -> None:
        """Dead-letter a message with a reason of ours (F2)."""
        self._send_to_grave(stored, death_headers(self.spec.name, reason))

    def attach(self, registration: MemoryRegistration) -> None:
        """Begin to deliver to a consumer."""
        self._consumers.append(registration)
        self.schedule()

    def detach(self, registration: MemoryRegistration) -> None:
        """Deliver to it no more."""
        if registration in self._consumers:
            self._consumers.remove(registration)
        if not self._consumers:
            self._emptied(self)

    def clear(self) -> None:
        """Drop every ready message."""
        self._fresh.clear()
        self._returned.clear()

    def schedule(self) -> None:
        """Deliver what can be delivered, in the event loop's next turn."""
        if not self._scheduled:
            self._scheduled = True
            # in a context of its own: the sender's belongs to the sender, who may be gone
            asyncio.get_running_loop().call_soon(self._pump, context=Context())

    def _pump(self) -> None:
        self._scheduled = False
        for _ in range(_BURST):
            registration = self._next_with_room()
            if registration is None or not (self._returned or self._fresh):
                break
            registration.deliver((self._returned or self._fresh).popleft())
        else:
            self.schedule()
            return
        if self.spec.kind is QueueKind.TOKEN:
            while self._fresh:
                self._die(self._fresh.popleft(), EXPIRED_REASON)

    def _next_with_room(self) -> MemoryRegistration | None:
        """The consumer whose turn it is; the turn goes on to the next."""
        for _ in range(len(self._consumers)):
            registration = self._consumers[0]
            self._consumers.rotate(-1)
            if registration.has_room:
                return registration
        return None

    def _die(self, stored: Stored, reason: str) -> None:
        headers = stored.message.headers
        if BROKER_REASON_HEADER not in headers:
            headers = {BROKER_REASON_HEADER: reason, BROKER_QUEUE_HEADER: self.spec.name}
        self._send_to_grave(stored, headers)

    def _send_to_grave(self, stored: Stored, headers: dict[str, str]) -> None:
        grave = self.spec.dead_letter
        if grave is None:
            _log.warning("delivery.dropped", queue=self.spec.name, headers=headers)
            return
        message = stored.message
        self._forward(
            msgspec.structs.replace(message, queue=grave, headers={**message.headers, **headers})
        )


class MemoryRegistration:
    """One consumer on one queue for as long as neither goes.

    Args:
        queue: consumed.
        handler: called for each delivery.
        prefetch: unsettled deliveries at most.
        context: the consumer's own, in which its handler runs.
    """

    def __init__(
        self, queue: MemoryQueue, handler: Handler, prefetch: int, context: Context
    ) -> None:
        self.queue = queue
        self._handler = handler
        self._prefetch = prefetch
        self._context = context
        self._unsettled: dict[int, Stored] = {}
        self._tag = 0
        self.over = False
        self.cancelled = False

    @property
    def has_room(self) -> bool:
        """Whether one more delivery may be in hand."""
        return len(self._unsettled) < self._prefetch

    def deliver(self, stored: Stored) -> None:
        """Send a message to the handler, which has it in the loop's next turn."""
        self._tag += 1
        self._unsettled[self._tag] = stored
        delivery = MemoryDelivery(self, self._tag, stored)
        asyncio.get_running_loop().call_soon(
            self._hand_over, self._tag, delivery, context=self._context
        )

    def take(self, tag: int) -> Stored | None:
        """Settle a delivery; None when it was settled before or the registration is over."""
        stored = self._unsettled.pop(tag, None)
        if stored is not None:
            self.queue.schedule()
        return stored

    def end(self, *, keep: bool) -> None:
        """The connection or the queue is gone.

        Args:
            keep: give back what is in hand; else it goes too.
        """
        self.over = True
        unsettled, self._unsettled = list(self._unsettled.values()), {}
        if keep:
            self.queue.give_back(unsettled)
        self.queue.detach(self)

    def _hand_over(self, tag: int, delivery: MemoryDelivery) -> None:
        if tag not in self._unsettled:
            return  # the connection went while it was on its way
        if self.cancelled:
            delivery.requeue()
            return
        try:
            self._handler(delivery)
        except Exception:
            # a handler must not raise; one that does must not stop the queue
            _log.exception("delivery.handler_raised", queue=self.queue.spec.name)
            delivery.requeue()


class MemoryDelivery:
    """See `broker.protocol.Delivery`."""

    __slots__ = ("_registration", "_stored", "_tag", "redelivered")

    def __init__(self, registration: MemoryRegistration, tag: int, stored: Stored) -> None:
        self._registration = registration
        self._tag = tag
        self._stored = stored
        self.redelivered = stored.returns > 0

    @property
    def queue(self) -> str:
        """Where it was taken from."""
        return self._registration.queue.spec.name

    @property
    def body(self) -> bytes:
        """As the sender gave it."""
        return self._stored.message.body

    @property
    def content_type(self) -> str:
        """As the sender said."""
        return self._stored.message.content_type

    @property
    def type(self) -> str:
        """As the sender said."""
        return self._stored.message.type

    @property
    def reply_to(self) -> str | None:
        """Queue to reply to."""
        return self._stored.message.reply_to or None

    @property
    def correlation_id(self) -> str | None:
        """The sender's name for its request."""
        return self._stored.message.correlation_id or None

    @property
    def headers(self) -> dict[str, str]:
        """A copy of the headers."""
        return dict(self._stored.message.headers)

    def ack(self) -> None:
        """Done with it."""
        self._registration.take(self._tag)

    def requeue(self) -> None:
        """Give it back for another consumer."""
        stored = self._registration.take(self._tag)
        if stored is not None:
            self._registration.queue.give_back([stored])

    def dead_letter(self, reason: str) -> None:
        """Put it into the dead-letter queue with a reason (F2)."""
        stored = self._registration.take(self._tag)
        if stored is not None:
            self._registration.queue.bury(stored, reason)
