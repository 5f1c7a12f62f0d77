"""Commands that look at the fleet: its processes and flows."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

import typer

from loom_mq.cli import views
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Page
from loom_mq.cli.survey import PAGE, Survey
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.model.execution import ExecutionRow, Status
from loom_mq.recovery.iteration import iterate_executions


def workers(ctx: typer.Context) -> Exit:
    """List the processes that are alive, and how much each has in hand."""
    return asyncio.run(_workers(reach_of(ctx)))


async def _workers(reach: Reach) -> Exit:
    async with open_journal(reach) as journal:
        held = await holdings(journal)
        alive = await journal.workers()
        now = await journal.now()
    reach.screen.show(
        Page(
            kind="workers",
            items=[views.worker_item(worker, held[worker.owner], now) for worker in alive],
            columns=views.WORKER_COLUMNS,
            rows=[views.worker_cells(worker, held[worker.owner], now) for worker in alive],
            empty="no process is alive",
        )
    )
    return Exit.DONE


async def holdings(journal: Journal) -> Counter[str]:
    """How many executions each process holds, of all tenants."""
    held: Counter[str] = Counter()
    async for rows in iterate_executions(journal, ListQuery(status=Status.RUNNING), page=PAGE):
        held.update(row.owner for row in rows if row.owner is not None)
    return held


def flows(
    ctx: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many executions of each status to look at.")
    ] = 10_000,
) -> Exit:
    """List the flows that workers have registered, and what runs of each."""
    return asyncio.run(_flows(reach_of(ctx), limit))


async def _flows(reach: Reach, limit: int) -> Exit:
    async with open_journal(reach) as journal:
        survey = Survey(reach, journal, limit=limit, ask_broker=False)
        await survey.look()
    serving = Counter(
        queue for worker in survey.workers if not worker.draining for queue in worker.queues
    )
    rows = survey.rows.values()
    parked = Counter(_flow_of(row) for row in rows if row.status is Status.SUSPENDED)
    running = Counter(_flow_of(row) for row in rows if row.status is not Status.SUSPENDED)
    stuck = Counter(_flow_of(row) for row, _reason in survey.stuck)
    if survey.cut:
        reach.screen.note(f"looked at the newest {limit} of a status only; --limit looks at more")
    reach.screen.show(
        Page(
            kind="flows",
            items=[
                {
                    "flow": flow.flow,
                    "version": flow.version,
                    "queue": flow.queue,
                    "queue_workers": serving[flow.queue],
                    "running": running[flow.flow, flow.version],
                    "parked": parked[flow.flow, flow.version],
                    "stuck": stuck[flow.flow, flow.version],
                }
                for flow in survey.flows
            ],
            columns=("FLOW", "VERSION", "QUEUE", "QUEUE-WORKERS", "RUNNING", "PARKED", "STUCK"),
            rows=[
                (
                    flow.flow,
                    flow.version,
                    flow.queue,
                    str(serving[flow.queue]),
                    str(running[flow.flow, flow.version]),
                    str(parked[flow.flow, flow.version]),
                    str(stuck[flow.flow, flow.version]),
                )
                for flow in survey.flows
            ],
            empty="no worker has ever registered a flow",
        )
    )
    return Exit.DONE


def _flow_of(row: ExecutionRow) -> tuple[str, str]:
    return row.flow, row.version
