"""What a store does with a schedule, whatever it keeps it in (F9). Pure."""

from __future__ import annotations

from msgspec.structs import replace

from loom_mq.errors import (
    InputError,
    ScheduleExistsError,
    StaleScheduleError,
    UnknownScheduleError,
)
from loom_mq.model.schedules import ScheduleKey, ScheduleRow


def written(
    found: ScheduleRow | None, row: ScheduleRow, expected: int | None, now: int
) -> ScheduleRow:
    """The row after a write by compare-and-set on its revision.

    What was written before, by a commit that nobody heard of, is written (J4).

    Args:
        found: what is there.
        row: what is to be there; its revision and times are the store's affair.
        expected: the revision that it changes; None for one that must not be there.
        now: journal time.

    Raises:
        ScheduleExistsError: it was to be new, and is there.
        StaleScheduleError: somebody else has changed it.
        UnknownScheduleError: it is gone.
    """
    if found is not None and found.revision == (expected or 0) + 1 and _same(found, row):
        return found
    if expected is None:
        if found is not None:
            raise exists(row.key)
        return replace(row, revision=1, created_at=now, updated_at=now)
    if found is None:
        raise unknown(row.key)
    if found.revision != expected:
        raise stale(row.key, expected, found.revision)
    return replace(row, revision=expected + 1, created_at=found.created_at, updated_at=now)


def _same(one: ScheduleRow, other: ScheduleRow) -> bool:
    return replace(one, revision=0, created_at=0, updated_at=0) == replace(
        other, revision=0, created_at=0, updated_at=0
    )


def exists(key: ScheduleKey) -> InputError:
    """It was to be new, and is there."""
    return ScheduleExistsError(
        f"schedule {key.schedule_id!r} is there already; update it, or choose another id"
    )


def unknown(key: ScheduleKey) -> InputError:
    """It is gone, or never was."""
    return UnknownScheduleError(
        f"there is no schedule {key.schedule_id!r}; `loom schedules list` names those that are"
    )


def stale(key: ScheduleKey, expected: int | None, found: int) -> InputError:
    """Somebody else has changed it."""
    return StaleScheduleError(
        f"schedule {key.schedule_id!r} has revision {found} by now, not {expected}: somebody else "
        "changed it meanwhile; read it again"
    )


def may_go(found: ScheduleRow | None, key: ScheduleKey, expected: int | None) -> bool:
    """Whether a schedule is there to be deleted.

    Raises:
        StaleScheduleError: it has another revision than the one that was to be deleted.
    """
    if found is not None and expected not in (None, found.revision):
        raise stale(key, expected, found.revision)
    return found is not None


def by_bytes(key: ScheduleKey) -> tuple[bytes, bytes]:
    """The order of schedules in lists: that of their names' bytes in UTF-8."""
    return key.tenant.encode(), key.schedule_id.encode()


def by_due(row: ScheduleRow) -> tuple[int, ScheduleKey]:
    """The order of schedules that are due: the earliest first."""
    return row.due or 0, row.key
