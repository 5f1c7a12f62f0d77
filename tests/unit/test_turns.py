"""K3, C09, C100: what timing decided once is decided for good."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

import loom_mq as loom
from loom_mq.clock import JournalClock
from loom_mq.flows.rehearsal import rehearse
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Planting
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import Status
from tests.support import timing_flows
from tests.support.house import House

type_of_flow = loom.Flow[None, list[str]]


async def first_run(flow: type_of_flow, seed: int) -> tuple[list[str], list[Envelope]]:
    timing_flows.LUCK.seed(seed)
    async with House([flow]) as house:
        seen = await (await house.client.start(flow, id="first")).result(timeout=20)
        return seen, await house.log("first")


async def resumed(flow: type_of_flow, events: list[Envelope], seed: int) -> tuple[list[str], int]:
    """What a flow returns that goes on from a prefix of a log, on a fleet of its own."""
    timing_flows.LUCK.seed(seed)
    journal = MemoryJournal(JournalClock())
    async with House([flow], journal=journal) as house:
        # a row of the right shape, with the log put under it
        state = fold(events)
        handle = await house.client.start(flow, id="template")
        await handle.result(timeout=20)
        row = msgspec.structs.replace(
            await house.row("template"),
            execution_id="again",
            status=state.status,
            last_seq=state.last_seq,
            ended_at=None,
            fence=1,
            owner=None,
            deadline=None,
            hint_at=await journal.now(),
            recoveries=0,
        )
        assert await journal.plant([Planting(row=row, events=tuple(events))]) == [None]
        again: loom.Handle[list[str]] = house.client.handle("again", flow)
        seen = await again.result(timeout=20)
        log = await house.log("again")
        outcome = await rehearse(flow, log)
        assert outcome.ok, outcome.problem
        return seen, len(log)


def told_before(state: ExecutionState) -> list[str]:
    """Completed steps in the order in which the flow was told of them."""
    results = {place: frame.result for place, frame in state.frames.items()}
    return [
        msgspec.msgpack.decode(result[1:])
        for place in state.settled
        if (result := results.get(place)) is not None
    ]


@pytest.mark.parametrize("flow", timing_flows.ALL, ids=lambda flow: flow.name)
@pytest.mark.parametrize("seed", range(4))
async def test_k3_every_prefix_of_a_log_fits_the_code(flow: type_of_flow, seed: int) -> None:
    """K3: a re-run from any prefix comes to every place that the prefix holds."""
    _seen, events = await first_run(flow, seed)
    for length in range(1, len(events) + 1):
        outcome = await rehearse(flow, events[:length])
        assert outcome.ok, f"after {length} of {len(events)} events: {outcome.problem}"


@pytest.mark.parametrize("flow", timing_flows.ALL, ids=lambda flow: flow.name)
async def test_k3_a_rerun_under_another_timing_repeats_what_was_seen(flow: type_of_flow) -> None:
    """C09: what was told before the crash is seen again, in its order, whatever the timing."""
    _seen, events = await first_run(flow, 1)
    for length in range(1, len(events), max(1, len(events) // 6)):
        prefix = events[:length]
        again, _count = await resumed(flow, prefix, seed=1000 + length)
        told = [name for name in told_before(fold(prefix)) if name in "".join(again)]
        places = [next(i for i, seen in enumerate(again) if name in seen) for name in told]
        assert places == sorted(places), (told, again)


async def test_k3_turns_are_on_the_log() -> None:
    """K3: between two turns the flow comes to rest; the log says which step was told in which."""
    _seen, events = await first_run(timing_flows.branches, 3)
    state = fold(events)
    turns = list(state.settled.values())
    assert turns == sorted(turns)
    assert len(set(turns)) > 5
    assert state.turn == turns[-1]
    completed = [event for event in events if event.kind == EventKind.STEP_COMPLETED]
    assert len(completed) == len(state.settled)


@loom.step
async def slow() -> None:
    await asyncio.Event().wait()


@loom.flow
async def waits_by_the_clock(ctx: loom.Context) -> None:
    async with asyncio.timeout(0.01):
        await ctx.run(slow)


@loom.flow
async def naps(ctx: loom.Context) -> None:
    await asyncio.sleep(0.01)


@loom.flow
async def limits_by_hand(ctx: loom.Context) -> None:
    await asyncio.wait_for(ctx.run(slow), 0.01)


@loom.flow
async def uses_a_thread(ctx: loom.Context) -> None:
    await asyncio.get_running_loop().run_in_executor(None, len, "abc")


@loom.flow
async def in_any_order(ctx: loom.Context) -> None:
    async def branch() -> None:
        await ctx.run(step_one)

    for first in asyncio.as_completed([branch(), branch()]):
        await first


@pytest.mark.parametrize(
    "flow", [waits_by_the_clock, naps, limits_by_hand, uses_a_thread, in_any_order]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
async def test_k12_flow_code_cannot_wait_by_the_clock(flow: loom.Flow[None, None]) -> None:
    """What timing decides and no log could repeat is refused, with what to use instead."""
    async with House([flow]) as house:
        handle = await house.client.start(flow)
        with pytest.raises(
            loom.ExecutionFailedError, match=r"ctx\.(sleep|run)|ensure_future"
        ) as caught:
            await handle.result(timeout=10)
    assert caught.value.error_type == "UnsupportedInFlowError"


@loom.step
async def step_one() -> str:
    return "one"


@loom.step
async def step_two() -> str:
    return "two"


@loom.flow(name="changing")
async def before(ctx: loom.Context) -> list[str]:
    return [await ctx.run(step_one), await ctx.run(step_one)]


@loom.flow(name="changing")
async def other_step(ctx: loom.Context) -> list[str]:
    return [await ctx.run(step_one), await ctx.run(step_two)]


@loom.flow(name="changing")
async def shorter(ctx: loom.Context) -> list[str]:
    return [await ctx.run(step_one)]


@loom.flow(name="changing")
async def longer(ctx: loom.Context) -> list[str]:
    return [await ctx.run(step_one), await ctx.run(step_one), await ctx.run(step_one)]


@loom.flow(name="changing")
async def nap_instead(ctx: loom.Context) -> list[str]:
    await ctx.sleep(1)
    return [await ctx.run(step_one)]


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (
            other_step,
            r"at place #1 the log holds a step 'step_one', and the code asks for a step "
            r"'step_two' \(.*test_turns\.py, line \d+\)",
        ),
        (shorter, "place #1"),
        (longer, "goes on to #2"),
        (nap_instead, "asks for a sleep"),
    ],
)
async def test_k3_a_rehearsal_tells_the_difference(changed: type_of_flow, difference: str) -> None:
    """C11, C19: another step, fewer, more, another kind of call."""
    async with House([before]) as house:
        await (await house.client.start(before, id="x")).result(timeout=10)
        events = await house.log("x")
    assert (await rehearse(before, events)).ok
    outcome = await rehearse(changed, events)
    assert not outcome.ok
    assert re.search(difference, outcome.problem), outcome.problem


async def test_a_status_of_a_prefix() -> None:
    """The corpus runs to its end."""
    _seen, events = await first_run(timing_flows.by_wait, 5)
    assert fold(events).status is Status.COMPLETED


@loom.flow
async def in_sets(ctx: loom.Context) -> list[str]:
    """What a flow sees that goes through a set of tasks."""
    tasks = {asyncio.create_task(ctx.run(step_one), name=f"{n}") for n in range(40)}
    _done, pending = await asyncio.wait(tasks)
    assert not pending
    return [task.get_name() for task in tasks]


async def test_k3_tasks_are_in_the_same_order_in_every_set() -> None:
    """K3: `asyncio.wait` hands out sets; their order is no matter of addresses."""
    async with House([in_sets]) as house:
        ballast = [object() for _ in range(1000)]
        first = await house.client.execute(in_sets, timeout=10)
        del ballast[::3]
        assert await house.client.execute(in_sets, timeout=10) == first


async def test_k3_a_place_that_the_code_does_not_come_to_is_a_mismatch() -> None:
    """K3: the code waits for something else than its log says; it is told, not hung."""

    @loom.flow(name="changing")
    async def elsewhere(ctx: loom.Context) -> list[str]:
        await asyncio.get_running_loop().create_future()
        return [await ctx.run(step_one)]

    async with House([before]) as house:
        await (await house.client.start(before, id="x")).result(timeout=10)
        events = await house.log("x")
    outcome = await rehearse(elsewhere, events)
    assert "#0" in outcome.problem
    assert "does not come there" in outcome.problem
