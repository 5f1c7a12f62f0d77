"""Failures from the field about cancellation: C14, C15."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.testing.crashes import crash_everywhere
from tests.support import outlaws
from tests.support.house import House, until
from tests.support.mortal import die
from tests.support.outlawry import run_outlaws

calls: list[str] = []
seen: list[str] = []


class Latch:
    """Where a step waits; made anew for each test, because events belong to a loop."""

    holding: asyncio.Event
    release: asyncio.Event


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    seen.clear()
    Latch.holding = asyncio.Event()
    Latch.release = asyncio.Event()


@loom.step(retry=loom.NO_RETRY)
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.NO_RETRY)
async def hold(what: str) -> str:
    """Waits at its second call of each kind, for as long as a test wants."""
    calls.append(what)
    if what == "1":
        Latch.holding.set()
        await Latch.release.wait()
    return what


@loom.step(retry=loom.NO_RETRY)
async def minute() -> None:
    Latch.holding.set()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        calls.append("interrupted")
        raise


async def is_parked(house: House, execution_id: str = "e") -> bool:
    return (await house.row(execution_id)).status is loom.Status.SUSPENDED


async def cancelled(handle: loom.Handle[str], within: float = 5) -> None:
    with pytest.raises(loom.ExecutionCancelledError, match="enough"):
        await handle.result(timeout=within)


# ---- C14: a cancel that has an effect ----------------------------------------------------


@loom.flow
async def naps(ctx: loom.Context) -> str:
    await ctx.run(note, "a")
    await ctx.sleep(10)
    return await ctx.run(note, "b")


@loom.flow
async def works(ctx: loom.Context) -> str:
    await ctx.run(minute)
    return await ctx.run(note, "b")


@loom.flow
async def waits_for_nothing(ctx: loom.Context) -> str:
    await ctx.run(note, "a")
    await asyncio.get_running_loop().create_future()
    return await ctx.run(note, "b")


@loom.flow
async def branches_wait_for_nothing(ctx: loom.Context) -> str:
    async def branch() -> None:
        await ctx.run(note, "a")
        await asyncio.Event().wait()

    await asyncio.gather(branch(), branch())
    return await ctx.run(note, "b")


async def test_c14_a_cancel_in_a_sleep() -> None:
    """C14: cancelled at once, its timer gone, nothing after the sleep; told twice is once."""
    async with House([naps]) as house:
        handle = await house.client.start(naps, id="e")
        await until(lambda: is_parked(house))
        assert await house.journal.next_timer() is not None
        await asyncio.gather(handle.cancel("enough"), handle.cancel("enough"))
        await cancelled(handle)
        assert await house.journal.next_timer() is None
        assert (await house.kinds("e")).count("CANCEL_REQUESTED") == 1
        assert (await rehearse(naps, await house.log("e"))).ok
    assert calls == ["a"]


async def test_c14_a_cancel_in_a_step_reaches_its_coroutine() -> None:
    """C14: the step that awaits for a minute gets a cancellation."""
    async with House([works]) as house:
        handle = await house.client.start(works, id="e")
        await Latch.holding.wait()
        await handle.cancel("enough")
        await cancelled(handle)
        assert (await house.kinds("e"))[2:] == [
            "CANCEL_REQUESTED",
            "STEP_CANCELLED",
            "EXECUTION_CANCELLED",
        ]
    assert calls == ["interrupted"]


async def test_c14_a_cancel_while_no_worker_runs() -> None:
    """C14: queued, cancelled, and then a worker comes: it does not go past its sleep."""
    async with House([naps]) as house:
        await house.workers[0].drain(1)
        await house.workers[0].stop()
        handle = await house.client.start(naps, id="e")
        await handle.cancel("enough")
        await handle.cancel("enough")
        await house.worker()
        await cancelled(handle)
        assert await house.journal.next_timer() is None
    assert "b" not in calls


async def test_c14_a_cancel_of_what_has_ended_changes_nothing_and_says_so() -> None:
    """C14: completed stays completed."""
    async with House([works]) as house:
        short = loom.flow(name="works")(waits_briefly)
        await house.workers[0].drain(0)
        await house.worker([short])
        handle = await house.client.start(short, id="e")
        assert await handle.result(timeout=5) == "done"
        before, log = await house.row("e"), await house.log("e")
        with pytest.raises(loom.ExecutionEndedError, match="ended"):
            await handle.cancel("enough")
        assert await house.row("e") == before
        assert await house.log("e") == log
        assert await handle.result(timeout=5) == "done"


async def waits_briefly(ctx: loom.Context) -> str:
    await ctx.sleep(0.01)
    return "done"


@pytest.mark.parametrize("flow", [waits_for_nothing, branches_wait_for_nothing])
async def test_c14_a_flow_that_waits_for_nothing_of_ours_is_cancelled(
    flow: loom.Flow[None, str],
) -> None:
    """C14: a bare future that nobody completes, in the flow and in its branches."""
    async with House([flow]) as house:
        handle = await house.client.start(flow, id="e")

        async def standing() -> bool:
            kinds = Counter(await house.kinds("e"))
            return kinds["STEP_COMPLETED"] == len(calls) > flow.name.startswith("branches")

        await until(standing)
        await handle.cancel("enough")
        await cancelled(handle)
        log = await house.log("e")
        for length in range(1, len(log) + 1):
            outcome = await rehearse(flow, log[:length])
            assert outcome.ok, outcome.problem
    assert "b" not in calls


# ---- C15: an except that swallows all ------------------------------------------------------


@loom.flow
async def catches_exceptions(ctx: loom.Context) -> list[str]:
    done: list[str] = []
    for number in range(3):
        try:
            done.append(await ctx.run(hold, f"{number}"))
            await ctx.sleep(0.01)
        except Exception as error:
            seen.append(repr(error))
    return done


@loom.flow
async def catches_all(ctx: loom.Context) -> list[str]:
    done: list[str] = []
    for number in range(3):
        try:
            done.append(await ctx.run(hold, f"{number}"))
            await ctx.sleep(0.01)
        except:  # noqa: E722
            pass
    return done


@loom.flow
async def catches_base_exceptions(ctx: loom.Context) -> list[str]:
    done: list[str] = []
    for number in range(3):
        try:
            done.append(await ctx.run(hold, f"{number}"))
            await ctx.sleep(0.01)
        except BaseException:
            pass
    return done


@loom.flow
async def catches_in_branches(ctx: loom.Context) -> list[str]:
    async def branch(numbers: str) -> None:
        for number in numbers:
            try:
                done.append(await ctx.run(hold, number))
                await ctx.sleep(0.01)
            except BaseException:
                pass

    done: list[str] = []
    await asyncio.gather(branch("01"), branch("2"))
    return sorted(done)


CATCHING = (catches_exceptions, catches_all, catches_base_exceptions, catches_in_branches)


@pytest.mark.parametrize("flow", CATCHING, ids=lambda flow: flow.name)
async def test_c15_three_rounds_wherever_the_worker_dies(flow: loom.Flow[None, list[str]]) -> None:
    """C15: at every write, before and after; each round once, no signal seen by the flow."""
    Latch.release.set()
    crashes = await crash_everywhere(flow, effects=lambda: sorted(set(calls)), reset=calls.clear)
    assert len(crashes.points) > 10
    assert seen == []


@pytest.mark.parametrize("flow", CATCHING, ids=lambda flow: flow.name)
async def test_c15_a_fence_taken_over_in_the_try_block(flow: loom.Flow[None, list[str]]) -> None:
    """C15: nothing more runs under the lost fence, and nothing is appended twice."""
    async with House([flow], lease=0.4) as house:
        handle = await house.client.start(flow, id="e")
        await Latch.holding.wait()
        await die(house.workers[0])
        await house.worker()
        Latch.holding.clear()
        await asyncio.wait_for(Latch.holding.wait(), 10)
        Latch.release.set()  # both go on now; only one of them may write
        assert await handle.result(timeout=10) == ["0", "1", "2"]
        state = fold(await house.log("e"))
        assert [frame.attempts for _place, frame in sorted(state.frames.items())] in (
            [1, 2, 1],
            [1, 2, 1][::-1],
        )
        assert {frame.status for frame in state.frames.values()} == {FrameStatus.COMPLETED}
        fences = [envelope.fence for envelope in await house.log("e")]
        assert fences == sorted(fences)
        await until(lambda: lets_go(house))
    assert Counter(calls) == {"0": 1, "1": 2, "2": 1}
    assert seen == []


async def lets_go(house: House) -> bool:
    return house.workers[0].busy == 0


async def test_c15_endless_loops_that_swallow_all_hang_no_worker() -> None:
    """C15: at each park their run is left behind. That it is collected as garbage some time
    must not stop the worker, nor may it keep the process from ending.
    """
    for told in await run_outlaws(outlaws.SWALLOWERS):
        assert "cancelled: enough" in told.end
        assert told.others == ["b"] * outlaws.OTHERS
