"""What a type checker must say about flow code. Checked by `tests/unit/test_typing.py`.

A line that ends in a comment `E:` and a code must be refused with that code, every other
must pass; `assert_type` holds what is inferred.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import assert_type

import loom_mq as loom


@loom.step
async def fetch(number: int, *, label: str = "") -> str:
    return label * number


@loom.step
def measure(number: int) -> float:
    return number / 2


@loom.step(timeout=3, retry=loom.NO_RETRY)
async def pack(number: int) -> bytes:
    return bytes(number)


@loom.flow
async def with_input(ctx: loom.Context, number: int) -> str:
    assert_type(await ctx.run(fetch, 1, label="x"), str)
    assert_type(await ctx.run(measure, 1), float)
    assert_type(await ctx.run(pack, 1), bytes)
    assert_type(await ctx.suspend(on="Gate", type=int), int)
    assert_type(await ctx.now(), datetime)
    assert_type(await ctx.decide("choice", lambda: 3), int)
    one, two = await asyncio.gather(ctx.run(fetch, 1), ctx.run(measure, 1))
    assert_type(one, str)
    assert_type(two, float)
    await ctx.run(fetch, "x")  # E: arg-type
    await ctx.run(fetch, 1, label=2)  # E: arg-type
    await ctx.run(measure)  # E: call-arg
    await ctx.run(measure, 1, 2)  # E: call-arg
    await ctx.run(len, "x")  # E: arg-type
    ctx.run(measure, 1)  # E: unused-coroutine
    return "done"


@loom.flow(version="2")
async def without_input(ctx: loom.Context) -> int:
    return 1


async def client(client: loom.Client) -> None:
    assert_type(with_input, loom.Flow[int, str])
    assert_type(without_input, loom.Flow[None, int])
    handle = await client.start(with_input, 1)
    assert_type(handle, loom.Handle[str])
    assert_type(await handle.result(), str)
    assert_type(await client.execute(without_input), int)
    await client.start(with_input, "x")  # E: misc
    await client.start(with_input)  # E: arg-type
    await client.schedules.create("s", with_input, 1, cron="0 3 * * *", overlap=loom.Overlap.ALLOW)
    await client.schedules.create("s", without_input, every=60)
    await client.schedules.create("s", with_input, "x", every=60)  # E: misc
    await client.schedules.create("s", without_input, crontab="0 3 * * *")  # E: call-overload
