"""K11: a park waits for what is in flight, freezes what is new, and seals the log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from tests.support.house import House, until

calls: list[str] = []


class Latch:
    """Where a step waits; made anew for each test, because events belong to a loop."""

    holding: asyncio.Event
    release: asyncio.Event
    thread_holds: threading.Event


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


@loom.step(retry=loom.NO_RETRY)
def watchful() -> str:
    """A plain function that looks whether it is still wanted."""
    Latch.thread_holds.set()
    info = loom.current_step()
    tick = threading.Event()
    for _ in range(2000):
        if info.cancelled:
            calls.append("saw it")
            return "stopped"
        tick.wait(0.005)
    return "never told"


@loom.flow
async def both(ctx: loom.Context) -> str:
    """A gate beside a branch of two steps, and one more that comes while it waits."""

    async def branch() -> str:
        first = await ctx.run(hold, "work")
        return await ctx.run(note, f"after {first}")

    told = asyncio.ensure_future(branch())
    answer, _told = await asyncio.gather(ctx.suspend(on="Gate", type=str), told)
    return f"{answer}, {told.result()}"


@loom.flow
async def threaded(ctx: loom.Context) -> str:
    return await ctx.run(watchful)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    Latch.holding = asyncio.Event()
    Latch.release = asyncio.Event()
    Latch.thread_holds = threading.Event()
    async with House([both, threaded], workers=0) as house:
        yield house


async def test_k11_a_park_waits_for_the_step_in_flight_and_starts_nothing(house: House) -> None:
    """K11: not suspended while the step works; its result is on the log before the park, and
    the step that would follow it begins after the answer only.
    """
    await house.worker()
    handle = await house.client.start(both, id="e")
    await Latch.holding.wait()
    assert (await handle.state()).status is loom.Status.RUNNING
    Latch.release.set()

    async def parked() -> bool:
        return (await handle.state()).gates == ("Gate",)

    await until(parked)
    kinds = await house.kinds("e")
    assert kinds == [
        "EXECUTION_STARTED",
        "STEP_STARTED",
        "STEP_COMPLETED",
        "EXECUTION_SUSPENDED",
    ]
    assert calls == ["hold work"]
    await handle.resume("Gate", "yes")
    assert await handle.result(timeout=5) == "yes, after work"
    assert calls == ["hold work", "after work"]


async def test_k11_a_straggler_is_interrupted_and_runs_again(house: House) -> None:
    """K11: the drain is bounded; what it interrupts is on the log and runs again later."""
    await house.worker(park_drain=0.1)
    handle = await house.client.start(both, id="e")

    async def parked() -> bool:
        return (await handle.state()).gates == ("Gate",)

    await until(parked)
    kinds = await house.kinds("e")
    assert kinds[-2:] == ["STEP_CANCELLED", "EXECUTION_SUSPENDED"]
    assert (await rehearse(both, await house.log("e"))).ok
    Latch.release.set()
    await handle.resume("Gate", "yes")
    assert await handle.result(timeout=5) == "yes, after work"
    assert calls == ["hold work", "hold work", "after work"]
    assert (await rehearse(both, await house.log("e"))).ok


async def test_k11_a_cancellation_while_draining_wins(house: House) -> None:
    """K11: cancelled, not parked."""
    await house.worker()
    handle = await house.client.start(both, id="e")
    await Latch.holding.wait()
    await handle.cancel("enough")
    with pytest.raises(loom.ExecutionCancelledError):
        await handle.result(timeout=5)
    assert "EXECUTION_SUSPENDED" not in await house.kinds("e")


async def test_k4_a_plain_step_can_ask_whether_it_was_cancelled(house: House) -> None:
    """K4: a thread cannot be interrupted, so the function looks for itself."""
    await house.worker()
    handle = await house.client.start(threaded, id="e")

    async def begun() -> bool:
        return Latch.thread_holds.is_set()

    await until(begun)
    await handle.cancel("enough")
    with pytest.raises(loom.ExecutionCancelledError):
        await handle.result(timeout=5)

    async def saw() -> bool:
        return calls == ["saw it"]

    await until(saw)
