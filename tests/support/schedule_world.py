"""One schedule, a clock, and a journal that knows what becomes of its runs (F9)."""

from __future__ import annotations

from typing import Final

from loom_mq.clock import MICROS
from loom_mq.model.schedules import Schedule, ScheduleKey
from loom_mq.schedules import requests
from loom_mq.schedules.calendar import Calendar
from loom_mq.schedules.policy import Plan, Standing, look

KEY: Final = ScheduleKey("t", "s")
MINUTE: Final = 60 * MICROS
HOUR: Final = 60 * MINUTE
HOURLY: Final = Schedule(flow="f", every=3600.0)


class World:
    """One schedule, a clock and a journal that knows what becomes of its runs."""

    def __init__(self, schedule: Schedule = HOURLY, now: int = 0) -> None:
        self.schedule = schedule
        self.now = now
        self.paused = False
        self.state = requests.fresh(now)
        self.due: int | None = None
        self.runs: dict[int, Standing] = {}
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.knows = True
        self.plan = Plan(state=self.state, due=None)

    @property
    def calendar(self) -> Calendar:
        return Calendar(self.schedule)

    def look(self, now: int | None = None) -> list[int]:
        """Look once; gives what was started or sent again."""
        self.now = self.now if now is None else now
        self.plan = look(
            KEY,
            self.schedule,
            self.state,
            paused=self.paused,
            now=self.now,
            standing=lambda nominal: self.runs.get(nominal, Standing.UNKNOWN),
        )
        self.state, self.due = self.plan.state, self.plan.due
        for nominal in self.plan.starts:
            if nominal not in self.started:
                self.started.append(nominal)
            if self.knows:
                self.runs.setdefault(nominal, Standing.OPEN)
        self.cancelled += self.plan.cancels
        return list(self.plan.starts)

    def go(self, until: int, *, ends: bool = True) -> list[int]:
        """Look whenever it is due; gives what was started."""
        before = len(self.started)
        self.look()
        while self.due is not None and self.due <= until:
            self.look(max(self.now, self.due))
            if ends:
                self.end()
        self.now = max(self.now, until)
        return self.started[before:]

    def end(self, *nominal: int) -> None:
        for each in nominal or tuple(self.runs):
            self.runs[each] = Standing.ENDED
