"""F2, K16: what one start is told is no business of another of the same id."""

from __future__ import annotations

import pytest

import loom_mq as loom
from loom_mq.broker.memory import MemoryBroker
from loom_mq.broker.protocol import Outgoing
from loom_mq.errors import BrokerError, StartConflictError
from tests.support.house import House


class TellingTwice(MemoryBroker):
    """Delivers every reply twice, as a broker does whose confirm was lost."""

    def route(self, message: Outgoing) -> BrokerError | None:
        """Put a message into its queue, and a reply once more."""
        if message.queue.startswith("loom.reply."):
            super().route(message)
        return super().route(message)


@loom.flow
async def waits(ctx: loom.Context, number: int) -> int:
    return number + await ctx.suspend(on="go", type=int)


async def test_f2_a_refused_start_leaves_the_accepted_one_its_outcome() -> None:
    """The second copy of a refusal once ended the wait for the execution that is there."""
    house = House([waits])
    house.hub = TellingTwice()
    async with house:
        first = await house.client.start(waits, 1, id="taken")
        for _ in range(3):
            with pytest.raises(StartConflictError):
                await house.client.start(waits, 2, id="taken")
            with pytest.raises(StartConflictError):
                await house.client.execute(waits, 3, id="taken", timeout=20)
        again = await house.client.start(waits, 1, id="taken")
        await first.resume("go", 10)
        assert await first.result(timeout=20) == 11
        assert await again.result(timeout=20) == 11
        assert await house.client.execute(waits, 1, id="taken", timeout=20) == 11
