"""RabbitMQ behind the broker protocol (F10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec
from pamqp.commands import Basic
from pamqp.common import FieldTable

from loom_mq.broker.amqp.bury import Undertaker
from loom_mq.broker.amqp.confirms import Letter
from loom_mq.broker.amqp.consumer import AmqpConsumer
from loom_mq.broker.amqp.delivery import AmqpDelivery
from loom_mq.broker.amqp.ledger import ConsumeCounts
from loom_mq.broker.amqp.link import Link
from loom_mq.broker.amqp.probe import Probe
from loom_mq.broker.amqp.publisher import PublishCounts, Publisher
from loom_mq.broker.amqp.session import broker_url
from loom_mq.broker.amqp.topology import Topology
from loom_mq.broker.amqp.watch import Watch
from loom_mq.broker.limits import check_queue, refusal
from loom_mq.broker.protocol import (
    BrokerHealth,
    Consumer,
    Handler,
    Outgoing,
    Queue,
    QueueDepth,
)
from loom_mq.errors import BrokerError, BrokerUnreachableError, SettingsError
from loom_mq.ids import check_id

_VERIFY_SECONDS: Final = 3.0


class AmqpCounts(msgspec.Struct, frozen=True):
    """What an adapter did since its start, for metrics (C21)."""

    publish: PublishCounts
    consume: ConsumeCounts
    connections_lost: int


class AmqpBroker:
    """See `broker.protocol.Broker`.

    Two connections: one publishes, the other consumes, declares and looks. A broker with
    a memory or disk alarm stops reading the first and leaves the other alone, so
    acknowledgements and goodbyes go on (C34).

    Args:
        url: ``amqp://user:password@host:5672/vhost``; never shown in logs or errors.
        name: this process, shown on the broker.
        publish_timeout: seconds for one call of `publish`.
        connect_timeout: seconds for one try to connect, and for the broker's answer to
            any question.
        heartbeat: seconds; a silent connection is dropped after about three of them, or
            sooner when a question finds no answer.
        confirm_window: unconfirmed messages at most, over all callers of `publish`.
        verify_interval: seconds between looks whether consumers are really there (C66).

    Raises:
        SettingsError: the address or a number cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        publish_timeout: float = 10.0,
        connect_timeout: float = 10.0,
        heartbeat: int = 30,
        confirm_window: int = 1000,
        verify_interval: float = _VERIFY_SECONDS,
    ) -> None:
        if min(publish_timeout, connect_timeout, heartbeat, confirm_window, verify_interval) <= 0:
            raise SettingsError("timeouts, heartbeat and windows of the broker must be above 0")
        self._seconds = connect_timeout
        self._out, self._in = (
            Link(
                broker_url(url, name=f"{name} {role}", heartbeat=heartbeat),
                role=role,
                connect_timeout=connect_timeout,
            )
            for role in ("publish", "consume")
        )
        self._probe = Probe(self._in, seconds=connect_timeout)
        self._topology = Topology(self._in, self._probe, seconds=connect_timeout)
        self._publisher = Publisher(
            self._out,
            timeout=publish_timeout,
            window=confirm_window,
            on_missing=self._topology.missing,
        )
        self._undertaker = Undertaker(self._publisher)
        self._consumers: list[AmqpConsumer] = []
        self._watch = Watch(
            self._in, self._consumers, interval=verify_interval, seconds=connect_timeout
        )
        self._consume_counts = ConsumeCounts()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerUnreachableError: not reachable within the connect timeout.
        """
        for part in (self._out, self._in, self._publisher, self._topology, self._watch):
            part.start()
        try:
            async with asyncio.timeout(self._seconds):
                await self._in.session()
                await self._publisher.wait_ready()
        except TimeoutError:
            reason = self._in.reason or self._out.reason or "no channel was opened"
            await self._leave()
            raise BrokerUnreachableError(
                f"no connection to the broker within {self._seconds:g} s ({reason}); check that "
                "it runs, the address, and the user's permissions"
            ) from None
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect, in bounded time whatever the broker does (C60)."""
        await self._leave()

    async def abort(self) -> None:
        """Disconnect without a goodbye, as a killed process would; for the second signal."""
        for link in (self._in, self._out):
            await link.abort()
        await self._leave()

    async def declare(self, queues: Sequence[Queue]) -> None:
        """Make queues exist; remembered and made again after a loss.

        Raises:
            TopologyMismatchError: one exists with other arguments.
            BrokerUnreachableError: not within the connect timeout.
            InvalidIdError: a name is not lawful.
        """
        for queue in queues:
            check_queue(queue)
        await self._topology.declare(queues)

    async def publish(self, messages: Sequence[Outgoing]) -> list[BrokerError | None]:
        """Publish with confirms, all in one window; see `broker.protocol.Broker.publish`.

        `PublishTimeoutError` means that the message may be there, `BrokerUnreachableError`
        that it is not.
        """
        verdicts: list[BrokerError | None] = [refusal(message) for message in messages]
        lawful = [index for index, verdict in enumerate(verdicts) if verdict is None]
        found = await self._publisher.publish([_letter(messages[index]) for index in lawful])
        for index, verdict in zip(lawful, found, strict=True):
            verdicts[index] = verdict
        return verdicts

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        """Declare `queue` and consume it, `prefetch` unacknowledged messages at most.

        Raises:
            TopologyMismatchError: the queue exists with other arguments.
            BrokerUnreachableError: not within the connect timeout; nothing is left behind.
            InvalidIdError: the queue's name is not lawful.
            SettingsError: `prefetch` is below 1 or above 65535 (C71).
        """
        check_queue(queue)
        if not 1 <= prefetch <= 65_535:
            raise SettingsError(f"prefetch must be 1 to 65535, not {prefetch}")
        consumer = AmqpConsumer(
            self._in,
            queue,
            handler,
            prefetch=prefetch,
            bury=self._bury(queue),
            probe=self._probe,
            seconds=self._seconds,
            counts=self._consume_counts,
        )
        consumer.start()
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.shield(consumer.first)
        except TimeoutError:
            await consumer.close()
            raise BrokerUnreachableError(
                f"queue {queue.name!r} could not be consumed within {self._seconds:g} s "
                f"({consumer.reason or self._in.reason})"
            ) from None
        except BaseException:
            await consumer.close()
            raise
        self._consumers.append(consumer)
        return _Registered(consumer, self._consumers)

    async def depth(self, queue: str) -> QueueDepth | None:
        """Look at a queue without changing it; None when it does not exist.

        Raises:
            BrokerError: it is private to another connection.
            BrokerUnreachableError: no answer within the connect timeout.
        """
        return await self._probe.look(check_id(queue, "queue name"))

    async def purge(self, queue: str) -> None:
        """Drop every ready message of a queue; a missing queue has none.

        Raises:
            BrokerError: it is private to another connection.
            BrokerUnreachableError: no answer within the connect timeout.
        """
        await self._probe.purge(check_id(queue, "queue name"))

    def health(self) -> BrokerHealth:
        """The present state, without asking the broker."""
        outgoing = self._out.current
        blocked = outgoing is not None and outgoing.blocked
        idle = [consumer for consumer in self._consumers if not consumer.consuming]
        connected = outgoing is not None and self._in.current is not None and self._publisher.ready
        reason = ""
        if not connected:
            reason = self._in.reason or self._out.reason or "no channel for publishing"
        elif blocked:
            reason = "the broker has blocked publishers (memory or disk alarm)"
        elif idle:
            reason = f"queue {idle[0].queue.name!r} is not consumed: {idle[0].reason}"
        return BrokerHealth(connected, blocked, not idle, reason)

    def counts(self) -> AmqpCounts:
        """What was done since the start."""
        lost = self._in.losses + self._out.losses
        return AmqpCounts(self._publisher.counts, self._consume_counts, lost)

    def _bury(self, queue: Queue) -> _Bury:
        return _Bury(self._undertaker, queue.dead_letter)

    async def _leave(self) -> None:
        await self._watch.close()
        await self._topology.close()
        await self._undertaker.close()
        await asyncio.gather(*(consumer.close() for consumer in self._consumers))
        self._consumers.clear()
        await asyncio.gather(self._in.close(), self._out.close())
        await self._publisher.close()


