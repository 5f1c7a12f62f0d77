"""A consumer that stays registered, whatever happens to queue, channel or connection.

It registers anew when the connection is lost (C04), when the broker cancels it because
the queue was deleted (C32), when its channel is closed, and when a look at the queue
shows that the broker no longer knows it, although nobody said so (C66).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Final

import structlog
from aiormq.abc import AbstractConnection, DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from loom_mq.broker.amqp.backoff import Backoff
from loom_mq.broker.amqp.calls import (
    LockedQueueError,
    MissingQueueError,
    call,
    cause_text,
    end,
    first_of,
)
from loom_mq.broker.amqp.channel import Content, LeanChannel
from loom_mq.broker.amqp.delivery import AmqpDelivery, Bury
from loom_mq.broker.amqp.ledger import ConsumeCounts, Ledger
from loom_mq.broker.amqp.link import Link
from loom_mq.broker.amqp.probe import Probe
from loom_mq.broker.amqp.readable import UNREADABLE
from loom_mq.broker.amqp.session import Session
from loom_mq.broker.protocol import Handler, Queue, QueueDepth
from loom_mq.errors import BrokerError, TopologyMismatchError
from loom_mq.observe.limiter import OncePer

_LOG_SECONDS: Final = 60.0
_MISMATCH_SECONDS: Final = 15.0
_STEADY_SECONDS: Final = 5.0
"""A registration that lived this long shows that the next one may come quickly."""
_SETTLE_SECONDS: Final = 60.0
"""How long a cancelled consumer's channel waits for what is in hand, before the broker
gets it back."""
_log = structlog.get_logger(__name__)


class _ConsumeChannel(LeanChannel):
    """One registration of one consumer."""

    def __init__(
        self, connection: AbstractConnection, number: int, session: Session, consumer: AmqpConsumer
    ) -> None:
        super().__init__(connection, number, confirms=False)
        self.session = session
        self.ledger = Ledger(number, session.outbox, consumer.counts)
        self.ended: asyncio.Future[str] = session.lost.get_loop().create_future()
        self.deliveries = 0
        self._consumer = consumer
        self.on_consumer_cancel_callbacks.add(self._cancelled)
        self.closing.add_done_callback(self._closed)

    def end(self, reason: str) -> None:
        """The registration is not worth its name any more."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def on_content(self, method: Content, header: ContentHeader, body: bytes) -> None:
        if isinstance(method, Basic.Deliver) and method.delivery_tag is not None:
            self.deliveries += 1
            self.ledger.delivered(method.delivery_tag)
            self._consumer.deliver(
                self, method.delivery_tag, bool(method.redelivered), header, body
            )

    def _cancelled(self, _frame: Basic.Cancel | Basic.CancelOk) -> None:
        self.end("the broker cancelled the consumer; the queue was deleted or moved")

    def _closed(self, closing: asyncio.Future[object]) -> None:
        self.ledger.close()
        error = None if closing.cancelled() else closing.exception()
        self.end(cause_text(error))


