"""The environment for tests of flows: what it skips, what it waits for, what it says."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import assert_type

import pytest

import loom_mq as loom
from loom_mq.testing import Run, StuckError, TestEnvironment, watching

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
calls: list[str] = []
opened = asyncio.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    opened.clear()


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.Retry(attempts=4, initial=3600, factor=2, maximum=86_400, jitter=0))
async def third_time() -> int:
    calls.append("try")
    if len(calls) < 3:
        raise OSError("not yet")
    return len(calls)


@loom.step
def in_a_thread(seconds: float) -> str:
    time.sleep(seconds)
    calls.append("thread")
    return "done"


@loom.step
async def held(what: str) -> str:
    await opened.wait()
    return what


@loom.flow
async def year(ctx: loom.Context, months: int) -> list[datetime]:
    moments = [await ctx.now()]
    for _ in range(months):
        await ctx.sleep(timedelta(days=30))
        moments.append(await ctx.now())
    return moments


@loom.flow
async def retried(ctx: loom.Context) -> int:
    return await ctx.run(third_time)


@loom.flow
async def approval(ctx: loom.Context, days: float) -> str:
    await ctx.sleep(timedelta(days=days))
    try:
        ok = await ctx.suspend(on="Approval", type=bool, timeout=timedelta(days=3))
    except loom.GateTimeoutError:
        return "nobody answered"
    return await ctx.run(note, "approved" if ok else "refused")


@loom.flow
async def patient(ctx: loom.Context) -> str:
    return await ctx.suspend(on="Word", type=str)


@loom.flow
async def slow_then_nap(ctx: loom.Context) -> str:
    told, _ = await asyncio.gather(ctx.run(in_a_thread, 0.1), ctx.sleep(timedelta(days=1)))
    return told


@loom.flow
async def holding(ctx: loom.Context) -> str:
    return await ctx.run(held, "let go")


@loom.flow
async def for_ever(ctx: loom.Context) -> None:
    while True:
        await ctx.sleep(timedelta(hours=1))
        await ctx.run(note, "hour")


@loom.flow
async def broken(ctx: loom.Context) -> None:
    raise ValueError("broken on purpose")


@loom.flow(queue="elsewhere")
async def on_a_queue_of_its_own(ctx: loom.Context) -> str:
    return ctx.labels["customer"]


async def test_a_year_takes_no_time() -> None:
    """C40: twelve months, each exactly as long as it should be."""
    began = time.monotonic()
    async with TestEnvironment([year], starts_at=NEW_YEAR) as env:
        moments = await env.execute(year, 12)
        assert_type(moments, list[datetime])
        assert env.now - NEW_YEAR < timedelta(days=360, seconds=10)
    assert time.monotonic() - began < 5
    for before, after in pairwise(moments):
        assert timedelta(days=30) <= after - before < timedelta(days=30, seconds=5)


async def test_pauses_between_attempts_are_skipped() -> None:
    """K4: hours between attempts park, and pass at once."""
    async with TestEnvironment([retried], starts_at=NEW_YEAR) as env:
        assert await env.execute(retried) == 3
        assert timedelta(hours=3) <= env.now - NEW_YEAR < timedelta(hours=3, seconds=10)
    assert calls == ["try"] * 3


async def test_time_stops_at_a_gate_that_is_waited_for() -> None:
    """K7: the gate's own timeout does not pass while somebody is about to answer."""
    async with TestEnvironment([approval], starts_at=NEW_YEAR) as env:
        run = await env.start(approval, 30)
        assert_type(run, Run[str])
        await run.reach("Approval")
        assert timedelta(days=30) <= env.now - NEW_YEAR < timedelta(days=30, seconds=10)
        assert (await run.state()).gates == ("Approval",)
        assert await run.resume("Approval", True) is loom.Answered.TAKEN
        assert await run.result() == "approved"


async def test_a_gate_that_nobody_answers_times_out() -> None:
    """K7: three days later, at once."""
    async with TestEnvironment([approval], starts_at=NEW_YEAR) as env:
        assert await env.execute(approval, 1) == "nobody answered"
        assert timedelta(days=4) <= env.now - NEW_YEAR < timedelta(days=4, seconds=10)


async def test_an_answer_may_come_before_its_gate() -> None:
    """K7: kept for the gate that opens a month later."""
    async with TestEnvironment([approval]) as env:
        run = await env.start(approval, 30)
        assert await run.resume("Approval", False) is loom.Answered.STORED
        assert await run.result() == "refused"


async def test_skip_lets_happen_what_is_due_and_no_more() -> None:
    """F9: each at its own time, in order; nothing of what comes later."""
    async with TestEnvironment([approval, for_ever], starts_at=NEW_YEAR) as env:
        run = await env.start(approval, 2)
        await env.start(for_ever, id="hours")
        await env.skip(timedelta(days=1, minutes=30))
        assert calls == ["hour"] * 24
        assert (await run.state()).gates == ()
        await env.skip_until(NEW_YEAR + timedelta(days=2, minutes=30))
        assert calls == ["hour"] * 48
        assert (await run.state()).gates == ("Approval",)
        await env.skip_until(NEW_YEAR)
        assert env.now >= NEW_YEAR + timedelta(days=2, minutes=30)
        hours = [each.at for each in await env.history("hours") if each.kind == "STEP_COMPLETED"]
        for number, at in enumerate(hours, 1):
            assert timedelta(0) <= at - NEW_YEAR - timedelta(hours=number) < timedelta(seconds=9)


