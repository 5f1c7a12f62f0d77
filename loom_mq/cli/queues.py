"""`loom queues`: what waits where, and who takes it (F11).

The broker tells what is ready and who consumes (by a passive declare, so no management
plugin is needed), the journal what that means: how long the oldest waits, and what nobody
has been told of.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import typer

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker
from loom_mq.cli import brokering
from loom_mq.cli.exits import Exit, exit_of
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_broker, open_journal
from loom_mq.cli.reading import LETTERS
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.cli.survey import PAGE, UNENDED
from loom_mq.cli.views import NOTHING
from loom_mq.clock import MICROS
from loom_mq.errors import LoomError
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.facts import Depth
from loom_mq.kernel.parked import OVERDUE
from loom_mq.kernel.reasons import PATIENCE
from loom_mq.kernel.wording import span
from loom_mq.model.execution import ExecutionRow, Status, WorkerRecord
from loom_mq.recovery.iteration import iterate_executions

COLUMNS: Final = (
    *("QUEUE", "READY", "CONSUMERS", "WORKERS", "SLOTS", "RUNNING", "WAITING", "OLDEST"),
    *("UNSENT", "DEAD", "STATE"),
)
SERVICE_QUEUES: Final = (topology.START, topology.CONTROL, topology.PRESENCE, topology.DEAD)


class QueueState(enum.StrEnum):
    """Whether a queue needs somebody."""

    OK = "ok"
    IDLE = "idle"
    """Nothing is in it, and nobody serves it."""
    BACKLOG = "backlog"
    """It is served, and something waits for longer than it should."""
    NO_CONSUMER = "no consumer"
    """Something waits, and nobody takes it."""
    MISSING = "missing"
    """Something waits, and the broker has no such queue."""


class QueueFacts(msgspec.Struct, kw_only=True):
    """One queue.

    Attributes:
        name: what flows and workers call it; the broker's name for the fleet's own.
        broker_queue: its name on the broker.
        service: it carries requests to dispatchers and not work.
        asked: whether the broker was asked.
        depth: what it said; None where it has no such queue.
        workers: that are alive, serve it and do not drain.
        slots: executions that those drive at once.
        running: executions in the hands of a process.
        waiting: executions that could run and that nobody holds.
        oldest: journal time since when the oldest of those waits.
        unsent: executions for which a package is overdue.
        dead: its dead letters, among the newest.
    """

    name: str
    broker_queue: str
    service: bool = False
    asked: bool = False
    depth: Depth | None = None
    workers: int = 0
    slots: int = 0
    running: int = 0
    waiting: int = 0
    oldest: int | None = None
    unsent: int = 0
    dead: int = 0

    def state(self, now: int) -> QueueState:
        """Whether it needs somebody."""
        ready = 0 if self.depth is None else self.depth.ready
        consumers = self.workers if self.depth is None else self.depth.consumers
        if self.service:
            missing = self.asked and not consumers
            return QueueState.NO_CONSUMER if missing else QueueState.OK
        if not ready and not self.waiting:
            return QueueState.OK if consumers else QueueState.IDLE
        if self.asked and self.depth is None:
            return QueueState.MISSING
        if not consumers:
            return QueueState.NO_CONSUMER
        late = self.oldest is not None and now - self.oldest > PATIENCE
        return QueueState.BACKLOG if late or self.unsent else QueueState.OK


def queues(
    ctx: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many executions of each status to look at.")
    ] = 10_000,
) -> Exit:
    """List the queues: what waits in them, since when, and who serves them.

    With --broker also the messages ready and the consumers, as the broker counts them.
    """
    return asyncio.run(_queues(reach_of(ctx), limit))


async def _queues(reach: Reach, limit: int) -> Exit:
    async with open_journal(reach) as journal:
        found, cut = await gather(reach, journal, limit)
        now = await journal.now()
    code = Exit.DONE
    if reach.broker is not None and not reach.embedded:
        try:
            async with open_broker(reach) as broker:
                await ask_broker(broker, found)
        except LoomError as error:
            # what the journal knows is worth most when the broker is away
            reach.screen.loom_error(error)
            code = Exit(exit_of(error))
    if cut:
        reach.screen.note(f"looked at the newest {limit} of a status only; --limit looks at more")
    reach.screen.show(
        Page(
            kind="queues",
            items=[_item(each, now) for each in found],
            columns=COLUMNS,
            rows=[_cells(each, now) for each in found],
            empty="no flow has been registered, so there is no queue",
        )
    )
    return code


async def gather(reach: Reach, journal: Journal, limit: int) -> tuple[list[QueueFacts], bool]:
    """What the journal knows of all queues, and whether there was more than was looked at."""
    found: dict[str, QueueFacts] = {}

    def of(name: str) -> QueueFacts:
        work = topology.work(name).name
        return found.setdefault(name, QueueFacts(name=name, broker_queue=work))

    for flow in await journal.flows():
        of(flow.queue)
    for worker in await journal.workers():
        for name in worker.queues:
            _serve(of(name), worker)
    now, cut = await journal.now(), False
    for status in UNENDED:
        rows, more = await _rows(journal, ListQuery(tenant=reach.tenant, status=status), limit)
        cut |= more
        for row in rows:
            _count(of(row.queue), row, now)
    dead = Counter(letter.queue for letter in await journal.dead_letters(LETTERS))
    for each in found.values():
        each.dead = dead[each.broker_queue]
    return [found[name] for name in sorted(found)], cut


async def ask_broker(broker: Broker, found: list[QueueFacts]) -> None:
    """Ask for each queue, and add the fleet's own queues.

    Raises:
        LoomError: the broker cannot be asked.
    """
    for queue in SERVICE_QUEUES:
        found.append(QueueFacts(name=queue.name, broker_queue=queue.name, service=True))
    for each in found:
        each.depth = await brokering.depth(broker, each.broker_queue)
        each.asked = True


async def _rows(journal: Journal, query: ListQuery, limit: int) -> tuple[list[ExecutionRow], bool]:
    rows: list[ExecutionRow] = []
    async for page in iterate_executions(journal, query, page=min(limit, PAGE)):
        rows += page
        if len(rows) >= limit:
            return rows[:limit], True
    return rows, False


def _serve(queue: QueueFacts, worker: WorkerRecord) -> None:
    if worker.role == "worker" and not worker.draining:
        queue.workers += 1
        queue.slots += worker.slots


def _count(queue: QueueFacts, row: ExecutionRow, now: int) -> None:
    if row.owner is not None:
        queue.running += 1
        return
    if row.hint_at is not None and now - row.hint_at > OVERDUE:
        queue.unsent += 1
    if row.status is not Status.SUSPENDED:
        since = row.created_at if row.status is Status.PENDING else row.updated_at
        queue.waiting += 1
        queue.oldest = since if queue.oldest is None else min(queue.oldest, since)


def _item(queue: QueueFacts, now: int) -> Item:
    depth = queue.depth
    return {
        "queue": queue.name,
        "broker_queue": queue.broker_queue,
        "service": queue.service,
        "ready": None if depth is None else depth.ready,
        "consumers": None if depth is None else depth.consumers,
        "workers": queue.workers,
        "slots": queue.slots,
        "running": queue.running,
        "waiting": queue.waiting,
        "oldest_seconds": None if queue.oldest is None else max(0, now - queue.oldest) / MICROS,
        "unsent": queue.unsent,
        "dead": queue.dead,
        "state": queue.state(now).value,
    }


def _cells(queue: QueueFacts, now: int) -> tuple[Cell, ...]:
    depth = queue.depth
    broker: Sequence[str] = (
        (NOTHING, NOTHING) if depth is None else (str(depth.ready), str(depth.consumers))
    )
    state = queue.state(now).value
    if queue.service:
        return (queue.name, *broker, *([NOTHING] * 7), state)
    return (
        queue.name,
        *broker,
        str(queue.workers),
        str(queue.slots),
        str(queue.running),
        str(queue.waiting),
        NOTHING if queue.oldest is None else span((now - queue.oldest) / MICROS),
        str(queue.unsent),
        str(queue.dead),
        state,
    )
