"""`loom stuck`: executions that somebody should look at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import typer
from msgspec.structs import replace

from loom_mq.cli import choosing, filters, views
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Cell, Page
from loom_mq.cli.survey import Survey, unended
from loom_mq.journal.protocol import ListQuery
from loom_mq.kernel.explain import MAX_RECOVERIES, Reason, ReasonCode
from loom_mq.kernel.wording import counted, span
from loom_mq.model.execution import ExecutionRow

_IDS_SHOWN: Final = 3


def stuck(
    ctx: typer.Context,
    ids: Annotated[bool, typer.Option("--ids", help="One line per execution.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 7 if there are any.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many of each status to look at.")
    ] = 10_000,
    max_recoveries: Annotated[
        int, typer.Option("--max-recoveries", min=1, help="What the dispatchers use.")
    ] = MAX_RECOVERIES,
    flow: filters.OfFlow = None,
    queue: filters.OfQueue = None,
    reason: choosing.OfReason = None,
) -> Exit:
    """Find executions that somebody should look at, by reason."""
    reach = reach_of(ctx)
    queries = [replace(query, flow=flow, queue=queue) for query in unended(reach.tenant)]
    looked = _Look(queries, reason, limit, max_recoveries)
    return asyncio.run(_stuck(reach, looked, ids=ids, check=check))


class _Look(msgspec.Struct, frozen=True):
    queries: Sequence[ListQuery]
    reason: ReasonCode | None
    limit: int
    max_recoveries: int


async def _stuck(reach: Reach, look: _Look, *, ids: bool, check: bool) -> Exit:
    reason, limit = look.reason, look.limit
    async with open_journal(reach) as journal:
        survey = Survey(reach, journal, limit=limit, most=look.max_recoveries)
        await survey.look(look.queries)
        now = await journal.now()
    forgotten = sum(each.forgotten for each in survey.census.flows.values())
    if reason is not None:
        survey.stuck = [each for each in survey.stuck if each[1].code is reason]
        forgotten = 0
    _show_stuck(reach, survey, now, ids=ids, forgotten=forgotten)
    if survey.cut:
        reach.screen.note(f"looked at the newest {limit} of a status only; --limit looks at more")
    broker = survey.broker
    if broker is not None and (broker.unreachable or broker.alarm):
        reach.screen.note(f"the broker: {broker.unreachable or broker.alarm}")
    return Exit.FOUND if check and (survey.stuck or forgotten) else Exit.DONE


def _show_stuck(reach: Reach, survey: Survey, now: int, *, ids: bool, forgotten: int) -> None:
    found = survey.stuck
    items = [views.reason_item(row, reason, now) for row, reason in found]
    lines: list[Cell] = []
    empty = f"nothing is stuck ({len(survey.rows)} executions have not ended)"
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
