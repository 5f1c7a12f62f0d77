"""The broker kit: queues, connections and deaths."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from loom_mq.broker.presence import PresenceToken
from loom_mq.broker.topology import PRESENCE, presence_token
from loom_mq.codec.wire import decode
from loom_mq.errors import (
    BrokerError,
    TopologyMismatchError,
    UnroutableError,
)
from loom_mq.model.messages import TokenMessage
from loom_mq.testing.conformance.broker_support import (
    GRAVE,
    MAIL,
    WORK,
    BrokerHarness,
    Inbox,
    eventually,
    gone,
    letter,
    ready,
    send,
)


class LifeConformance:
    """Queues, connections and deaths."""

    async def test_a_death_gives_back_what_was_in_hand(self, harness: BrokerHarness) -> None:
        """F10: nothing is lost with a killed consumer, and the survivor sees it is not new."""
        victim, survivor = await harness.connect("victim"), await harness.connect("survivor")
        held, inbox = Inbox(), Inbox()
        await victim.consume(WORK, held, prefetch=5)
        await send(survivor, [letter(1), letter(2)])
        lost = await held.take_all(2)
        await survivor.consume(WORK, inbox, prefetch=5)
        await harness.kill(victim)
        back = await inbox.take_all(2)
        assert [delivery.body for delivery in back] == [b"1", b"2"]
        assert all(delivery.redelivered for delivery in back)
        lost[0].ack()
        lost[1].dead_letter("too late")
        back[0].ack()
        back[1].ack()
        await ready(survivor, WORK, 0)

    async def test_a_private_queue_goes_with_its_connection(self, harness: BrokerHarness) -> None:
        """F10: who replies to a dead client learns it at once."""
        owner, other = await harness.connect("owner"), await harness.connect("other")
        inbox = Inbox()
        await owner.consume(MAIL, inbox, prefetch=5)
        await send(other, [letter(1, MAIL)])
        (await inbox.take()).ack()
        with pytest.raises(BrokerError):
            await other.depth(MAIL.name)
        await harness.kill(owner)
        await gone(other, MAIL)
        [verdict] = await other.publish([letter(2, MAIL)])
        assert isinstance(verdict, UnroutableError)

    async def test_depth_tells_ready_and_consumers(self, harness: BrokerHarness) -> None:
        """F11: looking changes nothing, and a missing queue is None."""
        broker = await harness.connect("a")
        assert await broker.depth(WORK.name) is None
        await broker.declare([WORK])
        await send(broker, [letter(1), letter(2)])
        await ready(broker, WORK, 2)
        depth = await broker.depth(WORK.name)
        assert depth is not None
        assert depth.consumers == 0
        inbox = Inbox()
        await broker.consume(WORK, inbox, prefetch=1)
        await inbox.take()

        async def seen() -> bool:
            depth = await broker.depth(WORK.name)
            return depth is not None and (depth.ready, depth.consumers) == (1, 1)

        await eventually(seen, "one message ready and one consumer")

    async def test_purge_drops_what_is_ready(self, harness: BrokerHarness) -> None:
        """F11: what is in hand stays, and purging nothing is no error."""
        broker, inbox = await harness.connect("a"), Inbox()
        await broker.purge(WORK.name)
        await broker.consume(WORK, inbox, prefetch=1)
        await send(broker, [letter(number) for number in range(5)])
        held = await inbox.take()
        await ready(broker, WORK, 4)
        await broker.purge(WORK.name)
        await ready(broker, WORK, 0)
        held.requeue()
        assert (await inbox.take()).body == b"0"

    async def test_declaring_again_is_nothing(self, harness: BrokerHarness) -> None:
        """C81: every process declares all its queues, on top of what is there."""
        queues = [GRAVE, WORK, MAIL, presence_token("kit/1")]
        broker = await harness.connect("a")
        await broker.declare(queues)
        await broker.declare(queues)
        await send(broker, [letter(1)])
        other = await harness.connect("b")
        await other.declare([GRAVE, WORK])
        await ready(other, WORK, 1)

    @pytest.mark.parametrize("consuming", [False, True])
    async def test_other_arguments_are_a_mismatch(
        self, harness: BrokerHarness, consuming: bool
    ) -> None:
        """C81: the error names queue, argument, found and wanted; the connection lives on."""
        broker = await harness.connect("a")
        await broker.declare([WORK])
        changed = msgspec.structs.replace(WORK, delivery_limit=7)
        asking = broker.consume(changed, Inbox(), prefetch=1) if consuming else None
        with pytest.raises(TopologyMismatchError) as caught:
            await (asking or broker.declare([changed]))
        for part in (WORK.name, "x-delivery-limit", "is 20", "wanted is 7"):
            assert part in str(caught.value)
        await send(broker, [letter(1)])
        assert broker.health().consuming

    async def test_health_says_what_is(self, harness: BrokerHarness) -> None:
        """C66: connected and consuming, without a question to the broker."""
        broker = await harness.connect("a")
        await broker.consume(WORK, Inbox(), prefetch=1)
        health = broker.health()
        assert (health.connected, health.blocked, health.consuming, health.reason) == (
            True,
            False,
            True,
            "",
        )
        await harness.leave(broker)
        assert not broker.health().connected

    async def test_after_the_end_publishing_fails_at_once(self, harness: BrokerHarness) -> None:
        """C59: nobody waits for a connection that was closed on purpose."""
        broker = await harness.connect("a")
        await harness.leave(broker)
        async with asyncio.timeout(1):
            [verdict] = await broker.publish([letter(1)])
        assert isinstance(verdict, BrokerError)


class PresenceConformance:
    """Tokens of processes."""

    async def test_a_death_is_heard_of(self, harness: BrokerHarness) -> None:
        """F7: the token of a killed process arrives, and only once."""
        dispatcher, worker = await harness.connect("dispatcher"), await harness.connect("worker")
        heard = Inbox()
        await dispatcher.consume(PRESENCE, heard, prefetch=10)
        token = PresenceToken(worker, "worker/kit/1/abc")
        assert await token.start()
        assert await token.refresh()
        await worker.depth(WORK.name)  # an answer: the first token's ack has left as well
        await harness.kill(worker)
        delivery = await heard.take()
        message = decode(TokenMessage, delivery.body, delivery.content_type)
        assert message.owner == "worker/kit/1/abc"
        delivery.ack()
        await self._nothing_more(harness, heard)

    async def test_a_goodbye_is_no_death(self, harness: BrokerHarness) -> None:
        """F7: a process that leaves in good order is nobody's emergency."""
        dispatcher, worker = await harness.connect("dispatcher"), await harness.connect("worker")
        heard = Inbox()
        await dispatcher.consume(PRESENCE, heard, prefetch=10)
        token = PresenceToken(worker, "worker/kit/2/abc")
        assert await token.start()
        assert await token.refresh()
        await token.stop()
        assert not await token.refresh()
        await harness.leave(worker)
        await self._nothing_more(harness, heard)

    async def _nothing_more(self, harness: BrokerHarness, heard: Inbox) -> None:
        """A message sent now is the next to arrive, so nothing came before it."""
        other = await harness.connect("other")
        await send(other, [letter("sentinel", PRESENCE)])
        assert (await heard.take()).body == b"sentinel"
