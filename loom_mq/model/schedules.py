"""Schedules: what is to be started when, and how far that has come (F9).

A schedule is one row of the journal. The stores keep its definition and its state as
bytes and look into neither.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from loom_mq.model.execution import DEFAULT_TENANT

MAX_SCHEDULE_ID_BYTES = 200
"""An execution's id is the schedule's with a moment behind it, and has 255 bytes."""

LABEL_SCHEDULE = "schedule"
"""The label of a scheduled execution that names its schedule."""
LABEL_SCHEDULED_FOR = "scheduled_for"
"""The label that says for which moment it was started: RFC 3339 in UTC."""

Aware = Annotated[datetime, Meta(tz=True)]
"""A moment that says its time zone."""


class ScheduleKey(NamedTuple):
    """The whole name of a schedule; a pair, never a joined string (J10)."""

    tenant: str
    schedule_id: str


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal keeps of one schedule. Times are microseconds of journal time.

    Attributes:
        flow: the flow that it starts, for lists.
        paused: nothing is started by the calendar.
        revision: grows by one with every change, from 1.
        definition: a `Schedule` as msgpack.
        state: a `ScheduleState` as msgpack.
        due: when a timer service must look at it; None when there is nothing to wait for.
    """

    tenant: str
    schedule_id: str
    flow: str
    paused: bool = False
    revision: int = 1
    definition: bytes
    state: bytes
    due: int | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def key(self) -> ScheduleKey:
        """Tenant and id."""
        return ScheduleKey(self.tenant, self.schedule_id)


class Overlap(enum.StrEnum):
    """What a schedule does when a run is due and one before it has not ended."""

    SKIP = "skip"
    """It leaves the new one out."""
    BUFFER_ONE = "buffer-one"
    """One waits until the others have ended; further ones are left out."""
    ALLOW = "allow"
    """It starts the new one beside the other."""
    CANCEL_OTHER = "cancel-other"
    """It cancels what runs, and starts the newest when that has ended."""


