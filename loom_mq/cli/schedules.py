"""`loom schedules`: what is started by the calendar (F9, F11).

Commands that look read the journal. Those that act go over the broker like a client, or
without one straight to the journal, with the dispatchers' own checks.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated, Final

import typer
from msgspec.structs import replace

from loom_mq.cli.acting import note_if_alone
from loom_mq.cli.asking import Yes, ask
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import Limit, reach_of
from loom_mq.cli.reach import Reach, open_client, open_journal
from loom_mq.cli.schedule_options import (
    PAYLOAD_LIMIT,
    AtOnce,
    CatchUp,
    Cron,
    EndsAt,
    Every,
    Jitter,
    OfFlowVersion,
    Offset,
    OnMissed,
    OnOverlap,
    OnQueue,
    Runs,
    ScheduleId,
    StartsAt,
    Typed,
    WithLabel,
    Zone,
    moment_typed,
)
from loom_mq.cli.schedule_views import (
    COLUMNS,
    coming_lines,
    schedule_cells,
    schedule_item,
    schedule_lines,
)
from loom_mq.cli.screen import Item, Page
from loom_mq.cli.text import moment
from loom_mq.clock import MICROS, JournalClock
from loom_mq.codec import wire
from loom_mq.engine.admission import Admitter, KnownFlows
from loom_mq.engine.scheduling import ScheduleDesk, infos, with_fields
from loom_mq.errors import UnknownScheduleError
from loom_mq.ids import RandomIds, check_id
from loom_mq.model.messages import ReplyItem
from loom_mq.model.schedules import (
    MAX_SCHEDULE_ID_BYTES,
    Schedule,
    ScheduleInfo,
    ScheduleItem,
    ScheduleKey,
    ScheduleOp,
)
from loom_mq.schedules import requests
from loom_mq.schedules.calendar import micros_of, moment_of, zone_of

app: Final = typer.Typer(invoke_without_command=True, no_args_is_help=False)

Cursor = Annotated[str | None, typer.Option("--cursor", help="Go on from there.")]

# ---- looking -----------------------------------------------------------------------------------


@app.callback()
def schedules(ctx: typer.Context, limit: Limit = 100, cursor: Cursor = None) -> Exit:
    """List schedules: what starts when, and how that goes. See also its commands.

    LAST and NEXT are shown as the clocks of their zone show them.
    """
    if ctx.invoked_subcommand is not None:
        return Exit.DONE
    return list_schedules(ctx, limit, cursor)


@app.command("list")
def list_schedules(ctx: typer.Context, limit: Limit = 100, cursor: Cursor = None) -> Exit:
    """List schedules, by id."""
    return asyncio.run(_list(reach_of(ctx), limit, cursor))


async def _list(reach: Reach, limit: int, cursor: str | None) -> Exit:
    after = None if cursor is None else ScheduleKey(reach.tenant, cursor)
    async with open_journal(reach) as journal:
        rows = await journal.schedules(reach.tenant, after=after, limit=limit + 1)
        found = await infos(journal, rows[:limit])
    reach.screen.show(
        Page(
            kind="schedules",
            items=[schedule_item(info) for info in found],
            columns=COLUMNS,
            rows=[schedule_cells(info) for info in found],
            lines=[f"{info.id}: {info.trouble}" for info in found if info.trouble],
            empty="no schedules; `loom schedules create --help` says how to make one",
            next=found[-1].id if len(rows) > limit else None,
        )
    )
    return Exit.DONE


@app.command("show")
def show(ctx: typer.Context, schedule_id: ScheduleId) -> Exit:
    """Show one schedule: its rhythm, its next five moments, and how its runs go."""
    return asyncio.run(_show(reach_of(ctx), schedule_id))


async def _show(reach: Reach, schedule_id: str) -> Exit:
    key = ScheduleKey(reach.tenant, check_id(schedule_id, "schedule id", MAX_SCHEDULE_ID_BYTES))
    async with open_journal(reach) as journal:
        row = await journal.schedule(key)
        if row is None:
            raise UnknownScheduleError(f"there is no schedule {schedule_id!r}")
        [info] = await infos(journal, [row])
        now = await journal.now()
    return _tell(reach, info, now)


def _tell(reach: Reach, info: ScheduleInfo, now: int) -> Exit:
    reach.screen.show(
        Page(kind="schedule", items=[schedule_item(info)], lines=schedule_lines(info, now))
    )
    return Exit.DONE


@app.command("preview")
def preview(
    ctx: typer.Context,
    cron: Cron = None,
    every: Every = None,
    offset: Offset = None,
    zone: Zone = None,
    starts_at: StartsAt = None,
    ends_at: EndsAt = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="TIME", help="Not from now but from then.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many.")] = 5,
) -> Exit:
    """Say which moments a schedule would have; nothing is stored, and no server is asked."""
    reach = reach_of(ctx)
    typed = Typed(
        cron=cron, every=every, offset=offset, zone=zone, starts_at=starts_at, ends_at=ends_at
    )
    schedule = with_fields(Schedule(flow="preview"), typed.fields(), wire.MSGPACK)
    now = JournalClock().now()
    begin = now if after is None else micros_of(moment_typed(after, "--after"))
    found = list(islice(requests.check(schedule).between(begin, None), count))
    clocks = zone_of(schedule.zone)
    reach.screen.show(
        Page(
            kind="schedule-preview",
            items=[
                {
                    "at": moment(each),
                    "local": moment_of(each).astimezone(clocks).isoformat(),
                    "in_seconds": (each - now) / MICROS,
                }
                for each in found
            ],
            lines=coming_lines([moment_of(each) for each in found], clocks, now),
        )
    )
    if not found:
        reach.screen.note("no moment is to come")
    return Exit.DONE


# ---- acting ------------------------------------------------------------------------------------


@app.command("create")
def create(
    ctx: typer.Context,
    schedule_id: ScheduleId,
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="Name of the flow.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its input.")] = "null",
    cron: Cron = None,
    every: Every = None,
    offset: Offset = None,
    zone: Zone = None,
    starts_at: StartsAt = None,
    ends_at: EndsAt = None,
    jitter: Jitter = None,
    overlap: OnOverlap = None,
    missed: OnMissed = None,
    catch_up: CatchUp = None,
    runs: Runs = None,
    version: OfFlowVersion = None,
    queue: OnQueue = None,
    label: WithLabel = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="It starts nothing until it is resumed.")
    ] = False,
) -> Exit:
    """Make a schedule: a flow, its input, and cron lines or an interval."""
    typed = Typed(
        flow=flow,
        value=value,
        cron=cron,
        every=every,
        offset=offset,
        zone=zone,
        starts_at=starts_at,
        ends_at=ends_at,
        jitter=jitter,
        overlap=overlap,
        missed=missed,
        catch_up=catch_up,
        runs=runs,
        version=version,
        queue=queue,
        label=label,
    )
    item = ScheduleItem(op=ScheduleOp.CREATE, id=schedule_id, fields=typed.fields(), paused=paused)
    return _act(ctx, item)


@app.command("update")
def update(
    ctx: typer.Context,
    schedule_id: ScheduleId,
    flow: Annotated[str | None, typer.Option("--flow", help="Another flow.")] = None,
    value: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="Another input.")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    offset: Offset = None,
    zone: Zone = None,
    starts_at: StartsAt = None,
    ends_at: EndsAt = None,
    jitter: Jitter = None,
    overlap: OnOverlap = None,
    missed: OnMissed = None,
    catch_up: CatchUp = None,
    runs: Runs = None,
    version: OfFlowVersion = None,
    queue: OnQueue = None,
    label: WithLabel = None,
) -> Exit:
    """Change a schedule from now on; what is not named stays. `none` takes an option back."""
    typed = Typed(
        flow=flow,
        value=value,
        cron=cron,
        every=every,
        offset=offset,
        zone=zone,
        starts_at=starts_at,
        ends_at=ends_at,
        jitter=jitter,
        overlap=overlap,
        missed=missed,
        catch_up=catch_up,
        runs=runs,
        version=version,
        queue=queue,
        label=label,
    )
    return _act(ctx, ScheduleItem(op=ScheduleOp.UPDATE, id=schedule_id, fields=typed.fields()))


@app.command("pause")
def pause(
    ctx: typer.Context,
    schedule_id: ScheduleId,
    reason: Annotated[str, typer.Option("--reason", help="Why, for people.")] = "",
) -> Exit:
    """Start nothing more by the calendar. What runs goes on."""
    return _act(ctx, ScheduleItem(op=ScheduleOp.PAUSE, id=schedule_id, reason=reason))


@app.command("resume")
def resume(ctx: typer.Context, schedule_id: ScheduleId) -> Exit:
    """Go on with the next moment from now."""
    return _act(ctx, ScheduleItem(op=ScheduleOp.RESUME, id=schedule_id))


@app.command("trigger")
def trigger(ctx: typer.Context, schedule_id: ScheduleId, at_once: AtOnce = None) -> Exit:
    """Start one run more, now; prints the id of its execution."""
    reach = reach_of(ctx)
    item = ScheduleItem(op=ScheduleOp.TRIGGER, id=schedule_id, at_once=at_once)
    reply = asyncio.run(_ask(reach, item))
    body: Item = {"id": schedule_id, "execution_id": reply.run}
    reach.screen.show(Page(kind="schedule-trigger", items=[body], lines=[reply.run]))
    return Exit.DONE


@app.command("backfill")
def backfill(
    ctx: typer.Context,
    schedule_id: ScheduleId,
    first: Annotated[
        str, typer.Argument(metavar="FIRST", help="A time (2030-01-31T12:00Z) or so long ago (7d).")
    ],
    last: Annotated[str, typer.Argument(metavar="LAST", help="The same; now by default.")] = "0s",
    at_once: AtOnce = None,
) -> Exit:
    """Start the runs of a span of time that has passed, both ends inclusive."""
    reach = reach_of(ctx)
    item = ScheduleItem(
        op=ScheduleOp.BACKFILL,
        id=schedule_id,
        first=moment_typed(first, "FIRST"),
        last=moment_typed(last, "LAST"),
        at_once=at_once,
    )
    reply = asyncio.run(_ask(reach, item))
    body: Item = {"id": schedule_id, "moments": reply.runs}
    line = f"{schedule_id}: {reply.runs} moments are to run"
    reach.screen.show(Page(kind="schedule-backfill", items=[body], lines=[line]))
    return Exit.DONE


@app.command("delete")
def delete(ctx: typer.Context, schedule_id: ScheduleId, yes: Yes = False) -> Exit:
    """Forget a schedule. It starts nothing more; what runs goes on."""
    reach = reach_of(ctx)
    ask(reach, f"Schedule {schedule_id} will be forgotten.", yes=yes)
    asyncio.run(_ask(reach, ScheduleItem(op=ScheduleOp.DELETE, id=schedule_id)))
    body: Item = {"id": schedule_id}
    line = f"{schedule_id}: deleted"
    reach.screen.show(Page(kind="schedule-delete", items=[body], lines=[line]))
    return Exit.DONE


def _act(ctx: typer.Context, item: ScheduleItem) -> Exit:
    reach = reach_of(ctx)
    [info] = asyncio.run(_ask(reach, item)).schedules
    return _tell(reach, info, JournalClock().now())


async def _ask(reach: Reach, item: ScheduleItem) -> ReplyItem:
    if reach.broker is not None:
        async with open_client(reach) as client:
            return await client.schedules.ask(item, reach.patience)
    async with open_journal(reach) as journal:
        clock = JournalClock()
        flows = KnownFlows(journal, clock)
        admitter = Admitter(flows, payload_limit=PAYLOAD_LIMIT, resend_after=0.0)
        desk = ScheduleDesk(journal, admitter, clock=clock, patience=reach.patience)
        mine = replace(item, tenant=reach.tenant)
        reply = await desk.carry_out(mine, wire.MSGPACK, RandomIds().token())
        await note_if_alone(reach, journal)
    return reply
