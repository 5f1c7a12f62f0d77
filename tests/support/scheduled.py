"""Flows that the tests of schedules start, and what they have started (F9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import loom_mq as loom
from loom_mq.journal.protocol import ListQuery
from loom_mq.model.execution import ExecutionRow
from loom_mq.testing import TestEnvironment

NOON: Final = datetime(2026, 3, 28, 12, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)


@loom.flow
async def report(ctx: loom.Context, what: str) -> str:
    return f"{what} {ctx.labels['scheduled_for']}"


@loom.flow
async def slow(ctx: loom.Context, minutes: int) -> None:
    await ctx.sleep(minutes * 60)


async def runs(env: TestEnvironment, schedule: str = "s") -> list[ExecutionRow]:
    """The executions of a schedule, in the order of their moments."""
    rows = await env.fleet.journal.find(ListQuery(labels={"schedule": schedule}, limit=1000))
    return sorted(rows, key=lambda row: row.labels["scheduled_for"])


async def moments(env: TestEnvironment, schedule: str = "s") -> list[str]:
    return [row.labels["scheduled_for"][5:16] for row in await runs(env, schedule)]
