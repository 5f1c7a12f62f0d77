"""Who may be called abandoned (F7, F8). There is no default: only who runs the fleet knows."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import ExecutionRow

Predicate: TypeAlias = Callable[[ExecutionRow], bool | Awaitable[bool]]
"""Whether an execution is abandoned. One that says so of a live one harms no log, since its
holder is fenced out, but the step in flight runs twice."""


async def holds(predicate: Predicate, row: ExecutionRow) -> bool:
    """What a predicate says of an execution."""
    answer = predicate(row)
    return await answer if inspect.isawaitable(answer) else bool(answer)


class HolderGone:
    """The lease as predicate (F7): the holder is dead, or its attempt has passed its time.

    What nobody holds is not abandoned: a sweep sends it when its hint is due.

    Args:
        journal: knows who is alive, in its own clock.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, row: ExecutionRow) -> bool:
        """Whether `row` is in the hands of nobody who could go on with it."""
        if row.owner is None:
            return False
        now = await self._journal.now()
        if row.deadline is not None and row.deadline <= now:
            return True
        return all(worker.owner != row.owner for worker in await self._journal.workers())


def older_than(age: timedelta, now: int) -> Predicate:
    """Nothing was written for so long.

    Args:
        age: since the newest event, or since its start where there is none.
        now: journal time, in microseconds.
    """
    before = now - age // timedelta(microseconds=1)
    return lambda row: row.updated_at <= before


def all_of(*predicates: Predicate) -> Predicate:
    """All of them say so, asked in their order until one does not."""

    async def every(row: ExecutionRow) -> bool:
        for predicate in predicates:
            if not await holds(predicate, row):
                return False
        return True

    return every
