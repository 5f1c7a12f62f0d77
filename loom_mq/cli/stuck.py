"""`loom stuck`: executions that somebody should look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Final

import typer

from loom_mq.cli import views
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Cell, Page
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.explain import MAX_RECOVERIES, Reason, explain
from loom_mq.kernel.wording import counted, span
from loom_mq.model.execution import ExecutionKey, ExecutionRow, FlowRecord, Status, WorkerRecord
from loom_mq.recovery.census import CensusTaker
from loom_mq.recovery.iteration import iterate_executions

_PAGE: Final = 500
_IDS_SHOWN: Final = 3


def stuck(
    ctx: typer.Context,
    ids: Annotated[bool, typer.Option("--ids", help="One line per execution.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 7 if there are any.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many of each status to look at.")
    ] = 10_000,
) -> Exit:
    """Find executions that somebody should look at, by reason."""
    return asyncio.run(_stuck(reach_of(ctx), ids=ids, check=check, limit=limit))


async def _stuck(reach: Reach, *, ids: bool, check: bool, limit: int) -> Exit:
    found: list[tuple[ExecutionRow, Reason]] = []
    seen: set[ExecutionKey] = set()
    async with open_journal(reach) as journal:
        taker = CensusTaker(journal, max_recoveries=MAX_RECOVERIES)
        workers, flows = await journal.workers(), await journal.flows()
        for query in _queries(reach.tenant):
            async for rows in _unended(journal, query, limit):
                new = [row for row in rows if row.key not in seen and not row.status.terminal]
                seen.update(row.key for row in new)
                found += await _reasons(reach, journal, new, workers, flows)
                await taker.add(new)
        now = await journal.now()
    forgotten = sum(each.forgotten for each in taker.census().flows.values())
    _show_stuck(reach, found, now, ids=ids, looked_at=len(seen), forgotten=forgotten)
    return Exit.FOUND if check and (found or forgotten) else Exit.DONE


def _queries(tenant: str) -> list[ListQuery]:
    """Where to look. What the index knows to need a person comes first, however old it is."""
    return [
        ListQuery(tenant=tenant, in_doubt=True),
        ListQuery(tenant=tenant, troubled=True),
        *(
            ListQuery(tenant=tenant, status=status)
            for status in (Status.PENDING, Status.RUNNING, Status.SUSPENDED)
        ),
    ]


async def _unended(
    journal: Journal, query: ListQuery, limit: int
) -> AsyncIterator[list[ExecutionRow]]:
    left = limit
    async with aclosing(iterate_executions(journal, query, page=min(limit, _PAGE))) as pages:
        async for rows in pages:
            yield rows[:left]
            left -= len(rows)
            if left <= 0:
                return


async def _reasons(
    reach: Reach,
    journal: Journal,
    rows: Sequence[ExecutionRow],
    workers: Sequence[WorkerRecord],
    flows: Sequence[FlowRecord],
) -> list[tuple[ExecutionRow, Reason]]:
    now = await journal.now()
    keys = [row.key for row in rows if row.inbox]
    mail = dict(zip(keys, await journal.inbox(keys), strict=True)) if keys else {}
    explained = (
        (
            row,
            explain(row, workers, flows, now, mail=mail.get(row.key, ()), embedded=reach.embedded),
        )
        for row in rows
    )
    return [(row, reason) for row, reason in explained if reason.stuck]


def _show_stuck(
    reach: Reach,
    found: Sequence[tuple[ExecutionRow, Reason]],
    now: int,
    *,
    ids: bool,
    looked_at: int,
    forgotten: int,
) -> None:
    items = [views.reason_item(row, reason, now) for row, reason in found]
    lines: list[Cell] = []
    empty = f"nothing is stuck ({looked_at} executions have not ended)"
    if ids:
        columns: tuple[str, ...] = ("ID", "REASON", "QUEUE", "SINCE", "SENTENCE")
        rows: list[tuple[Cell, ...]] = [
            (row.execution_id, reason.code.value, row.queue, _since(reason, now), reason.sentence)
            for row, reason in found
        ]
    else:
        columns = ("COUNT", "REASON", "QUEUE", "FLOW", "OLDEST", "FOR-EXAMPLE")
        rows, lines = _grouped(reach, found, now)
    if forgotten:
        empty = ""
        lines.append(
            f"{counted(forgotten, 'execution')} that nobody drives and no package is due for: "
            "loom census --ids"
        )
    reach.screen.show(
        Page(kind="stuck", items=items, columns=columns, rows=rows, lines=lines, empty=empty)
    )


def _grouped(
    reach: Reach, found: Sequence[tuple[ExecutionRow, Reason]], now: int
) -> tuple[list[tuple[Cell, ...]], list[Cell]]:
    """A line per group, and what to do next about each, which needs more room."""
    groups: dict[tuple[str, str, str], list[tuple[ExecutionRow, Reason]]] = {}
    for row, reason in found:
        groups.setdefault((reason.code.value, row.queue, row.flow), []).append((row, reason))
    lines: list[tuple[Cell, ...]] = []
    steps: dict[Cell, None] = {}
    for (code, queue, flow), members in sorted(groups.items(), key=lambda each: -len(each[1])):
        _row, oldest = min(members, key=lambda each: each[1].since or now)
        examples = ", ".join(row.execution_id for row, _reason in members[:_IDS_SHOWN])
        lines.append((str(len(members)), code, queue, flow, _since(oldest, now), examples))
        if oldest.next:
            steps[f"Next, {code}: {reach.copyable(oldest.next)}"] = None
    return lines, list(steps)


def _since(reason: Reason, now: int) -> str:
    return views.NOTHING if reason.since is None else span((now - reason.since) / 1e6)
