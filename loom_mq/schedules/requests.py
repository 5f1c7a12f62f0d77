"""What requests do to a schedule's state (F9). Pure."""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec.structs import replace

from loom_mq.errors import InvalidScheduleError
from loom_mq.model.schedules import Asked, Heard, Schedule, ScheduleState
from loom_mq.schedules.calendar import Calendar, check_seconds, iso

REMEMBERED: Final = 16
"""Requests whose names are kept: one that is delivered again changes nothing again."""
MAX_ASKED: Final = 50
MAX_BACKFILL: Final = 10_000


def check(schedule: Schedule) -> Calendar:
    """The calendar of a definition that can be kept.

    Raises:
        InvalidScheduleError: it cannot; the sentence says what is wrong and shows how it may
            be.
    """
    calendar = Calendar(schedule)
    check_seconds("the jitter", schedule.jitter, "jitter=30")
    if schedule.catch_up is not None:
        check_seconds("the catch-up window", schedule.catch_up, "catch_up=3600")
    if schedule.limit is not None and schedule.limit < 1:
        raise InvalidScheduleError(
            f"a limit of {schedule.limit} runs starts nothing; say 1 or more, for example "
            "limit=10, or pause the schedule"
        )
    return calendar


def fresh(now: int) -> ScheduleState:
    """A schedule that begins now: nothing before it was missed."""
    return ScheduleState(reckoned=now)


def heard(state: ScheduleState, request: str) -> Heard | None:
    """What this very request was answered with, if it has been carried out."""
    return next((each for each in state.requests if request and each.name == request), None)


def remembered(state: ScheduleState, request: str, said: int = 0) -> ScheduleState:
    """The state with a request that has been carried out."""
    if not request:
        return state
    return replace(state, requests=(*state.requests, Heard(request, said))[-REMEMBERED:])


def paused(calendar: Calendar, state: ScheduleState, note: str) -> ScheduleState:
    """From now on nothing is started by the calendar, nor is anything made up for. What was
    asked for is kept.
    """
    waiting = state.waiting is not None
    given_up = sum(
        sum(1 for _ in islice(calendar.between(ask.after, ask.until), MAX_BACKFILL))
        for ask in state.asked
        if ask.catch_up
    )
    return replace(
        state,
        runs=state.runs - waiting - given_up,
        skipped=state.skipped + waiting,
        missed=state.missed + given_up,
        waiting=None,
        asked=tuple(ask for ask in state.asked if not ask.catch_up),
        note=note,
    )


def resumed(state: ScheduleState, now: int) -> ScheduleState:
    """On from now: what passed meanwhile is neither made up for nor counted."""
    return replace(state, reckoned=max(state.reckoned, now), note="", trouble="")


def changed(calendar: Calendar, state: ScheduleState, now: int) -> ScheduleState:
    """Another definition holds from now on. Runs that were made up for by the old calendar
    are given up.

    Args:
        calendar: the old one.
        state: as it is.
        now: journal time.
    """
    without = replace(paused(calendar, state, state.note), waiting=state.waiting)
    if state.waiting is not None:
        without = replace(without, runs=without.runs + 1, skipped=without.skipped - 1)
    return replace(without, reckoned=max(state.reckoned, now), trouble="")


def triggered(state: ScheduleState, now: int, *, at_once: bool) -> tuple[ScheduleState, int]:
    """One run more, now; gives the moment that it is for.

    Raises:
        InvalidScheduleError: too much is asked for already.
    """
    taken = {ask.until for ask in state.asked} | {run.nominal for run in state.running}
    moment = max(now, (state.last or 0) + 1)
    while moment in taken:
        moment += 1
    ask = Asked(after=moment - 1, until=moment, once=True, at_once=at_once)
    return _with(state, ask), moment


def backfilled(
    calendar: Calendar, state: ScheduleState, first: int, last: int, *, at_once: bool
) -> tuple[ScheduleState, int]:
    """The runs of a span of time that has passed; gives how many.

    Args:
        calendar: what they are.
        state: as it is.
        first: inclusive.
        last: inclusive.
        at_once: beside each other, else one after the other.

    Raises:
        InvalidScheduleError: the span has no moment, or too many.
    """
    count = sum(1 for _ in islice(calendar.between(first - 1, last), MAX_BACKFILL + 1))
    if count == 0:
        raise InvalidScheduleError(
            f"the schedule names no moment from {iso(first)} to {iso(last)} that has passed"
        )
    if count > MAX_BACKFILL:
        raise InvalidScheduleError(
            f"from {iso(first)} to {iso(last)} the schedule names more than {MAX_BACKFILL} "
            "moments; backfill in smaller parts"
        )
    return _with(state, Asked(after=first - 1, until=last, at_once=at_once)), count


def _with(state: ScheduleState, ask: Asked) -> ScheduleState:
    if len(state.asked) >= MAX_ASKED:
        raise InvalidScheduleError(
            f"{MAX_ASKED} triggers and backfills of this schedule have not been done yet; wait "
            "for them"
        )
    return replace(state, asked=(*state.asked, ask))
