"""Commands that look: they read the journal and change nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from loom_mq.cli import views
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import ExecutionId, Limit, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Cell, Page
from loom_mq.codec.values import to_display
from loom_mq.errors import InputError, UnknownExecutionError
from loom_mq.journal.protocol import CLAIM_PAGE, Journal, ListQuery
from loom_mq.kernel.explain import Reason, explain
from loom_mq.kernel.fold import ExecutionState, FrameStatus, fold
from loom_mq.kernel.wording import span
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status

# ---- loom list -------------------------------------------------------------------------------


def list_executions(
    ctx: typer.Context,
    status: Annotated[Status | None, typer.Option("--status", help="Only this status.")] = None,
    flow: Annotated[str | None, typer.Option("--flow", help="Only this flow.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only this queue.")] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on from there.")] = None,
) -> Exit:
    """List executions, newest first."""
    reach = reach_of(ctx)
    return asyncio.run(
        _list(
            reach,
            ListQuery(
                tenant=reach.tenant,
                status=status,
                flow=flow,
                queue=queue,
                limit=limit + 1,
                before=views.read_cursor(cursor),
            ),
        )
    )


async def _list(reach: Reach, query: ListQuery) -> Exit:
    async with open_journal(reach) as journal:
        found = await journal.find(query)
        now = await journal.now()
    shown = found[: query.limit - 1]
    reach.screen.show(
        Page(
            kind="executions",
            items=[views.execution_item(row, now) for row in shown],
            columns=views.EXECUTION_COLUMNS,
            rows=[views.execution_cells(row, now) for row in shown],
            empty="no executions",
            next=views.cursor_of(shown[-1]) if len(found) > len(shown) else None,
        )
    )
    return Exit.DONE


# ---- loom show, why ----------------------------------------------------------------------------


def show(ctx: typer.Context, execution_id: ExecutionId) -> Exit:
    """Show one execution: where it stands, why, and its steps."""
    return asyncio.run(_show(reach_of(ctx), execution_id))


async def _show(reach: Reach, execution_id: str) -> Exit:
    async with open_journal(reach) as journal:
        row, state, reason, now = await explained(reach, journal, reach.key(execution_id))
    result = None if state.result is None else to_display(state.result)
    steps = [
        {
            "place": place,
            "name": frame.name,
            "status": frame.status.value,
            "attempts": frame.attempts,
            "failures": frame.failures,
            "error": None if frame.failure is None else frame.failure.headline,
        }
        for place, frame in state.frames.items()
    ]
    item = {
        **views.execution_item(row, now),
        "reason": views.reason_item(row, reason, now),
        "steps": steps,
        "result": result,
        "traceback": None if state.failure is None else state.failure.traceback,
    }
    reach.screen.show(
        Page(kind="execution", items=[item], lines=_shown(reach, row, state, reason, now))
    )
    return Exit.DONE


def _shown(
    reach: Reach, row: ExecutionRow, state: ExecutionState, reason: Reason, now: int
) -> list[Cell]:
    labels = " ".join(f"{name}={value}" for name, value in row.labels.items())
    lines: list[Cell] = [
        f"{row.execution_id}  {row.flow} version {row.version}  queue {row.queue}"
        + (f"  {labels}" if labels else ""),
        views.status_cell(row.status),
        reason.sentence,
    ]
    if reason.next:
        lines.append(f"Next: {reach.copyable(reason.next)}")
    lines.append(
        f"Attempt {row.attempt}, {row.recoveries} recoveries since the last progress, "
        f"{row.last_seq + 1} events, begun {span((now - row.created_at) / 1e6)} ago."
    )
    counted = Counter((frame.name, frame.status) for frame in state.frames.values())
    for (name, status), number in counted.items():
        lines.append(f"  step {name}: {number} {status.value}")
    for frame in state.frames.values():
        if frame.failure is not None and frame.status is not FrameStatus.COMPLETED:
            lines.append(f"  step {frame.name} failed: {frame.failure.headline}")
    if state.failure is not None and state.failure.traceback:
        lines.append(state.failure.traceback.rstrip())
    return lines


def why(ctx: typer.Context, execution_id: ExecutionId) -> Exit:
    """Say why an execution is where it is, and what to do about it."""
    return asyncio.run(_why(reach_of(ctx), execution_id))


async def _why(reach: Reach, execution_id: str) -> Exit:
    async with open_journal(reach) as journal:
        row, _state, reason, now = await explained(reach, journal, reach.key(execution_id))
    lines: list[Cell] = [reason.sentence]
    if reason.next:
        lines.append(f"Next: {reach.copyable(reason.next)}")
    reach.screen.show(Page(kind="reason", items=[views.reason_item(row, reason, now)], lines=lines))
    return Exit.DONE


async def explained(
    reach: Reach, journal: Journal, key: ExecutionKey
) -> tuple[ExecutionRow, ExecutionState, Reason, int]:
    """An execution with the reason why it is where it is, and the time of that."""
    row = await existing(journal, key)
    state = ExecutionState()
    async for page in pages(journal, key):
        fold(page, state)
    workers, flows = await journal.workers(), await journal.flows()
    [mail] = await journal.inbox([key])
    now = await journal.now()
    reason = explain(row, workers, flows, now, state=state, mail=mail, embedded=reach.embedded)
    return row, state, reason, now


async def existing(journal: Journal, key: ExecutionKey) -> ExecutionRow:
    """The index row of an execution.

    Raises:
        UnknownExecutionError: there is none.
    """
    [row] = await journal.get([key])
    if row is None:
        raise UnknownExecutionError(
            f"there is no execution {key.execution_id!r}", execution_id=key.execution_id
        )
    return row


async def pages(journal: Journal, key: ExecutionKey) -> AsyncIterator[list[Envelope]]:
    """A whole log, page by page."""
    first = 0
    while page := await journal.read(key, first=first):
        yield page
        first = page[-1].seq + 1
        if len(page) < CLAIM_PAGE:
            return


# ---- loom history ------------------------------------------------------------------------------


def history(
    ctx: typer.Context,
    execution_id: ExecutionId,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only events of this kind; repeatable.")
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Only the newest.")] = None,
    payloads: Annotated[bool, typer.Option("--payloads", help="Show values, too.")] = False,
) -> Exit:
    """Show the log of an execution, event by event."""
    kinds = {each.upper() for each in kind or ()}
    unknown = sorted(kinds - set(EventKind))
    if unknown:
        raise InputError(f"there is no event kind {unknown[0]!r}; one is {', '.join(EventKind)}")
    return asyncio.run(_history(reach_of(ctx), execution_id, kinds, tail, payloads=payloads))


async def _history(
    reach: Reach, execution_id: str, kinds: set[str], tail: int | None, *, payloads: bool
) -> Exit:
    key = reach.key(execution_id)
    writer = views.History(payloads=payloads)
    lines = []
    async with open_journal(reach) as journal:
        await existing(journal, key)
        async for page in pages(journal, key):
            lines += [(each.kind, *writer.line(each)) for each in page]
    chosen = [(item, cells) for kind, item, cells in lines if not kinds or kind in kinds]
    if tail is not None:
        chosen = chosen[-tail:]
    reach.screen.show(
        Page(
            kind="events",
            items=[item for item, _cells in chosen],
            columns=views.HISTORY_COLUMNS,
            rows=[cells for _item, cells in chosen],
            empty="no events yet" if not lines else "no such events",
        )
    )
    return Exit.DONE
