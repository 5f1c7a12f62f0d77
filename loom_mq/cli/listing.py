"""`loom list`: executions by filters, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

import typer
from msgspec.structs import replace

from loom_mq.cli import choosing, filters, views
from loom_mq.cli.choosing import Narrow, choose
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import Limit, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Page
from loom_mq.cli.survey import PAGE, Survey
from loom_mq.errors import InputError
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.fold import decode_payload
from loom_mq.model import events as ev
from loom_mq.model.execution import ExecutionRow

_TAIL: Final = 20
"""Events from the end of a log, among which the newest step is sought."""


def list_executions(
    ctx: typer.Context,
    status: filters.OfStatus = None,
    flow: filters.OfFlow = None,
    version: filters.OfVersion = None,
    queue: filters.OfQueue = None,
    label: filters.OfLabel = None,
    since: choosing.Since = None,
    until: choosing.Until = None,
    ended_before: filters.EndedBefore = None,
    in_doubt: filters.InDoubt = False,
    troubled: filters.Troubled = False,
    reason: choosing.OfReason = None,
    worker: choosing.OfWorker = None,
    parent: choosing.OfParent = None,
    prefix: choosing.OfPrefix = None,
    error: choosing.OfError = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on from there.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only say how many there are.")] = False,
) -> Exit:
    """List executions, newest first.

    STEP is the newest step that runs or is tried again.
    """
    reach = reach_of(ctx)
    narrow = Narrow(
        since=since,
        until=until,
        worker=worker,
        parent=parent,
        prefix=prefix,
        error=error,
        reason=reason,
    )

    def query(now: int) -> ListQuery:
        chosen = filters.query(
            reach.tenant,
            now,
            status=status,
            flow=flow,
            version=version,
            queue=queue,
            label=label,
            ended_before=ended_before,
            in_doubt=in_doubt,
            troubled=troubled,
        )
        return replace(chosen, limit=limit + 1, before=views.read_cursor(cursor))

    # a mistake on the command line is told before anything is opened
    query(0)
    narrow.check()
    if count and cursor is not None:
        raise InputError("--count counts them all; it goes with no --cursor")
    return asyncio.run(_list(reach, query, narrow, limit, count=count))


async def _list(
    reach: Reach, query_at: filters.QueryAt, narrow: Narrow, limit: int, *, count: bool
) -> Exit:
    async with open_journal(reach) as journal:
        now = await journal.now()
        query = query_at(now)
        found = choose(
            journal,
            replace(query, limit=PAGE) if count else query,
            narrow,
            Survey(reach, journal, limit=limit),
        )
        if count:
            number = sum([len(rows) async for rows in found])
            reach.screen.show(Page(kind="count", items=[{"count": number}], lines=[str(number)]))
            return Exit.DONE
        shown, more = await _first(found, limit)
        steps = [await newest_step(journal, row) for row in shown]
    reach.screen.show(
        Page(
            kind="executions",
            items=[
                views.execution_item(row, now, step) for row, step in zip(shown, steps, strict=True)
            ],
            columns=views.EXECUTION_COLUMNS,
            rows=[
                views.execution_cells(row, now, step)
                for row, step in zip(shown, steps, strict=True)
            ],
            empty="no executions",
            next=views.cursor_of(shown[-1]) if more else None,
        )
    )
    return Exit.DONE


async def _first(
    pages: AsyncGenerator[list[ExecutionRow], None], limit: int
) -> tuple[list[ExecutionRow], bool]:
    """The first so many rows, and whether there are more."""
    rows: list[ExecutionRow] = []
    async with aclosing(pages) as each:
        async for page in each:
            rows += page
            if len(rows) > limit:
                return rows[:limit], True
    return rows, False


async def newest_step(journal: Journal, row: ExecutionRow) -> str | None:
    """The newest step that has begun and has not ended, by the end of the log."""
    if row.status.terminal or row.last_seq < 0:
        return None
    ended: set[str] = set()
    for envelope in reversed(await journal.read(row.key, newest=True, limit=_TAIL)):
        match decode_payload(envelope):
            case (
                ev.StepCompleted(step_id=place)
                | ev.StepFailed(step_id=place)
                | ev.StepCancelled(step_id=place)
            ):
                ended.add(place)
            case ev.StepStarted(step_id=place, name=name) if place not in ended:
                return name
    return None
