"""What a timer service decides about a schedule (F9): overlap, missed runs, pauses, limits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loom_mq.clock import MICROS
from loom_mq.errors import InvalidScheduleError
from loom_mq.model.schedules import MissedRuns, Overlap
from loom_mq.schedules import requests
from loom_mq.schedules.policy import MAX_LOOK, MAX_RUNNING, PUNCTUAL, Standing
from tests.support.schedule_world import HOUR, HOURLY, MINUTE, World

# ---- one after the other -------------------------------------------------------------------------


def test_f9_each_moment_gets_its_run() -> None:
    world = World()
    assert world.go(5 * HOUR) == [HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR]
    assert (world.state.runs, world.state.missed, world.state.skipped) == (5, 0, 0)
    assert world.due == 5 * HOUR + 5 * MICROS  # whether the journal knows the last one
    world.look(world.due)
    assert world.due == 6 * HOUR


def test_f9_what_is_lost_on_its_way_is_sent_again_until_the_journal_knows_it() -> None:
    world = World()
    world.knows = False
    world.go(HOUR)
    assert world.look(HOUR + 4 * MICROS) == []
    assert world.look(HOUR + 5 * MICROS) == [HOUR]
    assert world.look(HOUR + 6 * MICROS) == []
    assert world.look(HOUR + 15 * MICROS) == [HOUR]
    assert world.go(2 * HOUR) == []  # it has not even begun, so the next is left out
    assert world.state.skipped == 1
    world.knows = True
    world.runs[HOUR] = Standing.ENDED
    assert world.go(3 * HOUR) == [3 * HOUR]


def test_f9_a_start_that_nobody_admits_is_told_of() -> None:
    world = World()
    world.knows = False
    world.go(HOUR + 20 * MICROS)
    assert world.state.trouble == ""
    world.go(HOUR + 5 * MINUTE)
    assert "was sent 6 times" in world.state.trouble
    world.runs[HOUR] = Standing.OPEN
    world.go(HOUR + 10 * MINUTE, ends=False)
    assert world.state.trouble == ""


def test_f9_a_run_that_was_deleted_has_ended() -> None:
    world = World()
    world.go(HOUR, ends=False)
    world.look(HOUR + 5 * MICROS)
    assert world.state.running[0].seen
    del world.runs[HOUR]
    assert world.go(2 * HOUR) == [2 * HOUR]


# ---- overlap -------------------------------------------------------------------------------------


def overlapping(overlap: Overlap) -> World:
    """At hours 1 to 4 the run of hour 1 has not ended; then it has."""
    world = World(replace(HOURLY, overlap=overlap))
    world.go(4 * HOUR + MINUTE, ends=False)
    return world


def test_f9_skip() -> None:
    world = overlapping(Overlap.SKIP)
    assert world.started == [HOUR]
    assert world.state.skipped == 3
    world.end()
    assert world.go(5 * HOUR) == [5 * HOUR]


def test_f9_buffer_one() -> None:
    world = overlapping(Overlap.BUFFER_ONE)
    assert world.started == [HOUR]
    assert (world.state.waiting, world.state.skipped) == (2 * HOUR, 2)
    world.end()
    assert world.go(4 * HOUR + 2 * MINUTE, ends=False) == [2 * HOUR]
    assert world.state.waiting is None


def test_f9_allow() -> None:
    world = overlapping(Overlap.ALLOW)
    assert world.started == [HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]
    assert world.state.running == ()


def test_f9_cancel_other() -> None:
    world = overlapping(Overlap.CANCEL_OTHER)
    assert world.started == [HOUR]
    assert set(world.cancelled) == {HOUR}
    assert (world.state.waiting, world.state.skipped) == (4 * HOUR, 2)
    world.end()
    assert world.go(4 * HOUR + 2 * MINUTE, ends=False) == [4 * HOUR]


def test_f9_many_at_once_are_bounded() -> None:
    world = World(replace(HOURLY, every=1.0, overlap=Overlap.ALLOW))
    world.knows = False
    world.go(110 * MICROS)
    assert len(world.started) == MAX_RUNNING
    assert world.due is not None
    world.knows = True
    for nominal in world.started:
        world.runs[nominal] = Standing.ENDED
    world.go(112 * MICROS)
    assert world.started == [n * MICROS for n in range(1, 113)]


# ---- missed runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "catch_up", "started", "counted"),
    [
        (MissedRuns.SKIP, None, [], 5),
        (MissedRuns.ONE, None, [5 * HOUR], 4),
        (MissedRuns.ONE, 600.0, [], 5),
        (MissedRuns.ALL, None, [HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR], 0),
        (MissedRuns.ALL, 2.5 * 3600, [3 * HOUR, 4 * HOUR, 5 * HOUR], 2),
    ],
)
def test_f9_overdue_goes_by_the_policy_and_then_on_as_usual(
    missed: MissedRuns, catch_up: float | None, started: list[int], counted: int
) -> None:
    """F9: nobody looked from hour 0 to half past 5."""
    world = World(replace(HOURLY, missed=missed, catch_up=catch_up))
    world.now = 5 * HOUR + 30 * MINUTE
    world.go(5 * HOUR + 50 * MINUTE)
    assert world.started == started
    assert world.state.missed == counted
    assert world.go(7 * HOUR) == [6 * HOUR, 7 * HOUR]


def test_f9_a_run_that_is_due_now_makes_up_for_the_missed_ones() -> None:
    world = World()
    assert world.look(5 * HOUR + PUNCTUAL) == [5 * HOUR]
    assert world.state.missed == 4


def test_f9_all_are_made_up_for_in_order_one_at_a_time() -> None:
    world = World(replace(HOURLY, missed=MissedRuns.ALL))
    world.look(3 * HOUR + 30 * MINUTE)
    assert world.started == [HOUR]
    assert world.go(4 * HOUR + MINUTE, ends=False) == []  # and what is due meanwhile queues up
    for nominal in (2 * HOUR, 3 * HOUR, 4 * HOUR):
        world.end()
        assert world.go(world.now + MINUTE, ends=False) == [nominal]
    assert (world.state.runs, world.state.missed, world.state.skipped) == (4, 0, 0)
    world.end()
    assert world.go(5 * HOUR) == [5 * HOUR]
    assert world.state.asked == ()


def test_f9_a_long_absence_is_dealt_with_in_parts() -> None:
    world = World(replace(HOURLY, every=120.0))
    last = 3 * MAX_LOOK + 7
    away = 2 * last * MINUTE + PUNCTUAL + 1
    world.look(away)
    assert world.due == away
    assert world.started == []
    world.go(away)
    assert world.started == [2 * last * MINUTE]
    assert (world.state.runs, world.state.missed) == (1, last - 1)


# ---- pause, limit, jitter ------------------------------------------------------------------------


def test_f9_a_pause_fires_nothing_and_the_next_run_counts_from_its_end() -> None:
    """F9: exactly nothing while it is paused, however long; no catch-up afterwards."""
    world = World(replace(HOURLY, missed=MissedRuns.ALL))
    world.go(2 * HOUR)
    world.state = requests.paused(world.calendar, world.state, "holidays")
    world.paused = True
    assert world.go(50 * HOUR + MINUTE) == []
    assert world.due is None
    world.paused = False
    world.state = requests.resumed(world.state, world.now)
    assert world.go(52 * HOUR) == [51 * HOUR, 52 * HOUR]
    assert (world.state.runs, world.state.missed, world.state.skipped) == (4, 0, 0)


def test_f9_a_pause_drops_what_waits_and_what_is_made_up_for() -> None:
    world = overlapping(Overlap.BUFFER_ONE)
    world.state = requests.paused(world.calendar, world.state, "")
    assert (world.state.waiting, world.state.runs, world.state.skipped) == (None, 1, 3)
    late = World(replace(HOURLY, missed=MissedRuns.ALL))
    late.look(5 * HOUR + 30 * MINUTE)
    late.state = requests.paused(late.calendar, late.state, "")
    assert (late.state.asked, late.state.runs, late.state.missed) == ((), 1, 4)


def test_f9_a_limit_ends_it() -> None:
    world = World(replace(HOURLY, limit=3))
    assert world.go(100 * HOUR) == [HOUR, 2 * HOUR, 3 * HOUR]
    assert world.due is None


def test_f9_jitter_moves_the_start_and_not_the_moment() -> None:
    world = World(replace(HOURLY, jitter=1800.0))
    looks: list[int] = []
    while len(world.started) < 5:
        world.look(world.due)
        world.end()
        looks += [world.now] * len(world.plan.starts)
    assert world.started == [n * HOUR for n in range(1, 6)]
    late = [at - nominal for at, nominal in zip(looks, world.started, strict=True)]
    assert all(0 <= each < 30 * MINUTE for each in late)
    assert len(set(late)) == 5


# ---- what is asked for ---------------------------------------------------------------------------


def test_f9_a_trigger_starts_now_also_while_paused() -> None:
    world = World()
    world.paused = True
    world.now = 30 * MINUTE
    world.state, moment = requests.triggered(world.state, world.now, at_once=False)
    assert moment == 30 * MINUTE
    assert world.look() == [moment]
    assert (world.state.runs, world.state.asked) == (0, ())


def test_f9_a_trigger_waits_for_what_runs_unless_told_otherwise() -> None:
    world = World()
    world.go(HOUR, ends=False)
    world.state, first = requests.triggered(world.state, HOUR + 1, at_once=False)
    world.state, second = requests.triggered(world.state, HOUR + 1, at_once=True)
    assert second > first
    assert world.look(HOUR + 2) == [second]
    world.end()
    assert world.look(HOUR + 3) == [first]


def test_f9_a_backfill_runs_every_moment_of_its_span_one_after_the_other() -> None:
    world = World(now=10 * HOUR)
    world.state, count = requests.backfilled(
        world.calendar, world.state, 2 * HOUR, 5 * HOUR, at_once=False
    )
    assert count == 4
    assert world.look() == [2 * HOUR]
    assert world.go(10 * HOUR + MINUTE, ends=False) == []
    assert world.started == [2 * HOUR]
    world.end()
    world.go(10 * HOUR + 10 * MINUTE)
    assert world.started == [2 * HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR]
    assert world.state.asked == ()
    assert world.go(11 * HOUR) == [11 * HOUR]


def test_f9_a_backfill_at_once_and_one_that_waits_for_the_end_of_a_pause() -> None:
    world = World(now=10 * HOUR)
    world.paused = True
    world.state, _ = requests.backfilled(world.calendar, world.state, 0, 3 * HOUR, at_once=True)
    assert world.look() == []
    assert world.due is None
    world.paused = False
    assert world.look() == [0, HOUR, 2 * HOUR, 3 * HOUR]


@pytest.mark.parametrize(("first", "last"), [(HOUR + 1, HOUR + 2), (0, 20_000 * HOUR)])
def test_f9_a_backfill_of_nothing_or_of_too_much_is_refused(first: int, last: int) -> None:
    world = World()
    with pytest.raises(InvalidScheduleError):
        requests.backfilled(world.calendar, world.state, first, last, at_once=False)


def test_f9_a_request_that_comes_twice_is_known() -> None:
    state = requests.remembered(requests.fresh(0), "r")
    assert requests.heard(state, "r")
    assert not requests.heard(state, "")
    for number in range(requests.REMEMBERED):
        state = requests.remembered(state, str(number))
    assert not requests.heard(state, "r")


def test_f9_another_definition_holds_from_now_on() -> None:
    world = overlapping(Overlap.BUFFER_ONE)
    world.state = requests.changed(world.calendar, world.state, world.now)
    world.schedule = replace(world.schedule, every=7200.0)
    assert world.state.waiting == 2 * HOUR
    world.end()
    assert world.go(6 * HOUR) == [2 * HOUR, 6 * HOUR]
