"""What a schedule names: cron lines, intervals, zones and the change of the clocks (F9)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom_mq.clock import MICROS
from loom_mq.errors import InvalidScheduleError
from loom_mq.model.schedules import Schedule, ScheduleKey
from loom_mq.schedules.calendar import Calendar, iso, micros_of, moment_of
from loom_mq.schedules.naming import lateness, run_id
from loom_mq.schedules.requests import check

BERLIN: Final = "Europe/Berlin"
NEW_YORK: Final = "America/New_York"
LORD_HOWE: Final = "Australia/Lord_Howe"


def names(zone: str, begin: str, count: int, *cron: str, **more: object) -> list[str]:
    """The next moments after a wall time, as the clock on the wall shows them, with the offset."""
    schedule = Schedule(flow="f", cron=cron, zone=zone, **more)  # type: ignore[arg-type]  # a test's own shorthand
    after = micros_of(datetime.fromisoformat(begin).replace(tzinfo=ZoneInfo(zone)))
    found = islice(Calendar(schedule).between(after, None), count)
    return [f"{moment_of(each).astimezone(ZoneInfo(zone)):%m-%d %H:%M%z}" for each in found]


# ---- the clocks change ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "begin", "cron", "wanted"),
    [
        # spring: 02:00 to 03:00 is not shown by any clock
        (BERLIN, "2026-03-28T12:00", "30 2 * * *", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        (BERLIN, "2026-03-29T00:00", "0 2 * * *", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        (NEW_YORK, "2026-03-07T12:00", "30 2 * * *", ["03-08 03:00-0400", "03-09 02:30-0400"]),
        # several times that fall together are one
        (
            BERLIN,
            "2026-03-29T00:00",
            "0 1-3 * * *",
            ["03-29 01:00+0100", "03-29 03:00+0200", "03-30 01:00+0200"],
        ),
        # what recurs leaves out the hour that is not there
        (
            BERLIN,
            "2026-03-29T00:30",
            "0 * * * *",
            ["03-29 01:00+0100", "03-29 03:00+0200", "03-29 04:00+0200"],
        ),
        (BERLIN, "2026-03-29T00:00", "*/30 2 * * *", ["03-30 02:00+0200", "03-30 02:30+0200"]),
        # autumn: 02:00 to 03:00 is shown twice
        (BERLIN, "2026-10-24T12:00", "30 2 * * *", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        (NEW_YORK, "2026-10-31T12:00", "30 1 * * *", ["11-01 01:30-0400", "11-02 01:30-0500"]),
        (
            BERLIN,
            "2026-10-25T01:30",
            "0 * * * *",
            ["10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"],
        ),
        (
            NEW_YORK,
            "2026-11-01T00:45",
            "*/30 1 * * *",
            ["11-01 01:00-0400", "11-01 01:30-0400", "11-01 01:00-0500", "11-01 01:30-0500"],
        ),
        # half an hour: 02:00 to 02:30 is not there in October, 01:30 to 02:00 twice in April
        (LORD_HOWE, "2026-10-03T12:00", "15 2 * * *", ["10-04 02:30+1100", "10-05 02:15+1100"]),
        (LORD_HOWE, "2026-10-04T00:00", "*/15 2 * * *", ["10-04 02:30+1100", "10-04 02:45+1100"]),
        (LORD_HOWE, "2026-04-04T12:00", "45 1 * * *", ["04-05 01:45+1100", "04-06 01:45+1030"]),
        (
            LORD_HOWE,
            "2026-04-05T01:20",
            "*/15 1-3 * * *",
            [
                "04-05 01:30+1100",
                "04-05 01:45+1100",
                "04-05 01:30+1030",
                "04-05 01:45+1030",
                "04-05 02:00+1030",
            ],
        ),
        (LORD_HOWE, "2026-04-05T00:20", "*/30 3 * * *", ["04-05 03:00+1030", "04-05 03:30+1030"]),
        # a clock that jumps at midnight
        (
            "America/Havana",
            "2026-03-07T12:00",
            "0 0 * * *",
            ["03-08 01:00-0400", "03-09 00:00-0400"],
        ),
        # a day that never was
        ("Pacific/Apia", "2011-12-29T12:00", "0 9 * * *", ["12-31 00:00+1400", "12-31 09:00+1400"]),
    ],
)
def test_f9_cron_lines_and_the_change_of_the_clocks(
    zone: str, begin: str, cron: str, wanted: list[str]
) -> None:
    """F9: a time of day is one moment a day; what recurs goes by what the clock shows."""
    assert names(zone, begin, len(wanted), cron) == wanted


def test_f9_an_interval_knows_no_clocks() -> None:
    """F9: an interval is counted in real time, across any change of the clocks."""
    schedule = Schedule(flow="f", every=3600, offset=900, zone=BERLIN)
    after = micros_of(datetime(2026, 3, 29, 0, 20, tzinfo=UTC))
    found = list(islice(Calendar(schedule).between(after, None), 3))
    assert [iso(each) for each in found] == [
        "2026-03-29T01:15:00Z",
        "2026-03-29T02:15:00Z",
        "2026-03-29T03:15:00Z",
    ]


_FIELD = {
    "minute": st.one_of(
        st.sampled_from(["*", "*/7", "*/15", "*/30", "0", "0,30", "15", "5-50/9", "59"])
    ),
    "hour": st.sampled_from(["*", "*/2", "0", "1", "2", "1-3", "3", "23", "2,4"]),
}
_CHANGES = {
    BERLIN: ("2026-03-29", "2026-10-25"),
    NEW_YORK: ("2026-03-08", "2026-11-01"),
    LORD_HOWE: ("2026-04-05", "2026-10-04"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "UTC": ("2026-03-29", "2026-03-30"),
}


@given(
    minute=_FIELD["minute"],
    hour=_FIELD["hour"],
    place=st.sampled_from([(zone, day) for zone, days in _CHANGES.items() for day in days]),
    begin=st.integers(0, 1800),
)
@settings(max_examples=40, deadline=None)
def test_f9_nothing_is_left_out_and_nothing_comes_twice(
    minute: str, hour: str, place: tuple[str, str], begin: int
) -> None:
    """F9: the calendar against every minute of three days, looked at one by one."""
    zone = ZoneInfo(place[0])
    midnight = datetime.fromisoformat(place[1]).replace(tzinfo=UTC)
    after = midnight - timedelta(days=1) + timedelta(minutes=begin)
    until = midnight + timedelta(days=2)
    calendar = Calendar(Schedule(flow="f", cron=(f"{minute} {hour} * * *",), zone=place[0]))
    found = list(calendar.between(micros_of(after), micros_of(until)))
    minutes, hours = _numbers(minute, 60), _numbers(hour, 24)
    wanted: list[int] = []
    shown: set[datetime] = set()
    instant = after - timedelta(days=1)
    before: datetime | None = None
    while instant < until:
        instant += timedelta(minutes=1)
        wall = instant.astimezone(zone).replace(tzinfo=None, fold=0)
        recurs = minute.startswith("*") or hour.startswith("*")
        fits = wall.hour in hours and wall.minute in minutes
        if not recurs:
            fits = fits and wall not in shown
            skipped = before is not None and wall > before + timedelta(minutes=1)
            gap = before + timedelta(minutes=1) if before is not None else wall
            while skipped and gap < wall:
                fits = fits or (gap.hour in hours and gap.minute in minutes)
                gap += timedelta(minutes=1)
        shown.add(wall)
        before = wall
        if fits and instant > after:
            wanted.append(micros_of(instant))
    assert found == wanted


def _numbers(field: str, end: int) -> set[int]:
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        numbers = (
            range(end) if span == "*" else range(int(low), int(high) + 1 if high else int(low) + 1)
        )
        values |= set(numbers[:: int(step or 1)])
    return values


@given(
    after=st.integers(0, 4_000_000_000),
    every=st.sampled_from([1.0, 1.5, 60.0, 3600.0, 86_400.0, 777.7]),
    offset=st.sampled_from([0.0, 0.25, 59.0, 100_000.0]),
)
def test_f9_an_interval_is_where_arithmetic_says(after: int, every: float, offset: float) -> None:
    step, shift = round(every * MICROS), round(offset * MICROS)
    moment = after * MICROS + 123
    found = Calendar(Schedule(flow="f", every=every, offset=offset)).after(moment)
    assert found is not None
    assert moment < found <= moment + step
    assert (found - shift) % step == 0


# ---- several, bounds -----------------------------------------------------------------------------


def test_f9_lines_and_interval_are_united() -> None:
    """F9: a moment that several of them name is one."""
    wanted = [
        "01-01 00:30+0000",
        "01-01 01:00+0000",
        "01-01 01:30+0000",
        "01-01 01:45+0000",
        "01-01 02:00+0000",
    ]
    found = names("UTC", "2026-01-01T00:00", 5, "0,30 * * * *", "45 1 * * *", every=3600.0)
    assert found == wanted


def test_f9_bounds_count_themselves() -> None:
    """F9: from the first moment to the last, both inclusive, and then no more."""
    schedule = Schedule(
        flow="f",
        cron=("0 * * * *",),
        starts_at=datetime(2026, 1, 1, 5, tzinfo=UTC),
        ends_at=datetime(2026, 1, 1, 7, tzinfo=UTC),
    )
    calendar = Calendar(schedule)
    found = list(calendar.between(0, None))
    assert [moment_of(each).hour for each in found] == [5, 6, 7]
    assert calendar.after(found[-1]) is None
    assert list(calendar.between(found[0], found[1])) == [found[1]]


def test_f9_rare_days_come_and_the_end_of_the_calendar_is_no_error() -> None:
    assert names("UTC", "2026-01-01T00:00", 2, "0 0 29 2 *") == [
        "02-29 00:00+0000",
        "02-29 00:00+0000",
    ]
    assert names(BERLIN, "2026-01-01T00:00", 1, "0 6 L * *") == ["01-31 06:00+0100"]
    assert names(BERLIN, "2026-01-01T00:00", 1, "0 6 * * fri#1") == ["01-02 06:00+0100"]
    assert names("UTC", "9999-12-31T23:00", 1, "0 0 * * *") == []


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (Schedule(flow="f"), "needs cron lines, an interval or both"),
        (Schedule(flow="f", cron=("61 * * * *",)), "bad minute.*'30 3 [*] [*] mon-fri'"),
        (Schedule(flow="f", cron=("* * *",)), "3 fields.*for example"),
        (Schedule(flow="f", cron=("",)), "has none"),
        (Schedule(flow="f", cron=("* " * 600,)), "cron line"),
        (Schedule(flow="f", cron=("*/5 * * * * *",)), "6 fields.*for seconds use an interval"),
        (Schedule(flow="f", cron=("0 0 30 2 *",)), "for example"),
        (Schedule(flow="f", cron=("0 0 31 4,6 *",)), "for example"),
        (Schedule(flow="f", cron=("0 3 * * *",), zone="Europe/Atlantis"), "'Europe/Berlin'"),
        (Schedule(flow="f", cron=("0 3 * * *",), zone="Europe"), "no time zone 'Europe'"),
        (Schedule(flow="f", cron=("0 3 * * *",), zone="../etc/passwd"), "no time zone"),
        (Schedule(flow="f", cron=("0 3 * * *",), zone=""), "no time zone ''"),
        (Schedule(flow="f", cron=("0 3 * * *",), zone="localtime"), "no time zone"),
        (Schedule(flow="f", cron=("0 3 * * *",), zone="a\x00b"), "no time zone"),
        (Schedule(flow="f", every=0.5), "interval must be 1 to"),
        (Schedule(flow="f", every=float("nan")), "every=3600"),
        (Schedule(flow="f", every=60, offset=-1), "offset must be 0"),
        (Schedule(flow="f", every=60, jitter=float("inf")), "jitter=30"),
        (Schedule(flow="f", every=60, catch_up=-1), "catch_up=3600"),
        (Schedule(flow="f", every=60, limit=0), "limit=10"),
        (Schedule(flow="f", cron=("0 3 * * *",) * 33), "32 cron lines"),
        (
            Schedule(
                flow="f",
                every=60,
                starts_at=datetime(2026, 1, 2, tzinfo=UTC),
                ends_at=datetime(2026, 1, 1, tzinfo=UTC),
            ),
            "before it starts",
        ),
        (Schedule(flow="f", every=60, starts_at=datetime(2026, 1, 2)), "no time zone"),
    ],
)
def test_f9_a_refusal_says_what_is_wrong_and_shows_how_it_may_be(
    schedule: Schedule, said: str
) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        check(schedule)
    assert re.search(said, caught.value.message), caught.value.message


# ---- names and jitter ----------------------------------------------------------------------------


def test_f9_a_run_is_named_after_its_moment() -> None:
    """F9: the same moment is the same execution, whoever starts it."""
    moment = micros_of(datetime(2026, 3, 29, 3, tzinfo=ZoneInfo(BERLIN)))
    assert run_id("nightly", moment) == "nightly@2026-03-29T01:00:00Z"
    assert run_id("nightly", moment + 5) == "nightly@2026-03-29T01:00:00.000005Z"


@given(nominal=st.integers(0, 4_000_000_000_000_000), jitter=st.floats(0, 1e6))
def test_f9_jitter_is_the_same_wherever_it_is_worked_out(nominal: int, jitter: float) -> None:
    schedule = Schedule(flow="f", every=60, jitter=jitter)
    key = ScheduleKey("t", "nightly")
    late = lateness(key, schedule, nominal)
    assert late == lateness(key, schedule, nominal)
    assert 0 <= late <= round(jitter * MICROS)


def test_f9_jitter_spreads() -> None:
    schedule = Schedule(flow="f", every=60, jitter=60)
    late = {
        lateness(ScheduleKey("t", f"s{n}"), schedule, 0) * 10 // (60 * MICROS) for n in range(99)
    }
    assert late == set(range(10))
