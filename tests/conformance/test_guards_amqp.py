"""F2, F10: what a sender believes of a message on RabbitMQ when no confirm came for it.

Guards that no other test sees on their own: what goes wrong here is mended by sweeps elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio

from loom_mq.errors import PublishRefusedError, PublishTimeoutError
from loom_mq.testing.conformance.broker_support import (
    GRAVE,
    WORK,
    Inbox,
    eventually,
    letter,
    send,
)
from loom_mq.testing.servers import RabbitServer
from tests.support.amqp_lab import IDLE, Lab, Stopwatch, healthy

MESSAGES = 50


@pytest_asyncio.fixture
async def lab(rabbit_server: RabbitServer, rabbit_url: str) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(rabbit_server, rabbit_url, stack)


async def test_what_the_broker_refuses_is_refused(lab: Lab) -> None:
    """F10: a queue that is full says no to each message, and the sender hears it."""
    broker = await lab.connect("a")
    await broker.declare([IDLE])
    limit = '{"max-length":1,"overflow":"reject-publish"}'
    await lab.server.ctl(
        "set_policy", "-p", lab.vhost, "full", f"^{IDLE.name}$", limit, "--apply-to", "queues"
    )

    async def refused() -> bool:
        verdicts = await broker.publish([letter(number, IDLE) for number in range(MESSAGES)])
        return any(isinstance(verdict, PublishRefusedError) for verdict in verdicts)

    await eventually(refused, "a full queue refuses")
    assert broker.counts().publish.refused


async def test_what_went_down_with_the_connection_may_not_be_there(lab: Lab) -> None:
    """F10: sent, and the broker died before it said anything: neither there nor not there."""
    broker = await lab.connect("a", timeout=30)
    await broker.declare([IDLE])
    await send(broker, [letter("before", IDLE)])
    await lab.server.pause()
    publishing = asyncio.create_task(broker.publish([letter("lost", IDLE)]))
    await lab.server.kill()
    try:
        with Stopwatch(10):
            [verdict] = await publishing
    finally:
        await lab.server.start()
    assert isinstance(verdict, PublishTimeoutError)
    assert "may or may not be there" in str(verdict)


async def test_the_copy_is_safe_before_the_original_goes(lab: Lab) -> None:
    """F2: publishers are blocked, so the dead letter has no copy; the broker moves it itself."""
    broker, inbox, graves = await lab.connect("a", timeout=1), Inbox(), Inbox()
    await broker.consume(GRAVE, graves, prefetch=5)
    await broker.consume(WORK, inbox, prefetch=5)
    await send(broker, [letter("poison")])
    dead = await inbox.take()
    await lab.server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.0)")
    try:
        # an alarm stops a connection at its first message, which the broker then does not read
        [verdict] = await broker.publish([letter("stopped", IDLE)])
        assert isinstance(verdict, PublishTimeoutError)
        dead.dead_letter("no good")
        assert (await graves.take()).body == b"poison"
    finally:
        await lab.server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")
    await healthy(broker)
