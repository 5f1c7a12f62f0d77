"""K6: an effect that must not run twice began, and nobody knows how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import fold
from loom_mq.lifecycle.planting import planted
from loom_mq.model import events as ev
from loom_mq.model.failures import Failure
from tests.support.house import House, until
from tests.unit.lifecycle_kit import execution, log_of, stored

calls: list[str] = []


class Latch:
    """Where a step waits; made anew for each test, because events belong to a loop."""

    holding: asyncio.Event
    release: asyncio.Event


@loom.step(idempotent=False)
async def pay(amount: int) -> int:
    calls.append(f"pay {loom.current_step().attempt} {loom.current_step().idempotency_key}")
    Latch.holding.set()
    await Latch.release.wait()
    return amount


@loom.step(idempotent=False)
async def bounce() -> int:
    calls.append("bounce")
    raise ValueError("no funds")


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.flow
async def order(ctx: loom.Context, amount: int) -> str:
    try:
        paid = await ctx.run(pay, amount)
    except loom.StepInDoubtError as error:
        return f"not paid: {error}"
    await ctx.run(note, "after")
    return f"paid {paid}"


@loom.flow
async def declined(ctx: loom.Context) -> str:
    try:
        await ctx.run(bounce)
    except ValueError as error:
        await ctx.suspend(on="Gate", type=bool)
        return f"declined: {error}"
    return "paid"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    Latch.holding = asyncio.Event()
    Latch.release = asyncio.Event()
    async with House([order, declined], lease=0.5) as house:
        yield house


async def in_doubt(house: House) -> loom.Handle[str]:
    """An execution whose worker left in the middle of its payment."""
    handle = await house.client.start(order, 42, id="e")
    await Latch.holding.wait()
    await house.worker()
    await house.workers[0].drain(0)
    await house.workers[0].stop()

    async def parked() -> bool:
        return (await handle.state()).in_doubt == ("pay",)

    await until(parked)
    assert len(calls) == 1
    return handle


async def test_k6_it_parks_and_asks(house: House) -> None:
    """K6: not run again; listed with the step in doubt, and nothing held in memory."""
    await in_doubt(house)
    row = await house.row("e")
    assert (row.status, row.owner, row.in_doubt) == (loom.Status.SUSPENDED, None, ("pay",))
    assert (await house.kinds("e"))[-2:] == ["EFFECT_IN_DOUBT", "EXECUTION_SUSPENDED"]
    assert (await rehearse(order, await house.log("e"))).ok


async def test_k6_the_verdict_completed(house: House) -> None:
    """K6: the operator's value is the step's result, and the effect is not called."""
    handle = await in_doubt(house)
    assert await handle.verdict("pay", completed=7, actor="ann") is loom.Answered.TAKEN
    assert await handle.result(timeout=5) == "paid 7"
    assert [call.partition(" ")[0] for call in calls] == ["pay", "after"]
    assert "VERDICT_TAKEN" in await house.kinds("e")
    assert (await house.row("e")).in_doubt == ()
    assert (await rehearse(order, await house.log("e"))).ok


async def test_k6_the_verdict_failed(house: House) -> None:
    """K6: the flow may catch it, on a re-run too."""
    handle = await in_doubt(house)
    await handle.verdict("pay", failed="the bank knows nothing of it")
    assert await handle.result(timeout=5) == "not paid: the bank knows nothing of it"
    assert len(calls) == 1
    assert (await rehearse(order, await house.log("e"))).ok


async def test_k6_the_verdict_run_again(house: House) -> None:
    """K6: run again under the same idempotency key, as the next attempt."""
    handle = await in_doubt(house)
    Latch.release.set()
    await handle.verdict("pay", run_again=True)
    assert await handle.result(timeout=5) == "paid 42"
    first, second, _after = calls
    assert first.split()[1:] != second.split()[1:]
    assert first.split()[2] == second.split()[2]


async def test_k6_a_wrong_value_is_refused_and_the_question_stays(house: House) -> None:
    """K6, K7: a value that the step could not have returned."""
    handle = await in_doubt(house)
    with pytest.raises(loom.ResumeRefusedError) as caught:
        await handle.verdict("pay", completed="seven")
    assert caught.value.reason == "wrong-type"
    assert (await house.row("e")).in_doubt == ("pay",)
    await handle.verdict("pay", completed=7)
    assert await handle.result(timeout=5) == "paid 7"


async def test_k6_another_step_is_refused(house: House) -> None:
    """K6: a verdict on a step that is not in doubt is refused with the names of those that are."""
    handle = await in_doubt(house)
    with pytest.raises(loom.ResumeRefusedError, match="'pay'") as caught:
        await handle.verdict("note", run_again=True)
    assert caught.value.reason == "not-suspended"


async def test_k7_an_answer_is_refused_while_in_doubt(house: House) -> None:
    """K7: `in-doubt`."""
    handle = await in_doubt(house)
    with pytest.raises(loom.ResumeRefusedError) as caught:
        await handle.resume("Approval", True)
    assert caught.value.reason == "in-doubt"
    assert (await house.row("e")).inbox == 0


async def test_k6_no_verdict_without_doubt(house: House) -> None:
    """K6: refused while the step runs."""
    handle = await house.client.start(order, 1, id="e")
    await Latch.holding.wait()
    with pytest.raises(loom.ResumeRefusedError) as caught:
        await handle.verdict("pay", run_again=True)
    assert caught.value.reason == "not-suspended"
    Latch.release.set()
    assert await handle.result(timeout=5) == "paid 1"


async def test_k6_a_cancel_needs_no_verdict(house: House) -> None:
    """K13: an execution in doubt can be cancelled."""
    handle = await in_doubt(house)
    await handle.cancel("give up")
    with pytest.raises(loom.ExecutionCancelledError):
        await handle.result(timeout=5)
    assert len(calls) == 1


async def test_k6_a_failure_that_was_seen_is_no_doubt(house: House) -> None:
    """K6: an effect that raised is settled; a re-run meets the failure and does not call it."""
    handle = await house.client.start(declined, id="d")

    async def parked() -> bool:
        return (await handle.state()).gates == ("Gate",)

    await until(parked)
    await handle.resume("Gate", True)
    assert await handle.result(timeout=5) == "declined: no funds"
    assert calls == ["bounce"]


async def test_k6_a_failure_that_nobody_went_past_is_no_doubt_either(house: House) -> None:
    """K6: its worker died right after the failure; the effect is not called again."""
    failed = Failure("ValueError", "builtins", "no funds")
    log = log_of(
        ev.ExecutionStarted("declined", "1", stored(None)),
        ev.StepStarted("#0", "bounce", 1, 0, True),
        ev.StepFailed("#0", failed, 1),
    )
    now = await house.journal.now()
    planting = planted(execution("d", log).row, fold(log), now, events=tuple(log))
    assert await house.journal.plant([planting]) == [None]
    handle = house.client.handle("d", declined)
    await handle.resume("Gate", True)
    assert await handle.result(timeout=5) == "declined: no funds"
    assert calls == []


async def test_k6_a_verdict_counts_for_the_doubt_that_it_meets(house: House) -> None:
    """K6: said twice, and the effect interrupted again: the second one is not kept for the next
    doubt, which asks anew.
    """
    handle = await in_doubt(house)
    Latch.holding.clear()
    await house.workers[1].drain(1)
    await house.workers[1].stop()
    for _ in range(2):
        stored = await handle.verdict("pay", run_again=True, timeout=0.2)
        assert stored is loom.Answered.STORED
    third = await house.worker()
    await asyncio.wait_for(Latch.holding.wait(), 10)
    assert len(calls) == 2
    await house.worker()
    await third.drain(0)
    await third.stop()

    async def asks_again() -> bool:
        return (await handle.state()).in_doubt == ("pay",)

    await until(asks_again)
    assert len(calls) == 2
    assert (await house.row("e")).inbox == 0
