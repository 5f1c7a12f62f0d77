"""What commands that act answer a program, item by item; see `schemas`."""

from __future__ import annotations

from msgspec import Struct


class LetterFate(Struct, forbid_unknown_fields=True):
    """`loom dlq requeue` and `drop`."""

    id: str
    queue: str
    outcome: str
    done: bool
    dry_run: bool


class Started(Struct, forbid_unknown_fields=True):
    """`loom start`; `created` is null where the broker tells nothing of it."""

    id: str
    flow: str
    created: bool | None


class Result(Struct, forbid_unknown_fields=True):
    """`loom result`."""

    id: str
    status: str
    result: object


class Answered(Struct, forbid_unknown_fields=True):
    """`loom resume`; `fate` is taken or stored."""

    id: str
    gate: str
    answer_id: str
    fate: str


class Cancelled(Struct, forbid_unknown_fields=True):
    """`loom cancel`."""

    id: str
    before: str
    after: str


class CancelledOfMany(Struct, forbid_unknown_fields=True):
    """`loom cancel` with filters."""

    id: str
    flow: str
    before: str
    outcome: str
    done: bool
    dry_run: bool


class Judged(Struct, forbid_unknown_fields=True):
    """`loom verdict`."""

    id: str
    step: str
    verdict: str
    fate: str


class LeftAlone(Struct, forbid_unknown_fields=True):
    """An execution that was left as it was."""

    id: str
    why: str


class GivenUp(Struct, forbid_unknown_fields=True):
    """An execution that is no longer recovered."""

    id: str
    recoveries: int


class Recovered(Struct, forbid_unknown_fields=True):
    """`loom recover`."""

    looked_at: int
    claimed: int
    recovered: int
    unconfirmed: int
    exhausted: int
    moved: int
    failed: int
    failures: list[LeftAlone]
    dry_run: bool
    given_up: list[GivenUp]


class RecoveredAgain(Struct, forbid_unknown_fields=True):
    """`loom recover ID --again`."""

    id: str
    again: bool


class Reconciled(Struct, forbid_unknown_fields=True):
    """`loom timers reconcile`."""

    looked_at: int
    timed: int
    armed: int
    rearmed: list[str]
    failed: int
    failures: list[LeftAlone]


class Forked(Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    """`loom fork`."""

    id: str
    source: str
    status: str


class Migrated(Struct, forbid_unknown_fields=True):
    """`loom migrate`."""

    schema_version: int


class Imported(Struct, forbid_unknown_fields=True):
    """`loom import`."""

    id: str
    flow: str
    status: str
    events: int
    outcome: str
    taken: bool


class Pruned(Struct, forbid_unknown_fields=True):
    """`loom prune`."""

    due: int
    archived: int
    deleted: int
    failed: int
    failures: list[LeftAlone]
    flows: dict[str, int]
    archive: str | None
    dry_run: bool


class Erased(Struct, forbid_unknown_fields=True):
    """`loom erase`."""

    id: str
    outcome: str
    erased: bool


class Truncated(Struct, forbid_unknown_fields=True):
    """`loom truncate`."""

    id: str
    events: int
    dry_run: bool
