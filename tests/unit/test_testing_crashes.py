"""`crash_everywhere`: it agrees where a flow is sound, and names what is not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta

import pytest
from msgspec.structs import replace

import loom_mq as loom
from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.testing import (
    CrashDifference,
    CrashPoint,
    Run,
    StuckError,
    TestEnvironment,
    crash_everywhere,
)
from loom_mq.testing.comparing import Ended, compare
from loom_mq.testing.doom import Doom

calls: list[str] = []


@loom.step
async def note(what: str) -> str:
    calls.append(f"{loom.current_step().idempotency_key} {what}")
    return what


@loom.step
def blocking(what: str) -> str:
    time.sleep(0.005)
    calls.append(f"{loom.current_step().idempotency_key} {what}")
    return what


@loom.step(retry=loom.Retry(attempts=3, initial=60))
async def flaky() -> int:
    calls.append("try")
    if len([each for each in calls if each == "try"]) < 2:
        raise OSError("not yet")
    return 7


class Declined(loom.TypedFailure[str], channel="declined"):
    """A failure of the bargain."""


@loom.step(failures=(Declined,))
async def declining() -> None:
    raise Declined("no money")


@loom.step(retry=loom.NO_RETRY)
async def failing() -> None:
    raise ValueError("for good")


@loom.step
async def counting() -> int:
    calls.append("counted")
    return len(calls)


@loom.step
async def slow() -> str:
    calls.append("begun")
    await asyncio.sleep(0.02)
    calls.append("ended")
    return "slow"


@loom.flow
async def everything(ctx: loom.Context, name: str) -> list[str]:
    first = await ctx.run(note, name)
    await ctx.decide("choice", lambda: 3)
    await ctx.sleep(timedelta(days=30))
    answer = await ctx.suspend(on="Approval", type=str, timeout=timedelta(days=3))
    await ctx.emit("topic", answer)
    both = await asyncio.gather(ctx.run(blocking, "left"), ctx.run(note, "right"))
    return [first, answer, *both]


@loom.flow
async def retries(ctx: loom.Context) -> int:
    return await ctx.run(flaky)


@loom.flow
async def declines(ctx: loom.Context) -> str:
    try:
        await ctx.run(declining)
    except Declined as failure:
        return await ctx.run(note, failure.payload)
    return "not reached"


@loom.flow
async def fails(ctx: loom.Context) -> None:
    await ctx.run(note, "before")
    await ctx.run(failing)


@loom.flow
async def touches_the_world(ctx: loom.Context) -> str:
    calls.append("in the flow itself")
    return await ctx.run(note, "once")


@loom.flow
async def looks_at_a_global(ctx: loom.Context) -> str:
    calls.append("run")
    return await ctx.run(note if calls == ["run"] else blocking, "first or not")


@loom.flow
async def looks_at_what_it_did(ctx: loom.Context) -> str:
    done = any(call.endswith("once") for call in calls)
    return await ctx.run(blocking if done else note, "once")


@loom.flow
async def returns_a_count(ctx: loom.Context) -> int:
    return await ctx.run(counting)


@loom.flow
async def quick_and_slow(ctx: loom.Context) -> list[str]:
    return list(await asyncio.gather(ctx.run(note, "quick"), ctx.run(slow)))


@loom.flow
async def asks_twice(ctx: loom.Context) -> list[int]:
    return [await ctx.suspend(on="Number", type=int), await ctx.suspend(on="Number", type=int)]


@loom.step(idempotent=False)
async def pay() -> str:
    calls.append("paid")
    return "receipt"


@loom.flow
async def must_not_pay_twice(ctx: loom.Context) -> str:
    receipt = await ctx.run(pay)
    return await ctx.run(note, receipt)


@loom.flow
async def nested(ctx: loom.Context) -> str:
    return await ctx.suspend(on="Word", type=str)


def keys() -> set[str]:
    return set(calls)


async def test_every_write_of_a_flow_with_everything_is_a_point() -> None:
    """K2, F3, F7: before and after each append and each claim."""
    began = time.monotonic()
    crashes = await crash_everywhere(
        everything, "order", answers={"Approval": "yes"}, effects=keys, reset=calls.clear
    )
    assert time.monotonic() - began < 5
    assert crashes.missed == 0
    assert {point.landed for point in crashes.points} == {True, False}
    assert {point.call for point in crashes.points} >= {"append", "claim"}
    told = " ".join(event for point in crashes.points for event in point.events)
    assert {f"{number} " in told for number in range(crashes.events)} == {True}
    assert len(crashes.points) >= 16
    assert str(crashes) == f"{crashes.events} events, {len(crashes.points)} crashes, " + (
        "each with the same end"
    )


async def test_a_flow_of_ten_events_takes_well_under_two_seconds() -> None:
    began = time.monotonic()
    crashes = await crash_everywhere(retries, reset=calls.clear)
    assert crashes.events >= 8
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("flow", [declines, fails, quick_and_slow])
async def test_failures_end_the_same(flow: loom.Flow[None, object]) -> None:
    """K5: recorded, caught, or the end."""
    crashes = await crash_everywhere(flow, reset=calls.clear)
    assert len(crashes.points) >= 4


async def test_gates_are_answered_each_time_they_open() -> None:
    crashes = await crash_everywhere(asks_twice, answers={"Number": 4})
    assert crashes.events >= 6


async def test_a_script_of_ones_own_meets_the_crash() -> None:
    """K7: an answer with an id counts once, whoever dies while it is taken."""
    seen: list[int] = []

    async def drive(env: TestEnvironment, run: Run[list[int]]) -> None:
        await run.resume("Number", 1, answer_id="one")
        await run.resume("Number", 1, answer_id="one")
        await env.skip(timedelta(days=1))
        await run.resume("Number", 2, answer_id="two")
        seen.append(sum(await run.result()))

    crashes = await crash_everywhere(asks_twice, drive=drive)
    assert seen == [3] * (len(crashes.points) + 1)


async def test_an_effect_outside_a_step_is_found() -> None:
    with pytest.raises(CrashDifference, match="what the effects left behind") as caught:
        await crash_everywhere(touches_the_world, effects=lambda: sorted(calls), reset=calls.clear)
    assert caught.value.point.write >= 1
    assert len(caught.value.found) > len(caught.value.expected)  # type: ignore[arg-type]  # lists


async def test_a_flow_that_looks_at_a_global_is_found() -> None:
    """K3: another step at the same place."""
    with pytest.raises(CrashDifference, match="at place #0 differs"):
        await crash_everywhere(looks_at_a_global, reset=calls.clear)


async def test_a_flow_that_does_not_fit_its_own_log_is_found() -> None:
    """K3: the execution is left as it is, which is no end."""
    with pytest.raises(CrashDifference) as caught:
        await crash_everywhere(looks_at_what_it_did, reset=calls.clear)
    assert caught.value.what == "the way to its end"
    assert "code" in str(caught.value)


async def test_a_step_that_cannot_be_repeated_is_found() -> None:
    with pytest.raises(CrashDifference, match="the result differs") as caught:
        await crash_everywhere(returns_a_count, reset=calls.clear)
    assert (caught.value.expected, caught.value.found) == (1, 2)
    assert not caught.value.point.landed
    crashes = await crash_everywhere(
        returns_a_count, reset=calls.clear, equal=lambda one, other: abs(one - other) <= 1
    )
    assert crashes.points


async def test_a_flow_that_never_ends_is_told_before_any_crash() -> None:
    with pytest.raises(StuckError, match="waits at gate 'Word'"):
        await crash_everywhere(nested)


async def test_k6_a_step_in_doubt_stops_and_that_is_right() -> None:
    """K6: it began, nobody knows how it ended, and it is not started again."""
    crashes = await crash_everywhere(
        must_not_pay_twice, effects=lambda: calls.count("paid") <= 1, reset=calls.clear
    )
    assert [(point.write, point.landed) for point in crashes.in_doubt] == [(1, True), (2, False)]
    assert "2 more in doubt" in str(crashes)


async def test_k6_a_verdict_in_the_script_takes_it_to_the_end() -> None:
    """K6: an operator says that it was done."""

    async def drive(env: TestEnvironment, run: Run[str]) -> None:
        await env.settle()
        if (await run.state()).in_doubt:
            await run.handle.verdict("pay", completed="receipt")

    crashes = await crash_everywhere(must_not_pay_twice, drive=drive, reset=calls.clear)
    assert crashes.in_doubt == ()


async def test_an_interrupted_step_ends_with_its_worker() -> None:
    """What the dead one had in hand goes no further, in a thread or not."""
    doom = Doom(CrashPoint(write=2, landed=True))
    env = TestEnvironment([quick_and_slow], first_view=doom.view)
    doom.over(env.fleet)
    calls.clear()
    async with env:
        run = await env.start(quick_and_slow, id="a")
        assert await run.result() == ["quick", "slow"]
        assert doom.point is not None
        assert doom.point.events == ("3 STEP_COMPLETED",)
        kinds = [each.kind for each in await run.history()]
        assert kinds.count("EXECUTION_RECOVERED") == 1
    assert [each for each in calls if "/" not in each] == ["begun", "begun", "ended"]


# ---- the comparison itself --------------------------------------------------------------------

POINT = CrashPoint(write=1, landed=True, call="append")


async def undisturbed() -> Ended:
    """An end to compare with: one step, completed."""
    async with TestEnvironment([touches_the_world]) as env:
        run = await env.start(touches_the_world, id="a")
        result = await run.result()
        logs = await env.fleet.logs()
        return Ended(
            row=await env.watcher.row(ExecutionKey(DEFAULT_TENANT, "a")),
            log=logs["a"],
            state=fold(logs["a"]),
            result=result,
            before={},
            states={"a": fold(logs["a"])},
            completed=Counter({"note": 1}),
            effects=None,
        )


def disagreement(baseline: Ended, ended: Ended) -> str:
    with pytest.raises(CrashDifference) as caught:
        compare(POINT, baseline, ended, lambda one, other: one == other)
    return caught.value.what


async def test_the_comparison_finds_what_an_engine_could_do_wrong() -> None:
    """K2, K6, J2: what no run of a sound engine shows, forged."""
    baseline = await undisturbed()
    compare(POINT, baseline, await undisturbed(), lambda one, other: one == other)
    done = fold(baseline.log[:3])
    assert done.frames["#0"].status is FrameStatus.COMPLETED

    twice = fold(baseline.log)
    twice.frames["#0"].attempts = 2
    assert (
        disagreement(baseline, replace(baseline, before={"a": done}, states={"a": twice}))
        == "how often step 'note', which was completed, was started"
    )
    assert (
        disagreement(baseline, replace(baseline, completed=Counter({"note": 2})))
        == "how often step 'note' ran to its end"
    )
    cut = {"a": fold(baseline.log[:2])}
    compare(
        POINT,
        baseline,
        replace(baseline, before=cut, completed=Counter({"note": 2})),
        lambda one, other: one == other,
    )
    assert (
        disagreement(baseline, replace(baseline, before=cut, completed=Counter({"note": 3})))
        == "how often step 'note' ran to its end"
    )
    again = [*baseline.log[:2], replace(baseline.log[1], seq=2), *baseline.log[2:]]
    renumbered = [replace(event, seq=number) for number, event in enumerate(again)]
    assert (
        disagreement(baseline, replace(baseline, log=renumbered))
        == "how often step 'note' was started"
    )
    compare(
        POINT,
        baseline,
        replace(baseline, log=renumbered, before=cut),
        lambda one, other: one == other,
    )
    assert (
        disagreement(baseline, replace(baseline, log=[*baseline.log, baseline.log[-1]]))
        == "the order of the log"
    )
