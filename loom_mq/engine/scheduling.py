"""Requests about schedules (F9): checked, and made a row of the journal before they are
answered. What follows from them the timer services do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog
from msgspec import UNSET
from msgspec.structs import replace

from loom_mq.clock import Clock
from loom_mq.codec import wire
from loom_mq.engine.admission import Admitter, stored_input
from loom_mq.engine.outcome import error_reply
from loom_mq.engine.schedule_rows import Open, info_of, opened, running_keys, start_of
from loom_mq.errors import (
    InputError,
    InvalidScheduleError,
    JournalUnreachableError,
    ScheduleExistsError,
    StaleScheduleError,
    StorageWriteError,
    UnknownScheduleError,
)
from loom_mq.ids import check_id
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import ReplyItem, ReplyKind
from loom_mq.model.schedules import (
    LABEL_SCHEDULE,
    LABEL_SCHEDULED_FOR,
    MAX_SCHEDULE_ID_BYTES,
    Overlap,
    Schedule,
    ScheduleFields,
    ScheduleInfo,
    ScheduleItem,
    ScheduleKey,
    ScheduleOp,
    ScheduleRow,
)
from loom_mq.schedules import requests
from loom_mq.schedules.calendar import Calendar, micros_of
from loom_mq.schedules.naming import run_id

_log = structlog.get_logger(__name__)

TRIES: Final = 20
"""Changes of a schedule that others change at the same time."""
MAX_NOTE_BYTES: Final = 2000
PAGE: Final = 500
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_LONGEST: Final = 9_999_999_999_999_999
"""A moment whose name is as long as any."""

Change = Callable[["Open", int], tuple["Open", int]]
"""Makes of an opened row and the journal's time another, and what is answered."""


