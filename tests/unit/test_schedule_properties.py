"""What must hold of a schedule whatever happens to it (F9)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from loom_mq.clock import MICROS
from loom_mq.model.schedules import MissedRuns, Overlap, Schedule
from loom_mq.schedules import requests
from loom_mq.schedules.policy import Standing
from tests.support.schedule_world import HOUR, World

_SCHEDULES = st.builds(
    Schedule,
    flow=st.just("f"),
    cron=st.sampled_from([(), ("*/5 * * * *",), ("0 * * * *", "17 */2 * * *")]),
    every=st.sampled_from([97.0, 600.0, 3600.0]),
    jitter=st.sampled_from([0.0, 5.0, 900.0]),
    overlap=st.sampled_from(Overlap),
    missed=st.sampled_from(MissedRuns),
    catch_up=st.sampled_from([None, 0.0, 1800.0]),
    limit=st.sampled_from([None, None, 5]),
)


class Life(RuleBasedStateMachine):
    """Anything may happen to a schedule; what must hold does (F9)."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(now=1000 * HOUR)
        self.born = self.world.now
        self.asked_for: set[int] = set()
        self.ever_paused = False
        self.at_once = False

    @rule(schedule=_SCHEDULES)
    def begin(self, schedule: Schedule) -> None:
        if not self.world.started and self.world.state == requests.fresh(self.born):
            self.world.schedule = schedule

    @rule(share=st.floats(0, 1))
    def look_when_due(self, share: float) -> None:
        due = self.world.due
        late = int(share * 100 * MICROS) if share > 0.7 else 0
        self._look(self.world.now if due is None else max(self.world.now, due + late))

    @rule(absence=st.integers(0, 5 * HOUR))
    def look_later(self, absence: int) -> None:
        self._look(self.world.now + absence)

    @rule(pick=st.randoms(use_true_random=False))
    def some_end(self, pick: object) -> None:
        for nominal, standing in list(self.world.runs.items()):
            if standing is Standing.OPEN and pick.random() < 0.6:  # type: ignore[attr-defined]  # hypothesis' own Random
                self.world.runs[nominal] = Standing.ENDED

    @rule(knows=st.booleans())
    def dispatchers_come_and_go(self, knows: bool) -> None:
        self.world.knows = knows
        if knows:
            for run in self.world.state.running:
                self.world.runs.setdefault(run.nominal, Standing.OPEN)

    @rule()
    def pause(self) -> None:
        world = self.world
        if not world.paused:
            world.paused, self.ever_paused = True, True
            world.state = requests.paused(world.calendar, world.state, "")

    @rule()
    def resume(self) -> None:
        if self.world.paused:
            self.world.paused = False
            self.world.state = requests.resumed(self.world.state, self.world.now)

    @rule(at_once=st.booleans())
    def trigger(self, at_once: bool) -> None:
        if len(self.world.state.asked) < 10:
            world = self.world
            world.state, moment = requests.triggered(world.state, world.now, at_once=at_once)
            self.asked_for.add(moment)
            self.at_once |= at_once

    def _look(self, now: int) -> None:
        world = self.world
        open_before = {
            nominal
            for nominal in world.started
            if world.runs.get(nominal, Standing.UNKNOWN) is not Standing.ENDED
        }
        started_before = set(world.started)
        world.look(now)
        new = set(world.started) - started_before
        calendar = {each for each in new if each not in self.asked_for}
        if world.paused:
            assert not calendar
        if world.schedule.overlap is not Overlap.ALLOW and not self.at_once:
            assert len(new) <= 1
            assert not (new and open_before)
        assert all(self.born < each <= now for each in calendar)
        assert all(world.calendar.after(each - 1) == each for each in calendar)
        assert world.due is None or world.due >= now
        # the same look again sends nothing again
        assert not set(world.look(now)) & new

    @invariant()
    def every_moment_is_accounted_for_once(self) -> None:
        world = self.world
        state = world.state
        if self.ever_paused or world.schedule.limit is not None:
            return
        passed = sum(1 for _ in world.calendar.between(self.born, state.reckoned))
        assert state.runs + state.missed + state.skipped == passed
        calendar = [each for each in world.started if each not in self.asked_for]
        queued = sum(
            sum(1 for _ in world.calendar.between(ask.after, ask.until))
            for ask in state.asked
            if ask.catch_up
        )
        assert state.runs == len(calendar) + queued + (state.waiting is not None)

    @invariant()
    def no_moment_is_started_twice(self) -> None:
        assert len(self.world.started) == len(set(self.world.started))

    @invariant()
    def a_limit_holds(self) -> None:
        limit = self.world.schedule.limit
        assert limit is None or self.world.state.runs <= limit


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(schedule=_SCHEDULES, gaps=st.lists(st.integers(1, 2 * HOUR), max_size=8))
@settings(max_examples=25, deadline=None)
def test_f9_who_allows_all_and_makes_up_for_all_gets_all(
    schedule: Schedule, gaps: list[int]
) -> None:
    """F9: however often, however late it is looked at, each moment is started, in order."""
    schedule = replace(
        schedule, overlap=Overlap.ALLOW, missed=MissedRuns.ALL, catch_up=None, limit=None
    )
    world = World(schedule)
    for gap in gaps:
        world.look(world.now + gap)
        world.end()
    for _ in range(60):
        world.look(world.now + HOUR if world.due is None else max(world.now, world.due))
        world.end()
    assert world.started == list(world.calendar.between(0, world.started[-1]))