class MissedRuns(enum.StrEnum):
    """What becomes of the runs that no timer service was there to start."""

    SKIP = "skip"
    """None of them is made up for."""
    ONE = "one"
    """The latest is made up for, then all goes on as usual."""
    ALL = "all"
    """Each is made up for, one after the other (at once where overlap is allowed)."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be started when. Durations are seconds.

    Attributes:
        flow: registered name of the flow.
        version: flow version; empty for the newest at the time of each start.
        queue: where its workers listen; empty for the flow's own queue.
        payload: the flow's input in stored form.
        labels: of each execution, beside the two that a schedule adds.
        cron: lines of five fields, read in `zone`; a moment that several of them name is one.
        every: the interval, counted from 1970-01-01T00:00Z plus `offset` and so from no
            particular start; None for none. What cron lines and interval name is united.
        offset: shifts the interval.
        zone: name of an IANA time zone, for the cron lines.
        starts_at: the first moment that counts; None for no bound.
        ends_at: the last moment that counts; None for no bound.
        jitter: each start is later by a part of this, the same part for the same moment.
        overlap: when a run before has not ended.
        missed: when nobody was there to start a run.
        catch_up: how late a run may still be made up for; None for however late.
        limit: runs that the calendar starts in all; None for no bound.
    """

    flow: str
    version: str = ""
    queue: str = ""
    payload: bytes = b""
    labels: dict[str, str] = {}
    cron: tuple[str, ...] = ()
    every: float | None = None
    offset: float = 0.0
    zone: str = "UTC"
    starts_at: Aware | None = None
    ends_at: Aware | None = None
    jitter: float = 0.0
    overlap: Overlap = Overlap.SKIP
    missed: MissedRuns = MissedRuns.ONE
    catch_up: float | None = None
    limit: int | None = None


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A run that was started and is not known to have ended.

    Attributes:
        nominal: the moment that it is for.
        sent: how often its start was sent.
        again_at: when it is sent once more, if the journal still does not know it.
        seen: the journal knows it.
    """

    nominal: int
    sent: int
    again_at: int
    seen: bool = False


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Runs that somebody has asked for, or that are made up for, and that have not all
    begun.

    Attributes:
        after: they are later than this moment.
        until: and not later than this one.
        once: it is the single moment `until`, whatever the calendar says.
        at_once: they wait for no other run to end.
        catch_up: nobody has asked; they were missed.
    """

    after: int
    until: int
    once: bool = False
    at_once: bool = False
    catch_up: bool = False


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """A request that was carried out.

    Attributes:
        name: the request's own name.
        said: the moment or the number that it was answered with.
    """

    name: str
    said: int = 0


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a schedule has come. Moments are microseconds of journal time.

    Attributes:
        reckoned: what the calendar names up to and with this moment is dealt with.
        runs: moments for which the calendar has started a run, or is about to.
        missed: moments that passed while nobody was there to start a run.
        skipped: moments left out because the run before had not ended.
        last: the moment that the last run was for.
        last_at: when it was started.
        waiting: a run that waits until the others have ended.
        running: runs that may not have ended; where overlap is allowed only those that the
            journal has not been seen to know.
        asked: what is to be started besides.
        requests: the last ones that changed it, so that one that comes twice counts once.
        note: what whoever paused it said.
        trouble: why nothing can be done with it.
    """

    reckoned: int
    runs: int = 0
    missed: int = 0
    skipped: int = 0
    last: int | None = None
    last_at: int = 0
    waiting: int | None = None
    running: tuple[Run, ...] = ()
    asked: tuple[Asked, ...] = ()
    requests: tuple[Heard, ...] = ()
    note: str = ""
    trouble: str = ""


# ---- requests and what is told, as they travel ---------------------------------------------------


class ScheduleOp(enum.StrEnum):
    """What a request about a schedule asks."""

    CREATE = "create"
    GET = "get"
    LIST = "list"
    UPDATE = "update"
    PAUSE = "pause"
    RESUME = "resume"
    TRIGGER = "trigger"
    """One run now."""
    BACKFILL = "backfill"
    """The runs of a span of time that has passed."""
    DELETE = "delete"


class ScheduleFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A definition as it travels; see `Schedule`. What is left out has its default in a new
    schedule and stays as it is in one that is there.

    Attributes:
        input: the flow's input as plain data of the message's own format.
        payload: the input in this product's stored form instead of `input`.
    """

    flow: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    input: msgspec.Raw = msgspec.Raw(b"")
    payload: bytes | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    cron: tuple[str, ...] | UnsetType = UNSET
    every: float | UnsetType | None = UNSET
    offset: float | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    starts_at: Aware | UnsetType | None = UNSET
    ends_at: Aware | UnsetType | None = UNSET
    jitter: float | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    missed: MissedRuns | UnsetType = UNSET
    catch_up: float | UnsetType | None = UNSET
    limit: int | UnsetType | None = UNSET


class ScheduleItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request about schedules.

    Attributes:
        id: the schedule; not for `list`.
        fields: the definition (create), or what changes in it (update).
        paused: it begins paused (create).
        first: where the span begins, inclusive (backfill).
        last: where it ends, inclusive (backfill).
        at_once: beside other runs, whatever the schedule says of overlap (trigger, backfill).
        after: only schedules whose ids sort behind this one (list).
        limit: how many at most (list).
        reason: why (pause).
        correlation: the request's own name; the same one twice is one request.
    """

    op: ScheduleOp
    id: str = ""
    tenant: str = DEFAULT_TENANT
    fields: ScheduleFields = ScheduleFields()
    paused: bool = False
    first: Aware | None = None
    last: Aware | None = None
    at_once: bool | None = None
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    reason: str = ""
    correlation: str = ""


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a schedule stands.

    Attributes:
        revision: grows with every change and every look of a timer service.
        schedule: its definition; None when it cannot be read.
        last: the moment that the last run was for.
        coming: the moments of the next runs, five at most; jitter comes on top.
        running: runs that may not have ended; where overlap is allowed only the newest.
        runs: runs that the calendar has started or will start at once.
        missed: moments that passed while nobody was there to start a run.
        skipped: moments left out because the run before had not ended.
        waiting: runs that wait for others: buffered, triggered, backfilled, made up for.
        note: what whoever paused it said.
        trouble: why nothing can be done with it.
    """

    id: str
    tenant: str = DEFAULT_TENANT
    flow: str = ""
    revision: int = 0
    paused: bool = False
    schedule: Schedule | None = None
    last: Aware | None = None
    coming: tuple[Aware, ...] = ()
    running: tuple[Aware, ...] = ()
    runs: int = 0
    missed: int = 0
    skipped: int = 0
    waiting: int = 0
    note: str = ""
    trouble: str = ""
    created_at: Aware | None = None
    updated_at: Aware | None = None
