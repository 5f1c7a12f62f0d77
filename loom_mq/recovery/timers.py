"""Timers that have lost their row (F9; ADR 0105 D4)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loom_mq.errors import JournalUnreachableError
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.recovery.iteration import NAMED, PAGE, Left, iterate_executions, told


class ReconcileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass over timers did.

    Attributes:
        looked_at: suspended executions.
        timed: those of them that wait for a time.
        armed: had no row for it, and have one now. Among them may be one whose timer has
            just fired and whose wake is on its way: it does nothing a second time.
        rearmed: the first hundred of those.
        failed: left for the next pass, because something raised.
        failures: the first hundred of those.
    """

    looked_at: int = 0
    timed: int = 0
    armed: int = 0
    rearmed: tuple[ExecutionKey, ...] = ()
    failed: int = 0
    failures: tuple[Left, ...] = ()


async def reconcile_timers(
    journal: Journal, *, tenant: str | None = None, flow: str | None = None, page: int = PAGE
) -> ReconcileSummary:
    """Arm again the wake of every suspended execution whose timer has lost its row (F9).

    Asks nobody which rows there are: arming is idempotent per execution and due time, so a
    healthy row stays as it is. A wake that is past fires at once. It may run at any time
    and beside any number of timer services: one that fires a timer twice wakes an execution
    that no longer waits, which does nothing.

    Args:
        journal: where they are.
        tenant: whose; None for all.
        flow: only this one's.
        page: executions per statement.

    Raises:
        JournalUnreachableError: the journal is away.
        JournalError: executions cannot be listed.
    """
    summary = ReconcileSummary()
    query = ListQuery(tenant=tenant, flow=flow, status=Status.SUSPENDED)
    async for rows in iterate_executions(journal, query, page=page):
        timers = [(row.key, row.wake_at) for row in rows if row.wake_at is not None]
        armed, left = await _arm(journal, timers)
        summary = ReconcileSummary(
            looked_at=summary.looked_at + len(rows),
            timed=summary.timed + len(timers),
            armed=summary.armed + len(armed),
            rearmed=(*summary.rearmed, *armed)[:NAMED],
            failed=summary.failed + len(left),
            failures=(*summary.failures, *left)[:NAMED],
        )
    return summary


async def _arm(
    journal: Journal, timers: Sequence[tuple[ExecutionKey, int]]
) -> tuple[list[ExecutionKey], list[Left]]:
    """Those that were missing, and those that cannot be armed: no bad one strands the rest."""
    if not timers:
        return [], []
    try:
        made = await journal.arm_timers(timers)
    except JournalUnreachableError:
        raise
    except Exception as error:
        if len(timers) == 1:
            return [], [Left(timers[0][0], told(error))]
        armed: list[ExecutionKey] = []
        left: list[Left] = []
        for timer in timers:
            more, failed = await _arm(journal, [timer])
            armed += more
            left += failed
        return armed, left
    return [key for (key, _due), new in zip(timers, made, strict=True) if new], []
