"""Failures from the field about replay: C19, C43, C74."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.testing.crashes import crash_everywhere
from tests.support.house import House, until
from tests.support.mortal import die

charged: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    charged.clear()
    polled.clear()


# ---- C19: another kind of operation at a place -----------------------------------------------


class Switch:
    """A module's variable that a deployment, or a careless flow, changes."""

    way = ""
    amount = 1


@loom.step
async def charge(amount: int) -> str:
    charged.append(f"charge {amount}")
    return f"receipt {amount}"


@loom.step
async def other(amount: int) -> str:
    charged.append(f"other {amount}")
    return f"other {amount}"


@loom.flow
async def naps_or_not(ctx: loom.Context) -> str:
    if Switch.way == "nap":
        await ctx.sleep(0.1)
    return await ctx.run(charge, 1)


@loom.flow
async def goes_ways(ctx: loom.Context) -> list[str]:
    """One operation, a park, and a charge after it."""
    match Switch.way:
        case "charge":
            await ctx.run(charge, 0)
        case "other":
            await ctx.run(other, 0)
        case "decision":
            await ctx.decide("choice", lambda: 1)
        case "another decision":
            await ctx.decide("another", lambda: 1)
        case "emit":
            await ctx.emit("news", 1)
        case "gate":
            await ctx.suspend(on="Gate", type=bool)
        case "another gate":
            await ctx.suspend(on="Another", type=bool)
        case "nap":
            await ctx.sleep(0.001)
    await ctx.suspend(on="Go", type=bool)
    return [await ctx.run(charge, 1)]


TOLD = {
    "charge": "a step 'charge'",
    "other": "a step 'other'",
    "decision": "a decision 'choice'",
    "another decision": "a decision 'another'",
    "emit": "an emit 'news'",
    "gate": "a wait at gate 'Gate'",
    "another gate": "a wait at gate 'Another'",
    "nap": "a sleep",
    "nothing": "a wait at gate 'Go'",
}


async def has_trouble(house: House) -> bool:
    return (await house.row("e")).trouble is not None


async def parked_at(house: House, *gates: str) -> bool:
    row = await house.row("e")
    return row.status is loom.Status.SUSPENDED and row.gates == gates


async def test_c19_a_sleep_that_a_replay_skips() -> None:
    """C19: the charge is not taken for the sleep; put back, the code finishes."""
    Switch.way = "nap"
    async with House([naps_or_not]) as house:
        handle = await house.client.start(naps_or_not, id="e")
        await until(lambda: parked_at(house))
        Switch.way = "nothing"
        await until(lambda: has_trouble(house))
        trouble = (await house.row("e")).trouble or ""
        assert "a sleep" in trouble
        assert "a step 'charge'" in trouble
        assert charged == []
        assert await house.kinds("e") == ["EXECUTION_STARTED", "EXECUTION_SUSPENDED"]
        Switch.way = "nap"
        assert await handle.result(timeout=5) == "receipt 1"
    assert charged == ["charge 1"]


WAYS = [way for way in TOLD if way != "nothing"]


async def gone_one_way(house: House, way: str) -> loom.Handle[list[str]]:
    """An execution that went one way and waits to go on."""
    Switch.way = way
    handle = await house.client.start(goes_ways, id="e")
    if "gate" in way:
        await handle.resume("Gate" if way == "gate" else "Another", True)
    await until(lambda: parked_at(house, "Go"))
    return handle


@pytest.mark.parametrize(("first", "then"), list(zip(WAYS, [*WAYS[1:], "nothing"], strict=True)))
async def test_c19_another_operation_at_a_place(first: str, then: str) -> None:
    """C19: an error that names both; nothing is written, and nothing is done meanwhile."""
    async with House([goes_ways]) as house:
        handle = await gone_one_way(house, first)
        before, log = list(charged), await house.log("e")
        Switch.way = then
        await handle.resume("Go", True, timeout=0.05)
        await until(lambda: has_trouble(house))
        trouble = (await house.row("e")).trouble or ""
        assert TOLD[first] in trouble
        assert TOLD[then] in trouble
        assert "test_cases_determinism.py" in trouble
        assert await house.log("e") == log
        assert charged == before
        Switch.way = first
        assert await handle.result(timeout=5) == ["receipt 1"]
    assert charged == [*before, "charge 1"]


@pytest.mark.parametrize("first", WAYS)
async def test_c19_every_kind_for_every_other(first: str) -> None:
    """C19: each of them is told apart from all the rest, and from itself by nothing."""
    async with House([goes_ways]) as house:
        await gone_one_way(house, first)
        log = await house.log("e")
    for then, told in TOLD.items():
        Switch.way = then
        outcome = await rehearse(goes_ways, log)
        assert outcome.ok == (first == then)
        assert first == then or (TOLD[first] in outcome.problem and told in outcome.problem)


@loom.flow
async def other_arguments(ctx: loom.Context) -> str:
    receipt = await ctx.run(charge, Switch.amount)
    await ctx.suspend(on="Go", type=bool)
    return receipt


async def test_c19_the_same_step_with_other_arguments() -> None:
    """C19: by the documented rule it is served, with a warning that names the step."""
    Switch.amount = 1
    async with House([other_arguments]) as house:
        handle = await house.client.start(other_arguments, id="e")
        await until(lambda: parked_at(house, "Go"))
        Switch.amount = 2
        with capture_logs() as logs:
            await handle.resume("Go", True)
            assert await handle.result(timeout=5) == "receipt 1"
    warnings = [each for each in logs if each["event"] == "step.other_arguments"]
    assert [(each["step"], each["place"], each["log_level"]) for each in warnings] == [
        ("charge", "#0", "warning")
    ]
    assert charged == ["charge 1"]