class ScheduleDesk:
    """Answers requests about schedules; see the module's docstring.

    Args:
        journal: where they are.
        admitter: says whether what a schedule starts could be started.
        clock: for the bound.
        patience: seconds that a request waits in hand for a journal that is away.
    """

    def __init__(
        self, journal: Journal, admitter: Admitter, *, clock: Clock, patience: float
    ) -> None:
        self._journal = journal
        self._admitter = admitter
        self._clock = clock
        self._patience = patience

    async def answer(self, item: ScheduleItem, content_type: str, correlation: str) -> ReplyItem:
        """One reply per request; raises only when the journal is away."""
        correlation = item.correlation or correlation
        deadline = self._clock.monotonic() + self._patience
        turn = 0
        while True:
            try:
                reply = await self.carry_out(item, content_type, correlation)
                if item.op not in (ScheduleOp.GET, ScheduleOp.LIST):
                    _log.info(
                        "schedule.changed",
                        tenant=item.tenant,
                        schedule_id=item.id,
                        op=item.op.value,
                    )
                return reply
            except InputError as error:
                return error_reply(ExecutionKey(item.tenant, item.id), correlation, error)
            except (StorageWriteError, JournalUnreachableError) as error:
                pause = _PAUSES[min(turn, len(_PAUSES) - 1)]
                if self._clock.monotonic() + pause >= deadline:
                    raise
                _log.warning("schedule.request_retried", schedule_id=item.id, error=error.message)
                await asyncio.sleep(pause)
                turn += 1

    async def carry_out(self, item: ScheduleItem, content_type: str, correlation: str) -> ReplyItem:
        """Do what a request asks, and say how the schedule stands then.

        Args:
            item: the request.
            content_type: of its message.
            correlation: its name; the same one again changes nothing again.

        Raises:
            InvalidScheduleError: cron line, zone or another part cannot be used, or too much
                is asked for; nothing was stored.
            ScheduleExistsError, UnknownScheduleError, StaleScheduleError: see there.
            InputError: what it would start could not be started.
        """
        check_id(item.tenant, "tenant")
        if item.op is ScheduleOp.LIST:
            return await self._list(item, correlation)
        check_id(item.id, "schedule id", MAX_SCHEDULE_ID_BYTES)
        key = ScheduleKey(item.tenant, item.id)
        said = 0
        match item.op:
            case ScheduleOp.CREATE:
                row = await self._create(key, item, content_type, correlation)
            case ScheduleOp.GET:
                row = await self._row(key)
            case ScheduleOp.DELETE:
                row = await self._delete(key)
            case _:
                row, said = await self._change(
                    key, correlation, await self._changing(key, item, content_type)
                )
        triggered = item.op is ScheduleOp.TRIGGER
        return ReplyItem(
            kind=ReplyKind.SCHEDULE,
            id=item.id,
            tenant=item.tenant,
            correlation=correlation,
            schedules=await infos(self._journal, [row]),
            runs=1 if triggered else said,
            run=run_id(item.id, said) if triggered else "",
        )

    # ---- reading ------------------------------------------------------------------------

    async def _row(self, key: ScheduleKey) -> ScheduleRow:
        row = await self._journal.schedule(key)
        if row is None:
            raise UnknownScheduleError(f"there is no schedule {key.schedule_id!r}")
        return row

    async def _list(self, item: ScheduleItem, correlation: str) -> ReplyItem:
        after = ScheduleKey(item.tenant, item.after) if item.after else None
        rows = await self._journal.schedules(item.tenant, after=after, limit=item.limit)
        return ReplyItem(
            kind=ReplyKind.SCHEDULE,
            id="",
            tenant=item.tenant,
            correlation=correlation,
            schedules=await infos(self._journal, rows),
        )

    # ---- writing --------------------------------------------------------------------------

    async def _create(
        self, key: ScheduleKey, item: ScheduleItem, content_type: str, request: str
    ) -> ScheduleRow:
        flow = item.fields.flow
        if flow is UNSET:
            raise InvalidScheduleError(
                f"schedule {key.schedule_id!r} must say which flow it starts, for example "
                "flow='report'"
            )
        schedule = with_fields(
            Schedule(flow=flow, payload=stored_input(None, msgspec.Raw(b""), content_type)),
            item.fields,
            content_type,
        )
        await self._check(key, schedule)
        now = await self._journal.now()
        state = requests.remembered(requests.fresh(now), request)
        if item.paused:
            state = replace(state, note=_note(item.reason))
        row = ScheduleRow(
            tenant=key.tenant,
            schedule_id=key.schedule_id,
            flow=schedule.flow,
            paused=item.paused,
            definition=b"",
            state=b"",
        )
        try:
            row = Open(row, schedule, state).closed(due=now)
            return await self._journal.put_schedule(row, None)
        except ScheduleExistsError:
            there = await self._journal.schedule(key)
            if there is None or requests.heard(opened(there).state, request) is None:
                raise
            return there

    async def _delete(self, key: ScheduleKey) -> ScheduleRow:
        row = await self._row(key)
        await self._journal.drop_schedule(key)
        return row

    async def _changing(self, key: ScheduleKey, item: ScheduleItem, content_type: str) -> Change:
        """What a request makes of the schedule that is there; checked as far as it can be."""
        match item.op:
            case ScheduleOp.UPDATE:
                there = opened(await self._row(key))
                await self._check(key, with_fields(there.schedule, item.fields, content_type))
                return lambda known, now: _update(known, item.fields, content_type, now)
            case ScheduleOp.PAUSE:
                return lambda known, now: (_pause(known, _note(item.reason)), 0)
            case ScheduleOp.RESUME:
                return lambda known, now: (_resume(known, now), 0)
            case ScheduleOp.TRIGGER:
                return lambda known, now: _trigger(known, item, now)
            case _:
                if item.first is None or item.last is None:
                    raise InvalidScheduleError(
                        "a backfill needs `first` and `last`, for example "
                        "first=datetime(2030, 1, 1, tzinfo=UTC)"
                    )
                return lambda known, now: _backfill(known, item, now)

    async def _change(
        self, key: ScheduleKey, request: str, change: Change
    ) -> tuple[ScheduleRow, int]:
        for _ in range(TRIES):
            known = opened(await self._row(key))
            before = requests.heard(known.state, request)
            if before is not None:
                return known.row, before.said
            now = await self._journal.now()
            new, said = change(known, now)
            new = replace(new, state=requests.remembered(new.state, request, said))
            try:
                # a timer service finds out what follows, and when to look next
                row = await self._journal.put_schedule(new.closed(due=now), known.row.revision)
            except StaleScheduleError:
                continue
            return row, said
        raise StaleScheduleError(
            f"schedule {key.schedule_id!r} was changed by others {TRIES} times meanwhile; try again"
        )

    async def _check(self, key: ScheduleKey, schedule: Schedule) -> None:
        requests.check(schedule)
        taken = {LABEL_SCHEDULE, LABEL_SCHEDULED_FOR} & schedule.labels.keys()
        if taken:
            raise InvalidScheduleError(
                f"the label {min(taken)!r} is set by the schedule itself; use another name"
            )
        # what a dispatcher would refuse to start is refused now
        await self._admitter.admission(start_of(key, schedule, _LONGEST), wire.MSGPACK, None, "")


