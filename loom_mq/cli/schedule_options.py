"""What one types about a schedule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Final, TypeVar

import msgspec
import typer
from msgspec import UNSET, UnsetType

from loom_mq.cli.filters import age, moment_before
from loom_mq.cli.inputs import parse_json, parse_labels
from loom_mq.client.client import ANY
from loom_mq.clock import JournalClock
from loom_mq.errors import InputError
from loom_mq.model.schedules import MissedRuns, Overlap, ScheduleFields
from loom_mq.runtime.environment import parse_seconds
from loom_mq.schedules.calendar import moment_of

NONE: Final = "none"
PAYLOAD_LIMIT: Final = 1024 * 1024
T = TypeVar("T")

ScheduleId = Annotated[str, typer.Argument(metavar="ID", help="The schedule.")]
Cron = Annotated[
    list[str] | None,
    typer.Option("--cron", metavar="LINE", help="Five fields, such as '0 3 * * *'; repeatable."),
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="5m", help="An interval: 90s, 5m, 2h, 1d.")
]
Offset = Annotated[str | None, typer.Option("--offset", metavar="1m", help="Shifts the interval.")]
Zone = Annotated[
    str | None,
    typer.Option("--zone", help="IANA time zone of the cron lines, such as Europe/Berlin; UTC."),
]
StartsAt = Annotated[
    str | None, typer.Option("--starts-at", metavar="TIME", help="The first moment that counts.")
]
EndsAt = Annotated[
    str | None, typer.Option("--ends-at", metavar="TIME", help="The last moment that counts.")
]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="30s", help="Each start is up to so much later.")
]
OnOverlap = Annotated[
    Overlap | None, typer.Option("--overlap", help="When a run is due while another runs; skip.")
]
OnMissed = Annotated[
    MissedRuns | None,
    typer.Option("--missed", help="What becomes of runs that nobody was there to start; one."),
]
CatchUp = Annotated[
    str | None, typer.Option("--catch-up", metavar="1d", help="How late one may be made up for.")
]
Runs = Annotated[
    str | None, typer.Option("--runs", metavar="N", help="So many runs by the calendar in all.")
]
OfFlowVersion = Annotated[
    str | None, typer.Option("--version", help="A version of the flow; the newest by default.")
]
OnQueue = Annotated[str | None, typer.Option("--queue", help="Not the flow's own queue.")]
WithLabel = Annotated[
    list[str] | None, typer.Option("--label", help="NAME=VALUE on each execution; repeatable.")
]
AtOnce = Annotated[
    bool | None,
    typer.Option(
        "--at-once/--in-turn", help="Beside what runs, or when it has ended; as --overlap said."
    ),
]


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one command line, as typed; None for what was not said. The word
    ``none`` takes back what was said before.
    """

    flow: str | None = None
    value: str | None = None
    cron: list[str] | None = None
    every: str | None = None
    offset: str | None = None
    zone: str | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    jitter: str | None = None
    overlap: Overlap | None = None
    missed: MissedRuns | None = None
    catch_up: str | None = None
    runs: str | None = None
    version: str | None = None
    queue: str | None = None
    label: list[str] | None = None

    def fields(self) -> ScheduleFields:
        """The same as a request says it.

        Raises:
            InputError: one of them cannot be read.
        """
        payload: bytes | UnsetType = UNSET
        if self.value is not None:
            value = parse_json(self.value, "the input")
            payload = ANY.encode(value, what="the input", limit=PAYLOAD_LIMIT)
        return ScheduleFields(
            flow=_or_unset(self.flow),
            payload=payload,
            cron=UNSET if self.cron is None else tuple(line for line in self.cron if line != NONE),
            every=_optional(self.every, "--every", duration),
            offset=UNSET if self.offset is None else duration(self.offset, "--offset"),
            zone=_or_unset(self.zone),
            starts_at=_optional(self.starts_at, "--starts-at", _moment),
            ends_at=_optional(self.ends_at, "--ends-at", _moment),
            jitter=UNSET if self.jitter is None else duration(self.jitter, "--jitter"),
            overlap=_or_unset(self.overlap),
            missed=_or_unset(self.missed),
            catch_up=_optional(self.catch_up, "--catch-up", duration),
            limit=_optional(self.runs, "--runs", _number),
            version=_or_unset(self.version),
            queue=_or_unset(self.queue),
            labels=UNSET if self.label is None else parse_labels(self.label),
        )


def duration(text: str, option: str) -> float:
    """Seconds: ``500ms``, ``90s``, ``5m``, ``2h``, ``1d`` or ``2w``.

    Raises:
        InputError: it is none.
    """
    try:
        return parse_seconds(text)
    except ValueError:
        pass
    try:
        return age(text, option).total_seconds()
    except InputError:
        raise InputError(f"{option} {text!r} is no duration such as 90s, 5m, 2h or 1d") from None


def moment_typed(text: str, option: str) -> datetime:
    """A time, in UTC where it says no zone, or so long ago.

    Raises:
        InputError: it is neither.
    """
    try:
        return moment_of(moment_before(text, JournalClock().now(), option))
    except OverflowError:
        raise InputError(f"{option} {text!r} is before all calendars") from None


def _moment(text: str, option: str) -> datetime:
    return moment_typed(text, option)


def _number(text: str, option: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{option} {text!r} is no number")
    return int(text)


def _optional(text: str | None, option: str, read: Callable[[str, str], T]) -> T | UnsetType | None:
    if text is None:
        return UNSET
    return None if text == NONE else read(text, option)


def _or_unset(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value
