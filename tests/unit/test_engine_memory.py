"""A parked execution holds nothing in a worker."""

from __future__ import annotations

import asyncio
import gc

import loom_mq as loom
from loom_mq.engine.drive import Drive
from loom_mq.flows.activation import Activation
from loom_mq.flows.context import Context
from loom_mq.kernel.fold import ExecutionState
from tests.support.house import House, until

HELD = (Drive, Activation, Context, ExecutionState)


@loom.step
async def remember(size: int) -> bytes:
    return bytes(size)


@loom.flow
async def sleeper(ctx: loom.Context) -> int:
    kept = await asyncio.gather(*(ctx.run(remember, 1000) for _ in range(5)))
    answer = await ctx.suspend(on="Wake", type=int)
    return answer + len(kept)


def held() -> int:
    gc.collect()
    return sum(isinstance(each, HELD) for each in gc.get_objects())


async def test_a_parked_execution_holds_nothing_in_memory() -> None:
    """K7, L10: after the park no object and no task of the attempt is left."""
    async with House([sleeper]) as house:
        tasks = len(asyncio.all_tasks())
        before = held()
        handles = [await house.client.start(sleeper, id=f"{n}") for n in range(50)]

        async def all_parked() -> bool:
            rows = [await house.row(f"{n}") for n in range(50)]
            return all(row.gates == ("Wake",) for row in rows) and not len(house.workers[0]._hands)

        await until(all_parked)

        async def quiet() -> bool:
            return held() <= before and len(asyncio.all_tasks()) <= tasks + 1

        await until(quiet, within=5)
        await handles[0].resume("Wake", 1)
        assert await handles[0].result(timeout=5) == 6
