"""Commands that look back: how long what took, and what should not be there (K7, K8)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

import typer

from loom_mq.cli import filters
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.cli.text import moment
from loom_mq.cli.views import NOTHING
from loom_mq.clock import MICROS
from loom_mq.kernel.audit import stray_answers
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.kernel.wording import counted, span
from loom_mq.lifecycle.analysis import FlowProfile, StepProfile, histories
from loom_mq.lifecycle.analysis import profile as profile_of
from loom_mq.lifecycle.introspection import Introspection, Park, StepOutcome, StepRecord
from loom_mq.lifecycle.introspection import introspect as look_back
from loom_mq.lifecycle.reading import fetch
from loom_mq.model.execution import Status

# ---- loom profile -----------------------------------------------------------------------------


def profile(
    ctx: typer.Context,
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="Name of the flow.")],
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="The newest so many executions.")
    ] = 1000,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Only begun since: 24h, 7d.")
    ] = None,
) -> Exit:
    """Say how a flow's executions went: outcomes, durations, and the same for each step."""
    age = None if since is None else filters.age(since, "--since")
    return asyncio.run(_profile(reach_of(ctx), flow, limit, age))


async def _profile(reach: Reach, flow: str, limit: int, age: timedelta | None) -> Exit:
    async with open_journal(reach) as journal:
        since = None
        if age is not None:
            since = await journal.now() - age // timedelta(microseconds=1)
        logs = await histories(journal, flow, limit=limit, since=since, tenant=reach.tenant)
    told = profile_of(logs)
    item: Item = {
        "flow": flow,
        "executions": told.executions,
        "cut": told.cut,
        "outcomes": _counts(told.outcomes),
        "p50_seconds": _seconds(told.p50),
        "p99_seconds": _seconds(told.p99),
        "active_p50_seconds": _seconds(told.active_p50),
        "active_p99_seconds": _seconds(told.active_p99),
        "recoveries": told.recoveries,
        "steps": [_step_item(step) for step in told.steps],
    }
    reach.screen.show(
        Page(
            kind="profile",
            items=[item],
            columns=("STEP", "BEGAN", "ATTEMPTS", "COMPLETED", "FAILED", "P50", "P99", "ERRORS"),
            rows=[_step_cells(step) for step in told.steps],
            lines=_profile_lines(flow, told),
        )
    )
    return Exit.DONE


def _step_item(step: StepProfile) -> Item:
    return {
        "name": step.name,
        "count": step.count,
        "attempts": step.attempts,
        "retries": step.retries,
        "outcomes": _counts(step.outcomes),
        "failures": step.failures,
        "p50_seconds": _seconds(step.p50),
        "p99_seconds": _seconds(step.p99),
    }


def _step_cells(step: StepProfile) -> tuple[Cell, ...]:
    return (
        step.name,
        str(step.count),
        str(step.attempts),
        str(step.outcomes.get(StepOutcome.COMPLETED, 0)),
        str(step.outcomes.get(StepOutcome.FAILED, 0)),
        _took(step.p50),
        _took(step.p99),
        ", ".join(f"{number} {kind}" for kind, number in step.failures.items()) or NOTHING,
    )


def _profile_lines(flow: str, told: FlowProfile) -> list[Cell]:
    if not told.executions:
        return [f"no execution of flow {flow!r} has begun"]
    ways = ", ".join(f"{number} {name}" for name, number in _counts(told.outcomes).items())
    lines: list[Cell] = [f"{flow}: {counted(told.executions, 'execution')}: {ways}"]
    if told.p50 is not None:
        lines.append(f"from start to end: half within {_took(told.p50)}, 99 % {_took(told.p99)}")
        lines.append(
            f"waits not counted: half within {_took(told.active_p50)}, 99 % "
            f"{_took(told.active_p99)}"
        )
    if told.recoveries:
        lines.append(f"taken over from dead workers: {counted(told.recoveries, 'time')}")
    if told.cut:
        lines.append(f"of {told.cut} only the outcome is known: their logs were cut")
    return lines


# ---- loom introspect --------------------------------------------------------------------------


def introspect(ctx: typer.Context, execution_id: ExecutionId) -> Exit:
    """Say how an execution spent its time: its steps and waits, one after the other."""
    return asyncio.run(_introspect(reach_of(ctx), execution_id))


async def _introspect(reach: Reach, execution_id: str) -> Exit:
    async with open_journal(reach) as journal:
        found = await fetch(journal, reach.key(execution_id))
    told = look_back(found.events)
    began = told.started_at or 0
    timeline = sorted(
        [
            *((step.started_at, _step_row(step, began)) for step in told.steps),
            *((park.at, _park_row(park, began)) for park in told.parks),
        ],
        key=lambda each: each[0],
    )
    reach.screen.show(
        Page(
            kind="introspection",
            items=[_introspection_item(execution_id, told)],
            columns=("BEGAN", "TOOK", "WHAT", "NAME", "OUTCOME", "ATTEMPTS", "ERROR"),
            rows=[row for _at, row in timeline],
            lines=_introspection_lines(told),
        )
    )
    return Exit.DONE


