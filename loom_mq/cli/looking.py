"""`loom show` and `loom why`: where one execution stands, and why."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import typer

from loom_mq.cli import views
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.reading import explained
from loom_mq.cli.screen import Cell, Page
from loom_mq.codec.values import to_display
from loom_mq.kernel.explain import Reason
from loom_mq.kernel.fold import ExecutionState, FrameStatus
from loom_mq.kernel.wording import span
from loom_mq.model.execution import ExecutionRow

_UNENDED_STEPS: Final = frozenset({FrameStatus.RUNNING, FrameStatus.RETRYING, FrameStatus.IN_DOUBT})


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
        **views.execution_item(row, now, _step(state)),
        "reason": views.reason_item(row, reason, now),
        "steps": steps,
        "result": result,
        "traceback": None if state.failure is None else state.failure.traceback,
    }
    reach.screen.show(
        Page(kind="execution", items=[item], lines=_shown(reach, row, state, reason, now))
    )
    return Exit.DONE


def _step(state: ExecutionState) -> str | None:
    """The newest step that has not ended."""
    open_ones = [frame.name for frame in state.frames.values() if frame.status in _UNENDED_STEPS]
    return open_ones[-1] if open_ones else None


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
    lines: list[Cell] = [reason.sentence, *(f"  {fact}" for fact in reason.evidence)]
    if reason.next:
        lines.append(f"Next: {reach.copyable(reason.next)}")
    reach.screen.show(Page(kind="reason", items=[views.reason_item(row, reason, now)], lines=lines))
    return Exit.DONE
