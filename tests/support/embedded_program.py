"""An embedded engine in a process of its own, for tests that kill it.

``python -m tests.support.embedded_program JOURNAL LEDGER``: starts twelve executions under
their own ids and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import loom_mq as loom
from loom_mq.flows.registry import Registry
from loom_mq.runtime.embedded import Embedded

NUMBER = 12
STEPS = 3


@loom.step
async def note(ledger: str, text: str) -> str:
    """One line per effect; takes long enough for a kill to find some under way."""
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, f"{loom.current_step().idempotency_key} {text}\n".encode())
    finally:
        os.close(handle)
    await asyncio.sleep(0.05)
    return text


@loom.flow
async def notes(ctx: loom.Context, ledger: str) -> list[str]:
    """Steps, a sleep, and a gate."""
    texts = [await ctx.run(note, ledger, f"step {number}") for number in range(STEPS)]
    await ctx.sleep(0.5)
    if await ctx.suspend(on="More", type=bool):
        texts.append(await ctx.run(note, ledger, "more"))
    return texts


async def main(journal: Path, ledger: str) -> None:
    async with Embedded(Registry([notes]), journal) as house:
        inputs = [(f"notes-{number}", ledger) for number in range(NUMBER)]
        await house.client.start_many(notes, inputs)
        await asyncio.sleep(120)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