# ---- C43: the same call again and again --------------------------------------------------------

polled: list[int] = []


class Latch:
    """Where the fourth poll waits; made anew for each test, because events belong to a loop."""

    holding: asyncio.Event
    release: asyncio.Event


@loom.step
async def poll(_what: str) -> int:
    polled.append(len(polled) + 1)
    return len(polled)


@loom.step
async def slow_poll(_what: str) -> int:
    polled.append(len(polled) + 1)
    number = len(polled)
    if number == 4:
        Latch.holding.set()
        await Latch.release.wait()
    return number


@loom.flow
async def polls(ctx: loom.Context) -> list[int]:
    return [await ctx.run(poll, "x") for _ in range(5)]


@loom.flow
async def polls_slowly(ctx: loom.Context) -> list[int]:
    return [await ctx.run(slow_poll, "x") for _ in range(5)]


@loom.flow
async def polls_at_once(ctx: loom.Context) -> list[int]:
    return list(await asyncio.gather(*(ctx.run(poll, "x") for _ in range(3))))


async def test_c43_five_polls_through_the_death_of_a_worker() -> None:
    """C43: after the third call, in the midst of the fourth; six calls, each its own value."""
    Latch.holding, Latch.release = asyncio.Event(), asyncio.Event()
    async with House([polls_slowly], lease=0.4) as house:
        handle = await house.client.start(polls_slowly, id="e")
        await Latch.holding.wait()
        await die(house.workers[0])
        await house.worker()
        assert await handle.result(timeout=10) == [1, 2, 3, 5, 6]
        Latch.release.set()
        assert len(fold(await house.log("e")).frames) == 5
    assert polled == [1, 2, 3, 4, 5, 6]


async def test_c43_five_polls_wherever_the_worker_dies() -> None:
    """C43: at every write; a poll that is journaled is not called again, and none is skipped."""
    crashes = await crash_everywhere(polls, equal=rising, reset=polled.clear)
    assert len(crashes.points) > 10


def rising(undisturbed: list[int], crashed: list[int]) -> bool:
    """A poll that was interrupted counts twice; the values are its own all the same."""
    return undisturbed == [1, 2, 3, 4, 5] and crashed == sorted(set(crashed)) and max(crashed) <= 6


async def test_c43_the_same_step_three_times_at_once() -> None:
    """C43: three entries and three values."""
    async with House([polls_at_once]) as house:
        handle = await house.client.start(polls_at_once, id="e")
        assert sorted(await handle.result(timeout=5)) == [1, 2, 3]
        frames = fold(await house.log("e")).frames
    assert len({frame.result for frame in frames.values()}) == 3
    assert {frame.status for frame in frames.values()} == {FrameStatus.COMPLETED}


# ---- C74: context variables --------------------------------------------------------------------

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
sights: dict[str, list[tuple[str, str]]] = {}


def look(where: str, execution: str) -> str:
    """Note what can be read here, whatever the flow returns in the end."""
    sights.setdefault(execution, []).append((where, TENANT.get()))
    return loom.current_step().execution_id if where.startswith("step") else ""


@loom.step
async def in_step(execution: str) -> str:
    await asyncio.sleep(0)
    return look("step", execution)


@loom.step
def in_thread(execution: str) -> str:
    return look("step in a thread", execution)


@loom.step
async def in_background(execution: str) -> str:
    async def background() -> str:
        await asyncio.sleep(random.choice((0, 0.001)))
        return look("step's task", execution)

    task = asyncio.create_task(background())
    TENANT.set("set by the step afterwards")
    return await task


@loom.step
async def sets_it(execution: str) -> str:
    own = TENANT.get()
    TENANT.set("set by a step")
    return own


@loom.flow
async def tenants(ctx: loom.Context) -> list[str]:
    own = ctx.execution_id
    look("before", own)
    TENANT.set(own)
    seen = [await ctx.run(each, own) for each in (in_step, in_thread, in_background, sets_it)]
    look("flow", own)
    await ctx.sleep(0.02)
    look("flow", own)
    seen.append(await ctx.run(in_step, own))
    await ctx.suspend(on="Go", type=bool)
    look("flow", own)
    seen += await asyncio.gather(ctx.run(in_thread, own), ctx.run(in_background, own))
    return seen


@pytest.fixture
async def house_of_tenants() -> AsyncIterator[House]:
    sights.clear()
    TENANT.set("worker")
    async with House([tenants]) as house:
        yield house


async def test_c74_two_hundred_tenants_side_by_side(house_of_tenants: House) -> None:
    """C74: every read, of first runs and re-runs, gives the execution's own id or what the
    worker itself has, never what a client, a step or another execution has set.
    """
    client = house_of_tenants.client

    async def one(number: int) -> list[str]:
        TENANT.set(f"client {number}")
        handle = await client.start(tenants, id=f"e{number}")
        await asyncio.sleep(random.random() * 0.1)
        await handle.resume("Go", True, timeout=30)
        return await handle.result(timeout=30)

    results = await asyncio.gather(*(one(number) for number in range(200)))
    strangers = {
        (where, value)
        for execution, seen in sights.items()
        for where, value in seen
        if value != execution and (where, value) not in (("before", "worker"), ("before", "nobody"))
    }
    assert strangers == set()
    assert results == [[f"e{number}"] * 7 for number in range(200)]
    assert TENANT.get() == "worker"
