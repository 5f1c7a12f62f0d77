"""`loom timers`: what is to wake when, and what should have woken (F9, F11).

It reads the index rows of parked executions, whose `wake_at` is what their timer was armed
for, and not the timers' own rows: what a timer service has taken shows by the hint that it
leaves, and one whose row is lost by having none.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
import typer

from loom_mq.cli import filters
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import Limit, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.recovering import reconcile
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.cli.survey import PAGE
from loom_mq.cli.text import moment
from loom_mq.cli.views import NOTHING
from loom_mq.clock import MICROS
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.fold import decode_payload
from loom_mq.kernel.wording import span
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import ExecutionRow, Status
from loom_mq.recovery.iteration import iterate_executions

COLUMNS: Final = ("EXECUTION", "FLOW", "DUE", "LEFT", "LATE", "KIND", "FOR", "HELD")
_TAIL: Final = 20
"""Events from the end of a log, among which its newest park is sought."""

app: Final = typer.Typer(invoke_without_command=True, no_args_is_help=False)


class Timer(msgspec.Struct, frozen=True):
    """One timer.

    Attributes:
        row: of the execution that it wakes.
        due: journal time.
        wait: what ends with it; None when the log does not tell.
    """

    row: ExecutionRow
    due: int
    wait: Wait | None

    def held(self, now: int) -> int | None:
        """Until when it is in somebody's hands: fired, and sent again then."""
        hint = self.row.hint_at
        return hint if hint is not None and self.due <= now < hint else None


@app.callback()
def timers(
    ctx: typer.Context,
    overdue: Annotated[bool, typer.Option("--overdue", help="Only those that are late.")] = False,
    flow: filters.OfFlow = None,
    queue: filters.OfQueue = None,
    limit: Limit = 50,
    look: Annotated[
        int, typer.Option("--look", min=1, help="How many parked executions to look at.")
    ] = 100_000,
) -> Exit:
    """List timers, the next one first: what sleeps, retries later, or waits for so long only.

    HELD says that a timer service has fired it, and when it is sent again unless a worker
    takes it.
    """
    if ctx.invoked_subcommand is not None:
        return Exit.DONE
    query = ListQuery(tenant=reach_of(ctx).tenant, flow=flow, queue=queue, status=Status.SUSPENDED)
    return asyncio.run(_timers(reach_of(ctx), query, overdue, limit, look))


app.command("reconcile")(reconcile)


async def _timers(reach: Reach, query: ListQuery, overdue: bool, limit: int, look: int) -> Exit:
    async with open_journal(reach) as journal:
        due, looked, number = await _due(journal, query, look, overdue=overdue)
        found = [Timer(row, at, await _wait(journal, row, at)) for at, row in due[:limit]]
        now = await journal.now()
    if looked >= look:
        reach.screen.note(f"looked at the newest {look} parked executions only; --look takes more")
    if number > limit:
        reach.screen.note(f"the next {limit} of {number}; --limit shows more")
    reach.screen.show(
        Page(
            kind="timers",
            items=[_item(timer, now) for timer in found],
            columns=COLUMNS,
            rows=[_cells(timer, now) for timer in found],
            empty="no timer is late" if overdue else "no timers",
        )
    )
    return Exit.DONE


async def _due(
    journal: Journal, query: ListQuery, look: int, *, overdue: bool
) -> tuple[list[tuple[int, ExecutionRow]], int, int]:
    """Timers by their time, how many executions were looked at, and how many timers there are."""
    now = await journal.now()
    found: list[tuple[int, ExecutionRow]] = []
    looked = 0
    async for rows in iterate_executions(journal, query, page=min(look, PAGE)):
        looked += len(rows)
        for row in rows:
            if row.wake_at is not None and (row.wake_at <= now or not overdue):
                found.append((row.wake_at, row))
        if looked >= look:
            break
    found.sort(key=lambda each: (each[0], each[1].key))
    return found, looked, len(found)


async def _wait(journal: Journal, row: ExecutionRow, due: int) -> Wait | None:
    """What the timer of an execution is for, by the end of its log."""
    for envelope in reversed(await journal.read(row.key, newest=True, limit=_TAIL)):
        event = decode_payload(envelope)
        if isinstance(event, ev.ExecutionSuspended):
            return next((wait for wait in event.waits if wait.due == due), None)
    return None


def _kind(timer: Timer) -> str:
    if timer.wait is not None:
        return timer.wait.kind.value
    return (WaitKind.GATE if timer.row.gates else WaitKind.TIMER).value


def _purpose(timer: Timer) -> str:
    return timer.wait.name if timer.wait is not None else ", ".join(timer.row.gates)


def _item(timer: Timer, now: int) -> Item:
    held = timer.held(now)
    return {
        "execution_id": timer.row.execution_id,
        "tenant": timer.row.tenant,
        "flow": timer.row.flow,
        "queue": timer.row.queue,
        "due": moment(timer.due),
        "left_seconds": max(0, timer.due - now) / MICROS,
        "late_seconds": max(0, now - timer.due) / MICROS,
        "kind": _kind(timer),
        "for": _purpose(timer) or None,
        "held": held is not None,
        "held_until": moment(held),
    }


def _cells(timer: Timer, now: int) -> tuple[Cell, ...]:
    held = timer.held(now)
    due = moment(timer.due) or NOTHING
    return (
        timer.row.execution_id,
        timer.row.flow,
        f"{due[:10]} {due[11:19]}",
        span((timer.due - now) / MICROS) if timer.due > now else NOTHING,
        span((now - timer.due) / MICROS) if timer.due <= now else NOTHING,
        _kind(timer),
        _purpose(timer) or NOTHING,
        NOTHING if held is None else f"for {span((held - now) / MICROS)}",
    )
