"""Flows whose paths depend on what happens first; what they saw is what they return."""

from __future__ import annotations

import asyncio
import random

import loom_mq as loom

LUCK = random.Random()
"""How long steps take; seeded anew for each run by whoever runs them."""


@loom.step
async def work(name: str) -> str:
    await asyncio.sleep(LUCK.choice((0.0, 0.0, 0.001, 0.003, 0.006)))
    return name


@loom.step(retry=loom.NO_RETRY)
async def burst(name: str) -> str:
    await asyncio.sleep(LUCK.choice((0.0, 0.001, 0.004)))
    raise ValueError(name)


@loom.step
async def stubborn(name: str) -> str:
    """Its effect takes a cancellation for a hint."""
    try:
        await asyncio.sleep(LUCK.choice((0.001, 0.006)))
    except asyncio.CancelledError:
        await asyncio.sleep(0.001)
    return name


@loom.flow
async def branches(ctx: loom.Context) -> list[str]:
    seen: list[str] = []

    async def branch(name: str) -> None:
        for number in range(3):
            seen.append(await ctx.run(work, f"{name}{number}"))
            if len(seen) % 2:
                seen.append(await ctx.run(work, f"{name}{number}odd"))

    await asyncio.gather(*(branch(name) for name in "abcd"))
    seen.append(await ctx.run(work, "end"))
    return seen


@loom.flow
async def by_completion(ctx: loom.Context) -> list[str]:
    seen = [
        await first for first in asyncio.as_completed([ctx.run(work, name) for name in "abcdef"])
    ]
    seen.append(await ctx.run(work, f"after {seen[0]}"))
    return seen


@loom.flow
async def by_wait(ctx: loom.Context) -> list[str]:
    seen: list[str] = []
    pending = {asyncio.create_task(ctx.run(work, name), name=name) for name in "abcde"}
    rounds = 0
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        seen.append("+".join(sorted(task.result() for task in done)))
        rounds += 1
        if rounds == 2:
            pending.add(asyncio.create_task(ctx.run(work, f"extra for {seen[-1]}")))
    return seen


@loom.flow
async def race(ctx: loom.Context) -> list[str]:
    seen: list[str] = []

    async def runner(name: str, step: loom.Step[[str], str]) -> str:
        try:
            seen.append(await ctx.run(step, name))
            seen.append(await ctx.run(step, name + "2"))
        except asyncio.CancelledError:
            seen.append(f"lost {name}")
            raise
        return name

    tasks = [
        asyncio.create_task(runner("a", work)),
        asyncio.create_task(runner("b", stubborn)),
        asyncio.create_task(runner("c", work)),
    ]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    seen.append("won " + "+".join(sorted(task.result() for task in done)))
    seen.append(await ctx.run(work, "end"))
    return seen


@loom.flow
async def group(ctx: loom.Context) -> list[str]:
    seen: list[str] = []

    async def member(name: str) -> None:
        try:
            seen.append(await ctx.run(work, name))
            seen.append(await ctx.run(work, name + "2"))
        except asyncio.CancelledError:
            seen.append(f"cancelled {name}")
            raise

    try:
        async with asyncio.TaskGroup() as tasks:
            for name in "abc":
                tasks.create_task(member(name))
            tasks.create_task(ctx.run(burst, "x"))
    except* ValueError as errors:
        seen.append(str(errors.exceptions[0]))
    seen.append(await ctx.run(work, "end"))
    return seen


@loom.flow
async def nested(ctx: loom.Context) -> list[str]:
    seen: list[str] = []

    async def leaf(name: str) -> str:
        seen.append(await ctx.run(work, name))
        return name

    inner = [asyncio.gather(leaf(f"{name}1"), leaf(f"{name}2")) for name in "abc"]
    both = asyncio.gather(*inner[:2])
    await asyncio.gather(both, inner[2])
    seen.append(await ctx.run(work, "end"))
    return seen


@loom.flow
async def tolerant(ctx: loom.Context) -> list[str]:
    seen: list[str] = []
    failures = 0

    async def branch(name: str, step: loom.Step[[str], str]) -> None:
        nonlocal failures
        try:
            seen.append(await ctx.run(step, name))
        except ValueError:
            failures += 1
        seen.append(await ctx.run(work, f"{name} after {failures}"))

    await asyncio.gather(*(branch(f"{i}", burst if i % 2 else work) for i in range(5)))
    return seen


ALL = (branches, by_completion, by_wait, race, group, nested, tolerant)
