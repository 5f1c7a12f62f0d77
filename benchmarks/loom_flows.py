"""The flows that the fleet is measured with."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import loom_mq as loom


@loom.step
async def add_one(number: int) -> int:
    """A durable step that does next to nothing."""
    return number + 1


@loom.flow
async def three_steps(ctx: loom.Context, number: int) -> int:
    """W1 and W2."""
    for _ in range(3):
        number = await ctx.run(add_one, number)
    return number


@loom.step(retry=loom.NO_RETRY)
async def hold(marker: str) -> None:
    """Say who runs this and since when; the first to do so then waits to be killed."""
    path = Path(marker)
    first = not path.exists()  # one small file, and the run's only step
    line = json.dumps({"pid": os.getpid(), "at": time.monotonic()}) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)
    if first:
        await asyncio.sleep(3600)


@loom.flow
async def held(ctx: loom.Context, marker: str) -> int:
    """W3: a step, one that is held, and one more."""
    number = await ctx.run(add_one, 0)
    await ctx.run(hold, marker)
    return await ctx.run(add_one, number)


@loom.flow
async def asleep(ctx: loom.Context, seconds: float) -> None:
    """W4."""
    await ctx.sleep(seconds)


@loom.flow
async def alarm(ctx: loom.Context, due: float) -> None:
    """Sleeps until a moment, in seconds since the epoch."""
    await ctx.sleep_until(datetime.fromtimestamp(due, UTC))
