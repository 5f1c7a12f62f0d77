"""K3, C09, C100: branches that meet by asyncio's own means do so again on every re-run."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import fold
from tests.support import branch_flows
from tests.support.house import House
from tests.unit.test_turns import first_run, resumed, told_before

Flow = loom.Flow[None, list[str]]


@pytest.mark.parametrize("flow", branch_flows.FLOWS, ids=lambda flow: flow.name)
@pytest.mark.parametrize("seed", range(2))
async def test_k3_every_prefix_fits(flow: Flow, seed: int) -> None:
    """K3: queues, locks, events, futures, groups and shields between branches."""
    _seen, events = await first_run(flow, seed)
    for length in range(1, len(events) + 1):
        outcome = await rehearse(flow, events[:length])
        assert outcome.ok, f"after {length} of {len(events)} events: {outcome.problem}"


@pytest.mark.parametrize("flow", branch_flows.FLOWS, ids=lambda flow: flow.name)
async def test_c09_a_rerun_under_another_timing_repeats_what_was_seen(flow: Flow) -> None:
    """C09: what was seen before the crash is seen again, in its order."""
    seen, events = await first_run(flow, 1)
    for length in range(1, len(events), max(1, len(events) // 4)):
        prefix = events[:length]
        again, _count = await resumed(flow, prefix, seed=1000 + length)
        told = [name for name in told_before(fold(prefix)) if any(name in one for one in again)]
        places = [next(i for i, one in enumerate(again) if name in one) for name in told]
        if flow in ORDERED:
            assert places == sorted(places), (told, again)
        for one in again:
            owner, colon, rest = one.partition(": ")
            if colon and owner in "abcdef" and len(owner) == 1 and "Error" not in rest:
                assert owner in rest, "a value reached another branch"
    assert seen


ORDERED = (branch_flows.cancelled_by_itself, branch_flows.straggler)
"""Flows that note each result the moment they get it."""


# ---- C100: signals and completions close together -----------------------------------------------

SIGNALS = 200
effects: list[int] = []
branches: dict[int, set[str]] = {}


@loom.step
async def runs(number: int) -> int:
    effects.append(number)
    await asyncio.sleep(random.choice((0, 0, 0.001, 0.003)))
    return number


@loom.flow
async def one_at_a_time(ctx: loom.Context) -> list[str]:
    """A signal starts a step only if none is running."""
    done: list[str] = []
    running: asyncio.Task[int] | None = None
    for signal in range(SIGNALS):
        await ctx.suspend(on="Signal", type=int)
        branch = "ignored" if running is not None and not running.done() else "started"
        branches.setdefault(signal, set()).add(branch)
        done.append(branch)
        if branch == "started":
            running = asyncio.create_task(ctx.run(runs, signal))
            await asyncio.sleep(0)  # it begins before the next wait keeps it from beginning
    if running is not None:
        await running
    return done


async def test_c100_signals_around_completions_are_replayed_in_their_order() -> None:
    """C100: the same branch at each signal in each replay, and as many runs in the journal as
    there were effects.
    """
    effects.clear()
    branches.clear()
    chance = random.Random(100)
    async with House([one_at_a_time]) as house:
        handle = await house.client.start(one_at_a_time, id="e")
        sent: list[asyncio.Task[loom.Answered]] = []
        for signal in range(SIGNALS):
            sent.append(asyncio.create_task(handle.resume("Signal", signal, timeout=30)))
            for _ in range(chance.choice((0, 0, 1, 2, 5, 20))):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.choice((0, 0, 0, 0.001, 0.004)))
        await asyncio.gather(*sent)
        result = await handle.result(timeout=30)
        log = await house.log("e")
    for length in (*range(10, len(log), 10), len(log)):
        outcome = await rehearse(one_at_a_time, log[:length])
        assert outcome.ok, f"after {length} of {len(log)} events: {outcome.problem}"
    assert result.count("ignored") > 5
    assert result.count("started") > 5
    assert {signal: {branch} for signal, branch in enumerate(result)} == branches
    frames = fold(log).frames
    assert len(frames) == len(effects) == result.count("started")
    assert sum(frame.attempts for frame in frames.values()) == len(effects)


# ---- what must not count as the flow's own ------------------------------------------------


@loom.step
async def note(what: str) -> str:
    return what


@loom.step
async def litters() -> None:
    """Leaves an async generator to the garbage collector, as many libraries do."""

    async def stream() -> object:
        yield 1

    left = stream()
    await left.__anext__()  # type: ignore[attr-defined]  # an async generator
    circle: list[object] = [left]
    circle.append(circle)


@loom.flow
async def collects(ctx: loom.Context) -> list[str]:
    async def branch(name: str) -> str:
        return await ctx.run(note, name)

    gc.disable()
    try:
        await ctx.run(litters)
        gc.collect()  # as may happen at any line
    finally:
        gc.enable()
    await ctx.run(note, "between")
    return list(await asyncio.gather(branch("a"), branch("b")))


async def test_k3_garbage_of_others_takes_no_place_in_a_flow() -> None:
    """K3: asyncio closes a lost async generator in a task, made wherever garbage is collected."""
    async with House([collects]) as house:
        assert await house.client.execute(collects, id="e", timeout=5) == ["a", "b"]
        log = await house.log("e")
    assert set(fold(log).frames) == {"#0", "#1", "~0#0", "~1#0"}
    outcome = await rehearse(collects, log)
    assert outcome.ok, outcome.problem


# ---- decisions, emits and ends that fail ----------------------------------------------------

tries: list[str] = []


@loom.flow
async def decides_badly(ctx: loom.Context) -> list[str]:
    def choose() -> str:
        tries.append("x")
        if len(tries) == 1:
            raise ValueError("not yet")
        return "chosen"

    try:
        way = await ctx.decide("way", choose)
    except ValueError:
        way = await ctx.run(note, "fallback")
    await ctx.sleep(0.001)
    return [way, await ctx.run(note, way)]


@loom.flow
async def decides_unfit(ctx: loom.Context) -> list[str]:
    try:
        await ctx.decide("way", object)
    except loom.LoomError:
        way = await ctx.run(note, "fallback")
    await ctx.sleep(0.001)
    return [way]


@loom.flow
async def emits_unfit(ctx: loom.Context) -> list[str]:
    try:
        await ctx.emit("news", object())
    except loom.LoomError:
        way = await ctx.run(note, "fallback")
    await ctx.sleep(0.001)
    return [way]


@pytest.mark.parametrize("flow", [decides_badly, decides_unfit, emits_unfit])
async def test_k2_a_choice_that_failed_has_failed_for_good(flow: Flow) -> None:
    """K2, K3: what the flow did after the failure is on the log, so a re-run must meet it."""
    tries.clear()
    async with House([flow]) as house:
        result = await house.client.execute(flow, id="e", timeout=5)
        assert result[0] == "fallback"
        log = await house.log("e")
    for length in range(1, len(log) + 1):
        outcome = await rehearse(flow, log[:length])
        assert outcome.ok, f"after {length} of {len(log)} events: {outcome.problem}"


@loom.flow
async def returns_unfit(ctx: loom.Context) -> object:
    await ctx.run(note, "x")
    return object()


@loom.flow
async def cancels_itself(ctx: loom.Context) -> None:
    await ctx.run(note, "x")
    raise asyncio.CancelledError


@pytest.mark.parametrize("flow", [returns_unfit, cancels_itself])
async def test_k3_the_history_of_a_flow_that_failed_at_its_end_fits_its_code(
    flow: loom.Flow[None, object],
) -> None:
    """K3: the failure that the engine made of its end is what its code leads to."""
    async with House([flow]) as house:
        handle = await house.client.start(flow, id="e")
        with pytest.raises(loom.ExecutionFailedError):
            await handle.result(timeout=5)
        outcome = await rehearse(flow, await house.log("e"))
    assert outcome.ok, outcome.problem
