"""Commands that look at the fleet: its processes, flows and dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter

import typer

from loom_mq.cli import views
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import Limit, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Page
from loom_mq.kernel.wording import span


def workers(ctx: typer.Context) -> Exit:
    """List the processes that are alive."""
    return asyncio.run(_workers(reach_of(ctx)))


async def _workers(reach: Reach) -> Exit:
    async with open_journal(reach) as journal:
        alive = await journal.workers()
        now = await journal.now()
    reach.screen.show(
        Page(
            kind="workers",
            items=[views.worker_item(worker, now) for worker in alive],
            columns=("WORKER", "ROLE", "QUEUES", "SLOTS", "LEASE-LEFT", "VERSION", "UP"),
            rows=[views.worker_cells(worker, now) for worker in alive],
            empty="no process is alive",
        )
    )
    return Exit.DONE


def flows(ctx: typer.Context) -> Exit:
    """List the flows that workers have registered."""
    return asyncio.run(_flows(reach_of(ctx)))


async def _flows(reach: Reach) -> Exit:
    async with open_journal(reach) as journal:
        known = await journal.flows()
        alive = await journal.workers()
    serving = Counter(queue for worker in alive for queue in worker.queues)
    reach.screen.show(
        Page(
            kind="flows",
            items=[
                {
                    "flow": flow.flow,
                    "version": flow.version,
                    "queue": flow.queue,
                    "queue_workers": serving[flow.queue],
                }
                for flow in known
            ],
            columns=("FLOW", "VERSION", "QUEUE", "QUEUE-WORKERS"),
            rows=[
                (flow.flow, flow.version, flow.queue, str(serving[flow.queue])) for flow in known
            ],
            empty="no worker has ever registered a flow",
        )
    )
    return Exit.DONE


def dlq(ctx: typer.Context, limit: Limit = 50) -> Exit:
    """List dead letters: messages that nobody could use, newest first."""
    return asyncio.run(_dlq(reach_of(ctx), limit))


async def _dlq(reach: Reach, limit: int) -> Exit:
    async with open_journal(reach) as journal:
        letters = await journal.dead_letters(limit)
        now = await journal.now()
    reach.screen.show(
        Page(
            kind="dead_letters",
            items=[views.letter_item(letter) for letter in letters],
            columns=("ID", "QUEUE", "SINCE", "REASON"),
            rows=[
                (letter.id, letter.queue, span((now - letter.at) / 1e6), letter.reason)
                for letter in letters
            ],
            empty="no dead letters",
        )
    )
    return Exit.DONE
