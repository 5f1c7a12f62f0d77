"""What a timer service does about a schedule that it looks at: the policy, pure (F9).

Every moment that the calendar names while the schedule is not paused is dealt with once:
it gets a run, now or later, or it counts as missed or as skipped. What is decided becomes
durable before it is done, so of two services that look at the same time one does it, and
a start that is lost on its way is sent again until the journal knows it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from loom_mq.clock import MICROS
from loom_mq.model.schedules import (
    Asked,
    MissedRuns,
    Overlap,
    Run,
    Schedule,
    ScheduleKey,
    ScheduleState,
)
from loom_mq.schedules.calendar import Calendar, iso
from loom_mq.schedules.naming import lateness

PUNCTUAL: Final = 60 * MICROS
"""A start that is later than this, beyond its jitter, was missed."""
MAX_LOOK: Final = 500
"""Moments dealt with in one look; what is left is dealt with in the next."""
MAX_RUNNING: Final = 100
"""Runs under way that a schedule keeps in mind; no further one starts meanwhile."""
SEND_AGAIN: Final = 5 * MICROS
"""Until the first look whether the journal knows a start; doubles with each sending."""
SEND_AGAIN_MOST: Final = 300 * MICROS
UNHEARD: Final = 5
"""Sendings of a start that the journal does not know, after which something is wrong."""
POLL_LEAST: Final = MICROS // 2
POLL_MOST: Final = 60 * MICROS
POLL_SHARE: Final = 10
"""What waits for a run looks at it every tenth of the time since the last start."""


class Standing(enum.Enum):
    """What the journal knows of a run."""

    UNKNOWN = enum.auto()
    OPEN = enum.auto()
    ENDED = enum.auto()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, in this order: write the state, then send the rest.

    Attributes:
        state: what becomes of the schedule's state.
        due: when to look again; None when there is nothing to wait for.
        starts: moments whose runs are to be started, or sent once more.
        cancels: moments whose runs are to be cancelled.
        lost: moments newly found to have been missed.
        skipped: moments newly left out.
    """

    state: ScheduleState
    due: int | None
    starts: tuple[int, ...] = ()
    cancels: tuple[int, ...] = ()
    lost: int = 0
    skipped: int = 0


def wanted(state: ScheduleState) -> tuple[int, ...]:
    """The moments whose runs' standing a look must know."""
    return tuple(run.nominal for run in state.running)


def look(
    key: ScheduleKey,
    schedule: Schedule,
    state: ScheduleState,
    *,
    paused: bool,
    now: int,
    standing: Callable[[int], Standing],
    calendar: Calendar | None = None,
) -> Plan:
    """Decide what is to be done about a schedule now.

    Args:
        key: whose.
        schedule: its definition.
        state: how far it has come.
        paused: nothing is started but what was asked for by `trigger`.
        now: journal time.
        standing: of each moment that `wanted` names.
        calendar: of the definition, where it is there already.

    Raises:
        InvalidScheduleError: the definition cannot be read here (any more).
    """
    return _Look(key, schedule, state, paused, now, calendar or Calendar(schedule)).plan(standing)