async def infos(journal: Journal, rows: Sequence[ScheduleRow]) -> tuple[ScheduleInfo, ...]:
    """How schedules stand, runs that have ended meanwhile left out."""
    keys = [key for row in rows for key in running_keys(row)]
    ended: set[ExecutionKey] = set()
    for first in range(0, len(keys), PAGE):
        found = await journal.get(keys[first : first + PAGE])
        ended.update(each.key for each in found if each is not None and each.status.terminal)
    now = await journal.now()
    return tuple(info_of(row, now, ended) for row in rows)


def with_fields(schedule: Schedule, fields: ScheduleFields, content_type: str) -> Schedule:
    """A definition with what a request says of it.

    Raises:
        CodecError: the input is nested too deeply.
    """
    said = {
        name: value
        for name in ScheduleFields.__struct_fields__
        if name != "input" and (value := getattr(fields, name)) is not UNSET
    }
    if bytes(fields.input) and "payload" not in said:
        said["payload"] = stored_input(None, fields.input, content_type)
    return replace(schedule, **said)


def _update(known: Open, fields: ScheduleFields, content_type: str, now: int) -> tuple[Open, int]:
    schedule = with_fields(known.schedule, fields, content_type)
    requests.check(schedule)
    try:
        state = requests.changed(Calendar(known.schedule), known.state, now)
    except InvalidScheduleError:  # what cannot be read any more can still be mended
        state = requests.resumed(known.state, now)
    return replace(known, schedule=schedule, state=state), 0


def _pause(known: Open, note: str) -> Open:
    state = requests.paused(Calendar(known.schedule), known.state, note)
    return replace(known, row=replace(known.row, paused=True), state=state)


def _resume(known: Open, now: int) -> Open:
    if not known.row.paused:
        return known
    row = replace(known.row, paused=False)
    return replace(known, row=row, state=requests.resumed(known.state, now))


def _trigger(known: Open, item: ScheduleItem, now: int) -> tuple[Open, int]:
    state, moment = requests.triggered(known.state, now, at_once=_at_once(known, item))
    return replace(known, state=state), moment


def _backfill(known: Open, item: ScheduleItem, now: int) -> tuple[Open, int]:
    assert item.first is not None  # checked before
    assert item.last is not None
    state, count = requests.backfilled(
        Calendar(known.schedule),
        known.state,
        micros_of(item.first),
        min(micros_of(item.last), now),
        at_once=_at_once(known, item),
    )
    return replace(known, state=state), count


def _at_once(known: Open, item: ScheduleItem) -> bool:
    if item.at_once is None:
        return known.schedule.overlap is Overlap.ALLOW
    return item.at_once


def _note(text: str) -> str:
    return text.encode(errors="replace")[:MAX_NOTE_BYTES].decode(errors="ignore")
