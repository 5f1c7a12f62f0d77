"""What took how long and how it went, from events alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom_mq.errors import InputError
from loom_mq.journal.protocol import Admission
from loom_mq.kernel.fold import fold
from loom_mq.lifecycle.analysis import (
    StepOutcome,
    histories,
    introspect,
    percentile,
    profile,
)
from loom_mq.lifecycle.truncation import truncate_prefix
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import Status
from tests.support.house import House
from tests.unit.lifecycle_kit import (
    ENDS,
    PARKED,
    Clock,
    book,
    booking,
    execution,
    failure,
    full_log,
    key_of,
    log_of,
    random_log,
    shelf,
    started,
    stored,
)


def test_what_one_execution_did() -> None:
    """K1, K4, K6: attempts, retries, times and ends of steps; parks; answers."""
    told = introspect(full_log())
    assert (told.flow, told.version, told.outcome) == ("order", "1", Status.COMPLETED)
    assert (told.recoveries, told.whole, told.error) == (1, True, "")
    charge, ship, notify = told.steps
    assert (charge.name, charge.attempts, charge.retries) == ("charge", 2, 1)
    assert (charge.outcome, charge.duration) == (StepOutcome.COMPLETED, 4000)
    assert (charge.failures, charge.error.split(":")[0]) == (["OSError"], "OSError")
    assert (ship.outcome, ship.duration, ship.failures) == (
        StepOutcome.FAILED,
        1000,
        ["ValueError"],
    )
    assert (notify.outcome, notify.attempts, notify.retries) == (StepOutcome.CANCELLED, 2, 0)
    assert [(park.at, park.until) for park in told.parks] == [
        (1_013_000, 1_014_000),
        (1_018_000, 1_019_000),
    ]
    [answer] = told.answers
    assert (answer.gate, answer.place, answer.asked_at, answer.waited) == ("approve", "#6", None, 0)
    assert (told.total, told.parked, told.active) == (22_000, 2000, 20_000)
    assert told.ended_at == 1_022_000


def test_an_answer_waited_from_the_first_park_at_its_gate() -> None:
    """K7: a wake in between does not begin it anew."""
    gate = Wait("#0", WaitKind.GATE, "board")
    timer = Wait("~0#0", WaitKind.TIMER, due=9)
    log = log_of(
        started(),
        ev.ExecutionSuspended((gate, timer)),
        ev.ExecutionResumed(("~0#0",)),
        ev.ExecutionSuspended((gate,)),
        ev.ExecutionResumed(),
        ev.AnswerTaken("#0", "board", stored(True), "a"),
        pace=10,
    )
    [answer] = introspect(log).answers
    assert (answer.waited, introspect(log).parked) == (40, 20)


@pytest.mark.parametrize(
    ("length", "outcome", "parked"),
    [
        (0, Status.PENDING, 0),
        (1, Status.RUNNING, 0),
        (11, Status.RUNNING, 0),
        (14, Status.SUSPENDED, 0),
        (PARKED, Status.SUSPENDED, 1000),
    ],
)
def test_one_that_is_not_over(length: int, outcome: Status, parked: int) -> None:
    """K1: as far as it came; a caught failure makes nothing failed."""
    told = introspect(full_log()[:length])
    assert (told.outcome, told.ended_at, told.parked) == (outcome, None, parked)
    assert told.total == max(0, length - 1) * 1000


def test_a_step_in_doubt_and_one_that_is_open() -> None:
    """K6: the events do not say how they ended."""
    assert introspect(full_log()[:13]).steps[-1].outcome is StepOutcome.IN_DOUBT
    last = introspect(full_log()[:12]).steps[-1]
    assert (last.outcome, last.duration) == (StepOutcome.OPEN, None)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9))
def test_it_says_what_the_fold_says(seed: int) -> None:
    """K1, J7: outcomes, attempts and ends agree with the kernel's own reading."""
    log = random_log(seed)
    state, told = fold(log), introspect(log)
    assert (told.outcome, told.ended_at) == (state.status, state.ended_at)
    assert {step.place: (step.attempts, step.outcome.value) for step in told.steps} == {
        place: (frame.attempts, frame.status.value.replace("running", "open"))
        for place, frame in state.frames.items()
    }
    assert told.error == ("" if state.failure is None else state.failure.headline)
    assert 0 <= told.parked <= told.total