async def test_nothing_is_skipped_while_code_runs() -> None:
    """K11: the thread ends first, then the day passes."""
    async with TestEnvironment([slow_then_nap], starts_at=NEW_YEAR) as env:
        run = await env.start(slow_then_nap)
        result = asyncio.ensure_future(run.result())
        while not calls:
            assert env.now - NEW_YEAR < timedelta(seconds=60)
            await asyncio.sleep(0.005)
        assert await result == "done"
        assert env.now - NEW_YEAR >= timedelta(days=1)


async def test_many_wait_at_once() -> None:
    async with TestEnvironment([approval], starts_at=NEW_YEAR) as env:
        runs = [await env.start(approval, days) for days in range(20)]
        results = await asyncio.gather(*(run.result() for run in runs))
        assert results == ["nobody answered"] * 20
        assert env.now - NEW_YEAR < timedelta(days=22, seconds=20)


async def test_a_lease_outlives_every_skip() -> None:
    """F7: a century later the worker is alive, and nothing was recovered."""
    async with TestEnvironment([approval], starts_at=NEW_YEAR) as env:
        for _ in range(3):
            await env.skip(timedelta(days=36_000))
        run = await env.start(approval, 36_000)
        await run.reach("Approval")
        kinds = [each.kind for each in await run.history()]
        assert "EXECUTION_RECOVERED" not in kinds


async def test_whoever_waits_at_a_gate_for_ever_is_told() -> None:
    async with TestEnvironment([patient]) as env:
        run = await env.start(patient, id="a")
        with pytest.raises(StuckError, match=r"'a' will not end: it waits at gate 'Word' \(str\)"):
            await run.result()
        with pytest.raises(StuckError, match="will not come to gate 'Other'"):
            await run.reach("Other")
        await run.resume("Word", "hello")
        assert await run.result() == "hello"
        with pytest.raises(StuckError, match="it has ended completed"):
            await run.reach("Word")


async def test_an_answer_that_comes_while_somebody_waits() -> None:
    """Waiting first and answering then is no mistake."""
    async with TestEnvironment([patient]) as env:
        run = await env.start(patient)
        result = asyncio.ensure_future(run.result())
        await run.reach("Word")
        await run.resume("Word", "late")
        assert await result == "late"


async def test_a_gate_beside_a_flow_without_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may go on for ever: whoever waits for this one is told all the same."""
    monkeypatch.setattr(watching, "MAX_IDLE_SKIPS", 20)
    async with TestEnvironment([patient, for_ever], starts_at=NEW_YEAR) as env:
        await env.start(for_ever)
        run = await env.start(patient)
        with pytest.raises(StuckError, match="waits at gate 'Word'"):
            await run.result()


async def test_code_that_hangs_is_named() -> None:
    async with TestEnvironment([holding], patience=0.1) as env:
        run = await env.start(holding, id="h")
        with pytest.raises(StuckError, match=r"'h': step 'held' is still at work after 0.1 s"):
            await run.result()
        with pytest.raises(loom.WaitTimeoutError):
            await run.result(timeout=0.01)
        opened.set()
        assert await run.result() == "let go"


async def test_failures_and_cancels_come_out_as_they_are() -> None:
    """K9, K13."""
    async with TestEnvironment([broken, approval]) as env:
        with pytest.raises(loom.ExecutionFailedError, match="broken on purpose"):
            await env.execute(broken)
        run = await env.start(approval, 30)
        await run.cancel("no longer wanted")
        with pytest.raises(loom.ExecutionCancelledError, match="no longer wanted"):
            await run.result()
        with pytest.raises(loom.UnknownFlowError):
            await env.start(year, 1)
        with pytest.raises(loom.UnknownExecutionError):
            await env.run("nobody", patient).result()


async def test_every_queue_is_served_and_labels_are_there() -> None:
    async with TestEnvironment([on_a_queue_of_its_own]) as env:
        run = await env.start(on_a_queue_of_its_own, labels={"customer": "c1"})
        assert await run.result() == "c1"


async def test_the_history_can_be_read() -> None:
    async with TestEnvironment([approval], starts_at=NEW_YEAR) as env:
        run = await env.start(approval, 1, id="a")
        await run.resume("Approval", True)
        await run.result()
        told = [(each.kind, each.name, each.value) for each in await run.history()]
        assert told[0] == ("EXECUTION_STARTED", "approval", 1.0)
        assert ("ANSWER_TAKEN", "Approval", True) in told
        assert ("STEP_COMPLETED", "note", "approved") in told
        assert told[-1] == ("EXECUTION_COMPLETED", "", "approved")
        assert "STEP_COMPLETED note 'approved'" in "\n".join(map(str, await env.history("a")))
        assert await env.history("nobody") == []
        failed = await env.start(approval, 1, id="b")
        assert await failed.result() == "nobody answered"


async def test_code_under_test_may_have_the_client() -> None:
    """The plain client works; it skips nothing."""
    async with TestEnvironment([patient, approval]) as env:
        handle = await env.client.start(approval, 1)
        assert (await handle.state()).status in (loom.Status.RUNNING, loom.Status.SUSPENDED)
        await env.settle()
        assert (await handle.state()).wake_at is not None
        with pytest.raises(loom.WaitTimeoutError):
            await handle.result(timeout=0.05)


def test_pytest_does_not_take_it_for_tests() -> None:
    assert TestEnvironment.__test__ is False


async def test_a_start_without_a_zone_is_refused() -> None:
    """C56: a wall time is another moment on every host."""
    with pytest.raises(loom.ConfigurationError, match="time zone"):
        TestEnvironment([year], starts_at=datetime(2026, 1, 1))