class _Look:
    def __init__(
        self,
        key: ScheduleKey,
        schedule: Schedule,
        state: ScheduleState,
        paused: bool,
        now: int,
        calendar: Calendar,
    ) -> None:
        self._key = key
        self._schedule = schedule
        self._before = state
        self._paused = paused
        self._now = now
        self._calendar = calendar
        self._running = list(state.running)
        self._asked = list(state.asked)
        self._waiting = state.waiting
        self._reckoned = state.reckoned
        self._runs = state.runs
        self._missed = state.missed
        self._skipped = state.skipped
        self._last = (state.last, state.last_at)
        self._starts: list[int] = []
        self._cancels: list[int] = []
        self._more = False
        """There are moments beyond those of this look."""

    def plan(self, standing: Callable[[int], Standing]) -> Plan:
        self._meet(standing)
        if self._waiting is not None and not self._running:
            self._start(self._waiting)
            self._waiting = None
        if not self._paused:
            self._reckon()
        self._asked = [left for ask in self._asked if (left := self._serve(ask)) is not None]
        if self._waiting is not None and self._schedule.overlap is Overlap.CANCEL_OTHER:
            # again at every look: a request that is lost must not keep it waiting
            self._cancels = [run.nominal for run in self._running]
        before = self._before
        last, last_at = self._last
        state = replace(
            before,
            reckoned=self._reckoned,
            runs=self._runs,
            missed=self._missed,
            skipped=self._skipped,
            last=last,
            last_at=last_at,
            waiting=self._waiting,
            running=tuple(self._running),
            asked=tuple(self._asked),
            trouble=self._trouble(),
        )
        return Plan(
            state=state,
            due=self._due(),
            starts=tuple(self._starts),
            cancels=tuple(self._cancels),
            lost=self._missed - before.missed,
            skipped=self._skipped - before.skipped,
        )

    # ---- runs that were started before -------------------------------------------------

    def _meet(self, standing: Callable[[int], Standing]) -> None:
        self._running = [
            left for run in self._running if (left := self._meet_run(run, standing)) is not None
        ]

    def _meet_run(self, run: Run, standing: Callable[[int], Standing]) -> Run | None:
        known = standing(run.nominal)
        if known is Standing.UNKNOWN and not run.seen:
            if run.again_at > self._now:
                return run
            self._starts.append(run.nominal)
            pause = min(SEND_AGAIN << min(run.sent, 10), SEND_AGAIN_MOST)
            return Run(run.nominal, run.sent + 1, self._now + pause)
        if known is not Standing.OPEN or self._schedule.overlap is Overlap.ALLOW:
            return None
        return replace(run, seen=True)

    def _trouble(self) -> str:
        unheard = [run for run in self._running if not run.seen and run.sent >= UNHEARD]
        if not unheard:
            return ""
        return (
            f"the start of the run for {iso(unheard[0].nominal)} was sent {unheard[0].sent} times, "
            "and the journal does not know it: no dispatcher is running, or it refuses the "
            "start (`loom dlq`)"
        )

    # ---- the calendar -------------------------------------------------------------------

    @property
    def _left(self) -> int | None:
        """Runs that the calendar may still start."""
        limit = self._schedule.limit
        return None if limit is None else max(0, limit - self._runs)

    @property
    def _full(self) -> bool:
        return len(self._running) >= MAX_RUNNING

    @property
    def _choked(self) -> bool:
        """No moment may be dealt with, since it would have to start."""
        return self._full and self._schedule.overlap is Overlap.ALLOW

    def _due_of(self, nominal: int) -> int:
        return nominal + lateness(self._key, self._schedule, nominal)

    def _reckon(self) -> None:
        """Deal with the moments that have come since the last look."""
        if self._left == 0 or self._choked:
            return
        moments: list[int] = []
        for moment in islice(self._calendar.between(self._reckoned, self._now), MAX_LOOK + 1):
            if self._due_of(moment) > self._now:
                break
            moments.append(moment)
        self._more = len(moments) > MAX_LOOK
        if self._more:
            moments.pop()
        grace = PUNCTUAL + round(self._schedule.jitter * MICROS)
        late = [moment for moment in moments if self._now - moment > grace]
        punctual = moments[len(late) :]
        if self._schedule.missed is MissedRuns.ALL:
            punctual = self._make_up_for_all(late, punctual)
        else:
            self._make_up_for_one(late, alone=not punctual)
        for moment in punctual:
            if self._left == 0 or self._choked:
                return
            self._reckoned = moment
            self._fire(moment)

    def _make_up_for_one(self, late: list[int], *, alone: bool) -> None:
        if not late:
            return
        self._reckoned = late[-1]
        self._missed += len(late) - 1
        if alone and self._more:
            # whether it is the latest of all shows in the next look
            self._reckoned = late[-2]
        elif alone and self._schedule.missed is MissedRuns.ONE and self._in_window(late[-1]):
            self._fire(late[-1])
        else:
            self._missed += 1

    def _make_up_for_all(self, late: list[int], punctual: list[int]) -> list[int]:
        """Queue what was missed; what is due now queues up behind it, should there be any."""
        queued = [moment for moment in late if self._in_window(moment)]
        self._missed += len(late) - len(queued)
        if queued or any(ask.catch_up for ask in self._asked):
            queued += punctual
            punctual = []
        if late:
            self._reckoned = late[-1]
        queued = queued[: self._left]
        if queued:
            self._reckoned = queued[-1]
            self._runs += len(queued)
            self._queue(queued)
        return punctual

    def _queue(self, moments: list[int]) -> None:
        at_once = self._schedule.overlap is Overlap.ALLOW
        for index, ask in enumerate(self._asked):
            if ask.catch_up and self._calendar.after(ask.until) == moments[0]:
                self._asked[index] = replace(ask, until=moments[-1])
                return
        self._asked.append(
            Asked(after=moments[0] - 1, until=moments[-1], at_once=at_once, catch_up=True)
        )

    def _in_window(self, moment: int) -> bool:
        window = self._schedule.catch_up
        return window is None or self._now - moment <= window * MICROS

    def _fire(self, moment: int) -> None:
        """A moment has come: what overlap has to say about it."""
        overlap = self._schedule.overlap
        if overlap is Overlap.ALLOW or not self._running:
            self._runs += 1
            self._start(moment)
        elif overlap is Overlap.SKIP:
            self._skipped += 1
        elif self._waiting is None:
            self._runs += 1
            self._waiting = moment
        else:
            self._skipped += 1
            if overlap is Overlap.CANCEL_OTHER:
                self._waiting = moment

    # ---- what is asked for -----------------------------------------------------------------

    def _serve(self, ask: Asked) -> Asked | None:
        """Start what may start of it; gives what is left."""
        while True:
            moment = ask.until if ask.once else self._calendar.after(ask.after)
            if moment is None or not ask.after < moment <= ask.until:
                return None
            held = not ask.at_once and (self._running or self._waiting is not None)
            if held or self._full or (self._paused and not ask.once):
                return ask
            self._start(moment)
            ask = replace(ask, after=moment)

    def _start(self, moment: int) -> None:
        if any(run.nominal == moment for run in self._running):
            return
        self._starts.append(moment)
        self._running.append(Run(moment, 1, self._now + SEND_AGAIN))
        self._last = (moment, self._now)

    # ---- the next look -----------------------------------------------------------------------

    def _due(self) -> int | None:
        times = [run.again_at for run in self._running if not run.seen]
        goes_on = not self._paused and self._left != 0
        stays = any(ask.once or not self._paused for ask in self._asked)
        if self._waiting is not None or stays or (goes_on and self._choked):
            since = (self._now - self._last[1]) // POLL_SHARE
            times.append(self._now + min(max(since, POLL_LEAST), POLL_MOST))
        if goes_on and not self._choked:
            coming = self._calendar.after(self._reckoned)
            if coming is not None:
                times.append(max(self._now, self._due_of(coming)))
        return min(times, default=None)
