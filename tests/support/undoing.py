"""Steps that do and undo things, and what the world has seen of them."""

from __future__ import annotations

import asyncio
import random

import loom_mq as loom
from loom_mq.kernel.fold import ExecutionState, FrameStatus

world: list[str] = []
luck = random.Random()
gate: list[asyncio.Event] = []
"""What holds `held`; one per test, since it belongs to a loop."""
running: set[str] = set()


def fresh() -> asyncio.Event:
    """A quiet world; returns what lets `held` go on."""
    world.clear()
    running.clear()
    gate[:] = [asyncio.Event()]
    return gate[0]


@loom.step
async def do(name: str) -> str:
    world.append(f"do {name}")
    return f"receipt {name}"


@loom.step
async def undo(what: str) -> None:
    world.append(f"undo {what}")


@loom.step(retry=loom.NO_RETRY)
async def undo_badly(what: str) -> None:
    world.append(f"try {what}")
    raise OSError(f"cannot undo {what}")


@loom.step(retry=loom.NO_RETRY)
async def fail(why: str) -> str:
    raise ValueError(why)


@loom.step(retry=loom.NO_RETRY)
async def held(name: str) -> str:
    running.add(name)
    try:
        await gate[0].wait()
    finally:
        running.discard(name)
    world.append(f"do {name}")
    return f"receipt {name}"


@loom.step(retry=loom.NO_RETRY)
async def lucky(name: str) -> str:
    await asyncio.sleep(luck.choice((0.0, 0.0, 0.001, 0.002)))
    if name == "bad":
        raise ValueError(name)
    world.append(f"do {name}")
    return name


def frames(state: ExecutionState, name: str, status: FrameStatus) -> list[str]:
    """The places of a step that stand so."""
    return [
        place
        for place, frame in state.frames.items()
        if frame.name == name and frame.status is status
    ]


async def runs(name: str) -> bool:
    """Whether `held` is at work."""
    return name in running
