"""Walking over many executions, newest first, while rows change and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.model.execution import ExecutionKey, ExecutionRow

PAGE: Final = 100
NAMED: Final = 100
"""So many failures of a pass are named; the others are only counted."""


class Left(msgspec.Struct, frozen=True):
    """An execution that a pass left as it was, and why."""

    key: ExecutionKey
    why: str


async def pages(
    journal: Journal, query: ListQuery, size: int = PAGE
) -> AsyncIterator[list[ExecutionRow]]:
    """All that a query finds, page by page.

    Each page begins after the last row of the page before it, so rows that are deleted or
    no longer fit the query meanwhile move no other.
    """
    before = query.before
    while True:
        rows = await journal.find(msgspec.structs.replace(query, limit=size, before=before))
        if rows:
            yield rows
        if len(rows) < size:
            return
        before = (rows[-1].created_at, rows[-1].execution_id)


def told(error: Exception) -> str:
    """An error as one line for a report."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
