"""Flows that the fleet tests run in real workers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import loom_mq as loom
from tests.support.ledger import record


@loom.step(retry=loom.NO_RETRY)
async def work(number: int, seconds: float) -> int:
    """Begins, takes a while, ends: both ends are in the ledger."""
    record("begun")
    await asyncio.sleep(seconds)
    record("done")
    return number + 1


@loom.step(retry=loom.NO_RETRY)
def work_in_thread(number: int) -> int:
    record("done")
    return number + 1


@loom.step(retry=loom.NO_RETRY)
async def blocking(seconds: float) -> None:
    """What no step should do: it stops the whole event loop of its worker."""
    record("begun")
    time.sleep(seconds)  # noqa: ASYNC251
    record("done")


@loom.step(retry=loom.NO_RETRY)
async def wait_for_file(path: str) -> str:
    """Goes on when a test makes the file; a test's own pace without a clock."""
    record("begun")
    while not Path(path).exists():
        await asyncio.sleep(0.02)
    record("done")
    return str(os.getpid())


@loom.flow
async def steps(ctx: loom.Context, plan: tuple[int, float]) -> int:
    """So many steps of so many seconds."""
    count, seconds = plan
    number = 0
    for _ in range(count):
        number = await ctx.run(work, number, seconds)
    return number


@loom.flow
async def mixed(ctx: loom.Context, seconds: float) -> list[int]:
    """Steps in a row, side by side, in threads, and a sleep between."""
    first = await ctx.run(work, 0, seconds)
    pair = await asyncio.gather(ctx.run(work, 10, seconds), ctx.run(work_in_thread, 20))
    await ctx.sleep(seconds)
    last = await ctx.run(work, 30, seconds)
    return [first, *pair, last]


@loom.flow
async def gated(ctx: loom.Context) -> str:
    number = await ctx.run(work, 0, 0.0)
    answer = await ctx.suspend(on="Approval", type=str)
    return f"{number} {answer}"


@loom.flow
async def sleeper(ctx: loom.Context, seconds: float) -> float:
    before = await ctx.now()
    await ctx.sleep(seconds)
    after = await ctx.now()
    return (after - before).total_seconds()


@loom.flow
async def blocked(ctx: loom.Context, seconds: float) -> str:
    await ctx.run(blocking, seconds)
    return "done"


@loom.flow
async def held(ctx: loom.Context, path: str) -> list[str]:
    """A step before, one that waits for a file, one after."""
    before = await ctx.run(work, 0, 0.0)
    pid = await ctx.run(wait_for_file, path)
    after = await ctx.run(work, 1, 0.0)
    return [str(before), pid, str(after)]


@loom.flow
async def echo(ctx: loom.Context, value: object) -> object:
    return value


@loom.step(idempotent=False)
async def charge(amount: int) -> str:
    return f"receipt-{amount}"


@loom.flow
async def charged(ctx: loom.Context, amount: int) -> str:
    """One step that must not run twice (K6)."""
    return await ctx.run(charge, amount)
