"""All moments that a schedule names, in their order (F9)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import count
from typing import Final
from zoneinfo import ZoneInfo

from loom_mq.clock import MICROS
from loom_mq.errors import InvalidScheduleError
from loom_mq.model.schedules import Schedule
from loom_mq.schedules.cron import CronLine

MAX_LINES: Final = 32
MIN_INTERVAL: Final = 1.0
MAX_SECONDS: Final = 100 * 366 * 86_400.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)
_OF_THE_HOST: Final = ("localtime", "posixrules", "Factory", "posix/", "right/")
"""What zone data also holds, and what is another zone on each host, or none."""

Source = Callable[[int], Iterator[int]]
"""The moments that are later than one, rising."""


class Calendar:
    """See the module's docstring. Moments are microseconds since 1970.

    Args:
        schedule: what it is the calendar of.

    Raises:
        InvalidScheduleError: it cannot be read; the sentence says what is wrong and shows how
            it may be.
    """

    def __init__(self, schedule: Schedule) -> None:
        if not schedule.cron and schedule.every is None:
            raise InvalidScheduleError(
                "a schedule needs cron lines, an interval or both, for example cron='0 3 * * *' "
                "or every=3600"
            )
        if len(schedule.cron) > MAX_LINES:
            raise InvalidScheduleError(
                f"a schedule takes {MAX_LINES} cron lines, not {len(schedule.cron)}; make two of it"
            )
        zone = zone_of(schedule.zone)
        self._sources: list[Source] = [_cron(CronLine(line, zone)) for line in schedule.cron]
        if schedule.every is not None:
            self._sources.append(_interval(schedule.every, schedule.offset))
        self._first = None if schedule.starts_at is None else micros_of(schedule.starts_at)
        self._last = None if schedule.ends_at is None else micros_of(schedule.ends_at)
        if self._first is not None and self._last is not None and self._first > self._last:
            raise InvalidScheduleError(
                f"the schedule ends at {iso(self._last)}, before it starts at {iso(self._first)}"
            )

    def after(self, moment: int) -> int | None:
        """The first moment that is later; None when there is no more."""
        return next(self.between(moment, None), None)

    def between(self, after: int, until: int | None) -> Iterator[int]:
        """The moments that are later than `after` and not later than `until`, rising.

        Args:
            after: exclusive.
            until: inclusive; None for no bound.
        """
        if self._first is not None:
            after = max(after, self._first - 1)
        bounds = [bound for bound in (until, self._last) if bound is not None]
        latest = after
        for moment in merge(*(source(after) for source in self._sources)):
            if any(moment > bound for bound in bounds):
                return
            if moment > latest:
                yield moment
                latest = moment


def zone_of(name: str) -> ZoneInfo:
    """A time zone by its IANA name.

    Raises:
        InvalidScheduleError: there is none, or it is another one on every host.
    """
    try:
        if not name.startswith(_OF_THE_HOST):
            return ZoneInfo(name)
    except (OSError, LookupError, ValueError):  # a folder, nothing, a path
        pass
    raise InvalidScheduleError(
        f"there is no time zone {name!r}; use an IANA name, for example 'Europe/Berlin' or 'UTC'"
    )


def micros_of(moment: datetime) -> int:
    """A moment that says its time zone, in microseconds since 1970.

    Raises:
        InvalidScheduleError: it says none.
    """
    if moment.utcoffset() is None:
        raise InvalidScheduleError(
            f"the moment {moment.isoformat()} says no time zone; write for example "
            "datetime(2030, 1, 1, tzinfo=UTC)"
        )
    return (moment - _EPOCH) // _MICRO


def moment_of(micros: int) -> datetime:
    """Microseconds since 1970 as a moment in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def iso(micros: int) -> str:
    """RFC 3339 in UTC, without a fraction where there is none."""
    return moment_of(micros).isoformat().replace("+00:00", "Z")


def check_seconds(
    what: str, seconds: float, example: str, *, least: float = 0.0, most: float = MAX_SECONDS
) -> int:
    """A duration in microseconds.

    Raises:
        InvalidScheduleError: it is out of its range.
    """
    if not (math.isfinite(seconds) and least <= seconds <= most):
        raise InvalidScheduleError(
            f"{what} must be {least:g} to {most:g} seconds, not {seconds:g}; for example {example}"
        )
    return round(seconds * MICROS)


def _cron(line: CronLine) -> Source:
    return lambda after: (found * MICROS for found in line.after(after // MICROS))


def _interval(every: float, offset: float) -> Source:
    step = check_seconds("the interval", every, "every=3600", least=MIN_INTERVAL)
    shift = check_seconds("the interval's offset", offset, "offset=900") % step
    return lambda after: count((after - shift) // step * step + step + shift, step)
