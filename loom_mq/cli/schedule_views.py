"""Schedules, as items for programs and as cells and lines for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from loom_mq.cli.screen import Cell, Item
from loom_mq.cli.text import moment
from loom_mq.cli.views import NOTHING
from loom_mq.clock import MICROS
from loom_mq.codec.values import to_display
from loom_mq.errors import InvalidScheduleError, LoomError
from loom_mq.kernel.wording import span
from loom_mq.model.schedules import MissedRuns, Overlap, Schedule, ScheduleInfo
from loom_mq.schedules.calendar import micros_of, zone_of
from loom_mq.schedules.naming import run_id

COLUMNS: Final = ("ID", "FLOW", "CRON", "ZONE", "LAST", "NEXT", "PAUSED", "MISSED")
_OVERLAP: Final = {
    Overlap.SKIP: "a run that is due while another runs is left out",
    Overlap.BUFFER_ONE: "of the runs that are due while another runs, one waits",
    Overlap.ALLOW: "runs may overlap",
    Overlap.CANCEL_OTHER: "a run that is due cancels the one that runs",
}
_MISSED: Final = {
    MissedRuns.SKIP: "missed runs are not made up for",
    MissedRuns.ONE: "of missed runs the latest is made up for",
    MissedRuns.ALL: "missed runs are made up for, all of them",
}


def schedule_item(info: ScheduleInfo) -> Item:
    """One schedule for programs."""
    schedule = info.schedule
    running = [run_id(info.id, micros_of(each)) for each in info.running]
    item: Item = {
        "id": info.id,
        "tenant": info.tenant,
        "flow": info.flow,
        "paused": info.paused,
        "note": info.note or None,
        "last": _utc(info.last),
        "next": _utc(next(iter(info.coming), None)),
        "coming": [_utc(each) for each in info.coming],
        "running": running,
        "runs": info.runs,
        "missed": info.missed,
        "skipped": info.skipped,
        "waiting": info.waiting,
        "trouble": info.trouble or None,
        "revision": info.revision,
        "created_at": _utc(info.created_at),
        "updated_at": _utc(info.updated_at),
    }
    return {**item, "definition": None if schedule is None else _definition(schedule)}


def _definition(schedule: Schedule) -> Item:
    return {
        "version": schedule.version or None,
        "queue": schedule.queue or None,
        "input": _input(schedule),
        "labels": schedule.labels,
        "cron": list(schedule.cron),
        "every_seconds": schedule.every,
        "offset_seconds": schedule.offset,
        "zone": schedule.zone,
        "starts_at": _utc(schedule.starts_at),
        "ends_at": _utc(schedule.ends_at),
        "jitter_seconds": schedule.jitter,
        "overlap": schedule.overlap.value,
        "missed_runs": schedule.missed.value,
        "catch_up_seconds": schedule.catch_up,
        "limit": schedule.limit,
    }


def schedule_cells(info: ScheduleInfo) -> tuple[Cell, ...]:
    """One schedule for people, in the order of `COLUMNS`; times as its zone's clocks show
    them.
    """
    schedule = info.schedule
    zone = _zone(schedule)
    return (
        info.id,
        info.flow,
        NOTHING if schedule is None else rhythm(schedule),
        NOTHING if schedule is None else schedule.zone,
        wall(info.last, zone),
        wall(next(iter(info.coming), None), zone),
        "yes" if info.paused else "no",
        str(info.missed),
    )


def schedule_lines(info: ScheduleInfo, now: int) -> list[Cell]:
    """All that there is to say about one schedule, for people."""
    schedule = info.schedule
    lines: list[Cell] = [f"{info.id}  {info.flow}"]
    if info.trouble:
        lines.append(f"It starts nothing: {info.trouble}")
    if schedule is None:
        return lines
    zone = _zone(schedule)
    lines[0] = " ".join(
        [
            f"{info.id}  {info.flow}",
            f"version {schedule.version}" if schedule.version else "newest version",
            *(f"{name}={value}" for name, value in schedule.labels.items()),
        ]
    )
    lines.append(f"{rhythm(schedule)} in {schedule.zone}{_bounds(schedule)}")
    lines.append(f"{_OVERLAP[schedule.overlap]}; {_MISSED[schedule.missed]}{_within(schedule)}")
    lines.append(
        f"{info.runs} runs, {info.missed} missed, {info.skipped} left out, {info.waiting} waiting"
    )
    if info.last is not None:
        lines.append(f"last: {wall(info.last, zone)}  {run_id(info.id, micros_of(info.last))}")
    lines += [f"running: {run_id(info.id, micros_of(each))}" for each in info.running]
    if info.paused:
        lines.append("paused" + (f": {info.note}" if info.note else ""))
    elif not info.coming:
        lines.append("no moment is to come")
    return [*lines, *coming_lines(info.coming, zone, now)]


def coming_lines(moments: Sequence[datetime], zone: ZoneInfo, now: int) -> list[Cell]:
    """Moments that are to come, each by both clocks."""
    lines: list[Cell] = []
    for each in moments:
        left = (micros_of(each) - now) / MICROS
        away = f"in {span(left)}" if left >= 0 else f"{span(-left)} ago"
        lines.append(f"next: {wall(each, zone)}  {_utc(each, short=True)}  {away}")
    return lines


def rhythm(schedule: Schedule) -> str:
    """When a schedule starts, as it was said."""
    parts = list(schedule.cron)
    if schedule.every is not None:
        every = f"every {span(schedule.every)}"
        parts.append(every + (f" from {span(schedule.offset)}" if schedule.offset else ""))
    return " | ".join(parts)


def wall(at: datetime | None, zone: ZoneInfo) -> str:
    """A moment as the clocks of a zone show it."""
    if at is None:
        return NOTHING
    local = at.astimezone(zone)
    seconds = f":{local:%S}" if local.second else ""
    return f"{local:%Y-%m-%d %H:%M}{seconds} {local:%z}"


def _zone(schedule: Schedule | None) -> ZoneInfo:
    try:
        return zone_of("UTC" if schedule is None else schedule.zone)
    except InvalidScheduleError:  # which the schedule's trouble tells already
        return zone_of("UTC")


def _bounds(schedule: Schedule) -> str:
    parts = [
        f"from {_utc(schedule.starts_at, short=True)}" if schedule.starts_at else "",
        f"until {_utc(schedule.ends_at, short=True)}" if schedule.ends_at else "",
        f"{schedule.limit} runs in all" if schedule.limit is not None else "",
        f"each up to {span(schedule.jitter)} later" if schedule.jitter else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def _within(schedule: Schedule) -> str:
    if schedule.catch_up is None or schedule.missed is MissedRuns.SKIP:
        return ""
    return f" within {span(schedule.catch_up)}"


def _input(schedule: Schedule) -> object:
    try:
        return to_display(schedule.payload)
    except LoomError:  # of a newer release
        return None


def _utc(at: datetime | None, *, short: bool = False) -> str | None:
    if at is None:
        return None
    if short:
        return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return moment(micros_of(at))
