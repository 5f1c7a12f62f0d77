"""Executions by what no index knows: who holds them, how they begin, why they do not move."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from loom_mq.cli.filters import moment_before
from loom_mq.cli.survey import PAGE, Survey
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.explain import ReasonCode
from loom_mq.model.execution import ExecutionRow
from loom_mq.recovery.iteration import iterate_executions

_TIME = "(2030-01-31, 2030-01-31T12:00Z) or so long ago (2h, 7d)"

Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help=f"Only begun since a time {_TIME}.")
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", "--older-than", metavar="TIME", help=f"Only begun before a time {_TIME}."
    ),
]
OfWorker = Annotated[
    str | None, typer.Option("--worker", help="Only what a process with this in its name holds.")
]
OfParent = Annotated[str | None, typer.Option("--parent", help="Only children of this one.")]
OfPrefix = Annotated[str | None, typer.Option("--id-prefix", help="Only ids that begin so.")]
OfError = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Only with this in their error.")
]
OfReason = Annotated[
    ReasonCode | None,
    typer.Option("--reason", help="Only where this is why; see `loom stuck` for the names."),
]


class Narrow(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked beyond a `ListQuery`; nothing where nothing is said. Texts as typed.

    Attributes:
        since: begun at it or later; a time or an age.
        until: begun before it.
        worker: in the name of whoever holds it.
        parent: id of its parent.
        prefix: of its id.
        error: in its error.
        reason: why it is where it is.
    """

    since: str | None = None
    until: str | None = None
    worker: str | None = None
    parent: str | None = None
    prefix: str | None = None
    error: str | None = None
    reason: ReasonCode | None = None

    @property
    def asks(self) -> bool:
        """Whether it asks anything."""
        return self != Narrow()

    def check(self) -> None:
        """See that the times can be read.

        Raises:
            InputError: one cannot.
        """
        self.times(0)

    def times(self, now: int) -> tuple[int | None, int | None]:
        """Since and until, in journal time."""
        return (
            None if self.since is None else moment_before(self.since, now, "--since"),
            None if self.until is None else moment_before(self.until, now, "--until"),
        )

    def keeps(self, row: ExecutionRow) -> bool:
        """Whether a row is wanted, as far as rows tell."""
        return (
            (self.worker is None or (row.owner is not None and self.worker in row.owner))
            and (self.parent is None or row.parent == self.parent)
            and (self.prefix is None or row.execution_id.startswith(self.prefix))
            and (self.error is None or (row.error is not None and self.error in row.error))
        )


async def choose(
    journal: Journal, query: ListQuery, narrow: Narrow, survey: Survey
) -> AsyncGenerator[list[ExecutionRow], None]:
    """All executions that are wanted, page by page, newest first.

    Args:
        journal: where they are.
        query: what the journal filters; its `limit` is the size of a page.
        narrow: what is asked beyond that.
        survey: explains, where a reason is asked for; has looked at nothing yet.
    """
    since, until = narrow.times(await journal.now())
    if until is not None and (query.before is None or until < query.before[0]):
        query = replace(query, before=(until, ""))
    if narrow.reason is not None:
        await survey.look(())
    page = query.limit if not narrow.asks else PAGE
    async for rows in iterate_executions(journal, query, page=page):
        kept = [row for row in rows if narrow.keeps(row) and (since or 0) <= row.created_at]
        if narrow.reason is not None:
            explained = await survey.reasons(kept)
            kept = [row for row, reason in explained if reason.code is narrow.reason]
        if kept:
            yield kept
        if since is not None and rows[-1].created_at < since:
            return