class _Bury:
    """Dead-letters what comes from one queue."""

    def __init__(self, undertaker: Undertaker, grave: str | None) -> None:
        self._undertaker = undertaker
        self._grave = grave

    def __call__(self, delivery: AmqpDelivery, reason: str) -> None:
        self._undertaker.bury(delivery, reason, self._grave)


class _Registered:
    """A consumer as its user sees it; see `broker.protocol.Consumer`."""

    def __init__(self, consumer: AmqpConsumer, consumers: list[AmqpConsumer]) -> None:
        self._consumer = consumer
        self._consumers = consumers

    @property
    def consuming(self) -> bool:
        """Whether the broker has confirmed the consumer on the present connection."""
        return self._consumer.consuming

    async def cancel(self) -> None:
        """Take no more; deliveries in hand may still be settled, for a minute."""
        if self._consumer in self._consumers:
            self._consumers.remove(self._consumer)
            await self._consumer.cancel()


def _letter(message: Outgoing) -> Letter:
    headers: FieldTable | None = {**message.headers} if message.headers else None
    return Letter(
        message.queue,
        Basic.Properties(
            content_type=message.content_type or None,
            headers=headers,
            delivery_mode=2 if message.persistent else 1,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            message_type=message.type or None,
        ),
        message.body,
    )