def _step_row(step: StepRecord, began: int) -> tuple[Cell, ...]:
    return (
        f"+{_took(step.started_at - began)}",
        _took(step.duration),
        "step",
        step.name,
        step.outcome.value,
        str(step.attempts),
        step.error or NOTHING,
    )


def _park_row(park: Park, began: int) -> tuple[Cell, ...]:
    kinds = list(dict.fromkeys(wait.kind.value for wait in park.waits))
    names = list(dict.fromkeys(wait.name for wait in park.waits if wait.name))
    return (
        f"+{_took(park.at - began)}",
        _took(None if park.until is None else park.until - park.at),
        ", ".join(kinds) or "wait",
        ", ".join(names) or NOTHING,
        "waits" if park.until is None else "over",
        NOTHING,
        NOTHING,
    )


def _introspection_lines(told: Introspection) -> list[Cell]:
    error = f": {told.error}" if told.error else ""
    lines: list[Cell] = [f"{told.outcome.value} after {_took(told.total)}{error}"]
    if told.parked:
        lines.append(f"{_took(told.parked)} of that it was parked, {_took(told.active)} it was not")
    if told.recoveries:
        lines.append(f"taken over from dead workers: {counted(told.recoveries, 'time')}")
    if not told.whole:
        lines.append("its log was cut: this is what is left of it")
    return lines


def _introspection_item(execution_id: str, told: Introspection) -> Item:
    return {
        "id": execution_id,
        "flow": told.flow,
        "version": told.version,
        "outcome": told.outcome.value,
        "error": told.error or None,
        "whole": told.whole,
        "started_at": moment(told.started_at),
        "ended_at": moment(told.ended_at),
        "total_seconds": _seconds(told.total),
        "parked_seconds": _seconds(told.parked),
        "active_seconds": _seconds(told.active),
        "recoveries": told.recoveries,
        "steps": [
            {
                "place": step.place,
                "name": step.name,
                "outcome": step.outcome.value,
                "attempts": step.attempts,
                "retries": step.retries,
                "started_at": moment(step.started_at),
                "ended_at": moment(step.ended_at),
                "seconds": _seconds(step.duration),
                "failures": step.failures,
                "error": step.error or None,
            }
            for step in told.steps
        ],
        "parks": [
            {
                "at": moment(park.at),
                "until": moment(park.until),
                "waits": [{"kind": wait.kind.value, "name": wait.name} for wait in park.waits],
            }
            for park in told.parks
        ],
        "answers": [
            {
                "gate": answer.gate,
                "place": answer.place,
                "asked_at": moment(answer.asked_at),
                "taken_at": moment(answer.taken_at),
                "waited_seconds": _seconds(answer.waited),
            }
            for answer in told.answers
        ],
    }


# ---- loom audit -------------------------------------------------------------------------------


def audit(
    ctx: typer.Context,
    execution_id: ExecutionId,
    check: Annotated[bool, typer.Option("--check", help="Exit with 7 if there are any.")] = False,
) -> Exit:
    """Find answers that no gate should have taken, or that no gate waits for."""
    return asyncio.run(_audit(reach_of(ctx), execution_id, check=check))


async def _audit(reach: Reach, execution_id: str, *, check: bool) -> Exit:
    key = reach.key(execution_id)
    async with open_journal(reach) as journal:
        found = await fetch(journal, key)
        [mail] = await journal.inbox([key])
    before = None
    events = found.events
    if not found.whole and found.snapshot is not None:
        before = decode_snapshot(found.snapshot)
        events = tuple(event for event in events if event.seq > found.snapshot.seq)
    strays = stray_answers(events, mail, before=before)
    if not strays:
        reach.screen.note("no stray answers")
    reach.screen.show(
        Page(
            kind="audit",
            items=[
                {
                    "seq": stray.seq,
                    "gate": stray.gate,
                    "wait_id": stray.wait_id,
                    "answer_id": stray.answer_id,
                    "actor": stray.actor or None,
                    "reason": stray.reason.value,
                    "sentence": stray.sentence,
                }
                for stray in strays
            ],
            lines=[stray.sentence for stray in strays],
        )
    )
    return Exit.FOUND if check and strays else Exit.DONE


# ---- numbers ----------------------------------------------------------------------------------

_FINE: Final = 1000
"""Milliseconds in a second: shorter ones are told in them."""


def _took(micros: int | None) -> str:
    if micros is None:
        return NOTHING
    if micros < MICROS:
        return f"{micros * _FINE // MICROS} ms"
    return span(micros / MICROS)


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS


def _counts(counts: Mapping[Status, int] | Mapping[StepOutcome, int]) -> dict[str, int]:
    """The same with plain names."""
    return {str(name): number for name, number in counts.items()}
