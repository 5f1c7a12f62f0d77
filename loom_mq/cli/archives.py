"""`loom export` and `loom import`: executions as lines of JSON, and back (J8)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from loom_mq.cli import filters
from loom_mq.cli.asking import DryRun
from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach, open_journal
from loom_mq.cli.screen import Cell, Item, Page
from loom_mq.cli.text import escaped
from loom_mq.errors import (
    ArchiveError,
    ExecutionAlreadyExistsError,
    InputError,
    LoomError,
)
from loom_mq.ids import check_id
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.wording import counted
from loom_mq.lifecycle.archive import (
    ArchivedExecution,
    fetch,
    read_archive,
    restore_archived,
    to_lines,
)
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.recovery.iteration import iterate_executions

STDIN: Final = Path("-")

# ---- loom export ------------------------------------------------------------------------------


def export(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="These executions.")
    ] = None,
    status: filters.OfStatus = None,
    flow: filters.OfFlow = None,
    label: filters.OfLabel = None,
    ended_before: filters.EndedBefore = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Without the copy of payloads that people can read.")
    ] = False,
) -> Exit:
    """Write executions to standard output as an archive, one line of JSON per event.

    Those with the ids given; without ids all that the options fit. The archive holds all
    that they know, payloads included: keep it as safe as the journal. `loom import` reads
    it back.
    """
    reach = reach_of(ctx)
    keys = [reach.key(each) for each in ids or ()]
    if keys and (status, flow, label, ended_before) != (None, None, None, None):
        raise InputError("give ids or filters, not both")

    def query(now: int) -> ListQuery:
        return filters.query(
            reach.tenant, now, status=status, flow=flow, label=label, ended_before=ended_before
        )

    query(0)
    return asyncio.run(_export(reach, keys, query, readable=not bare))


async def _export(
    reach: Reach,
    keys: Sequence[ExecutionKey],
    query: filters.QueryAt,
    *,
    readable: bool,
) -> Exit:
    written = 0
    left = 0
    async with open_journal(reach) as journal:
        chosen = _these(keys) if keys else _all(journal, query(await journal.now()))
        async for key in chosen:
            try:
                found = await fetch(journal, key)
            except (InputError, ArchiveError) as error:
                if keys:
                    raise
                reach.screen.note(f"left out: {error.message}")
                left += 1
                continue
            for line in to_lines(found, readable=readable):
                sys.stdout.write(escaped(line) + "\n")
            written += 1
    missing = f"; {left} left out" if left else ""
    reach.screen.note(f"exported {counted(written, 'execution')}{missing}")
    return Exit.REFUSED if left else Exit.DONE


async def _these(keys: Iterable[ExecutionKey]) -> AsyncIterator[ExecutionKey]:
    for key in keys:
        yield key


async def _all(journal: Journal, query: ListQuery) -> AsyncIterator[ExecutionKey]:
    async for rows in iterate_executions(journal, query):
        for row in rows:
            if row.last_seq >= 0:  # what has not begun has nothing to be kept
                yield row.key


# ---- loom import ------------------------------------------------------------------------------


def import_archive(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `loom export` wrote; - for standard input.")
    ],
    prefix: Annotated[
        str, typer.Option("--prefix", help="Put this before every id; for copies.")
    ] = "",
    any_tenant: Annotated[
        bool,
        typer.Option("--any-tenant", help="Other tenants' executions, too, as if of --tenant."),
    ] = False,
    dry_run: DryRun = False,
) -> Exit:
    """Read an archive into the journal, event by event as it was.

    What had ended stays ended. What had not ended goes on from where it stood, so it is
    taken only under another id: say --prefix. An id that is taken stays as it is.
    """
    reach = reach_of(ctx)
    if prefix:
        check_id(prefix, "--prefix")
    with opened(file) as lines:
        return asyncio.run(_import(reach, lines, prefix, any_tenant=any_tenant, dry_run=dry_run))


@contextmanager
def opened(file: Path) -> Iterator[Iterable[str]]:
    """The lines of an archive.

    Raises:
        InputError: the file cannot be read.
    """
    if file == STDIN:
        yield sys.stdin
        return
    try:
        archive = file.open(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{str(file)!r} cannot be read: {error.strerror}") from None
    with archive:
        yield _decoded(archive, file)


def _decoded(lines: Iterable[str], file: Path) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise ArchiveError(f"{str(file)!r} is no archive of loom-mq: {error}") from None


async def _import(
    reach: Reach, lines: Iterable[str], prefix: str, *, any_tenant: bool, dry_run: bool
) -> Exit:
    taken: list[tuple[ExecutionRow, str, str]] = []
    failure: LoomError | None = None
    async with open_journal(reach) as journal:
        try:
            for archived in read_archive(lines):
                name = prefix + archived.row.execution_id
                told = await _fate(
                    reach, journal, archived, name, any_tenant=any_tenant, dry_run=dry_run
                )
                taken.append((archived.row, name, told))
        except ArchiveError as error:  # what came before it is there, and is told
            failure = error
    _show_import(reach, taken)
    if failure is not None:
        raise failure
    return Exit.DONE if all(told in _GOOD for _, _, told in taken) else Exit.REFUSED


_GOOD: Final = ("imported", "would be imported")


async def _fate(
    reach: Reach,
    journal: Journal,
    archived: ArchivedExecution,
    name: str,
    *,
    any_tenant: bool,
    dry_run: bool,
) -> str:
    """Plant one execution; what became of it."""
    row = archived.row
    if row.tenant != reach.tenant and not any_tenant:
        return f"left out: it is of tenant {row.tenant!r}; --tenant or --any-tenant"
    try:
        if dry_run:
            [there] = await journal.get([reach.key(name)])
            if there is not None:
                return "left out: the id is taken"
            if not row.status.terminal and name == row.execution_id:
                return "left out: it had not ended; --prefix starts a second one"
            return "would be imported"
        await restore_archived(journal, archived, execution_id=name, tenant=reach.tenant)
    except ExecutionAlreadyExistsError:
        return "left out: the id is taken"
    except InputError as error:
        return f"left out: {error.message}"
    return "imported"


def _show_import(reach: Reach, taken: Sequence[tuple[ExecutionRow, str, str]]) -> None:
    items: list[Item] = [
        {
            "id": name,
            "flow": row.flow,
            "status": row.status.value,
            "events": row.last_seq + 1,
            "outcome": told,
            "taken": told in _GOOD,
        }
        for row, name, told in taken
    ]
    cells: list[tuple[Cell, ...]] = [
        (name, row.status.value, str(row.last_seq + 1), told) for row, name, told in taken
    ]
    reach.screen.show(
        Page(kind="import", items=items, columns=("ID", "STATUS", "EVENTS", "OUTCOME"), rows=cells)
    )
