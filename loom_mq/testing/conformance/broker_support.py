"""What the broker kit's tests are written with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from loom_mq.broker.protocol import Broker, Consumer, Delivery, Outgoing, Queue, QueueKind
from loom_mq.errors import BrokerError

PATIENCE = 10.0
"""Seconds after which something that should happen counts as not happening."""

GRAVE = Queue("kit.dead", QueueKind.SHARED)
WORK = Queue("kit.work", QueueKind.SHARED, delivery_limit=20, dead_letter=GRAVE.name)
MAIL = Queue("kit.mail", QueueKind.PRIVATE)


class BrokerHarness(Protocol):
    """How the kit gets connections of the adapter under test.

    All connections of one harness see one broker, which is empty at first. What is still
    connected at the end of a test is disconnected by the harness.
    """

    async def connect(self, name: str) -> Broker:
        """A new connection, entered already."""

    async def leave(self, broker: Broker) -> None:
        """Disconnect in good order."""

    async def kill(self, broker: Broker) -> None:
        """Disconnect as if its process was killed."""


class Inbox:
    """A handler that keeps deliveries until the test takes them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue()

    def __call__(self, delivery: Delivery) -> None:
        self._queue.put_nowait(delivery)

    async def take(self) -> Delivery:
        """The next delivery."""
        async with asyncio.timeout(PATIENCE):
            return await self._queue.get()

    async def take_all(self, count: int) -> list[Delivery]:
        """The next `count` deliveries."""
        return [await self.take() for _ in range(count)]

    @property
    def waiting(self) -> int:
        """Deliveries that nobody has taken yet."""
        return self._queue.qsize()


def letter(body: bytes | str | int, queue: Queue | str = WORK) -> Outgoing:
    """A message with nothing special."""
    name = queue.name if isinstance(queue, Queue) else queue
    return Outgoing(queue=name, body=body if isinstance(body, bytes) else str(body).encode())


async def send(broker: Broker, messages: Sequence[Outgoing]) -> None:
    """Publish; every message must be confirmed."""
    verdicts = await broker.publish(messages)
    failed: list[BrokerError] = [verdict for verdict in verdicts if verdict is not None]
    assert not failed, f"{len(failed)} of {len(verdicts)} not confirmed: {failed[0]!r}"


def consuming(consumer: Consumer) -> bool:
    """Ask anew each time, which a type checker does not expect of an attribute."""
    return consumer.consuming


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until an asynchronous condition holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE:g} s: {what}") from None


async def ready(broker: Broker, queue: Queue, count: int) -> None:
    """Wait until exactly `count` messages are ready on a queue."""

    async def reached() -> bool:
        depth = await broker.depth(queue.name)
        return depth is not None and depth.ready == count

    await eventually(reached, f"{count} messages ready on {queue.name}")


async def gone(broker: Broker, queue: Queue) -> None:
    """Wait until a queue does not exist."""

    async def reached() -> bool:
        try:
            return await broker.depth(queue.name) is None
        except BrokerError:
            return False

    await eventually(reached, f"{queue.name} is gone")
