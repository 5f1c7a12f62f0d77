"""The broker kit: verdicts, limits and what arrives."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from loom_mq.broker.limits import MAX_MESSAGE_BYTES
from loom_mq.broker.protocol import Outgoing, Queue, QueueKind
from loom_mq.errors import (
    InvalidIdError,
    PublishRefusedError,
    UnroutableError,
)
from loom_mq.testing.conformance.broker_support import (
    WORK,
    BrokerHarness,
    Inbox,
    letter,
    ready,
    send,
)


class PublishConformance:
    """Verdicts, limits and what arrives."""

    async def test_a_message_arrives_as_it_was_sent(self, harness: BrokerHarness) -> None:
        """F10: body and properties are the same on the other side."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.consume(WORK, inbox, prefetch=10)
        sent = Outgoing(
            queue=WORK.name,
            body=b"\x00\xff body",
            content_type="application/json",
            type="start",
            reply_to="kit.reply",
            correlation_id="söme-id",
            headers={"tenant": "größe", "empty": ""},
        )
        assert await broker.publish([sent]) == [None]
        got = await inbox.take()
        assert (got.queue, got.body, got.content_type, got.type) == (
            WORK.name,
            sent.body,
            "application/json",
            "start",
        )
        assert (got.reply_to, got.correlation_id) == ("kit.reply", "söme-id")
        assert got.headers == sent.headers
        assert not got.redelivered
        got.ack()

    async def test_what_was_not_given_is_empty(self, harness: BrokerHarness) -> None:
        """C104: absent properties read the same on every adapter."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.consume(WORK, inbox, prefetch=1)
        await send(broker, [Outgoing(queue=WORK.name, body=b"", content_type="")])
        got = await inbox.take()
        assert (got.body, got.content_type, got.type, got.headers) == (b"", "", "", {})
        assert got.reply_to is None
        assert got.correlation_id is None
        got.ack()

    async def test_each_message_has_its_own_verdict(self, harness: BrokerHarness) -> None:
        """C21: a message without a queue comes back, its neighbours are confirmed."""
        broker = await harness.connect("a")
        await broker.declare([WORK])
        verdicts = await broker.publish([letter(1), letter(2, "kit.nowhere"), letter(3)])
        assert verdicts[0] is None
        assert isinstance(verdicts[1], UnroutableError)
        assert "kit.nowhere" in str(verdicts[1])
        assert verdicts[2] is None
        await ready(broker, WORK, 2)

    async def test_nothing_to_publish_is_nothing(self, harness: BrokerHarness) -> None:
        """F10: an empty window is no error."""
        broker = await harness.connect("a")
        assert await broker.publish([]) == []

    async def test_order_is_kept(self, harness: BrokerHarness) -> None:
        """F10: one sender, one queue, one consumer: first in, first out."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.consume(WORK, inbox, prefetch=50)
        numbers = [str(number).encode() for number in range(300)]
        await asyncio.gather(
            send(broker, [letter(number) for number in numbers[:150]]),
            send(broker, [letter(number) for number in numbers[150:]]),
        )
        seen = []
        for _ in numbers:
            delivery = await inbox.take()
            seen.append(delivery.body)
            delivery.ack()
        assert seen == numbers

    async def test_a_large_body_arrives(self, harness: BrokerHarness) -> None:
        """C86: sizes around the frame size and up to several MiB pass unchanged."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.consume(WORK, inbox, prefetch=10)
        sizes = [131_063, 131_064, 131_065, 131_072, 262_144, 5_000_000]
        bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
        await send(broker, [letter(body) for body in bodies])
        for body in bodies:
            delivery = await inbox.take()
            assert delivery.body == body
            delivery.ack()

    async def test_a_body_over_the_limit_is_refused(self, harness: BrokerHarness) -> None:
        """C86: refused before it is sent, with both numbers; its neighbours are confirmed."""
        broker = await harness.connect("a")
        await broker.declare([WORK])
        huge = letter(bytes(MAX_MESSAGE_BYTES + 1))
        verdicts = await broker.publish([letter(1), huge, letter(2)])
        assert [type(verdict) for verdict in verdicts] == [
            type(None),
            PublishRefusedError,
            type(None),
        ]
        assert str(MAX_MESSAGE_BYTES) in str(verdicts[1])
        assert str(MAX_MESSAGE_BYTES + 1) in str(verdicts[1])

    @pytest.mark.parametrize(
        "change",
        [
            {"queue": ""},
            {"queue": "q" * 256},
            {"queue": "𐍈" * 200},
            {"type": "t" * 256},
            {"reply_to": "r" * 256},
            {"correlation_id": "c" * 256},
            {"correlation_id": "𐍈" * 64},
            {"correlation_id": "lone \ud800"},
            {"content_type": "c" * 256},
            {"headers": {"h" * 129: "x"}},
            {"headers": {"": "x"}},
            {"headers": {"h": "x" * 70_000}},
            {"headers": {"h": "\udfff"}},
        ],
        ids="-".join,
    )
    async def test_what_no_broker_takes_is_refused(
        self, harness: BrokerHarness, change: dict[str, str]
    ) -> None:
        """C30: a typed verdict, and the next message passes as if nothing had been."""
        broker = await harness.connect("a")
        await broker.declare([WORK])
        unlawful = msgspec.structs.replace(letter(1), **change)
        verdicts = await broker.publish([unlawful, letter(2)])
        assert isinstance(verdicts[0], PublishRefusedError)
        assert verdicts[1] is None
        assert await broker.publish([letter(3)]) == [None]

    async def test_the_longest_lawful_message_passes(self, harness: BrokerHarness) -> None:
        """C30: up to the limits everything works."""
        broker, inbox = await harness.connect("a"), Inbox()
        long = Queue("q" * 255, QueueKind.PRIVATE)
        await broker.consume(long, inbox, prefetch=1)
        sent = Outgoing(
            queue=long.name,
            body=b"x",
            content_type="c" * 255,
            type="t" * 255,
            reply_to="r" * 255,
            correlation_id="𐍈" * 63,
            headers={"h" * 128: "x" * 60_000},
        )
        await send(broker, [sent])
        got = await inbox.take()
        assert (got.correlation_id, got.headers) == (sent.correlation_id, sent.headers)
        got.ack()

    async def test_a_queue_name_over_the_limit_is_refused(self, harness: BrokerHarness) -> None:
        """C30: for every operation that takes a name."""
        broker = await harness.connect("a")
        long = Queue("q" * 256, QueueKind.PRIVATE)
        with pytest.raises(InvalidIdError):
            await broker.declare([long])
        with pytest.raises(InvalidIdError):
            await broker.consume(long, Inbox(), prefetch=1)
        with pytest.raises(InvalidIdError):
            await broker.depth(long.name)
        with pytest.raises(InvalidIdError):
            await broker.purge(long.name)
