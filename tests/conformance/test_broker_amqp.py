"""The broker kit over a real RabbitMQ, and what can only be seen there."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import pytest_asyncio
from pamqp.commands import Basic
from pamqp.frame import marshal

from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.amqp.confirms import Letter
from loom_mq.broker.deadletter import death_of
from loom_mq.broker.protocol import Broker
from loom_mq.broker.topology import PRESENCE, presence_token
from loom_mq.codec.wire import decode
from loom_mq.errors import (
    BrokerUnreachableError,
    SettingsError,
)
from loom_mq.model.messages import TokenMessage
from loom_mq.testing.conformance.broker import BrokerConformance
from loom_mq.testing.conformance.broker_support import (
    GRAVE,
    MAIL,
    WORK,
    Inbox,
    eventually,
    letter,
    ready,
    send,
)
from loom_mq.testing.servers import RabbitServer
from tests.support.amqp_lab import Lab, Stopwatch, all_lost, healthy


class AmqpHarness:
    """Connections to one virtual host."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack

    async def connect(self, name: str) -> AmqpBroker:
        broker = AmqpBroker(self.url, name=name, connect_timeout=5.0, publish_timeout=5.0)
        return await self._stack.enter_async_context(broker)

    async def leave(self, broker: Broker) -> None:
        await broker.__aexit__(None, None, None)

    async def kill(self, broker: Broker) -> None:
        assert isinstance(broker, AmqpBroker)
        await broker.abort()


@pytest_asyncio.fixture
async def harness(rabbit_url: str) -> AsyncIterator[AmqpHarness]:
    async with AsyncExitStack() as stack:
        yield AmqpHarness(rabbit_url, stack)


class TestAmqpBroker(BrokerConformance):
    pass


@pytest_asyncio.fixture
async def lab(rabbit_server: RabbitServer, rabbit_url: str) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(rabbit_server, rabbit_url, stack)


async def test_a_broker_that_is_not_there(lab: Lab) -> None:
    """C60, C93: a typed error in time, without the password."""
    password = urlsplit(lab.url).password or "?"
    closed = lab.url.replace(f":{lab.server.port}/", ":1/")
    wrong = lab.url.replace(password, "wrong-secret")
    unknown = f"{lab.url}-unknown"
    for url, told in (
        (closed, "connect call failed"),
        (wrong, "ACCESS_REFUSED"),
        (unknown, "virtual host"),
    ):
        with Stopwatch(2), pytest.raises(BrokerUnreachableError) as caught:
            async with lab.broker("a", url, timeout=0.7):
                pass
        assert told.lower() in str(caught.value).lower()
        assert password not in str(caught.value)
        assert "wrong-secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "http://u:secret@h/", "amqp://u:secret@h:port/", "secret"])
