"""Retention: ended executions are kept for a while, archived, then deleted (J8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from loom_mq.errors import ConfigurationError, InputError, LoomError
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.lifecycle.archive import ArchivedExecution, fetch
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.recovery.iteration import NAMED, PAGE, Left, iterate_executions, told

Archive = Callable[[ArchivedExecution], Awaitable[None]]
"""Keeps an archived execution; returns when it is durable."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long executions are kept after their end.

    Attributes:
        default: for flows that are not named; None keeps them for good.
        flows: by the flow's name; None keeps this flow's executions for good.
    """

    default: timedelta | None = None
    flows: dict[str, timedelta | None] = {}

    def age_of(self, flow: str) -> timedelta | None:
        """How long executions of a flow are kept; None for good."""
        return self.flows.get(flow, self.default)


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass of `retain` did.

    Attributes:
        due: executions that were older than their flow's age.
        archived: handed to the archive, which kept them.
        deleted: gone from the journal.
        failed: due, but not deleted.
        failures: the first 100 of those, with the reason.
        flows: how many were due, by flow.
        dry_run: nothing was archived or deleted.
    """

    due: int = 0
    archived: int = 0
    deleted: int = 0
    failed: int = 0
    failures: tuple[Left, ...] = ()
    flows: dict[str, int] = {}
    dry_run: bool = False


async def retain(
    journal: Journal,
    retention: Retention,
    *,
    now: int,
    archive: Archive | None,
    tenant: str | None = None,
    dry_run: bool = False,
    batch: int = PAGE,
) -> RetentionReport:
    """Archive and delete what is older than its flow's age; only what has ended (J8).

    Nothing is deleted before `archive` has returned for it. An execution that cannot be
    read, archived or deleted stays, is counted and named, and stops no other; the next
    pass meets it again.

    Args:
        journal: where to look.
        retention: how long to keep.
        now: journal time, in microseconds; ages are counted from the end to here.
        archive: keeps what will be deleted; None deletes without a copy.
        tenant: only this tenant's; None for all.
        dry_run: only count what is due.
        batch: executions per page and per delete.

    Raises:
        ConfigurationError: an age is negative.
        InputError: `batch` is less than 1.
        JournalError: the journal cannot be asked.
    """
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    sweep = _Pass(journal, archive, dry_run=dry_run)
    for query in _queries(retention, now, tenant):
        async for rows in iterate_executions(journal, query, page=batch):
            others = query.flow is None
            await sweep.page([row for row in rows if not (others and row.flow in retention.flows)])
    return sweep.report()


def _queries(retention: Retention, now: int, tenant: str | None) -> list[ListQuery]:
    """One for each flow that has an age of its own, and one for all the others."""
    queries: list[ListQuery] = []
    for flow, age in (*retention.flows.items(), (None, retention.default)):
        if age is None:
            continue
        if age < timedelta(0):
            whose = "the default age" if flow is None else f"the age of flow {flow!r}"
            raise ConfigurationError(f"{whose} must not be negative, and it is {age}")
        ended_before = now - age // timedelta(microseconds=1)
        queries.append(ListQuery(tenant=tenant, flow=flow, ended_before=ended_before))
    return queries


class _Pass:
    """One pass of `retain`, and what it did so far."""

    def __init__(self, journal: Journal, archive: Archive | None, *, dry_run: bool) -> None:
        self._journal = journal
        self._archive = archive
        self._dry_run = dry_run
        self._flows: Counter[str] = Counter()
        self._archived = self._deleted = self._failed = 0
        self._failures: list[Left] = []

    async def page(self, rows: Sequence[ExecutionRow]) -> None:
        ended = [row for row in rows if row.status.terminal]
        self._flows.update(row.flow for row in ended)
        if self._dry_run:
            return
        kept = [row for row in ended if await self._keep(row)]
        if kept:
            await self._delete(kept)

    async def _keep(self, row: ExecutionRow) -> bool:
        """Archive one execution; whether it may be deleted now."""
        if self._archive is None:
            return True
        try:
            await self._archive(await fetch(self._journal, row.key))
        except Exception as error:  # whatever the archive raises, the next one has its turn
            self._leave(row.key, error)
            return False
        self._archived += 1
        return True

    async def _delete(self, rows: Sequence[ExecutionRow]) -> None:
        keys = [row.key for row in rows]
        try:
            # an id may have begun a new life since it was listed (K16)
            present = await self._journal.get(keys)
            same = [row.key for row in rows if row in present]
            refusals = dict(zip(same, await self._journal.delete(same), strict=True))
        except LoomError as error:
            refusals = dict.fromkeys(keys, error)
        for key in keys:
            refusal = refusals.get(key, _CHANGED)
            if refusal is None:
                self._deleted += 1
            else:
                self._leave(key, refusal)

    def _leave(self, key: ExecutionKey, error: Exception) -> None:
        self._failed += 1
        if len(self._failures) < NAMED:
            self._failures.append(Left(key, told(error)))

    def report(self) -> RetentionReport:
        """What was done."""
        return RetentionReport(
            due=self._flows.total(),
            archived=self._archived,
            deleted=self._deleted,
            failed=self._failed,
            failures=tuple(self._failures),
            flows=dict(self._flows),
            dry_run=self._dry_run,
        )


_CHANGED: Final = InputError("it changed while it was being archived; the next pass takes it")
