"""The moments that one cron line names in a time zone (F9).

The library reads the line and walks over wall times without any zone; what a wall time
means when the clocks change is decided here. A line whose minute or hour begins with
``*`` recurs: it names every moment at which the clock on the wall shows what it says.
Any other line names times of day: each of them is one moment a day, also when the clock
shows it twice (then the first time) or never (then when it jumps over it).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from loom_mq.errors import InvalidScheduleError

EXAMPLE: Final = "'30 3 * * mon-fri'"
_FIELDS: Final = 5
_MAX_LENGTH: Final = 500
_DAY: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1)


class CronLine:
    """One line in one zone. Moments are whole seconds since 1970.

    Args:
        line: minute, hour, day of month, month, day of week.
        zone: where the clock hangs.

    Raises:
        InvalidScheduleError: the line cannot be read, or names no moment at all.
    """

    def __init__(self, line: str, zone: ZoneInfo) -> None:
        fields = line.split() if len(line) <= _MAX_LENGTH else []
        if len(fields) != _FIELDS:
            raise _unreadable(line, f"it has {len(fields)} fields" if fields else "it has none")
        self._line = " ".join(fields)
        self._zone = zone
        self._recurs = fields[0].startswith("*") or fields[1].startswith("*")
        try:
            first = next(CronSim(self._line, datetime(2000, 1, 1)), None)
        except CronSimError as error:
            raise _unreadable(line, str(error).lower()) from None
        if first is None:
            raise _unreadable(line, "no day of any year fits it")

    def after(self, moment: int) -> Iterator[int]:
        """The moments that are later, rising; none that is more than fifty years after the one
        before.
        """
        try:
            yield from self._recurring(moment) if self._recurs else self._daily(moment)
        except (OverflowError, ValueError):  # beyond the last year of the calendar
            return

    def _daily(self, moment: int) -> Iterator[int]:
        for wall in self._walls(moment + self._offset(moment)):
            found = self._moment_of(wall)
            if found > moment:
                yield found
                moment = found

    def _recurring(self, moment: int) -> Iterator[int]:
        # from one change of the clocks to the next, wall time is time with something added
        offset = self._offset(moment)
        walls = self._walls(moment + offset)
        wall = next(walls, None)
        while wall is not None:
            found = _seconds(wall) - offset
            horizon = min(found, moment + _DAY)
            after = self._offset(horizon)
            change = horizon if after == offset else self._change(moment, horizon)
            if found < change or (horizon == found and after == offset):
                yield found
                moment = found
                wall = next(walls, None)
            elif after == offset:
                moment = horizon
            else:
                # the wall clock goes on elsewhere: perhaps where it has been already
                moment, offset = change - 1, after
                walls = self._walls(moment + offset)
                wall = next(walls, None)

    def _walls(self, after: int) -> Iterator[datetime]:
        return CronSim(self._line, _EPOCH + timedelta(seconds=after))

    def _offset(self, moment: int) -> int:
        at = (_EPOCH + timedelta(seconds=moment)).replace(tzinfo=UTC).astimezone(self._zone)
        return _whole(at)

    def _moment_of(self, wall: datetime) -> int:
        before = _whole(wall.replace(tzinfo=self._zone, fold=0))
        after = _whole(wall.replace(tzinfo=self._zone, fold=1))
        if before < after:  # no clock shows it
            return self._change(_seconds(wall) - after, _seconds(wall) - before)
        return _seconds(wall) - before

    def _change(self, low: int, high: int) -> int:
        """The first second with another offset than `low` has; `high` has another one."""
        offset = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high


def _seconds(wall: datetime) -> int:
    return (wall - _EPOCH) // timedelta(seconds=1)


def _whole(local: datetime) -> int:
    offset = local.utcoffset()
    assert offset is not None  # the zone is known
    return offset // timedelta(seconds=1)


def _unreadable(line: str, reason: str) -> InvalidScheduleError:
    shown = line if len(line) <= 60 else line[:59] + "…"
    return InvalidScheduleError(
        f"cron line {shown!r}: {reason}; a line is minute, hour, day of month, month and day of "
        f"week, for example {EXAMPLE} (for seconds use an interval)"
    )
