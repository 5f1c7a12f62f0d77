"""What took how long, and how it went: read from events, never from a stored status (K1).

A step that failed and was caught is a failed step of an execution that did not fail.
Times and durations are microseconds. Pure, but for `histories`, which reads a journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from loom_mq.errors import InputError
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.lifecycle.introspection import (
    AnswerRecord,
    Introspection,
    Park,
    StepOutcome,
    StepRecord,
    introspect,
)
from loom_mq.lifecycle.reading import read_log
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, Status
from loom_mq.recovery.iteration import PAGE, iterate_executions

__all__ = [
    "AnswerRecord",
    "FlowProfile",
    "Introspection",
    "Park",
    "StepOutcome",
    "StepProfile",
    "StepRecord",
    "histories",
    "introspect",
    "profile",
]


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a flow, over all its places and executions.

    Attributes:
        count: how often it began, retries not counted.
        attempts: how often its effect was started.
        retries: how often it was to be tried again after a failure.
        outcomes: how often it ended how.
        failures: failed attempts by the class of their error.
        p50: median duration of those that completed or failed, None without any.
        p99: 99th percentile of the same.
    """

    name: str
    count: int
    attempts: int
    retries: int
    outcomes: dict[StepOutcome, int]
    failures: dict[str, int]
    p50: int | None
    p99: int | None


class FlowProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Many executions of one flow.

    Attributes:
        flows: names of the flows that were seen; one, as it should be.
        executions: how many.
        cut: executions whose log was cut behind a snapshot; they count as executions with
            an outcome, and nothing else is known of them.
        outcomes: how many ended how, or have not.
        p50: median time from the first event to the end, parks included; None without any
            that ended.
        p99: 99th percentile of the same.
        active_p50: median time that they were not parked.
        active_p99: 99th percentile of the same.
        recoveries: takeovers from workers that died.
        steps: by name, those that began most often first.
    """

    flows: tuple[str, ...]
    executions: int
    cut: int
    outcomes: dict[Status, int]
    p50: int | None
    p99: int | None
    active_p50: int | None
    active_p99: int | None
    recoveries: int
    steps: tuple[StepProfile, ...]


def profile(logs: Iterable[Sequence[Envelope]]) -> FlowProfile:
    """What executions have in common.

    Args:
        logs: the log of each, such as `histories` gives; each is looked at once.
    """
    outcomes: Counter[Status] = Counter()
    steps: dict[str, list[StepRecord]] = {}
    flows: dict[str, None] = {}
    totals: list[int] = []
    actives: list[int] = []
    cut = recoveries = 0
    for log in logs:
        told = introspect(log)
        outcomes[told.outcome] += 1
        if not told.whole:
            cut += 1
            continue
        flows[told.flow] = None
        recoveries += told.recoveries
        if told.ended_at is not None:
            totals.append(told.total)
            actives.append(told.active)
        for step in told.steps:
            steps.setdefault(step.name, []).append(step)
    often = sorted(steps.items(), key=lambda each: (-len(each[1]), each[0]))
    return FlowProfile(
        flows=tuple(flows),
        executions=outcomes.total(),
        cut=cut,
        outcomes=dict(outcomes),
        p50=percentile(totals, 50),
        p99=percentile(totals, 99),
        active_p50=percentile(actives, 50),
        active_p99=percentile(actives, 99),
        recoveries=recoveries,
        steps=tuple(_step_profile(name, records) for name, records in often),
    )


def _step_profile(name: str, records: list[StepRecord]) -> StepProfile:
    told = (StepOutcome.COMPLETED, StepOutcome.FAILED)
    durations = [
        record.duration
        for record in records
        if record.outcome in told and record.duration is not None
    ]
    return StepProfile(
        name=name,
        count=len(records),
        attempts=sum(record.attempts for record in records),
        retries=sum(record.retries for record in records),
        outcomes=dict(Counter(record.outcome for record in records)),
        failures=dict(Counter(kind for record in records for kind in record.failures)),
        p50=percentile(durations, 50),
        p99=percentile(durations, 99),
    )


def percentile(values: Iterable[int], percent: int) -> int | None:
    """The smallest value that so many percent do not exceed; None of nothing."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)] if ranked else None


async def histories(
    journal: Journal,
    flow: str,
    *,
    limit: int,
    since: int | None = None,
    tenant: str | None = DEFAULT_TENANT,
) -> list[tuple[Envelope, ...]]:
    """The logs of a flow's newest executions, newest first; those not begun are left out.

    Args:
        journal: where to look.
        flow: its name.
        limit: executions at most; all their logs are held at once.
        since: journal time; only executions made at it or later. None for all.
        tenant: whose; None for all.

    Raises:
        InputError: `limit` is less than 1.
    """
    if limit < 1:
        raise InputError(f"limit must be at least 1, not {limit}")
    found: list[tuple[Envelope, ...]] = []
    query = ListQuery(tenant=tenant, flow=flow)
    async for rows in iterate_executions(journal, query, page=min(limit, PAGE)):
        for row in rows:
            if since is not None and row.created_at < since:
                return found
            log = await read_log(journal, row.key)
            if log:
                found.append(log)
            if len(found) == limit:
                return found
    return found
