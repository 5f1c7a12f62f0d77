"""Two hundred executions of three steps side by side, for a test that kills their process.

``python -m tests.support.gather_program JOURNAL LEDGER``: starts what is not there yet,
waits until all have ended, and prints what they returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path

import loom_mq as loom
from loom_mq.flows.registry import Registry
from loom_mq.runtime.embedded import Embedded

NUMBER = 200
SLOTS = 60
LONGEST = 0.3
"""Seconds that a step may take."""


async def _effect(ledger: str, name: str, execution: str) -> str:
    await asyncio.sleep(random.uniform(0, LONGEST))
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, f"{loom.current_step().idempotency_key} {name}\n".encode())
    finally:
        os.close(handle)
    return f"{name} of {execution}"


@loom.step
async def a(ledger: str, execution: str) -> str:
    return await _effect(ledger, "a", execution)


@loom.step
async def b(ledger: str, execution: str) -> str:
    return await _effect(ledger, "b", execution)


@loom.step
async def c(ledger: str, execution: str) -> str:
    return await _effect(ledger, "c", execution)


@loom.step
async def d(ledger: str, execution: str, all_three: list[str]) -> list[str]:
    return [*all_three, await _effect(ledger, "d", execution)]


@loom.flow
async def gathers(ctx: loom.Context, ledger: str) -> list[str]:
    own = ctx.execution_id
    three = await asyncio.gather(
        ctx.run(a, ledger, own), ctx.run(b, ledger, own), ctx.run(c, ledger, own)
    )
    return await ctx.run(d, ledger, own, list(three))


def expected(execution: str) -> list[str]:
    """What an execution must return."""
    return [f"{name} of {execution}" for name in "abcd"]


async def main(journal: Path, ledger: str) -> None:
    async with Embedded(Registry([gathers]), journal, slots=SLOTS) as house:
        inputs = [(f"e{number}", ledger) for number in range(NUMBER)]
        handles = await house.client.start_many(gathers, inputs)
        print(json.dumps({handle.id: await handle.result(timeout=60) for handle in handles}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
