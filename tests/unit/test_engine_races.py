"""Moments at which something was lost once, each held open on purpose."""

from __future__ import annotations

import asyncio

import pytest

import loom_mq as loom
from loom_mq.errors import InvalidIdError
from loom_mq.kernel.fold import fold
from loom_mq.model.execution import Status
from tests.support.house import House, until

calls: list[str] = []


@loom.step(retry=loom.NO_RETRY)
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.NO_RETRY)
async def broken() -> None:
    raise ValueError("broken on purpose")


@loom.flow
async def sized(ctx: loom.Context, text: str) -> int:
    for number in range(4):
        await ctx.run(note, str(number))
    return len(text)


@loom.flow
async def stubborn(ctx: loom.Context) -> str:
    """Catches its cancellation and tries again, for ever."""
    while True:
        try:
            await ctx.sleep(60)
        except asyncio.CancelledError:
            continue


@loom.flow
async def one_fails_one_waits(ctx: loom.Context) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.run(broken))
            group.create_task(ctx.suspend(on="Never", type=bool))
    except ExceptionGroup:
        return await ctx.run(note, "went on")
    return "not reached"


@loom.flow
async def gate_then_nap(ctx: loom.Context) -> str:
    """The answered gate leaves a timer behind, which fires during the nap."""
    answer = await ctx.suspend(on="Soon", type=str, timeout=0.2)
    await ctx.sleep(0.3)
    return answer


@loom.step(retry=loom.NO_RETRY)
async def hangs_at_first() -> int:
    attempt = loom.current_step().attempt
    calls.append(f"attempt {attempt}")
    if attempt == 1:
        await asyncio.Event().wait()
    return attempt


@loom.flow(attempt_timeout=0.3)
async def wedged(ctx: loom.Context) -> int:
    return await ctx.run(hangs_at_first)


@loom.flow
async def two_of_one_name(ctx: loom.Context) -> tuple[int, int]:
    first = await ctx.suspend(on="Number", type=int)
    second = await ctx.suspend(on="Number", type=int)
    return first, second


async def suspended(house: House, execution_id: str) -> bool:
    return (await house.row(execution_id)).status is Status.SUSPENDED


async def test_k13_a_cancel_that_is_there_before_the_first_claim() -> None:
    """K13: read with the claim (a start too large for a package), acted on at once."""
    calls.clear()
    async with House([sized]) as house:
        await house.workers[0].drain(1)
        await house.workers[0].stop()
        handle = await house.client.start(sized, "x" * 100_000)
        await handle.cancel("never mind")
        await house.worker()
        with pytest.raises(loom.ExecutionCancelledError, match="never mind"):
            await handle.result(timeout=10)
        assert calls == []


async def test_k13_a_flow_that_swallows_its_cancel_stops_neither_worker_nor_cancel() -> None:
    """K13, C15: caught again and again, the cancellation wins in bounded time."""
    async with House([stubborn, sized], workers=0) as house:
        await house.worker(park_drain=0.3)
        handle = await house.client.start(stubborn, id="stubborn")
        await until(lambda: suspended(house, "stubborn"))
        await handle.cancel("enough")
        assert await house.client.execute(sized, "abc", timeout=5) == 3
        with pytest.raises(loom.ExecutionCancelledError, match="enough"):
            await handle.result(timeout=10)


async def test_k11_a_wait_that_was_cancelled_freezes_nothing() -> None:
    """K11: the failed sibling cancels the gate; the flow goes on without parking on it."""
    calls.clear()
    async with House([one_fails_one_waits]) as house:
        result = await house.client.execute(one_fails_one_waits, id="e", timeout=10)
        assert result == "went on"
        assert "EXECUTION_SUSPENDED" not in await house.kinds("e")


async def test_f9_a_timer_left_behind_strands_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: a wake that has nothing to do gives back slowly, while the real timer fires."""
    async with House([gate_then_nap]) as house:
        await house.worker()
        defer = house.journal.defer

        async def slow(*args: object) -> None:
            await asyncio.sleep(0.15)
            await defer(*args)  # type: ignore[arg-type]  # passed on as they came

        monkeypatch.setattr(house.journal, "defer", slow)
        handles = [await house.client.start(gate_then_nap, id=f"e{n}") for n in range(20)]
        for number in range(20):
            await until(lambda number=number: suspended(house, f"e{number}"))  # type: ignore[misc]
        await asyncio.gather(*(handle.resume("Soon", "yes") for handle in handles))
        results = await asyncio.gather(*(handle.result(timeout=15) for handle in handles))
        assert results == ["yes"] * 20


async def test_k7_an_answer_is_taken_by_one_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """K7: a request that is delivered twice is one answer, with an id or without."""
    async with House([two_of_one_name]) as house:
        handle = await house.client.start(two_of_one_name, id="e")
        await until(lambda: suspended(house, "e"))
        await handle.resume("Number", 1)
        await handle.resume("Number", 2)
        assert await handle.result(timeout=10) == (1, 2)
        again = await house.client.start(two_of_one_name, id="f")
        await until(lambda: suspended(house, "f"))
        with pytest.raises(InvalidIdError):
            await again.resume("Number", 1, answer_id="cancel")


async def test_a_result_that_is_asked_for_before_the_start_is_read() -> None:
    """C31: with no worker yet the start waits on its queue; it is sent again, and answered."""
    async with House([sized], workers=0) as house:
        waiting = asyncio.ensure_future(house.client.execute(sized, "abc", timeout=20))

        async def sent_again() -> bool:
            depth = await house.dispatcher._broker.depth("loom.start")
            return depth is not None and depth.ready >= 2

        await until(sent_again)
        await house.worker()
        assert await waiting == 3


async def test_f4_a_wedged_attempt_is_given_up_by_its_own_worker() -> None:
    """F4, F7: past its deadline the execution is driven again, with one worker as with many."""
    calls.clear()
    async with House([wedged]) as house:
        assert await house.client.execute(wedged, id="e", timeout=10) == 2
        assert calls == ["attempt 1", "attempt 2"]
        assert (await house.row("e")).fence == 2
        assert house.workers[0].busy == 0


async def test_f7_a_crash_after_the_claim_leaves_nothing_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F7: whatever goes wrong between claim and attempt, the execution is sent again."""
    async with House([two_of_one_name]) as house:
        handle = await house.client.start(two_of_one_name, id="e")
        await until(lambda: suspended(house, "e"))
        broken_once = iter([RuntimeError("a fault of ours")])

        def fold_or_fail(*args: object) -> object:
            for error in broken_once:
                raise error
            return fold(*args)  # type: ignore[arg-type]  # passed on as they came

        monkeypatch.setattr("loom_mq.engine.driver.fold", fold_or_fail)
        await handle.resume("Number", 1)
        await handle.resume("Number", 2)
        assert await handle.result(timeout=15) == (1, 2)
