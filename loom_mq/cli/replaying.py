"""`loom replay`: does a flow's code still fit the histories that there are? For CI (K3)."""

from __future__ import annotations

import asyncio
import enum
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from loom_mq.cli.archives import opened
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.codec.plain import ERASED
from loom_mq.errors import InputError, LoomError, UnknownFlowError
from loom_mq.flows.registry import Registry, load
from loom_mq.flows.rehearsal import rehearse
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.fold import decode_payload
from loom_mq.kernel.wording import counted
from loom_mq.lifecycle.archive import ArchivedExecution, fetch, read_archive
from loom_mq.model import events as ev
from loom_mq.model.execution import ExecutionRow
from loom_mq.recovery.iteration import PAGE, iterate_executions

_NAMED: Final = 3
_SECONDS: Final = 30.0
"""For one history: no flow code takes so long to repeat what is known."""


class Fit(enum.StrEnum):
    """How code and history go together."""

    FITS = "fits"
    MISMATCH = "mismatch"
    SKIPPED = "skipped"


_TOLD: Final = {Fit.FITS: "fit", Fit.MISMATCH: "do not", Fit.SKIPPED: "skipped"}


class Checked(msgspec.Struct, frozen=True):
    """One history.

    Attributes:
        why: how it does not fit, or why it was skipped.
        reached: how far the code came.
    """

    row: ExecutionRow
    fit: Fit
    why: str = ""
    reached: str = ""


def replay(
    ctx: typer.Context,
    place: Annotated[
        str,
        typer.Argument(metavar="FILE_OR_MODULE", help="Where the flows are: file.py or a.module."),
    ],
    history: Annotated[
        list[Path] | None,
        typer.Option(
            "--history", metavar="FILE", help="What `loom export` wrote; repeatable. No journal."
        ),
    ] = None,
    flow: Annotated[str | None, typer.Option("--flow", help="Only this flow.")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Only executions that have not ended.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, max=100_000, help="The newest so many of each flow."),
    ] = 100,
) -> Exit:
    """Check code against the histories of executions, without running a step.

    The histories are those in the files given, or in the journal. Exits with 7 when one
    does not fit: such an execution would not move under this code.
    """
    sys.path.insert(0, os.getcwd())
    with redirect_stdout(sys.stderr):  # what the code prints is no part of the answer
        registry = load([place])
    names = sorted({each.name for each in registry})
    if flow is not None and flow not in names:
        raise UnknownFlowError(f"--flow {flow!r}: there is no such flow, but {', '.join(names)}")
    chosen = names if flow is None else [flow]
    return asyncio.run(_replay(reach_of(ctx), registry, chosen, history or (), limit, live=live))


async def _replay(
    reach: Reach,
    registry: Registry,
    flows: Sequence[str],
    files: Sequence[Path],
    limit: int,
    *,
    live: bool,
) -> Exit:
    checked: list[Checked] = []
    async with _histories(reach, flows, files, limit, live=live) as histories:
        async for found in histories:
            if found.row.flow in flows and not (live and found.row.status.terminal):
                checked.append(await _check(registry, found))
    _show(reach, checked)
    if not any(each.fit is not Fit.SKIPPED for each in checked):
        raise InputError(
            "nothing was checked: there is no history of "
            f"{' or '.join(map(repr, flows))} that this code could be checked against"
        )
    return Exit.FOUND if any(each.fit is Fit.MISMATCH for each in checked) else Exit.DONE


# ---- where the histories come from ------------------------------------------------------------


@asynccontextmanager
async def _histories(
    reach: Reach, flows: Sequence[str], files: Sequence[Path], limit: int, *, live: bool
) -> AsyncIterator[AsyncIterator[ArchivedExecution]]:
    if files:
        yield _in_files(files)
        return
    async with open_journal(reach) as journal:
        yield _in_journal(reach, journal, flows, limit, live=live)


async def _in_files(files: Sequence[Path]) -> AsyncIterator[ArchivedExecution]:
    for file in files:
        with opened(file) as lines:
            for found in read_archive(lines):
                yield found


async def _in_journal(
    reach: Reach, journal: Journal, flows: Sequence[str], limit: int, *, live: bool
) -> AsyncIterator[ArchivedExecution]:
    for flow in flows:
        left = limit
        query = ListQuery(tenant=reach.tenant, flow=flow)
        async for rows in iterate_executions(journal, query, page=min(limit, PAGE)):
            for row in rows:
                if row.last_seq < 0 or (live and row.status.terminal):
                    continue
                if left == 0:
                    break
                left -= 1
                yield await fetch(journal, row.key)
            if left == 0:
                break


# ---- checking ---------------------------------------------------------------------------------


async def _check(registry: Registry, found: ArchivedExecution) -> Checked:
    row = found.row
    flow = registry.get(row.flow, row.version)
    if flow is None:
        # an ended one needs no code any more; one that goes on would stay where it is
        fit = Fit.SKIPPED if row.status.terminal else Fit.MISMATCH
        return Checked(row, fit, f"this code has no version {row.version!r} of {row.flow!r}")
    if _erased(found):
        return Checked(row, Fit.SKIPPED, "its data was erased")
    events, snapshot = found.events, None
    if not found.whole and found.snapshot is not None:
        snapshot = found.snapshot
        events = tuple(event for event in events if event.seq > found.snapshot.seq)
    try:
        async with asyncio.timeout(_SECONDS):
            with redirect_stdout(sys.stderr):
                rehearsal = await rehearse(flow, events, snapshot, execution_id=row.execution_id)
    except TimeoutError:
        return Checked(row, Fit.MISMATCH, f"the code came to no end within {_SECONDS:g} s")
    except LoomError as error:
        return Checked(row, Fit.MISMATCH, error.message)
    fit = Fit.FITS if rehearsal.ok else Fit.MISMATCH
    return Checked(row, fit, rehearsal.problem, rehearsal.reached)


def _erased(found: ArchivedExecution) -> bool:
    started = decode_payload(found.events[0]) if found.events else None
    return isinstance(started, ev.ExecutionStarted) and started.input == ERASED


def _show(reach: Reach, checked: Sequence[Checked]) -> None:
    items: list[Item] = [
        {
            "id": each.row.execution_id,
            "flow": each.row.flow,
            "version": each.row.version,
            "status": each.row.status.value,
            "events": each.row.last_seq + 1,
            "fit": each.fit.value,
            "why": each.why or None,
            "reached": each.reached or None,
        }
        for each in checked
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            each.row.execution_id,
            f"{each.row.flow} {each.row.version}",
            each.row.status.value,
            str(each.row.last_seq + 1),
            each.fit.value,
        )
        for each in checked
    ]
    lines = _why(checked)
    if checked:
        numbers = {fit: sum(each.fit is fit for each in checked) for fit in Fit}
        told = ", ".join(f"{number} {_TOLD[fit]}" for fit, number in numbers.items() if number)
        lines.append(f"{counted(len(checked), 'history')}: {told}")
    columns = ("ID", "FLOW", "STATUS", "EVENTS", "FIT")
    reach.screen.show(Page(kind="replay", items=items, columns=columns, rows=rows, lines=lines))


def _why(checked: Sequence[Checked]) -> list[Cell]:
    """What is wrong, once for all that it is wrong with."""
    groups: dict[tuple[Fit, str], list[str]] = {}
    for each in checked:
        if each.why:
            groups.setdefault((each.fit, each.why), []).append(each.row.execution_id)
    lines: list[Cell] = []
    for (fit, why), ids in groups.items():
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        lines.append(f"{fit.value}, {', '.join(ids[:_NAMED])}{more}: {why}")
    return lines
