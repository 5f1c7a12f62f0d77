"""The broker kit over the in-process broker, and what only that one can show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio

from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.broker.presence import PresenceToken
from loom_mq.broker.protocol import Broker
from loom_mq.broker.topology import PRESENCE
from loom_mq.errors import BrokerUnreachableError, PublishTimeoutError
from loom_mq.testing.conformance.broker import BrokerConformance
from loom_mq.testing.conformance.broker_support import (
    MAIL,
    WORK,
    Inbox,
    consuming,
    letter,
    ready,
    send,
)


class MemoryHarness:
    """Connections to one hub."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.hub = MemoryBroker()
        self._stack = stack

    async def connect(self, name: str) -> MemoryConnection:
        return await self._stack.enter_async_context(self.hub.connection(name))

    async def leave(self, broker: Broker) -> None:
        await broker.__aexit__(None, None, None)

    async def kill(self, broker: Broker) -> None:
        assert isinstance(broker, MemoryConnection)
        broker.kill()


@pytest_asyncio.fixture
async def harness() -> AsyncIterator[MemoryHarness]:
    async with AsyncExitStack() as stack:
        yield MemoryHarness(stack)


class TestMemoryBroker(BrokerConformance):
    pass


async def test_consumers_come_back_after_a_restart(harness: MemoryHarness) -> None:
    """C04: shared messages stay, consumers return, and unsettled ones come again."""
    broker, inbox, mail = await harness.connect("a"), Inbox(), Inbox()
    await broker.consume(WORK, inbox, prefetch=1)
    await broker.consume(MAIL, mail, prefetch=1)
    await send(broker, [letter(1), letter(2)])
    held = await inbox.take()
    harness.hub.stop()
    assert not broker.health().connected
    [verdict] = await broker.publish([letter(3)])
    assert isinstance(verdict, BrokerUnreachableError)
    harness.hub.start()
    assert broker.health().consuming
    held.ack()
    again = await inbox.take()
    assert (again.body, again.redelivered) == (b"1", True)
    again.ack()
    assert (await inbox.take()).body == b"2"
    await send(broker, [letter(4, MAIL)])
    assert (await mail.take()).body == b"4"


async def test_a_restart_is_nobodys_death(harness: MemoryHarness) -> None:
    """F7: tokens are not persistent."""
    broker = await harness.connect("a")
    await broker.declare([PRESENCE])
    token = PresenceToken(broker, "kit/1")
    assert await token.start()
    harness.hub.restart()
    assert await token.refresh()
    await ready(broker, PRESENCE, 0)
    broker.drop()
    other = await harness.connect("b")
    await ready(other, PRESENCE, 1)


async def test_a_deleted_queue_is_made_again(harness: MemoryHarness) -> None:
    """C32: the consumer is back, and so is a queue that was only declared."""
    broker, inbox = await harness.connect("a"), Inbox()
    await broker.declare([PRESENCE])
    consumer = await broker.consume(WORK, inbox, prefetch=1)
    harness.hub.delete_queue(WORK.name)
    harness.hub.delete_queue(PRESENCE.name)
    assert not consuming(consumer)
    await ready(broker, PRESENCE, 0)
    assert consuming(consumer)
    await send(broker, [letter(1)])
    assert (await inbox.take()).body == b"1"


async def test_a_blocked_broker_takes_nothing(harness: MemoryHarness) -> None:
    """C34: the verdict comes in bounded time and health says why."""
    broker = await harness.connect("a")
    await broker.declare([WORK])
    harness.hub.blocked = True
    [verdict] = await broker.publish([letter(1)])
    assert isinstance(verdict, PublishTimeoutError)
    assert "blocked" in broker.health().reason
    harness.hub.blocked = False
    await send(broker, [letter(1)])
