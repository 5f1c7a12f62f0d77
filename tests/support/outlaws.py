"""Flows and steps that behave as badly as Python allows, in a process of their own.

``python -m tests.support.outlaws NAME...``: runs them one after the other, each beside ten
ordinary executions, collects garbage as any long-lived process does sooner or later, and
says on standard output what came of each.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys

import loom_mq as loom
from tests.support.house import House, until

OTHERS = 10


@loom.step(retry=loom.NO_RETRY)
async def quick(what: str) -> str:
    return what


@loom.flow
async def ordinary(ctx: loom.Context) -> str:
    await ctx.run(quick, "a")
    await ctx.sleep(0.05)
    return await ctx.run(quick, "b")


# ---- an exit in a task of somebody's ------------------------------------------------------


async def leave(kind: type[BaseException]) -> None:
    await asyncio.sleep(0)
    raise kind(3)


@loom.flow
async def exit_in_a_branch(ctx: loom.Context) -> str:
    async def branch() -> None:
        await ctx.run(quick, "x")
        sys.exit(3)

    await asyncio.gather(branch(), ctx.run(quick, "y"))
    return "went on"


@loom.flow
async def interrupt_in_a_branch(ctx: loom.Context) -> str:
    async def branch() -> None:
        await ctx.run(quick, "x")
        raise KeyboardInterrupt

    async with asyncio.TaskGroup() as group:
        group.create_task(branch())
    return "went on"


@loom.step(retry=loom.NO_RETRY)
async def exits_in_a_child() -> None:
    await asyncio.create_task(leave(SystemExit))


@loom.step(retry=loom.NO_RETRY)
async def exits_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leave(KeyboardInterrupt))


@loom.step(retry=loom.NO_RETRY)
async def exits_under_a_limit() -> None:
    # on Python 3.11 a task of its own
    await asyncio.wait_for(leave(SystemExit), 5)


@loom.flow
async def exit_in_a_child_of_a_step(ctx: loom.Context) -> str:
    await ctx.run(exits_in_a_child)
    return "went on"


@loom.flow
async def interrupt_in_a_group_of_a_step(ctx: loom.Context) -> str:
    await ctx.run(exits_in_a_group)
    return "went on"


@loom.flow
async def exit_under_a_limit_in_a_step(ctx: loom.Context) -> str:
    await ctx.run(exits_under_a_limit)
    return "went on"


# ---- loops that swallow whatever comes ---------------------------------------------------


@loom.flow
async def poll_with_a_bare_except(ctx: loom.Context) -> str:
    """What people write: poll for ever, and let no error end it."""
    while True:
        try:
            if await ctx.run(quick, "not yet") == "ready":
                return "ready"
            await ctx.sleep(3600)
        except:  # noqa: E722
            pass


@loom.flow
async def branches_with_a_bare_except(ctx: loom.Context) -> str:
    async def branch(name: str) -> None:
        while True:
            try:
                await ctx.run(quick, name)
                await ctx.sleep(3600)
            except:  # noqa: E722
                pass

    await asyncio.gather(branch("a"), branch("b"))
    return "went on"


@loom.flow
async def gates_with_a_bare_except(ctx: loom.Context) -> str:
    while True:
        try:
            return await ctx.suspend(on="Never", type=str)
        except BaseException:
            pass


EXITS = (
    exit_in_a_branch,
    interrupt_in_a_branch,
    exit_in_a_child_of_a_step,
    interrupt_in_a_group_of_a_step,
    exit_under_a_limit_in_a_step,
)
SWALLOWERS = (poll_with_a_bare_except, branches_with_a_bare_except, gates_with_a_bare_except)


async def outlaw_among_others(flow: loom.Flow[None, str], *, ends: bool) -> dict[str, object]:
    """How it ends, and whether ten others beside it and after it do."""
    async with House([flow, ordinary], workers=0) as house:
        await house.worker(park_drain=0.1)
        before = [await house.client.start(ordinary) for _ in range(OTHERS // 2)]
        outlaw = await house.client.start(flow, id="outlaw")
        if not ends:

            async def left_behind() -> bool:
                row = await house.row("outlaw")
                return row.status is loom.Status.SUSPENDED and house.workers[0].busy == 0

            await until(left_behind)
            gc.collect()
            await outlaw.cancel("enough")
        try:
            end = await outlaw.result(timeout=10)
        except loom.LoomError as error:
            end = error.message
        gc.collect()
        after = [await house.client.start(ordinary) for _ in range(OTHERS // 2)]
        others = [await each.result(timeout=10) for each in (*before, *after)]
    return {"name": flow.name, "end": end, "others": others}


def main() -> None:
    known = {flow.name: flow for flow in (*EXITS, *SWALLOWERS)}
    for name in sys.argv[1:]:
        print(name, file=sys.stderr, flush=True)
        told = asyncio.run(outlaw_among_others(known[name], ends=known[name] in EXITS))
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
