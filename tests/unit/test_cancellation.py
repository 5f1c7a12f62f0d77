"""K13: a cancelled flow is cancelled again at each durable call, and may clean up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import fold
from tests.support.house import House, until

calls: list[str] = []


class Latch:
    """Where a step waits; made anew for each test, because events belong to a loop."""

    holding: asyncio.Event
    release: asyncio.Event


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.NO_RETRY)
async def hold(what: str) -> str:
    calls.append(f"hold {what}")
    Latch.holding.set()
    await Latch.release.wait()
    return what


@loom.flow
async def tidy(ctx: loom.Context) -> str:
    """Cleans up whatever interrupts it."""
    try:
        await ctx.run(hold, "work")
    finally:
        calls.append("unwinding")
        async with ctx.shield():
            await ctx.run(note, "undo 1")
            await ctx.run(hold, "undo 2")
    return "done"


@loom.flow
async def swallowing(ctx: loom.Context) -> str:
    """Takes each cancellation for an accident."""
    for number in range(50):
        try:
            await ctx.run(hold, f"{number}")
        except asyncio.CancelledError:
            calls.append(f"swallowed {number}")
    return "went on"


@loom.flow
async def grouped(ctx: loom.Context) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.run(hold, "a"))
        group.create_task(ctx.sleep(3600))
        group.create_task(ctx.suspend(on="Gate", type=bool))
    await ctx.run(note, "after the group")
    return "went on"


@loom.flow
async def slow_tidy(ctx: loom.Context) -> str:
    try:
        await ctx.suspend(on="Gate", type=bool)
    finally:
        async with ctx.shield():
            await ctx.run(note, "before the nap")
            await ctx.sleep(0.3)
            await ctx.run(note, "after the nap")
    return "done"


@loom.flow
async def crude(ctx: loom.Context) -> str:
    """A cleanup without a shield starts nothing."""
    try:
        await ctx.run(hold, "work")
    finally:
        await ctx.run(note, "unshielded")
    return "done"


FLOWS = (tidy, swallowing, grouped, slow_tidy, crude)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    Latch.holding = asyncio.Event()
    Latch.release = asyncio.Event()
    async with House(FLOWS, lease=0.5) as house:
        yield house


async def cancelled(handle: loom.Handle[str], reason: str = "why not") -> str:
    with pytest.raises(loom.ExecutionCancelledError, match=reason) as caught:
        await handle.result(timeout=10)
    return str(caught.value)


async def test_k13_a_shielded_block_runs_before_the_cancellation_is_final(house: House) -> None:
    """K13: cleanup steps run, are recorded, and only then is the execution cancelled."""
    handle = await house.client.start(tidy, id="e")
    await Latch.holding.wait()
    Latch.holding.clear()
    await handle.cancel("why not")
    await asyncio.wait_for(Latch.holding.wait(), 5)
    assert (await handle.state()).status is loom.Status.RUNNING
    Latch.release.set()
    await cancelled(handle)
    assert calls == ["hold work", "unwinding", "undo 1", "hold undo 2"]
    kinds = await house.kinds("e")
    assert kinds[1:4] == ["STEP_STARTED", "CANCEL_REQUESTED", "STEP_CANCELLED"]
    assert kinds[-2:] == ["STEP_COMPLETED", "EXECUTION_CANCELLED"]


async def test_k13_a_crash_in_the_cleanup_goes_on_with_it(house: House) -> None:
    """K13, K15: the worker that cleans up goes; another one unwinds to the same point, skips
    what is done and ends it.
    """
    handle = await house.client.start(tidy, id="e")
    await Latch.holding.wait()
    Latch.holding.clear()
    await handle.cancel("why not")
    await asyncio.wait_for(Latch.holding.wait(), 5)
    await house.worker()
    Latch.holding.clear()
    await house.workers[0].drain(0)
    await house.workers[0].stop()
    await asyncio.wait_for(Latch.holding.wait(), 5)
    Latch.release.set()
    await cancelled(handle)
    assert calls == [
        *("hold work", "unwinding", "undo 1", "hold undo 2"),
        *("unwinding", "hold undo 2"),
    ]
    assert (await rehearse(tidy, await house.log("e"))).ok


async def test_k13_a_flow_that_swallows_it_is_told_at_every_call(house: House) -> None:
    """K13: a level, not an edge; nothing runs after it, and the end is cancelled."""
    handle = await house.client.start(swallowing, id="e")
    await Latch.holding.wait()
    await handle.cancel("why not")
    await cancelled(handle)
    assert calls[:3] == ["hold 0", "swallowed 0", "swallowed 1"]
    assert [each for each in calls if each.startswith("hold")] == ["hold 0"]
    state = fold(await house.log("e"))
    assert list(state.frames) == ["#0"]


async def test_k13_branches_that_work_sleep_and_wait(house: House) -> None:
    """K13: a step, a sleep and a gate side by side are all interrupted."""
    handle = await house.client.start(grouped, id="e")
    await Latch.holding.wait()
    await handle.cancel("why not")
    await cancelled(handle)
    assert calls == ["hold a"]
    assert (await rehearse(grouped, await house.log("e"))).ok


async def test_k13_a_cleanup_may_sleep(house: House) -> None:
    """K13: a shielded sleep parks the cancelled execution, and it wakes to end cancelled."""
    handle = await house.client.start(slow_tidy, id="e")

    async def parked() -> bool:
        return (await handle.state()).status is loom.Status.SUSPENDED

    await until(parked)
    await handle.cancel("why not")
    await cancelled(handle)
    assert calls == ["before the nap", "after the nap"]
    kinds = await house.kinds("e")
    assert kinds.count("EXECUTION_SUSPENDED") == 2
    assert kinds.count("CANCEL_REQUESTED") == 1
    assert (await rehearse(slow_tidy, await house.log("e"))).ok


async def test_k13_a_cleanup_without_a_shield_starts_nothing(house: House) -> None:
    """K13: outside a shield every call is interrupted."""
    handle = await house.client.start(crude, id="e")
    await Latch.holding.wait()
    await handle.cancel("why not")
    await cancelled(handle)
    assert calls == ["hold work"]


async def test_k13_cancelling_twice_is_one_cancel(house: House) -> None:
    """K13: also while the cleanup runs; the first reason stands."""
    handle = await house.client.start(tidy, id="e")
    await Latch.holding.wait()
    Latch.holding.clear()
    await handle.cancel("why not")
    await asyncio.wait_for(Latch.holding.wait(), 5)
    await handle.cancel("another reason")
    Latch.release.set()
    await cancelled(handle)
    assert (await house.kinds("e")).count("CANCEL_REQUESTED") == 1
