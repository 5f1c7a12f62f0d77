"""What `loom schedules` answers a program, item by item; see `schemas`."""

from __future__ import annotations

from msgspec import Struct


class ScheduleDefinition(Struct, forbid_unknown_fields=True):
    """What is to be started when."""

    version: str | None
    queue: str | None
    input: object
    labels: dict[str, str]
    cron: list[str]
    every_seconds: float | None
    offset_seconds: float
    zone: str
    starts_at: str | None
    ends_at: str | None
    jitter_seconds: float
    overlap: str
    missed_runs: str
    catch_up_seconds: float | None
    limit: int | None


class Schedule(Struct, forbid_unknown_fields=True):
    """`loom schedules`; `definition` is null where it cannot be read."""

    id: str
    tenant: str
    flow: str
    paused: bool
    note: str | None
    last: str | None
    next: str | None
    coming: list[str]
    running: list[str]
    runs: int
    missed: int
    skipped: int
    waiting: int
    trouble: str | None
    revision: int
    created_at: str
    updated_at: str
    definition: ScheduleDefinition | None


class Triggered(Struct, forbid_unknown_fields=True):
    """`loom schedules trigger`."""

    id: str
    execution_id: str


class Backfilled(Struct, forbid_unknown_fields=True):
    """`loom schedules backfill`."""

    id: str
    moments: int


class Deleted(Struct, forbid_unknown_fields=True):
    """`loom schedules delete`."""

    id: str


class Moment(Struct, forbid_unknown_fields=True):
    """`loom schedules preview`."""

    at: str
    local: str
    in_seconds: float
