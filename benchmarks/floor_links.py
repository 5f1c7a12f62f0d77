"""How the raw pipeline talks to RabbitMQ: two framings under one protocol.

`LeanLink` puts many packages into one message and works on aiormq's channel; `PlainLink` sends one
aio-pika message per package. Everything else is equal: quorum queues, persistent messages,
mandatory routing, confirms in windows, one acknowledgement for all that was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

import aio_pika
import aio_pika.abc
import aiormq
import aiormq.abc
import msgspec

PUBLISH_TIMEOUT: Final = 30.0
CONNECT_TIMEOUT: Final = 15.0
PERSISTENT: Final = 2
LEAN_PREFETCH: Final = 64
"""Messages of many packages each."""
LEAN_TAKE: Final = 8
"""Messages that are handled as one batch."""
PLAIN_PREFETCH: Final = 1000
PLAIN_TAKE: Final = 500


class Framing(StrEnum):
    """How packages lie in messages."""

    BATCHED = "batched"
    PLAIN = "plain"


class Package(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One execution on its way: its id, where the result goes, its input."""

    execution_id: str
    reply_to: str
    body: bytes


class Link(Protocol):
    """One process's connection: it takes from one queue and sends to any."""

    async def take(self) -> list[Package]:
        """All that waits, up to a batch; sleeps until there is something."""

    async def acknowledge(self) -> None:
        """Settle everything that the last `take` returned."""

    async def send(self, queue: str, packages: Sequence[Package], *, lasting: bool = True) -> None:
        """Publish and wait for the broker's confirms. ``lasting`` makes messages persistent."""

    async def close(self) -> None:
        """Close the connection."""


async def open_link(framing: Framing, url: str, queue: str, *, private: bool = False) -> Link:
    """Connect, declare ``queue`` and consume it.

    A ``private`` queue is the client's reply queue: classic, exclusive, gone with the connection,
    its messages settled by their delivery.
    """
    match framing:
        case Framing.BATCHED:
            return await LeanLink.open(url, queue, private=private)
        case Framing.PLAIN:
            return await PlainLink.open(url, queue, private=private)


class LeanLink:
    """Many packages per message, on aiormq."""

    def __init__(self, connection: aiormq.abc.AbstractConnection) -> None:
        self._connection = connection
        self._waiting: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._decoder = msgspec.msgpack.Decoder(list[Package])
        self._encoder = msgspec.msgpack.Encoder()
        self._newest = 0
        self._consumer: aiormq.abc.AbstractChannel
        self._publisher: aiormq.abc.AbstractChannel

    @classmethod
    async def open(cls, url: str, queue: str, *, private: bool) -> LeanLink:
        """See `open_link`."""
        async with asyncio.timeout(CONNECT_TIMEOUT):
            link = cls(await aiormq.connect(url))
            link._publisher = await link._connection.channel(publisher_confirms=True)
            link._consumer = await link._connection.channel(publisher_confirms=False)
            await link._consumer.basic_qos(prefetch_count=LEAN_PREFETCH)
            await link._consumer.queue_declare(
                queue,
                durable=not private,
                exclusive=private,
                arguments={} if private else {"x-queue-type": "quorum"},
            )
            await link._consumer.basic_consume(queue, link._deliver, no_ack=private)
        return link

    async def _deliver(self, message: aiormq.abc.DeliveredMessage) -> None:
        tag = message.delivery_tag
        if tag is None:
            raise ValueError("a delivery without a tag")
        self._waiting.put_nowait((tag, message.body))

    async def take(self) -> list[Package]:
        """See `Link.take`."""
        self._newest, body = await self._waiting.get()
        packages = self._decoder.decode(body)
        for _ in range(LEAN_TAKE - 1):
            if self._waiting.empty():
                break
            self._newest, body = self._waiting.get_nowait()
            packages += self._decoder.decode(body)
        return packages

    async def acknowledge(self) -> None:
        """See `Link.acknowledge`."""
        await self._consumer.basic_ack(self._newest, multiple=True, wait=False)

    async def send(self, queue: str, packages: Sequence[Package], *, lasting: bool = True) -> None:
        """See `Link.send`: one message, one confirm."""
        await self._publisher.basic_publish(
            self._encoder.encode(packages),
            routing_key=queue,
            properties=aiormq.spec.Basic.Properties(delivery_mode=PERSISTENT if lasting else 1),
            mandatory=True,
            timeout=PUBLISH_TIMEOUT,
        )

    async def close(self) -> None:
        """See `Link.close`."""
        await self._connection.close()


class PlainLink:
    """One aio-pika message per package."""

    def __init__(self, connection: aio_pika.abc.AbstractConnection) -> None:
        self._connection = connection
        self._waiting: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
        self._decoder = msgspec.msgpack.Decoder(Package)
        self._encoder = msgspec.msgpack.Encoder()
        self._newest: aio_pika.abc.AbstractIncomingMessage | None = None
        self._exchange: aio_pika.abc.AbstractExchange

    @classmethod
    async def open(cls, url: str, queue: str, *, private: bool) -> PlainLink:
        """See `open_link`."""
        async with asyncio.timeout(CONNECT_TIMEOUT):
            link = cls(await aio_pika.connect_robust(url))
            publisher = await link._connection.channel(on_return_raises=True)
            link._exchange = publisher.default_exchange
            consumer = await link._connection.channel(publisher_confirms=False)
            await consumer.set_qos(prefetch_count=PLAIN_PREFETCH)
            declared = await consumer.declare_queue(
                queue,
                durable=not private,
                exclusive=private,
                arguments={} if private else {"x-queue-type": "quorum"},
            )
            await declared.consume(link._deliver, no_ack=private)
        return link

    async def _deliver(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        self._waiting.put_nowait(message)

    async def take(self) -> list[Package]:
        """See `Link.take`."""
        message = await self._waiting.get()
        packages = [self._decoder.decode(message.body)]
        while len(packages) < PLAIN_TAKE and not self._waiting.empty():
            message = self._waiting.get_nowait()
            packages.append(self._decoder.decode(message.body))
        self._newest = message
        return packages

    async def acknowledge(self) -> None:
        """See `Link.acknowledge`."""
        if self._newest is not None:
            await self._newest.ack(multiple=True)

    async def send(self, queue: str, packages: Sequence[Package], *, lasting: bool = True) -> None:
        """See `Link.send`: one message per package, all their confirms awaited as one window."""
        mode = aio_pika.DeliveryMode.PERSISTENT if lasting else aio_pika.DeliveryMode.NOT_PERSISTENT
        async with asyncio.TaskGroup() as window:
            for package in packages:
                message = aio_pika.Message(self._encoder.encode(package), delivery_mode=mode)
                window.create_task(
                    self._exchange.publish(message, queue, mandatory=True, timeout=PUBLISH_TIMEOUT)
                )

    async def close(self) -> None:
        """See `Link.close`."""
        await self._connection.close()