def test_an_address_that_is_none(url: str) -> None:
    """C93: refused at once, without repeating it."""
    with pytest.raises(SettingsError) as caught:
        AmqpBroker(url, name="a")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_nothing_is_left_behind(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """C60: no task and no complaint remains, whichever way it ended."""
    before = asyncio.all_tasks()
    async with lab.broker("a") as broker:
        await broker.consume(WORK, Inbox(), prefetch=3)
        await lab.server.close_all_connections()
        await all_lost(broker)
        await healthy(broker)
        await send(broker, [letter(1)])
    killed = await lab.broker("b").__aenter__()
    await killed.consume(WORK, Inbox(), prefetch=3)
    await killed.abort()

    async def all_ended() -> bool:
        return asyncio.all_tasks() <= before

    await eventually(all_ended, "every task has ended")
    gc.collect()
    complaints = [record for record in caplog.records if record.name == "asyncio"]
    assert not complaints, complaints[0].getMessage()


async def test_a_killed_process_is_heard_of(lab: Lab) -> None:
    """F7: ``kill -9``, and the token is in the presence queue; a new process is a stranger."""
    broker, heard = await lab.connect("dispatcher"), Inbox()
    await broker.consume(PRESENCE, heard, prefetch=10)
    script = Path(__file__).parents[1] / "support" / "presence_holder.py"
    for owner in ("worker/1", "worker/2"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), lab.url, owner, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(20):
                while await process.stdout.readline() != b"held\n":
                    assert process.returncode is None
            assert heard.waiting == 0
            with Stopwatch(2):
                process.send_signal(signal.SIGKILL)
                delivery = await heard.take()
            assert decode(TokenMessage, delivery.body).owner == owner
            delivery.ack()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def test_dead_letters_survive_a_missing_grave(lab: Lab) -> None:
    """F2: with no dead-letter queue to take it the message goes the broker's own way."""
    broker, inbox, graves = await lab.connect("a"), Inbox(), Inbox()
    await broker.consume(WORK, inbox, prefetch=3)
    await send(broker, [letter(1)])
    (await inbox.take()).dead_letter("no grave yet")
    await ready(broker, WORK, 0)
    await broker.consume(GRAVE, graves, prefetch=3)
    await send(broker, [letter(2)])
    (await inbox.take()).dead_letter("now there is one")
    assert (await graves.take()).body == b"2"


@pytest.mark.parametrize("broken", ["short-string", "header-name", "timestamp"])
async def test_an_unreadable_message_is_buried(lab: Lab, broken: str) -> None:
    """F2, F10: a foreign client's bytes that the client library cannot decode end no connection."""
    broker, inbox, graves = await lab.connect("a"), Inbox(), Inbox()
    await broker.consume(GRAVE, graves, prefetch=3)
    await broker.consume(WORK, inbox, prefetch=3)
    properties, sane, insane = {
        "short-string": (
            Basic.Properties(message_type="MARKED"),
            b"MARKED",
            b"\xff\xfe\xfd\xfc\xfb\xfa",
        ),
        "header-name": (
            Basic.Properties(headers={"MARKED": "x"}),
            b"MARKED",
            b"\xff\xfe\xfd\xfc\xfb\xfa",
        ),
        "timestamp": (
            Basic.Properties(timestamp=datetime.fromtimestamp(0x11223344, UTC)),
            b"\x00\x00\x00\x00\x11\x22\x33\x44",
            b"\x7f\xff\xff\xff\xff\xff\xff\xff",
        ),
    }[broken]
    channel = broker._publisher._channel
    assert channel is not None
    encode = channel.encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "encode", lambda *letter: encode(*letter).replace(sane, insane))
        assert await broker._publisher.publish([Letter(WORK.name, properties, b"body")]) == [None]
    dead = await graves.take()
    assert (dead.body, dead.redelivered) == (b"body", False)
    assert "properties" in death_of(dead).reason
    await send(broker, [letter("größe")])
    assert (await inbox.take()).body == "größe".encode()
    assert broker.counts().connections_lost == 0


async def test_a_foreign_routing_key_ends_no_connection(lab: Lab) -> None:
    """F10: an operator's own binding may bring any bytes as a routing key."""
    broker, inbox = await lab.connect("a"), Inbox()
    await broker.consume(WORK, inbox, prefetch=3)
    channel = broker._publisher._channel
    assert channel is not None
    await channel.queue_bind(WORK.name, "amq.fanout")
    frames = marshal(Basic.Publish(exchange="amq.fanout", routing_key="MARKED"), channel.number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(channel._publish_frames, WORK.name, frames.replace(b"MARKED", b"\xff" * 6))
        await send(broker, [letter("foreign")])
    assert (await inbox.take()).body == b"foreign"
    assert broker.counts().connections_lost == 0


async def test_what_goes_over_the_wire(lab: Lab) -> None:
    """C36, C71, C81: persistent messages, durable or exclusive queues, prefetch never global."""
    broker = await lab.connect("a")
    token = presence_token("kit/1")
    await broker.declare([GRAVE, token])
    await broker.consume(WORK, Inbox(), prefetch=7)
    await broker.consume(MAIL, Inbox(), prefetch=3)
    await send(
        broker, [letter(1, GRAVE), msgspec.structs.replace(letter(2, GRAVE), persistent=False)]
    )
    session = await broker._in.session()
    channel = await session.plain_channel(seconds=2)
    first, second = await channel.basic_get(GRAVE.name), await channel.basic_get(GRAVE.name)
    assert first.header.properties.delivery_mode == 2
    assert second.header.properties.delivery_mode == 1
    told = await lab.server.evaluate(
        "iolist_to_binary(rabbit_json:encode([[case V of {resource,_,_,N} -> N; _ -> V end"
        " || {_, V} <- rabbit_amqqueue:info(Q, [name, type, durable, exclusive, auto_delete])]"
        f' || Q <- rabbit_amqqueue:list(<<"{lab.vhost}">>)]))'
    )
    assert sorted(msgspec.json.decode(told)) == [
        [GRAVE.name, "quorum", True, "", False],
        [MAIL.name, "classic", False, True, False],
        [WORK.name, "quorum", True, "", False],
        [token.name, "classic", True, False, False],
    ]
    prefetches = await lab.server.evaluate(
        "lists:sort([{P, G} || C <- rabbit_channel:list_local(), {prefetch_count, P} <-"
        " rabbit_channel:info(C, [prefetch_count]), {global_prefetch_count, G} <-"
        " rabbit_channel:info(C, [global_prefetch_count]), P + G > 0])"
    )
    assert prefetches == "[{3,0},{7,0}]"
