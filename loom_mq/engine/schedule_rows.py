"""A schedule's row, read and written; what it starts; how it stands (F9). Pure."""

from __future__ import annotations

from collections.abc import Container
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from loom_mq.errors import InvalidScheduleError
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import Notify, StartItem
from loom_mq.model.schedules import (
    Schedule,
    ScheduleInfo,
    ScheduleKey,
    ScheduleRow,
    ScheduleState,
)
from loom_mq.schedules.calendar import Calendar, moment_of
from loom_mq.schedules.naming import run_id, run_labels

COMING: Final = 5
"""Moments that are told in advance."""
MANY: Final = 10_000
"""Runs that are counted, of those that wait."""

_encode = msgspec.msgpack.Encoder().encode
_definitions = msgspec.msgpack.Decoder(Schedule)
_states = msgspec.msgpack.Decoder(ScheduleState)


class Open(msgspec.Struct, frozen=True):
    """A row whose bytes have been read."""

    row: ScheduleRow
    schedule: Schedule
    state: ScheduleState

    def closed(self, *, due: int | None) -> ScheduleRow:
        """The row with everything in it."""
        return replace(
            self.row,
            flow=self.schedule.flow,
            definition=_encode(self.schedule),
            state=_encode(self.state),
            due=due,
        )


def opened(row: ScheduleRow) -> Open:
    """Read a row's bytes.

    Raises:
        InvalidScheduleError: they are damaged, or of a newer release.
    """
    try:
        return Open(row, _definitions.decode(row.definition), _states.decode(row.state))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidScheduleError(
            f"schedule {row.schedule_id!r} cannot be read here: {error}. Upgrade the fleet if a "
            "newer release wrote it; otherwise delete it and create it again"
        ) from None


def run_key(key: ScheduleKey, nominal: int) -> ExecutionKey:
    """The execution that a schedule starts for a moment."""
    return ExecutionKey(key.tenant, run_id(key.schedule_id, nominal))


def start_of(key: ScheduleKey, schedule: Schedule, nominal: int) -> StartItem:
    """The start of that execution: the same moment is always the same start."""
    return StartItem(
        id=run_id(key.schedule_id, nominal),
        flow=schedule.flow,
        version=schedule.version,
        queue=schedule.queue,
        tenant=key.tenant,
        payload=schedule.payload,
        labels=run_labels(key.schedule_id, schedule, nominal),
        notify=Notify.NOTHING,
    )


def running_keys(row: ScheduleRow) -> list[ExecutionKey]:
    """The executions whose end a schedule has not been told of."""
    try:
        return [run_key(row.key, run.nominal) for run in opened(row).state.running]
    except InvalidScheduleError:
        return []  # whoever looks at it is told


def info_of(row: ScheduleRow, now: int, ended: Container[ExecutionKey] = ()) -> ScheduleInfo:
    """How a schedule stands.

    Args:
        row: its row.
        now: journal time.
        ended: executions that are known to have ended.
    """
    info = ScheduleInfo(
        id=row.schedule_id,
        tenant=row.tenant,
        flow=row.flow,
        revision=row.revision,
        paused=row.paused,
        created_at=moment_of(row.created_at),
        updated_at=moment_of(row.updated_at),
    )
    try:
        known = opened(row)
        calendar = Calendar(known.schedule)
    except InvalidScheduleError as error:
        return replace(info, trouble=error.message)
    state, schedule = known.state, known.schedule
    left = COMING if schedule.limit is None else min(COMING, schedule.limit - state.runs)
    coming = islice(calendar.between(max(state.reckoned, now), None), max(0, left))
    queued = sum(
        1 if ask.once else sum(1 for _ in islice(calendar.between(ask.after, ask.until), MANY))
        for ask in state.asked
    )
    return replace(
        info,
        schedule=schedule,
        last=None if state.last is None else moment_of(state.last),
        coming=() if row.paused else tuple(map(moment_of, coming)),
        running=tuple(
            moment_of(run.nominal)
            for run in state.running
            if run_key(row.key, run.nominal) not in ended
        ),
        runs=state.runs,
        missed=state.missed,
        skipped=state.skipped,
        waiting=queued + (state.waiting is not None),
        note=state.note,
        trouble=state.trouble,
    )
