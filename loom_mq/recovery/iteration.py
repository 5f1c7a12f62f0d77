"""Walking over many executions, newest first, while rows change and go (F8)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, Protocol

import msgspec

from loom_mq.journal.protocol import ListQuery
from loom_mq.model.execution import ExecutionKey, ExecutionRow

PAGE: Final = 100
NAMED: Final = 100
"""So many failures of a pass are named; the others are only counted."""


class ExecutionSource(Protocol):
    """Where executions are listed: any journal."""

    async def find(self, query: ListQuery) -> list[ExecutionRow]:
        """See `Journal.find`."""


class Left(msgspec.Struct, frozen=True):
    """An execution that a pass left as it was, and why."""

    key: ExecutionKey
    why: str


async def iterate_executions(
    source: ExecutionSource, *queries: ListQuery, page: int = PAGE
) -> AsyncGenerator[list[ExecutionRow], None]:
    """All that some queries find, page by page: the one loop that enumerates.

    Each page begins after the last row of the page before it, so rows that are deleted or
    no longer fit the query meanwhile move no other. A row that comes to fit a later query
    meanwhile is seen twice, and one that ceases to fit it not at all: whoever acts looks
    again first.

    Args:
        source: where to look.
        queries: what to look for, one after another; all executions without any. Their
            `limit` is not minded.
        page: rows per read.

    Yields:
        Rows, newest first; never an empty page.

    Raises:
        JournalError: the source cannot be asked.
    """
    for query in queries or (ListQuery(),):
        before = query.before
        while True:
            rows = await source.find(msgspec.structs.replace(query, limit=page, before=before))
            if rows:
                yield rows
            if len(rows) < page:
                break
            before = (rows[-1].created_at, rows[-1].execution_id)


def told(error: Exception) -> str:
    """An error as one line for a report."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
