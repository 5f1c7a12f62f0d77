"""ADR 0105 D2: everybody who reads the status of an execution whose step failed sees what it
is: running or parked, not failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.audit import stray_answers
from loom_mq.kernel.fold import fold
from loom_mq.lifecycle.analysis import profile
from loom_mq.lifecycle.erasure import erase_subject
from loom_mq.lifecycle.fork import fork, restore_state
from loom_mq.lifecycle.planting import planted
from loom_mq.lifecycle.reading import fetch
from loom_mq.lifecycle.retention import Retention, retain
from loom_mq.lifecycle.truncation import truncate_prefix
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, Wait, WaitKind
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.model.failures import Failure
from tests.support.house import House, until
from tests.unit.lifecycle_kit import execution, log_of, stored

KEY = ExecutionKey(DEFAULT_TENANT, "e")
UNTYPED = Failure("ValueError", "builtins", "once")
BEGUN = ev.ExecutionStarted("caught", "1", stored(None), labels={"subject": "ann"})
calls: list[str] = []


@loom.step(retry=loom.NO_RETRY)
async def flaky() -> str:
    calls.append("flaky")
    raise ValueError("once")


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.flow
async def caught(ctx: loom.Context) -> str:
    try:
        return await ctx.run(flaky)
    except ValueError:
        return await ctx.run(note, "fallback")


@loom.flow
async def napping(ctx: loom.Context) -> str:
    """Sleeps beside a branch that fails."""

    async def branch() -> str:
        try:
            return await ctx.run(flaky)
        except ValueError:
            return "caught"

    told = asyncio.ensure_future(branch())
    await asyncio.gather(told, ctx.sleep(timedelta(days=1)))
    return told.result()


def live_log() -> list[Envelope]:
    """A worker died after its flow had caught a step's failure."""
    return log_of(BEGUN, ev.StepStarted("#0", "flaky", 1), ev.StepFailed("#0", UNTYPED, 1))


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Without a worker: what is planted stays as it is."""
    calls.clear()
    async with House([caught, napping], workers=0) as house:
        yield house


async def plant(house: House, log: list[Envelope]) -> None:
    row = execution("e", log).row
    now = await house.journal.now()
    planting = planted(row, fold(log), now, events=tuple(log))
    assert await house.journal.plant([planting]) == [None]


async def test_state_and_subscribers_see_it_running(house: House) -> None:
    """D2: get-state, outside protocols and whoever waits for the end."""
    await plant(house, live_log())
    handle = house.client.handle("e", caught)
    assert (await handle.state()).status is Status.RUNNING
    with pytest.raises(loom.WaitTimeoutError):
        await handle.result(timeout=0.2)
    await house.worker()
    assert await handle.result(timeout=10) == "fallback"


async def test_retention_truncation_and_erasure_leave_it_alone(house: House) -> None:
    """D2, J8: it has not ended, however old it is."""
    log = live_log()
    await plant(house, log)
    report = await retain(
        house.journal,
        Retention(default=timedelta(0)),
        now=await house.journal.now() + 10**15,
        archive=None,
    )
    assert (report.due, report.deleted) == (0, 0)
    with pytest.raises(loom.LoomError, match="wait until it has ended"):
        await truncate_prefix(house.journal, KEY)
    erased = await erase_subject(house.journal, "ann", tenant=DEFAULT_TENANT)
    assert (erased.erased, erased.live) == ((), (KEY,))
    assert await house.log("e") == log


async def test_the_census_of_a_deployment_counts_it(house: House) -> None:
    """D2: it is among those that changed code must fit."""
    log = live_log()
    assert fold(log).status is Status.RUNNING
    assert (await rehearse(caught, log)).ok

    @loom.flow(name="caught")
    async def changed(ctx: loom.Context) -> str:
        return await ctx.run(note, "another step")

    outcome = await rehearse(changed, log)
    assert "a step 'flaky'" in outcome.problem


async def test_analysis_reads_the_events(house: House) -> None:
    """D2: the step failed, the execution did not."""
    told = profile([live_log()])
    assert told.outcomes.get(Status.FAILED, 0) == 0
    [step] = told.steps
    assert step.failures == {"ValueError": 1}


async def test_the_audit_mirrors_the_fold() -> None:
    """D1: a failed step does not make an answer that follows a stray."""
    gate = ev.ExecutionSuspended((Wait("#1", WaitKind.GATE, "Go"),))
    answer = ev.AnswerTaken("#1", "Go", stored(True), "a", 2)
    log = log_of(BEGUN, ev.StepStarted("#0", "flaky", 1), ev.StepFailed("#0", UNTYPED, 1), gate)
    assert stray_answers([*log, *log_of(ev.ExecutionResumed((), 2), answer)]) == ()


async def test_a_fork_and_a_restored_state_go_on(house: House) -> None:
    """D4: a fork of it runs on, and so does a state in which an old fold had failed it."""
    await plant(house, live_log())
    await fork(house.journal, KEY, "forked")
    old = msgspec.structs.replace(fold(live_log()), status=Status.FAILED)
    await restore_state(house.journal, "restored", old, queue="default", labels={})
    await house.worker()
    for name in ("forked", "restored"):
        assert await house.client.handle(name, caught).result(timeout=10) == "fallback"


async def test_f9_a_timer_wakes_it_after_a_late_failure(house: House) -> None:
    """D2, F9: a sleep whose sibling failed after the park keeps its timer and wakes."""
    due = await house.journal.now() + 200_000
    log = log_of(
        ev.ExecutionStarted("napping", "1", stored(None)),
        ev.StepStarted("~0#0", "flaky", 1),
        ev.ExecutionSuspended((Wait("#0", WaitKind.TIMER, "", due),)),
        ev.StepFailed("~0#0", UNTYPED, 1),
    )
    state = fold(log)
    assert (state.status, state.failed_while_parked) == (Status.SUSPENDED, True)
    await plant(house, log)
    await house.worker()
    assert await house.client.handle("e", napping).result(timeout=10) == "caught"

    async def disarmed() -> bool:
        return await house.journal.next_timer() is None

    await until(disarmed)


async def test_the_index_says_what_the_fold_says(house: House) -> None:
    """J6: the row of such an execution is not failed either, and has no error."""
    await plant(house, live_log())
    row = (await fetch(house.journal, KEY)).row
    assert (row.status, row.error, row.ended_at) == (Status.RUNNING, None, None)
