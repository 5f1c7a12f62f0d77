"""What a broker must do. `loom_mq.testing.conformance.broker` holds an adapter to it.

Messages are hints (the journal is the truth), so the contract is small: what was
confirmed is on a queue and survives a broker restart; what was not confirmed may or
may not be there; anything may come twice or late.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

from loom_mq.errors import BrokerError


class QueueKind(enum.StrEnum):
    """How a queue is kept."""

    SHARED = "shared"
    """Durable and replicated, for work of the whole fleet."""
    PRIVATE = "private"
    """Exclusive to this connection, gone with it: replies and hints to one process."""
    TOKEN = "token"
    """Holds one process's presence token; see `Topology.presence_token`."""


class Queue(msgspec.Struct, frozen=True):
    """A queue as this product declares it; every name is made in `topology`."""

    name: str
    kind: QueueKind
    delivery_limit: int | None = None
    dead_letter: str | None = None
    """Queue that gets what is rejected or delivered too often."""
    expires: float | None = None
    """Seconds after which an unused queue is deleted."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published to a queue by name.

    Attributes:
        queue: where to; it must exist, or the message comes back as unroutable.
        persistent: survives a broker restart.
        headers: short text only.
    """

    queue: str
    body: bytes
    content_type: str = "application/msgpack"
    type: str = ""
    reply_to: str | None = None
    correlation_id: str | None = None
    persistent: bool = True
    headers: dict[str, str] = {}


class Delivery(Protocol):
    """A message taken from a queue.

    Leaves its handler through exactly one of `ack`, `requeue` and `dead_letter`; a
    second call, or one after the channel is gone, does nothing (the broker delivers
    it again and the journal makes that harmless).
    """

    @property
    def queue(self) -> str:
        """Where it was taken from."""

    @property
    def body(self) -> bytes:
        """Its bytes."""

    @property
    def content_type(self) -> str:
        """``application/msgpack`` or ``application/json``."""

    @property
    def type(self) -> str:
        """What kind of message it says it is."""

    @property
    def reply_to(self) -> str | None:
        """The queue that wants the answer."""

    @property
    def correlation_id(self) -> str | None:
        """The sender's name for its request."""

    @property
    def headers(self) -> dict[str, str]:
        """Short texts beside the body."""

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before."""

    def ack(self) -> None:
        """Done with it. Adapters may send several acknowledgements as one."""

    def requeue(self) -> None:
        """Give it back for another consumer."""

    def dead_letter(self, reason: str) -> None:
        """Put it into the dead-letter queue with a reason (F2)."""


Handler = Callable[[Delivery], None]
"""Called on the event loop for each delivery; must not block and must not raise."""


class Consumer(Protocol):
    """A consumer kept alive by the adapter through every loss of the connection."""

    @property
    def consuming(self) -> bool:
        """Whether the broker has confirmed the consumer on the present connection."""

    async def cancel(self) -> None:
        """Take no more; deliveries in hand may still be settled."""


class QueueDepth(msgspec.Struct, frozen=True):
    """Messages ready and consumers of a queue."""

    ready: int
    consumers: int


class BrokerHealth(msgspec.Struct, frozen=True):
    """What the adapter knows of its connection."""

    connected: bool
    blocked: bool
    consuming: bool
    """Every consumer asked for is confirmed."""
    reason: str = ""

    @property
    def takes_messages(self) -> bool:
        """Whether what is published now has a chance to arrive."""
        return self.connected and not self.blocked


class Broker(Protocol):
    """A connection to the broker that outlives losses of the connection."""

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerUnreachableError: not reachable within the connect timeout.
        """

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def declare(self, queues: Sequence[Queue]) -> None:
        """Make queues exist; remembered and made again after a loss.

        Raises:
            TopologyMismatchError: one exists with other arguments.
        """

    async def publish(self, messages: Sequence[Outgoing]) -> list[BrokerError | None]:
        """Publish with confirms, all in one window.

        Returns one verdict per message: None when confirmed, else `UnroutableError`,
        `PublishRefusedError`, `PublishTimeoutError` or `BrokerUnreachableError`.
        Never takes longer than the publish timeout and never raises for a message.
        """

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        """Declare `queue` and consume it, `prefetch` unacknowledged messages at most."""

    async def depth(self, queue: str) -> QueueDepth | None:
        """Look at a queue without changing it; None when it does not exist."""

    async def purge(self, queue: str) -> None:
        """Drop every ready message of a queue."""

    def health(self) -> BrokerHealth:
        """The present state, without asking the broker."""
