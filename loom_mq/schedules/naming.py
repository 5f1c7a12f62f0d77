"""What a schedule's runs are called, and how much later each of them starts (F9)."""

from __future__ import annotations

import hashlib

from loom_mq.clock import MICROS
from loom_mq.model.schedules import (
    LABEL_SCHEDULE,
    LABEL_SCHEDULED_FOR,
    Schedule,
    ScheduleKey,
)
from loom_mq.schedules.calendar import iso


def run_id(schedule_id: str, nominal: int) -> str:
    """The id of the execution that a schedule starts for a moment: always the same one."""
    return f"{schedule_id}@{iso(nominal)}"


def run_labels(schedule_id: str, schedule: Schedule, nominal: int) -> dict[str, str]:
    """The labels of that execution."""
    return {
        **schedule.labels,
        LABEL_SCHEDULE: schedule_id,
        LABEL_SCHEDULED_FOR: iso(nominal),
    }


def lateness(key: ScheduleKey, schedule: Schedule, nominal: int) -> int:
    """How much later than its moment a run starts, in microseconds, by the jitter that is
    wanted: the same for the same run, wherever it is worked out.
    """
    jitter = round(schedule.jitter * MICROS)
    if jitter <= 0:
        return 0
    name = f"{len(key.tenant)}/{key.tenant}/{key.schedule_id}@{nominal}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest) * jitter >> 64
