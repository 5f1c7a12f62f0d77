"""Connections to a RabbitMQ that is about to be mistreated."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.protocol import Queue, QueueKind
from loom_mq.testing.conformance.broker_support import (
    eventually,
)
from loom_mq.testing.servers import RabbitServer

TIMEOUT = 3.0
IDLE = Queue("kit.idle", QueueKind.SHARED)


class Lab:
    """Connections of one test, with short timeouts."""

    def __init__(self, server: RabbitServer, url: str, stack: AsyncExitStack) -> None:
        self.server = server
        self.url = url
        self.vhost = urlsplit(url).path.removeprefix("/")
        self._stack = stack

    def broker(
        self, name: str, url: str = "", *, timeout: float = TIMEOUT, verify_interval: float = 0.2
    ) -> AmqpBroker:
        """A connection that is not entered yet."""
        return AmqpBroker(
            url or self.url,
            name=name,
            publish_timeout=timeout,
            connect_timeout=timeout,
            verify_interval=verify_interval,
        )

    async def connect(
        self, name: str, url: str = "", *, timeout: float = TIMEOUT, verify_interval: float = 0.2
    ) -> AmqpBroker:
        """A connection that is left with the test."""
        broker = self.broker(name, url, timeout=timeout, verify_interval=verify_interval)
        return await self._stack.enter_async_context(broker)


async def healthy(broker: AmqpBroker) -> None:
    async def reached() -> bool:
        health = broker.health()
        return health.connected and health.consuming and not health.blocked

    await eventually(reached, f"all well, not {broker.health()}")


async def unhealthy(broker: AmqpBroker) -> None:
    async def reached() -> bool:
        health = broker.health()
        return not (health.connected and health.consuming)

    await eventually(reached, "the loss is noticed")


async def all_lost(broker: AmqpBroker, times: int = 1) -> None:
    """Wait until both connections were lost, one of which may be back already."""

    async def reached() -> bool:
        return broker.counts().connections_lost >= 2 * times

    await eventually(reached, "the loss of both connections is noticed")


async def registered(broker: AmqpBroker, times: int) -> None:
    """Wait until consumers have registered so many times in all."""

    async def reached() -> bool:
        return broker.counts().consume.registered >= times

    await eventually(reached, f"{times} registrations")


class Stopwatch:
    """Asserts that a block takes no longer than allowed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        assert time.monotonic() - self._began < self._seconds