def test_what_many_have_in_common() -> None:
    """Counts, percentiles, classes of failures; a caught failure is no failed execution."""
    logs = [
        log_of(
            started(),
            ev.StepStarted("#0", "charge", 1),
            ev.StepCompleted("#0", stored(1)),
            ENDS[0],
            pace=pace,
        )
        for pace in range(1, 201)
    ]
    caught = log_of(
        started(),
        ev.StepStarted("#0", "charge", 1),
        ev.StepRetrying("#0", failure("OSError"), 1, 5),
        ev.StepStarted("#0", "charge", 2),
        ev.StepFailed("#0", failure("ValueError")),
        ev.StepStarted("#1", "refund", 1),
        ENDS[0],
        pace=1_000_000,
    )
    failed = log_of(started(), ENDS[1], pace=1)
    told = profile([*logs, caught, failed, full_log()[:1]])
    assert (told.flows, told.executions, told.cut) == (("order",), 203, 0)
    assert told.outcomes == {Status.COMPLETED: 201, Status.FAILED: 1, Status.RUNNING: 1}
    assert (told.p50, told.p99) == (300, 597)
    charge, refund = told.steps
    assert (charge.name, charge.count, charge.attempts, charge.retries) == ("charge", 201, 202, 1)
    assert charge.failures == {"OSError": 1, "ValueError": 1}
    assert charge.outcomes == {StepOutcome.COMPLETED: 200, StepOutcome.FAILED: 1}
    assert (charge.p50, charge.p99) == (101, 199)
    assert (refund.count, refund.outcomes, refund.p50) == (1, {StepOutcome.OPEN: 1}, None)


def test_nothing_to_tell() -> None:
    """No executions, no numbers."""
    told = profile([])
    assert (told.executions, told.p50, told.steps, told.flows) == (0, None, (), ())


def test_percentiles_are_values_that_were_seen() -> None:
    """Nearest rank: half of the values are not above the median."""
    assert percentile([], 50) is None
    assert percentile([7], 50) == percentile([7], 99) == 7
    assert percentile([1, 2], 50) == 1
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 102), 99) == 100


async def test_histories_are_the_newest_first_and_bounded() -> None:
    """Of one flow, one tenant, since a time; those not begun are left out."""
    other = log_of(started("other"), ENDS[0])
    journal = await shelf(
        *(execution(f"x{number}", full_log(), created_at=number) for number in range(150)),
        execution("other", other, created_at=500),
        execution("x0", full_log(), created_at=600, tenant="b"),
        clock=Clock(999),
    )
    new = Admission(
        key=key_of("new"), flow="order", version="1", queue="q", start=b"", input_digest=b""
    )
    await journal.admit([new])
    newest = await journal.read(key_of("x149"))
    assert await histories(journal, "order", limit=1) == [tuple(newest)]
    assert len(await histories(journal, "order", limit=120)) == 120
    assert len(await histories(journal, "order", limit=1000)) == 150
    assert len(await histories(journal, "order", limit=1000, tenant=None)) == 151
    assert len(await histories(journal, "order", limit=1000, since=140)) == 10
    with pytest.raises(InputError):
        await histories(journal, "order", limit=0)


async def test_logs_that_were_cut_count_but_do_not_skew() -> None:
    """J8: an outcome is all that is left of them."""
    journal = await shelf(execution("x", full_log()), execution("y", full_log(ENDS[1])))
    await truncate_prefix(journal, key_of("y"))
    told = profile(await histories(journal, "order", limit=9))
    assert (told.executions, told.cut, told.p50) == (2, 1, 22_000)
    assert told.outcomes == {Status.COMPLETED: 1, Status.FAILED: 1}


async def test_real_executions() -> None:
    """K1: a caught failure, a retry and a gate, as the engine writes them."""
    async with House([booking]) as house:
        await book(house, "glad")
        await book(house, "sad", answer=False)
        logs = await histories(house.journal, "booking", limit=9)
    told = profile(logs)
    assert told.outcomes == {Status.COMPLETED: 1, Status.FAILED: 1}
    steps = {step.name: step for step in told.steps}
    assert steps["charge"].retries == 2
    assert steps["charge"].failures == {"OSError": 2}
    assert steps["print_ticket"].outcomes == {StepOutcome.FAILED: 2}
    one = introspect(logs[0])
    assert [answer.gate for answer in one.answers] == ["board"]
    assert one.parked == one.parks[0].until - one.parks[0].at  # type: ignore[operator]
    assert one.answers[0].waited >= one.parked > 0
