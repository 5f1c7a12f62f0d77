"""Schedules, seen from outside (F9): `Client.schedules`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from loom_mq.client.switchboard import Switchboard
from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import InputError, InvalidScheduleError, UnknownScheduleError
from loom_mq.flows.definition import Flow
from loom_mq.ids import check_id
from loom_mq.model.messages import ReplyItem
from loom_mq.model.schedules import (
    MAX_SCHEDULE_ID_BYTES,
    MissedRuns,
    Overlap,
    ScheduleFields,
    ScheduleInfo,
    ScheduleItem,
    ScheduleOp,
)

In = TypeVar("In")

PAGE = 100


class ScheduleOptions(TypedDict, total=False):
    """What may be said of a schedule. Durations are `timedelta` or seconds; what is left out
    has its default in a new schedule and stays as it is in one that is there.

    Attributes:
        cron: one line of five fields (minute, hour, day of month, month, day of week) or
            several, read in `zone`.
        every: the interval, counted in real time from 1970-01-01T00:00Z plus `offset`.
        offset: shifts the interval.
        zone: name of an IANA time zone; ``UTC`` by default.
        starts_at: the first moment that counts, with a time zone.
        ends_at: the last one.
        jitter: each start is later by a part of this.
        overlap: when a run is due and one before has not ended; `Overlap.SKIP` by default.
        missed: what becomes of runs that no timer service was there to start;
            `MissedRuns.ONE` by default.
        catch_up: how late a run may still be made up for; None, the default, for however late.
        limit: runs that the calendar starts in all; None, the default, for no bound.
        version: the flow's version; by default the newest at the time of each start.
        queue: where its workers listen; the flow's own queue by default.
        labels: of each execution, beside ``schedule`` and ``scheduled_for``.
    """

    cron: str | Sequence[str]
    every: timedelta | float | None
    offset: timedelta | float
    zone: str
    starts_at: datetime | None
    ends_at: datetime | None
    jitter: timedelta | float
    overlap: Overlap
    missed: MissedRuns
    catch_up: timedelta | float | None
    limit: int | None
    version: str
    queue: str
    labels: dict[str, str]


class Schedules:
    """The schedules of a client's tenant. Made by `Client`; see `Client.schedules`.

    Every method raises `WaitTimeoutError` when no dispatcher answers within `timeout`
    seconds; calling again is safe.
    """

    def __init__(
        self, switchboard: Callable[[], Switchboard], tenant: str, payload_limit: int
    ) -> None:
        self._switchboard = switchboard
        self._tenant = tenant
        self._payload_limit = payload_limit

    @overload
    async def create(
        self,
        id: str,
        flow: Flow[In, Any],
        input: In,
        *,
        paused: bool = False,
        timeout: float = 10.0,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo: ...

    @overload
    async def create(
        self,
        id: str,
        flow: Flow[None, Any],
        *,
        paused: bool = False,
        timeout: float = 10.0,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo: ...

    @overload
    async def create(
        self,
        id: str,
        flow: str,
        input: object = None,
        *,
        paused: bool = False,
        timeout: float = 10.0,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo: ...

    async def create(
        self,
        id: str,
        flow: Flow[Any, Any] | str,
        input: object = None,
        *,
        paused: bool = False,
        timeout: float = 10.0,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Make a schedule. Durable when this returns; the first run is the next moment.

        Args:
            id: its id, 1 to 200 bytes.
            flow: what it starts, or its registered name.
            input: of each execution.
            paused: it starts nothing until `resume`.
            timeout: seconds to wait for the answer.
            **options: see `ScheduleOptions`; `cron` or `every` is needed.

        Raises:
            InvalidScheduleError: a cron line, the zone or another part cannot be used;
                nothing was stored.
            ScheduleExistsError: there is one of this id.
            UnknownFlowError: no worker has ever registered the flow.
            InvalidIdError, CodecError, PayloadTooLargeError: see there.
        """
        fields = self._fields(flow, input, options)
        item = self._item(ScheduleOp.CREATE, id, fields=fields, paused=paused)
        return _only(await self.ask(item, timeout))

    async def get(self, id: str, *, timeout: float = 10.0) -> ScheduleInfo:
        """How a schedule stands, with its definition and its next moments.

        Raises:
            UnknownScheduleError: there is none of this id.
        """
        return _only(await self.ask(self._item(ScheduleOp.GET, id), timeout))

    async def list(self, *, timeout: float = 10.0) -> list[ScheduleInfo]:
        """All schedules of the tenant, by id."""
        found: list[ScheduleInfo] = []
        while True:
            after = found[-1].id if found else ""
            item = ScheduleItem(op=ScheduleOp.LIST, after=after, limit=PAGE)
            page = (await self.ask(item, timeout)).schedules
            found += page
            if len(page) < PAGE:
                return found

    async def update(
        self,
        id: str,
        *,
        flow: Flow[Any, Any] | str | None = None,
        input: object = UNSET,
        timeout: float = 10.0,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Change a schedule from now on. What is not named stays as it is; what runs goes on.

        Args:
            id: its id.
            flow: what it starts from now on.
            input: of each execution from now on; None counts.
            timeout: seconds to wait for the answer.
            **options: see `ScheduleOptions`.

        Raises:
            InvalidScheduleError: as for `create`; everything stayed as it was.
            UnknownScheduleError: there is none of this id.
            UnknownFlowError, CodecError, PayloadTooLargeError: as for `create`.
        """
        fields = self._fields(flow, input, options)
        return _only(await self.ask(self._item(ScheduleOp.UPDATE, id, fields=fields), timeout))

    async def pause(self, id: str, reason: str = "", *, timeout: float = 10.0) -> ScheduleInfo:
        """Start nothing more by the calendar, nor by a backfill. What runs goes on, and
        `trigger` still works.

        Raises:
            UnknownScheduleError: there is none of this id.
        """
        return _only(await self.ask(self._item(ScheduleOp.PAUSE, id, reason=reason), timeout))

    async def resume(self, id: str, *, timeout: float = 10.0) -> ScheduleInfo:
        """Go on with the next moment from now. What passed meanwhile is not made up for;
        `backfill` does that.

        Raises:
            UnknownScheduleError: there is none of this id.
        """
        return _only(await self.ask(self._item(ScheduleOp.RESUME, id), timeout))

    async def trigger(self, id: str, *, at_once: bool | None = None, timeout: float = 10.0) -> str:
        """Start one run more, also while it is paused.

        Args:
            id: its id.
            at_once: beside what runs; False waits until that has ended; by default as
                `overlap` says. It is never left out, and cancels nothing.
            timeout: seconds to wait for the answer.

        Returns:
            The id of the execution, which is started a moment later.

        Raises:
            UnknownScheduleError: there is none of this id.
            InvalidScheduleError: too much is asked for already.
        """
        item = self._item(ScheduleOp.TRIGGER, id, at_once=at_once)
        return (await self.ask(item, timeout)).run

    async def backfill(
        self,
        id: str,
        first: datetime,
        last: datetime,
        *,
        at_once: bool | None = None,
        timeout: float = 10.0,
    ) -> int:
        """Start the runs of a span of time that has passed. One that has run already is not
        run again: its execution is there.

        Args:
            id: its id.
            first: where the span begins, inclusive, with a time zone.
            last: where it ends, inclusive; at most now.
            at_once: all beside each other; False for one after the other; by default as
                `overlap` says. None of them is left out or cancelled.
            timeout: seconds to wait for the answer.

        Returns:
            How many moments it has.

        Raises:
            UnknownScheduleError: there is none of this id.
            InvalidScheduleError: the span has no moment or more than 10 000, or names no
                time zone.
        """
        item = self._item(
            ScheduleOp.BACKFILL,
            id,
            first=_aware("first", first),
            last=_aware("last", last),
            at_once=at_once,
        )
        return (await self.ask(item, timeout)).runs

    async def delete(self, id: str, *, timeout: float = 10.0) -> bool:
        """Forget a schedule. It starts nothing more; what runs goes on.

        Returns:
            Whether there was one.
        """
        try:
            await self.ask(self._item(ScheduleOp.DELETE, id), timeout)
        except UnknownScheduleError:
            return False
        return True

    # ---- requests -----------------------------------------------------------------------

    def _item(
        self,
        op: ScheduleOp,
        id: str,
        *,
        fields: ScheduleFields | None = None,
        paused: bool = False,
        first: datetime | None = None,
        last: datetime | None = None,
        at_once: bool | None = None,
        reason: str = "",
    ) -> ScheduleItem:
        return ScheduleItem(
            op=op,
            id=check_id(id, "schedule id", MAX_SCHEDULE_ID_BYTES),
            fields=fields or ScheduleFields(),
            paused=paused,
            first=first,
            last=last,
            at_once=at_once,
            reason=reason,
        )

    async def ask(self, item: ScheduleItem, timeout: float) -> ReplyItem:
        """Send a request as it travels, for tools; all other methods come here.

        Args:
            item: the request; its tenant is the client's.
            timeout: seconds to wait for the answer.
        """
        mine = replace(item, tenant=self._tenant)
        return await self._switchboard().schedule(mine, timeout)

    def _fields(
        self, flow: Flow[Any, Any] | str | None, value: object, options: ScheduleOptions
    ) -> ScheduleFields:
        name: str | UnsetType = UNSET
        codec: ValueCodec = codec_for(Any)
        if isinstance(flow, Flow):
            name, codec = flow.name, flow.input_codec
            if not flow.takes_input and value not in (None, UNSET):
                raise InputError(f"flow {flow.name!r} takes no input")
        elif flow is not None:
            name = check_id(flow, "flow name")
        payload: bytes | UnsetType = UNSET
        if value is not UNSET:
            payload = codec.encode(value, what="input of the schedule", limit=self._payload_limit)
        return schedule_fields(name, payload, options)


def schedule_fields(
    flow: str | UnsetType, payload: bytes | UnsetType, options: ScheduleOptions
) -> ScheduleFields:
    """A definition as it travels.

    Raises:
        InvalidScheduleError: a moment has no time zone, or an option does not exist.
    """
    given: dict[str, object] = dict(options)
    unknown = given.keys() - ScheduleOptions.__annotations__.keys()
    if unknown:
        raise InvalidScheduleError(
            f"a schedule has no option {min(unknown)!r}; it has "
            + ", ".join(sorted(ScheduleOptions.__annotations__))
        )
    for name in ("every", "offset", "jitter", "catch_up"):
        value = given.get(name)
        if isinstance(value, timedelta):
            given[name] = value.total_seconds()
    for name in ("starts_at", "ends_at"):
        value = given.get(name)
        if isinstance(value, datetime):
            given[name] = _aware(name, value)
    if "cron" in given:
        cron = given["cron"]
        given["cron"] = (cron,) if isinstance(cron, str) else tuple(options["cron"])
    return ScheduleFields(flow=flow, payload=payload, **given)  # type: ignore[arg-type]  # as ScheduleOptions declares them


def _aware(name: str, moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise InvalidScheduleError(
            f"{name}={moment!r} says no time zone; write for example "
            "datetime(2030, 1, 1, tzinfo=UTC)"
        )
    return moment


def _only(reply: ReplyItem) -> ScheduleInfo:
    return reply.schedules[0]
