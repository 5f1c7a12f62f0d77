"""What RabbitMQ and the network do to a connection, and what becomes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.presence import PresenceToken
from loom_mq.broker.topology import PRESENCE
from loom_mq.errors import (
    BrokerUnreachableError,
    PublishTimeoutError,
    UnroutableError,
)
from loom_mq.testing.conformance.broker_support import (
    MAIL,
    WORK,
    Inbox,
    eventually,
    letter,
    ready,
    send,
)
from loom_mq.testing.servers import RabbitServer
from tests.support.amqp_lab import (
    IDLE,
    TIMEOUT,
    Lab,
    Stopwatch,
    all_lost,
    healthy,
    registered,
    unhealthy,
)
from tests.support.proxy import Proxy


@pytest_asyncio.fixture
async def lab(rabbit_server: RabbitServer, rabbit_url: str) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(rabbit_server, rabbit_url, stack)


async def test_everything_comes_back_after_the_broker_was_killed(lab: Lab) -> None:
    """C04, C36, C59: consumers with their prefetch, persistent messages, verdicts in time."""
    broker, inbox, mail = await lab.connect("a"), Inbox(), Inbox()
    await broker.declare([IDLE, PRESENCE])
    await broker.consume(WORK, inbox, prefetch=3)
    await broker.consume(MAIL, mail, prefetch=1)
    token = PresenceToken(broker, "kit/1")
    assert await token.start()
    await send(broker, [letter(number, IDLE) for number in range(20)])
    await send(broker, [letter(number) for number in range(10)])
    held = await inbox.take_all(3)
    publishing = asyncio.create_task(_publish_throughout(broker))
    await lab.server.kill()
    await unhealthy(broker)
    for expected in ((BrokerUnreachableError, PublishTimeoutError), BrokerUnreachableError):
        with Stopwatch(TIMEOUT + 1):
            [verdict] = await broker.publish([letter("lost", IDLE)])
        assert isinstance(verdict, expected)
    with Stopwatch(TIMEOUT + 1), pytest.raises(BrokerUnreachableError):
        await broker.depth(IDLE.name)
    await lab.server.start()
    with Stopwatch(5):
        await healthy(broker)
    publishing.cancel()
    for delivery in held:
        delivery.ack()
    seen = await inbox.take_all(3)
    await ready(broker, WORK, 7)
    assert inbox.waiting == 0
    while len(seen) < 10:  # the broker may find out late who held the first ones
        seen[-3].ack()
        seen.append(await inbox.take())
    assert sorted(delivery.body for delivery in seen) == [b"%d" % number for number in range(10)]
    depth = await broker.depth(IDLE.name)
    assert depth is not None
    assert depth.ready >= 20
    await send(broker, [letter("x", MAIL)])
    assert (await mail.take()).body == b"x"
    await ready(broker, PRESENCE, 0)
    assert await token.refresh()
    await token.stop()


async def _publish_throughout(broker: AmqpBroker) -> None:
    while True:
        with Stopwatch(TIMEOUT + 1):
            await broker.publish([letter("throughout", IDLE)])
        await asyncio.sleep(0.05)


async def test_a_queue_deleted_under_its_consumer_is_made_again(lab: Lab) -> None:
    """C32: the consumer is back within a second or so."""
    broker, inbox = await lab.connect("a", verify_interval=60), Inbox()
    await broker.consume(WORK, inbox, prefetch=3)
    for number in range(3):
        await lab.server.delete_queue(lab.vhost, WORK.name)
        with Stopwatch(3):
            await registered(broker, number + 2)
        await send(broker, [letter(number)])
        delivery = await inbox.take()
        assert delivery.body == str(number).encode()
        delivery.ack()


async def test_a_deleted_queue_that_was_only_declared_is_made_again(lab: Lab) -> None:
    """C21: the sender is told, the queue is healed, the next message goes through."""
    broker = await lab.connect("a")
    await broker.declare([IDLE])
    await lab.server.delete_queue(lab.vhost, IDLE.name)
    [verdict] = await broker.publish([letter(1, IDLE)])
    assert isinstance(verdict, UnroutableError)
    await ready(broker, IDLE, 0)
    await send(broker, [letter(2, IDLE)])
    assert broker.counts().publish.returned == 1


async def test_a_consumer_lost_in_silence_is_missed(lab: Lab) -> None:
    """C66: nobody says that it is gone; a look at the queue tells."""
    broker, inbox = await lab.connect("a"), Inbox()
    await broker.consume(WORK, inbox, prefetch=3)
    await _lose_consumer_in_silence(broker)
    assert broker.health().consuming
    await send(broker, [letter(1)])
    assert (await inbox.take()).body == b"1"
    await healthy(broker)
    assert broker.counts().consume.registered == 2


async def test_settling_too_late_touches_nobody_else(lab: Lab) -> None:
    """F10: the number of a closed channel is used again, and so are its delivery tags."""
    broker, inbox = await lab.connect("a"), Inbox()
    await broker.consume(WORK, inbox, prefetch=3)
    await send(broker, [letter(1)])
    stale = await inbox.take()
    [consumer] = broker._consumers
    assert consumer._channel is not None
    consumer._channel.end("as if a look had missed it")
    again = await inbox.take()
    stale.ack()
    await healthy(broker)
    await broker.depth(WORK.name)  # an answer: whatever was sent has arrived
    again.requeue()
    once_more = await inbox.take()
    assert (once_more.body, once_more.redelivered) == (b"1", True)
    once_more.ack()
    await ready(broker, WORK, 0)
    counts = broker.counts().consume
    assert (counts.registered, counts.stale) == (2, 1)


async def test_a_lost_consumer_is_missed_among_others(lab: Lab) -> None:
    """C66: another one on the queue does not hide it, once messages wait."""
    broker, other = await lab.connect("a"), await lab.connect("b")
    inbox, busy = Inbox(), Inbox()
    await broker.consume(WORK, inbox, prefetch=3)
    await _lose_consumer_in_silence(broker)
    await other.consume(WORK, busy, prefetch=1)
    await send(other, [letter(number) for number in range(3)])
    assert {delivery.body for delivery in await inbox.take_all(2)} == {b"1", b"2"}
    assert busy.waiting == 1


async def _lose_consumer_in_silence(broker: AmqpBroker) -> None:
    [consumer] = broker._consumers
    assert consumer._channel is not None
    await consumer._channel.basic_cancel(consumer._tag)


async def test_a_killed_channel_is_replaced(lab: Lab) -> None:
    """C66: the broker ends the consuming channel with an error, again and again."""
    broker, inbox = await lab.connect("a"), Inbox()
    await broker.consume(WORK, inbox, prefetch=3)
    for number in range(5):
        await lab.server.evaluate("[exit(P, kill) || P <- rabbit_channel:list_local()]")
        await all_lost(broker, number + 1)
        await healthy(broker)
        await send(broker, [letter(number)])
        (await inbox.take()).ack()


@pytest.mark.parametrize("abruptly", [False, True])
async def test_closed_connections_come_back(lab: Lab, abruptly: bool) -> None:
    """C04: nothing is lost, and what was in hand comes again."""
    broker, inbox, mail = await lab.connect("a"), Inbox(), Inbox()
    await broker.consume(WORK, inbox, prefetch=5)
    await broker.consume(MAIL, mail, prefetch=5)
    await send(broker, [letter(1)])
    held = await inbox.take()
    await lab.server.close_all_connections(abruptly=abruptly)
    await all_lost(broker)
    with Stopwatch(3):
        await healthy(broker)
    held.ack()
    again = await inbox.take()
    assert (again.body, again.redelivered) == (b"1", True)
    again.ack()
    await send(broker, [letter(2, MAIL)])
    assert (await mail.take()).body == b"2"
    await ready(broker, WORK, 0)


async def test_a_frozen_broker_costs_bounded_time(lab: Lab) -> None:
    """C59, C60: verdicts and goodbyes come in time, and the survivor goes on after the thaw."""
    stays, inbox = await lab.connect("stays"), Inbox()
    leaves = lab.broker("leaves")
    await stays.consume(WORK, inbox, prefetch=3)
    async with leaves:
        await leaves.consume(WORK, Inbox(), prefetch=3)
        await leaves.consume(MAIL, Inbox(), prefetch=3)
        await stays.declare([IDLE])
        await lab.server.pause()
        with Stopwatch(TIMEOUT + 1):
            [[verdict], _] = await asyncio.gather(
                stays.publish([letter(1, IDLE)]), leaves.publish([letter(2, IDLE)])
            )
        assert isinstance(verdict, PublishTimeoutError)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    with Stopwatch(TIMEOUT + 1), pytest.raises(BrokerUnreachableError):
        async with lab.broker("comes"):
            pass
    await lab.server.resume()
    await healthy(stays)
    await send(stays, [letter(3)])
    assert (await inbox.take()).body == b"3"
    depth = await stays.depth(IDLE.name)
    assert depth is not None
    assert depth.ready <= 2


async def test_closing_while_the_broker_is_frozen_from_the_start(lab: Lab) -> None:
    """C60: nothing was noticed yet when the goodbye begins, and it cannot even be sent."""
    before = asyncio.all_tasks()
    async with lab.broker("a", timeout=30, verify_interval=60) as broker:
        await broker.consume(WORK, Inbox(), prefetch=3)
        await lab.server.pause()
        large = [letter(bytes(10_000_000)) for _ in range(3)]
        publishing = asyncio.create_task(broker.publish(large))
        await asyncio.sleep(0)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert [type(verdict) for verdict in await publishing] == [PublishTimeoutError] * 3

    async def all_ended() -> bool:
        return asyncio.all_tasks() <= before

    await eventually(all_ended, "no task waits for the frozen broker")


async def test_an_alarm_blocks_publishers_only(lab: Lab) -> None:
    """C34: verdicts in time, acknowledgements and looks go on, all is well afterwards."""
    broker, inbox = await lab.connect("a", timeout=1), Inbox()
    await broker.consume(WORK, inbox, prefetch=5)
    await broker.declare([IDLE])
    await send(broker, [letter(1)])
    held = await inbox.take()
    await lab.server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.0)")
    try:
        for body in ("on its way", "held back"):
            with Stopwatch(TIMEOUT + 1):
                [verdict] = await broker.publish([letter(body, IDLE)])
            assert isinstance(verdict, PublishTimeoutError)
        assert "blocked" in str(verdict)
        health = broker.health()
        assert (health.connected, health.blocked, health.consuming) == (True, True, True)
        assert "alarm" in health.reason
        held.requeue()
        assert (await inbox.take()).redelivered
        async with lab.broker("b", timeout=1) as other:
            await other.publish([letter(3, IDLE)])
            began = time.monotonic()
        assert time.monotonic() - began < 5
    finally:
        await lab.server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")
    await healthy(broker)
    await send(broker, [letter("afterwards", IDLE)])
    late = Inbox()
    await broker.consume(IDLE, late, prefetch=10)
    seen = set()
    while "afterwards" not in seen:
        seen.add((await late.take()).body.decode())
    assert "held back" not in seen


async def test_a_silent_connection_is_given_up(lab: Lab) -> None:
    """C59, C66: nothing answers on it and nothing closes it; heartbeats would take minutes.

    The broker still believes in the old connection, which keeps the name of the private
    queue (405) until it goes.
    """
    async with Proxy("127.0.0.1", lab.server.port) as proxy:
        address = lab.url.replace(f":{lab.server.port}/", f":{proxy.port}/")
        broker, inbox, mail = await lab.connect("a", address), Inbox(), Inbox()
        await broker.consume(WORK, inbox, prefetch=1)
        await broker.consume(MAIL, mail, prefetch=1)
        await send(broker, [letter(1)])
        (await inbox.take()).ack()
        proxy.go_silent()
        await unhealthy(broker)
        other = await lab.connect("b")
        await send(other, [letter(2)])
        assert (await inbox.take()).body == b"2"

        async def told() -> bool:
            return MAIL.name in broker.health().reason

        await eventually(told, "health names the queue that is not consumed")
        proxy.cut_silent()
        await healthy(broker)
        await send(other, [letter(3, MAIL)])
        assert (await mail.take()).body == b"3"
