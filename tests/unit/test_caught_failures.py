"""A caught step failure is not the execution's failure (ADR 0105), from logs as a crash or
the original engine left them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

import loom_mq as loom
from loom_mq.clock import JournalClock
from loom_mq.errors import StorageWriteError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Append, AppendVerdict
from loom_mq.kernel.fold import fold
from loom_mq.kernel.snapshots import encode_state
from loom_mq.lifecycle.planting import planted
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, Wait, WaitKind
from loom_mq.model.execution import Status
from loom_mq.model.failures import Failure
from tests.support.house import House, until
from tests.unit.lifecycle_kit import execution, log_of, stored

calls: list[str] = []


class Declined(loom.TypedFailure[int], channel="declined"):
    """A failure that the flow has a branch for."""


@loom.step(retry=loom.NO_RETRY)
async def flaky() -> str:
    calls.append(f"flaky {loom.current_step().attempt}")
    if loom.current_step().attempt == 1:
        raise ValueError("once")
    return "again"


@loom.step(failures=(Declined,))
async def charge() -> str:
    calls.append("charge")
    raise Declined(7)


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.flow
async def plain(ctx: loom.Context) -> str:
    try:
        first = await ctx.run(flaky)
    except ValueError as error:
        first = f"caught {error}"
    second = await ctx.run(note, "fallback")
    return f"{first}, {second}"


@loom.flow
async def typed(ctx: loom.Context) -> str:
    try:
        return await ctx.run(charge)
    except Declined as failure:
        second = await ctx.run(note, "fallback")
        return f"declined {failure.payload}, {second}"


@loom.flow
async def sibling(ctx: loom.Context) -> str:
    """Waits for an answer while a branch of it works."""

    async def branch() -> str:
        try:
            return await ctx.run(flaky)
        except ValueError as error:
            return f"caught {error}"

    first, answer = await asyncio.gather(branch(), ctx.suspend(on="Approval", type=object))
    return f"{first}, answered {answer}"


@loom.flow
async def escaping(ctx: loom.Context) -> str:
    return await ctx.run(flaky)


@loom.flow
async def trusting(ctx: loom.Context) -> str:
    return await ctx.run(note, "told")


FLOWS = (plain, typed, sibling, escaping, trusting)
UNTYPED = Failure("ValueError", "builtins", "once")
TYPED = Failure("Declined", __name__, "", channel="declined", payload=stored(7))
PARK = ev.ExecutionSuspended((Wait("#0", WaitKind.GATE, "Approval"),))


def crashed(flow: str, *payloads: msgspec.Struct) -> list[Envelope]:
    """The log of an execution whose worker is gone."""
    begun = ev.ExecutionStarted(flow, "1", stored(None))
    return log_of(begun, *payloads)


PLAIN_LOG = crashed("plain", ev.StepStarted("#0", "flaky", 1), ev.StepFailed("#0", UNTYPED, 1))
TYPED_LOG = crashed("typed", ev.StepStarted("#0", "charge", 1), ev.StepFailed("#0", TYPED, 1))
LATE_LOG = crashed(
    "sibling",
    ev.StepStarted("~0#0", "flaky", 1),
    PARK,
    ev.StepFailed("~0#0", UNTYPED, 1),
)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    async with House(FLOWS) as house:
        yield house


async def plant(house: House, log: list[Envelope], *, by_old_fold: bool = False) -> None:
    """Put an execution into the journal, with a snapshot of the fold before ADR 0105 or none."""
    state = fold(log)
    snapshot = None
    if by_old_fold:
        old = msgspec.structs.replace(state, status=Status.FAILED, failed_while_parked=False)
        snapshot = msgspec.structs.replace(encode_state(old), fold=1)
    row = execution("e", log).row
    now = await house.journal.now()
    planting = planted(row, state, now, events=tuple(log), snapshot=snapshot)
    assert await house.journal.plant([planting]) == [None]


@pytest.mark.parametrize("by_old_fold", [False, True])
async def test_0105_a_caught_failure_is_recovered_and_its_step_runs_again(
    house: House, by_old_fold: bool
) -> None:
    """ADR 0105 D4: an untyped failure is found out anew, at least once; from the log, and
    from a snapshot in which it had moved the status.
    """
    await plant(house, PLAIN_LOG, by_old_fold=by_old_fold)
    handle = house.client.handle("e", plain)
    assert await handle.result(timeout=10) == "again, fallback"
    assert calls == ["flaky 2", "fallback"]
    assert "EXECUTION_RECOVERED" in await house.kinds("e")


async def test_0105_a_typed_failure_is_served_and_its_step_is_not_called(house: House) -> None:
    """ADR 0105 D4, K5: the flow takes its branch, with the payload."""
    await plant(house, TYPED_LOG)
    handle = house.client.handle("e", typed)
    assert await handle.result(timeout=10) == "declined 7, fallback"
    assert calls == ["fallback"]


async def test_0105_it_can_be_cancelled(house: House) -> None:
    """ADR 0105: it is not at its end."""
    await house.workers[0].drain(1)
    await house.workers[0].stop()
    await plant(house, PLAIN_LOG)
    handle = house.client.handle("e", plain)
    await handle.cancel("enough")
    await house.worker()
    with pytest.raises(loom.ExecutionCancelledError, match="enough"):
        await handle.result(timeout=10)


@pytest.mark.parametrize("by_old_fold", [False, True])
async def test_k8_a_gate_is_answered_after_a_sibling_failed_late(
    house: House, by_old_fold: bool
) -> None:
    """K8, ADR 0105 D3: an empty answer is refused with nothing appended, the next one lands."""
    await plant(house, LATE_LOG, by_old_fold=by_old_fold)
    handle = house.client.handle("e", sibling)
    assert (await handle.state()).status is Status.SUSPENDED
    with pytest.raises(loom.ResumeRefusedError) as caught:
        await handle.resume("Approval", None)
    assert caught.value.reason == "null-answer-after-parked-failure"
    assert await house.log("e") == LATE_LOG
    assert await handle.resume("Approval", True) is loom.Answered.TAKEN
    assert await handle.result(timeout=10) == "again, answered True"
    assert calls == ["flaky 2"], "not gone past, so found out anew"


async def test_k8_an_empty_answer_is_an_ordinary_one_otherwise(house: House) -> None:
    """K8: no step failed since the gate opened."""
    failed_before = (ev.StepStarted("~0#0", "flaky", 1), ev.StepFailed("~0#0", UNTYPED, 1))
    await plant(house, crashed("sibling", *failed_before, PARK))
    handle = house.client.handle("e", sibling)
    assert await handle.resume("Approval", None) is loom.Answered.TAKEN
    assert await handle.result(timeout=10) == "caught once, answered None"


class NoEnds(MemoryJournal):
    """A journal that takes no end, for as long as `broken`."""

    broken = True
    refused = 0

    async def append(self, appends: Sequence[Append]) -> list[AppendVerdict]:
        verdicts: list[AppendVerdict] = []
        for each in appends:
            if self.broken and each.index.status.terminal:
                self.refused += 1
                verdicts.append(AppendVerdict(error=StorageWriteError("the disk is full")))
            else:
                verdicts += await super().append([each])
        return verdicts


@pytest.mark.parametrize(
    ("flow", "told"), [(escaping, "again"), (trusting, "told")], ids=["failed", "completed"]
)
async def test_k9_an_end_that_is_not_durable_is_told_to_nobody(
    flow: loom.Flow[None, str], told: str
) -> None:
    """K9: the execution goes on from its log, elsewhere or here, and whoever waits hears of
    the end that is on it; a step that failed for good the first time may succeed.
    """
    calls.clear()
    journal = NoEnds(JournalClock())
    async with House(FLOWS, journal=journal) as house:
        handle = await house.client.start(flow, id="e")
        result = asyncio.ensure_future(handle.result(timeout=10))

        async def given_back() -> bool:
            return journal.refused > 0 and (await house.row("e")).owner is None

        await until(given_back)
        assert not result.done()
        assert (await house.row("e")).status is Status.RUNNING
        journal.broken = False
        assert await result == told
        assert not house.metrics.value("loom_superseded_total", at="append")


@loom.step
async def looks_at_its_log(house_log: str) -> list[str]:
    del house_log
    return await Here.house.kinds("e")


@loom.flow
async def looking(ctx: loom.Context) -> list[str]:
    return await ctx.run(looks_at_its_log, "e")


class Here:
    """The house that a step looks at."""

    house: House


async def test_k6_the_start_of_a_step_is_durable_before_its_effect() -> None:
    """K6: what the effect finds on the log when it begins."""
    async with House([looking]) as Here.house:
        kinds = await Here.house.client.execute(looking, id="e", timeout=10)
    assert kinds == ["EXECUTION_STARTED", "STEP_STARTED"]
