"""The broker kit: prefetch, settling, redelivery and dead letters."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from loom_mq.broker.deadletter import DELIVERY_LIMIT_REASON, death_of
from loom_mq.broker.protocol import Delivery, Outgoing, Queue, QueueKind
from loom_mq.errors import (
    SettingsError,
)
from loom_mq.testing.conformance.broker_support import (
    GRAVE,
    WORK,
    BrokerHarness,
    Inbox,
    consuming,
    letter,
    ready,
    send,
)

_sender: ContextVar[str] = ContextVar("sender", default="")


class ConsumeConformance:
    """Prefetch, settling, redelivery and dead letters."""

    async def test_prefetch_is_honoured(self, harness: BrokerHarness) -> None:
        """C71: no more than asked for is in hand, and each settled one makes room for one."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.consume(WORK, inbox, prefetch=3)
        await send(broker, [letter(number) for number in range(10)])
        first = await inbox.take_all(3)
        await ready(broker, WORK, 7)
        assert inbox.waiting == 0
        first[0].ack()
        assert (await inbox.take()).body == b"3"
        await ready(broker, WORK, 6)
        assert inbox.waiting == 0

    @pytest.mark.parametrize("prefetch", [0, -1, 65_536])
    async def test_a_prefetch_without_sense_is_refused(
        self, harness: BrokerHarness, prefetch: int
    ) -> None:
        """C71: 0 would mean no limit at all, so it is never asked for."""
        broker = await harness.connect("a")
        with pytest.raises(SettingsError):
            await broker.consume(WORK, Inbox(), prefetch=prefetch)

    async def test_consumers_take_turns(self, harness: BrokerHarness) -> None:
        """F10: two consumers with room share what comes."""
        one, other = await harness.connect("a"), await harness.connect("b")
        inbox_one, inbox_other = Inbox(), Inbox()
        await one.consume(WORK, inbox_one, prefetch=1)
        await other.consume(WORK, inbox_other, prefetch=1)
        await send(one, [letter(1), letter(2)])
        bodies = {(await inbox_one.take()).body, (await inbox_other.take()).body}
        assert bodies == {b"1", b"2"}

    async def test_what_is_acknowledged_does_not_come_back(self, harness: BrokerHarness) -> None:
        """F10: settled out of order and in one tick, all the same."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.consume(WORK, inbox, prefetch=100)
        await send(broker, [letter(number) for number in range(40)])
        deliveries = await inbox.take_all(40)
        for delivery in deliveries[30:]:
            delivery.ack()
        await asyncio.sleep(0)
        for delivery in reversed(deliveries[:29]):
            delivery.ack()
        await asyncio.sleep(0)
        await send(broker, [letter("last")])
        assert (await inbox.take()).body == b"last"
        await harness.leave(broker)
        other, rest = await harness.connect("b"), Inbox()
        await other.consume(WORK, rest, prefetch=100)
        back = await rest.take_all(2)
        assert sorted(delivery.body for delivery in back) == [b"29", b"last"]
        await ready(other, WORK, 0)

    async def test_a_requeued_message_says_so(self, harness: BrokerHarness) -> None:
        """F10: it comes again, marked as redelivered."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.consume(WORK, inbox, prefetch=1)
        await send(broker, [letter(1)])
        first = await inbox.take()
        assert not first.redelivered
        first.requeue()
        again = await inbox.take()
        assert (again.body, again.redelivered) == (b"1", True)
        again.ack()

    async def test_only_the_first_settling_counts(self, harness: BrokerHarness) -> None:
        """F10: a delivery leaves its handler through one door."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.declare([GRAVE])
        await broker.consume(WORK, inbox, prefetch=5)
        await send(broker, [letter(1)])
        delivery = await inbox.take()
        delivery.ack()
        delivery.requeue()
        delivery.dead_letter("too late")
        delivery.ack()
        await send(broker, [letter(2)])
        assert (await inbox.take()).body == b"2"
        await ready(broker, GRAVE, 0)

    async def test_a_handler_that_raises_loses_nothing(self, harness: BrokerHarness) -> None:
        """F10: it must not raise; if it does the message comes again and all else goes on."""
        broker, inbox = await harness.connect("a"), Inbox()
        failed: list[bytes] = []

        def faulty(delivery: Delivery) -> None:
            if not failed:
                failed.append(delivery.body)
                raise RuntimeError("a fault of the handler")
            inbox(delivery)

        await broker.consume(WORK, faulty, prefetch=5)
        await send(broker, [letter(1), letter(2)])
        got = await inbox.take_all(2)
        assert sorted(delivery.body for delivery in got) == [b"1", b"2"]
        assert failed == [b"1"]

    async def test_a_handler_does_not_inherit_from_the_sender(self, harness: BrokerHarness) -> None:
        """C104: context variables, such as those of log lines, stop at the broker."""
        broker, inbox = await harness.connect("a"), Inbox()
        seen: list[str] = []

        def handler(delivery: Delivery) -> None:
            seen.append(_sender.get())
            inbox(delivery)

        await broker.consume(WORK, handler, prefetch=5)
        _sender.set("the sender")
        await send(broker, [letter(1)])
        (await inbox.take()).ack()
        assert seen == [""]

    async def test_dead_letter_tells_why(self, harness: BrokerHarness) -> None:
        """F2: the copy has the reason, the queue and everything that the original had."""
        broker, inbox, graves = await harness.connect("a"), Inbox(), Inbox()
        await broker.consume(GRAVE, graves, prefetch=5)
        await broker.consume(WORK, inbox, prefetch=5)
        sent = Outgoing(
            queue=WORK.name,
            body=b"poison",
            content_type="application/json",
            type="start",
            reply_to="kit.reply",
            correlation_id="id-1",
            headers={"mine": "kept"},
        )
        await send(broker, [sent])
        (await inbox.take()).dead_letter("not readable: größe")
        dead = await graves.take()
        death = death_of(dead)
        assert (death.queue, death.reason) == (WORK.name, "not readable: größe")
        assert (dead.body, dead.content_type, dead.type) == (
            b"poison",
            "application/json",
            "start",
        )
        assert (dead.reply_to, dead.correlation_id) == ("kit.reply", "id-1")
        assert dead.headers["mine"] == "kept"
        dead.ack()
        await ready(broker, WORK, 0)

    async def test_a_long_reason_is_cut(self, harness: BrokerHarness) -> None:
        """F2: a sentence for people never stops the message from being buried."""
        broker, inbox, graves = await harness.connect("a"), Inbox(), Inbox()
        await broker.consume(GRAVE, graves, prefetch=5)
        await broker.consume(WORK, inbox, prefetch=5)
        await send(broker, [letter(1)])
        (await inbox.take()).dead_letter("ß" * 100_000)
        reason = death_of(await graves.take()).reason
        assert reason.startswith("ßß")
        assert reason.endswith("...")
        assert len(reason.encode()) <= 1024

    async def test_without_a_dead_letter_queue_it_is_dropped(self, harness: BrokerHarness) -> None:
        """F2: a dead letter cannot die again and again."""
        broker, graves = await harness.connect("a"), Inbox()
        await broker.consume(GRAVE, graves, prefetch=5)
        await send(broker, [letter(1, GRAVE), letter(2, GRAVE)])
        first, second = await graves.take_all(2)
        first.dead_letter("nowhere to go")
        second.ack()
        await ready(broker, GRAVE, 0)
        assert graves.waiting == 0

    async def test_the_delivery_limit_ends_in_the_grave(self, harness: BrokerHarness) -> None:
        """F10: a message that nobody settles is dead-lettered by the broker itself."""
        limit = 3
        limited = Queue("kit.limited", QueueKind.SHARED, limit, GRAVE.name)
        broker, graves = await harness.connect("a"), Inbox()
        seen: list[bytes] = []

        def refuse(delivery: Delivery) -> None:
            seen.append(delivery.body)
            delivery.requeue()

        await broker.consume(GRAVE, graves, prefetch=5)
        await broker.consume(limited, refuse, prefetch=5)
        await send(broker, [letter("poison", limited)])
        dead = await graves.take()
        death = death_of(dead)
        assert (dead.body, death.queue) == (b"poison", limited.name)
        assert death.reason == DELIVERY_LIMIT_REASON
        assert limit <= len(seen) <= limit + 1

    async def test_cancel_takes_no_more(self, harness: BrokerHarness) -> None:
        """F10: a drain keeps what is in hand and leaves the rest to others."""
        broker, inbox = await harness.connect("a"), Inbox()
        consumer = await broker.consume(WORK, inbox, prefetch=2)
        assert consuming(consumer)
        await send(broker, [letter(number) for number in range(4)])
        in_hand = await inbox.take_all(2)
        await consumer.cancel()
        await consumer.cancel()
        assert not consuming(consumer)
        assert broker.health().consuming
        in_hand[0].ack()
        in_hand[1].requeue()
        rest = Inbox()
        await broker.consume(WORK, rest, prefetch=10)
        others = await rest.take_all(3)
        assert sorted(delivery.body for delivery in others) == [b"1", b"2", b"3"]
        assert inbox.waiting == 0
