"""Questions to the broker, one at a time, on a channel that may be lost over any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiormq.abc import AbstractChannel

from loom_mq.broker.amqp.arguments import arguments_of
from loom_mq.broker.amqp.calls import LockedQueueError, MissingQueueError, call
from loom_mq.broker.amqp.link import Link
from loom_mq.broker.amqp.session import Session
from loom_mq.broker.protocol import Queue, QueueDepth, QueueKind
from loom_mq.errors import BrokerError

T = TypeVar("T")


class Probe:
    """Declares, looks and purges.

    The broker answers a question about a missing queue by closing the channel, so
    nothing else may live on it.

    Args:
        link: the consuming connection, because only the owner of a private queue may ask.
        seconds: for one answer.
    """

    def __init__(self, link: Link, *, seconds: float) -> None:
        self._link = link
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._channel: AbstractChannel | None = None
        self._session: Session | None = None

    async def declare(self, queue: Queue) -> None:
        """Make a queue exist.

        Raises:
            LockedQueueError: it is exclusive to another connection.
            TopologyMismatchError: it exists with other arguments.
            BrokerError: refused otherwise.
            BrokerUnreachableError: no answer in time.
        """
        private = queue.kind is QueueKind.PRIVATE
        # no auto-delete: a private queue must outlive the moment between two consumers,
        # and goes with its connection anyway
        await self._ask(
            lambda channel: channel.queue_declare(
                queue.name, durable=not private, exclusive=private, arguments=arguments_of(queue)
            ),
            f"declaring queue {queue.name!r}",
        )

    async def look(self, name: str) -> QueueDepth | None:
        """Ready messages and consumers of a queue; None when it does not exist.

        Raises:
            BrokerError: it is exclusive to another connection.
            BrokerUnreachableError: no answer in time.
        """
        try:
            answer = await self._ask(
                lambda channel: channel.queue_declare(name, passive=True),
                f"looking at queue {name!r}",
            )
        except MissingQueueError:
            return None
        except LockedQueueError as error:
            raise BrokerError(str(error)) from error
        return QueueDepth(answer.message_count or 0, answer.consumer_count or 0)

    async def purge(self, name: str) -> None:
        """Drop every ready message; a missing queue has none.

        Raises:
            BrokerError: the queue is exclusive to another connection.
            BrokerUnreachableError: no answer in time.
        """
        try:
            await self._ask(lambda channel: channel.queue_purge(name), f"purging queue {name!r}")
        except MissingQueueError:
            return
        except LockedQueueError as error:
            raise BrokerError(str(error)) from error

    async def _ask(self, question: Callable[[AbstractChannel], Awaitable[T]], what: str) -> T:
        async with self._turn:
            session = await self._link.session_within(self._seconds, what)
            try:
                channel = await self._open(session)
                return await call(question(channel), seconds=self._seconds, what=what)
            except BaseException:
                self._channel = None
                raise

    async def _open(self, session: Session) -> AbstractChannel:
        channel = self._channel
        if channel is None or channel.is_closed or self._session is not session:
            channel = await session.plain_channel(seconds=self._seconds)
            self._channel, self._session = channel, session
        return channel