class AmqpConsumer:
    """See `broker.protocol.Consumer`.

    Args:
        link: the consuming connection.
        queue: declared before every registration.
        handler: called for each delivery.
        prefetch: unacknowledged deliveries at most; per consumer, never global (C71).
        bury: dead-letters a delivery with a reason.
        probe: declares the queue.
        seconds: for one answer of the broker.
        counts: shared by the consumers of one broker.
    """

    def __init__(
        self,
        link: Link,
        queue: Queue,
        handler: Handler,
        *,
        prefetch: int,
        bury: Bury,
        probe: Probe,
        seconds: float,
        counts: ConsumeCounts,
    ) -> None:
        self.queue = queue
        self._link = link
        self._handler = handler
        self._prefetch = prefetch
        self._bury = bury
        self._seconds = seconds
        self.counts = counts
        self._probe = probe
        self._channel: _ConsumeChannel | None = None
        self._tag = ""
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None
        self._farewells: set[asyncio.Task[None]] = set()
        self._said = OncePer(_LOG_SECONDS)
        self._seen = (-1, -1)
        self._registrations = 0
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason = "not registered yet"

    @property
    def consuming(self) -> bool:
        """Whether the broker has confirmed the consumer on the present connection."""
        channel = self._channel
        return channel is not None and not channel.ended.done() and channel.session.alive

    def start(self) -> None:
        """Begin to keep it registered."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def cancel(self) -> None:
        """Take no more; deliveries in hand may still be settled, for a minute."""
        self._cancelled = True
        await self._stop()
        channel = self._channel
        if channel is None or channel.ended.done():
            return
        channel.ledger.flush()
        channel.session.outbox.flush()
        try:
            await call(
                channel.basic_cancel(self._tag), seconds=self._seconds, what="cancelling a consumer"
            )
        except (BrokerError, MissingQueueError, LockedQueueError) as error:
            channel.session.condemn(f"a consumer could not be cancelled ({error})")
            return
        channel.end("cancelled")
        self._later(self._close_when_settled(channel))

    async def close(self) -> None:
        """Stop for good; the connection goes next and gives back what is in hand."""
        self._cancelled = True
        await self._stop()
        if self._channel is not None:
            self._channel.ledger.flush()
        await end(*self._farewells)

    def deliver(
        self,
        channel: _ConsumeChannel,
        tag: int,
        redelivered: bool,
        header: ContentHeader,
        body: bytes,
    ) -> None:
        """Hand a message to the handler."""
        if self._cancelled:
            channel.ledger.reject(tag, requeue=True)
            return
        self.counts.delivered += 1
        delivery = AmqpDelivery(
            queue=self.queue.name,
            body=body,
            redelivered=redelivered,
            tag=tag,
            properties=header.properties,
            ledger=channel.ledger,
            bury=self._bury,
        )
        if header.properties.delivery_mode == UNREADABLE:
            delivery.dead_letter("its properties are not text in UTF-8 or have an unknown type")
            return
        try:
            self._handler(delivery)
        except Exception:
            # a handler must not raise; one that does must not stop the connection's reader
            _log.exception("delivery.handler_raised", queue=self.queue.name)
            delivery.requeue()

    @property
    def registrations(self) -> int:
        """How often it has registered: tells one registration from the next."""
        return self._registrations

    def judge(self, depth: QueueDepth | None, registration: int) -> None:
        """Compare what the broker said about the queue with what is believed here (C66).

        Without a consumer on the queue, or with messages ready on two looks while this
        consumer has room for them and got none in between, it is not really consuming.

        Args:
            depth: the broker's answer.
            registration: `registrations` at the time of the question.
        """
        channel = self._channel
        if channel is None or channel.ended.done() or registration != self._registrations:
            return
        if depth is None:
            channel.end("the queue is gone")
        elif depth.consumers == 0:
            channel.end("the broker knows no consumer of the queue")
        elif depth.ready and not channel.ledger.in_hand:
            now = (channel.number, channel.deliveries)
            if self._seen == now:
                channel.end("messages wait in the queue and none is delivered")
            self._seen = now
        else:
            self._seen = (-1, -1)

    async def _stop(self) -> None:
        task, self._task = self._task, None
        await end(task)
        if not self.first.done():
            self.first.cancel()

    async def _keep(self) -> None:
        backoff = Backoff(self.queue.name)
        while True:
            session = await self._link.session()
            try:
                channel = await self._register(session)
            except TopologyMismatchError as error:
                self._failed(error)
                await asyncio.sleep(_MISMATCH_SECONDS)
                continue
            except Exception as error:  # a client library's surprise must not end consuming
                self._failed(error)
                await asyncio.sleep(backoff.next())
                continue
            await self._live_through(channel, backoff)
            await asyncio.sleep(backoff.next())

    async def _live_through(self, channel: _ConsumeChannel, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.reason = ""
        if not self.first.done():
            self.first.set_result(None)
        session = channel.session
        await first_of(channel.ended, session.lost)
        channel.end(session.lost.result() if session.lost.done() else "")
        self.reason = channel.ended.result()
        self._say("consumer.lost", self.reason)
        self._let_go(channel)
        if loop.time() - began > _STEADY_SECONDS:
            backoff.reset()

    async def _register(self, session: Session) -> _ConsumeChannel:
        await self._probe.declare(self.queue)
        wire, number = session.next_number()
        channel = _ConsumeChannel(wire, number, session, self)
        what = f"consuming queue {self.queue.name!r}"
        try:
            await session.open(channel, seconds=self._seconds)
            qos = channel.basic_qos(prefetch_count=self._prefetch)
            await call(qos, seconds=self._seconds, what=what)
            consume = channel.basic_consume(self.queue.name, _never)
            answer = await call(consume, seconds=self._seconds, what=what)
        except BaseException:
            self._let_go(channel)
            raise
        self._tag = answer.consumer_tag or ""
        self._channel = channel
        self._registrations += 1
        self.counts.registered += 1
        return channel

    def _let_go(self, channel: _ConsumeChannel) -> None:
        """Close a channel in the background: the broker gives out again what it holds."""
        if self._channel is channel:
            self._channel = None
        channel.ledger.close()
        if channel.session.alive and not channel.is_closed:
            self._later(self._drop(channel))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _drop(self, channel: _ConsumeChannel) -> None:
        try:
            await call(channel.close(), seconds=self._seconds, what="closing a channel")
        except (BrokerError, MissingQueueError, LockedQueueError) as error:
            channel.session.condemn(f"a channel could not be closed ({error})")

    async def _close_when_settled(self, channel: _ConsumeChannel) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await channel.ledger.settled()
        channel.ledger.flush()
        channel.session.outbox.flush()
        self._let_go(channel)

    def _failed(self, error: Exception) -> None:
        self.reason = str(error) or type(error).__name__
        self._say("consumer.not_registered", self.reason)
        if isinstance(error, TopologyMismatchError) and not self.first.done():
            self.first.set_exception(error)

    def _say(self, event: str, reason: str) -> None:
        held_back = self._said.admit((event, reason))
        if held_back is not None:
            _log.warning(event, queue=self.queue.name, reason=reason, held_back=held_back)


async def _never(_message: DeliveredMessage) -> None:
    """Stands where the client library wants a callback; deliveries do not come this way."""
