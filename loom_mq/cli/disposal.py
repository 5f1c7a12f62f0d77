"""Commands after which something is gone for good: prune, erase, truncate (J8).

Each of them asks first, has a --dry-run, and touches only what has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from loom_mq.cli import filters
from loom_mq.cli.asking import DryRun, Yes, ask
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import ExecutionId, reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.cli.text import escaped
from loom_mq.errors import ExecutionNotEndedError, InputError
from loom_mq.kernel.wording import counted, span
from loom_mq.lifecycle.archive import ArchivedExecution, fetch, to_lines
from loom_mq.lifecycle.erasure import SUBJECT, ErasureReport, erase_subject
from loom_mq.lifecycle.retention import Archive, Retention, RetentionReport, retain
from loom_mq.lifecycle.truncation import truncate_prefix

# ---- loom prune -------------------------------------------------------------------------------


def prune(
    ctx: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Since their end: 30d, 2w, 12h.")
    ],
    flow: filters.OfFlow = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="FILE", help="Export them into this new file first."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Exit:
    """Delete executions that ended long ago.

    With --archive each of them is safe in that file before it is deleted.
    """
    reach = reach_of(ctx)
    age = filters.age(older_than, "--older-than")
    retention = Retention(default=age) if flow is None else Retention(flows={flow: age})
    if archive is not None and archive.exists():
        raise _exists(archive)
    return asyncio.run(_prune(reach, retention, age, archive, dry_run=dry_run, yes=yes))


async def _prune(
    reach: Reach,
    retention: Retention,
    age: timedelta,
    archive: Path | None,
    *,
    dry_run: bool,
    yes: bool,
) -> Exit:
    async with open_journal(reach) as journal:
        now = await journal.now()
        report = await retain(
            journal, retention, now=now, archive=None, tenant=reach.tenant, dry_run=True
        )
        if report.due and not dry_run:
            kept = " without a copy" if archive is None else f" after they are kept in {archive}"
            old = f"that ended more than {span(age.total_seconds())} ago"
            what = f"{counted(report.due, 'execution')} {old} will be deleted{kept}."
            ask(reach, what, yes=yes)
            with _keeper(archive) as keep:
                report = await retain(
                    journal, retention, now=now, archive=keep, tenant=reach.tenant
                )
    _show_prune(reach, report, archive, dry_run=dry_run)
    return Exit.REFUSED if report.failed else Exit.DONE


@contextmanager
def _keeper(file: Path | None) -> Iterator[Archive | None]:
    """What keeps an execution in a file of its own, to the disk."""
    if file is None:
        yield None
        return
    with _created(file) as out:

        async def keep(archived: ArchivedExecution) -> None:
            _write(out, archived)

        yield keep


def _created(file: Path) -> BinaryIO:
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        folder = os.open(file.resolve().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        raise _exists(file) from None
    except OSError as error:
        raise InputError(f"{str(file)!r} cannot be written: {error.strerror}") from None
    return os.fdopen(number, "wb")


def _write(out: BinaryIO, archived: ArchivedExecution) -> None:
    out.write("".join(f"{escaped(line)}\n" for line in to_lines(archived)).encode())
    out.flush()
    os.fsync(out.fileno())


def _exists(file: Path) -> InputError:
    return InputError(f"{str(file)!r} is there already; an archive goes into a new file")


def _show_prune(
    reach: Reach, report: RetentionReport, archive: Path | None, *, dry_run: bool
) -> None:
    item: Item = {
        "due": report.due,
        "archived": report.archived,
        "deleted": report.deleted,
        "failed": report.failed,
        "failures": [{"id": left.key.execution_id, "why": left.why} for left in report.failures],
        "flows": report.flows,
        "archive": None if archive is None else str(archive),
        "dry_run": dry_run,
    }
    flows: list[tuple[Cell, ...]] = [
        (flow, str(number)) for flow, number in sorted(report.flows.items())
    ]
    done = f"deleted {counted(report.deleted, 'execution')}"
    if dry_run:
        done = f"would delete {counted(report.due, 'execution')}"
    elif archive is not None and report.archived:
        done += f", kept in {archive}"
    left = [f"{left.key.execution_id}: left as it was: {left.why}" for left in report.failures]
    more = report.failed - len(report.failures)
    reach.screen.show(
        Page(
            kind="prune",
            items=[item],
            columns=("FLOW", "DUE"),
            rows=flows,
            lines=[done, *left, *([f"and {more} more"] if more > 0 else [])],
        )
    )


# ---- loom erase -------------------------------------------------------------------------------


def erase(
    ctx: typer.Context,
    subject: Annotated[
        str, typer.Option("--subject", help="Whose data: the label's value, exactly.")
    ],
    label: Annotated[str, typer.Option("--label", help="The label that names it.")] = SUBJECT,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Exit:
    """Erase a person's data from all ended executions that bear their label.

    Payloads, texts and label values give way to a mark; the history stays. Executions
    that have not ended are listed and left: erase again when they have. Archives are not
    reached.
    """
    reach = reach_of(ctx)
    return asyncio.run(_erase(reach, subject, label, dry_run=dry_run, yes=yes))


async def _erase(reach: Reach, subject: str, label: str, *, dry_run: bool, yes: bool) -> Exit:
    async with open_journal(reach) as journal:
        report = await erase_subject(
            journal, subject, tenant=reach.tenant, label=label, dry_run=True
        )
        if report.erased and not dry_run:
            found = f"The data in {counted(len(report.erased), 'execution')}"
            ask(reach, f"{found} with {label}={subject} will be erased.", yes=yes)
            report = await erase_subject(journal, subject, tenant=reach.tenant, label=label)
    _show_erase(reach, report, dry_run=dry_run)
    return Exit.REFUSED if (report.live or report.left) and not dry_run else Exit.DONE


def _show_erase(reach: Reach, report: ErasureReport, *, dry_run: bool) -> None:
    outcomes = [
        *((key, "would be erased" if dry_run else "erased") for key in report.erased),
        *((key, "left: it has not ended; erase again when it has") for key in report.live),
        *((left.key, f"left: {left.why}") for left in report.left),
    ]
    reach.screen.show(
        Page(
            kind="erase",
            items=[
                {
                    "id": key.execution_id,
                    "outcome": told,
                    "erased": told == "erased",
                }
                for key, told in outcomes
            ],
            columns=("ID", "OUTCOME"),
            rows=[(key.execution_id, told) for key, told in outcomes],
            empty="no execution bears that label: nothing of it is left in this journal",
        )
    )


# ---- loom truncate ----------------------------------------------------------------------------


def truncate(
    ctx: typer.Context,
    execution_id: ExecutionId,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> Exit:
    """Cut the log of an ended execution: its outcome stays, its history goes."""
    return asyncio.run(_truncate(reach_of(ctx), execution_id, dry_run=dry_run, yes=yes))


async def _truncate(reach: Reach, execution_id: str, *, dry_run: bool, yes: bool) -> Exit:
    key = reach.key(execution_id)
    async with open_journal(reach) as journal:
        found = await fetch(journal, key)
        if not found.row.status.terminal:
            raise ExecutionNotEndedError(
                f"execution {execution_id!r} is {found.row.status.value}; only the log of one "
                "that has ended can be cut",
                execution_id=execution_id,
            )
        number = max(0, len(found.events) - 1)
        if number and not dry_run:
            what = f"{counted(number, 'event')} of execution {execution_id!r} will be deleted."
            ask(reach, what, yes=yes)
            number = await truncate_prefix(journal, key)
    gone = f"{'would cut' if dry_run else 'cut'} {counted(number, 'event')}"
    reach.screen.show(
        Page(
            kind="truncate",
            items=[{"id": execution_id, "events": number, "dry_run": dry_run}],
            lines=[f"{execution_id}: {gone}"],
        )
    )
    return Exit.DONE
