"""Asks the broker every few seconds whether consumers are really there (C32, C66)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from loom_mq.broker.amqp.calls import LAG_SECONDS, end
from loom_mq.broker.amqp.consumer import AmqpConsumer
from loom_mq.broker.amqp.link import Link
from loom_mq.broker.amqp.probe import Probe
from loom_mq.errors import BrokerError, BrokerUnreachableError

_log = structlog.get_logger(__name__)


class Watch:
    """Looks at the queue of each consumer by a passive declare on a channel of its own.

    A connection on which the question finds no answer is dropped: it is half open, and
    the heartbeat would need three times its interval to see that.

    Args:
        link: the consuming connection.
        consumers: a live list.
        interval: seconds between rounds.
        seconds: for one answer.
    """

    def __init__(
        self, link: Link, consumers: Sequence[AmqpConsumer], *, interval: float, seconds: float
    ) -> None:
        self._link = link
        self._consumers = consumers
        self._interval = interval
        self._seconds = seconds
        self._probe = Probe(link, seconds=seconds)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._keep_looking())

    async def close(self) -> None:
        """Stop."""
        await end(self._task)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            for consumer in list(self._consumers):
                if consumer.consuming:
                    await self._look(consumer)

    async def _look(self, consumer: AmqpConsumer) -> None:
        session = self._link.current
        if session is None:
            return
        registration = consumer.registrations
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            depth = await self._probe.look(consumer.queue.name)
        except BrokerUnreachableError as error:
            if loop.time() - began < self._seconds + LAG_SECONDS:
                session.condemn(f"the broker did not answer ({error})")
        except BrokerError as error:
            _log.warning("consumer.not_verified", queue=consumer.queue.name, reason=str(error))
        except Exception as error:  # a client library's surprise must not end the watch
            _log.warning("consumer.not_verified", queue=consumer.queue.name, reason=str(error))
        else:
            consumer.judge(depth, registration)
