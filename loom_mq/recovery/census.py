"""Who drives what: executions in good hands, and those in nobody's (ADR 0105 D2, F4)."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.model.execution import ExecutionKey, ExecutionRow, WorkerRecord
from loom_mq.recovery.iteration import PAGE, iterate_executions
from loom_mq.recovery.sources import RECOVERABLE


class Keeping(enum.StrEnum):
    """In whose hands a runnable execution is."""

    HELD = "held"
    """A living process drives it."""
    WAITING = "waiting"
    """Nobody drives it, and a dispatcher sends a package when its hint is due."""
    LAPSED = "lapsed"
    """Its holder is dead or its attempt wedged; the next sweep takes it."""
    GIVEN_UP = "given-up"
    """The same, and it was recovered so often without progress that no sweep takes it."""
    FORGOTTEN = "forgotten"
    """Nobody drives it, and no package is due: by itself it never moves again."""

    @property
    def orphaned(self) -> bool:
        """Neither a live lease nor a package due."""
        return self in _ORPHANED


_ORPHANED: Final = frozenset({Keeping.LAPSED, Keeping.GIVEN_UP, Keeping.FORGOTTEN})


def keeping_of(
    row: ExecutionRow, alive: Collection[str], now: int, *, max_recoveries: int | None
) -> Keeping | None:
    """In whose hands an execution is; None when it is parked or has ended.

    Args:
        row: its index row.
        alive: processes whose lease runs.
        now: journal time.
        max_recoveries: what the dispatchers use (F8); None when there is no bound.
    """
    if row.status not in RECOVERABLE:
        return None
    if row.owner is None:
        return Keeping.FORGOTTEN if row.hint_at is None else Keeping.WAITING
    overdue = row.deadline is not None and row.deadline <= now
    if row.owner in alive and not overdue:
        return Keeping.HELD
    spent = max_recoveries is not None and row.recoveries >= max_recoveries
    return Keeping.GIVEN_UP if spent else Keeping.LAPSED


class FlowCensus(msgspec.Struct, frozen=True, kw_only=True):
    """The runnable executions of one flow, by their keeping."""

    held: int = 0
    waiting: int = 0
    lapsed: int = 0
    given_up: int = 0
    forgotten: int = 0

    @property
    def orphaned(self) -> int:
        """Those in nobody's hands."""
        return self.lapsed + self.given_up + self.forgotten


class Orphan(msgspec.Struct, frozen=True):
    """An execution in nobody's hands."""

    row: ExecutionRow
    keeping: Keeping


class Census(msgspec.Struct, frozen=True, kw_only=True):
    """Runnable executions, counted.

    Attributes:
        at: journal time of the last look.
        flows: by flow.
        orphans: those in nobody's hands; the first ones where they are many.
    """

    at: int
    flows: dict[str, FlowCensus]
    orphans: tuple[Orphan, ...]

    @property
    def looked_at(self) -> int:
        """Runnable executions in all."""
        return sum(sum(msgspec.structs.astuple(each)) for each in self.flows.values())

    @property
    def orphaned(self) -> int:
        """Those in nobody's hands, listed or not."""
        return sum(each.orphaned for each in self.flows.values())


class CensusTaker:
    """Counts executions as they come, each once.

    Args:
        journal: where they are.
        max_recoveries: what the dispatchers use (F8); None when there is no bound.
        most: orphans to list.
    """

    def __init__(self, journal: Journal, *, max_recoveries: int | None, most: int = 1000) -> None:
        self._journal = journal
        self._max_recoveries = max_recoveries
        self._most = most
        self._at = 0
        self._seen: set[ExecutionKey] = set()
        self._counts: dict[str, dict[Keeping, int]] = {}
        self._orphans: list[Orphan] = []

    async def add(self, rows: Sequence[ExecutionRow]) -> None:
        """Count a page.

        What seems orphaned is looked at twice: between the row and the list of the living
        it may have been given back.
        """
        doubtful: list[ExecutionKey] = []
        new = {row.key: row for row in rows if row.key not in self._seen}
        for row, keeping in await self._look(new.values()):
            if keeping.orphaned:
                doubtful.append(row.key)
            else:
                self._count(row, keeping)
        if doubtful:
            again = [row for row in await self._journal.get(doubtful) if row is not None]
            for row, keeping in await self._look(again):
                self._count(row, keeping)
                if keeping.orphaned and len(self._orphans) < self._most:
                    self._orphans.append(Orphan(row, keeping))

    def census(self) -> Census:
        """What was counted so far."""
        flows = {
            flow: FlowCensus(
                held=counts.get(Keeping.HELD, 0),
                waiting=counts.get(Keeping.WAITING, 0),
                lapsed=counts.get(Keeping.LAPSED, 0),
                given_up=counts.get(Keeping.GIVEN_UP, 0),
                forgotten=counts.get(Keeping.FORGOTTEN, 0),
            )
            for flow, counts in sorted(self._counts.items())
        }
        return Census(at=self._at, flows=flows, orphans=tuple(self._orphans))

    async def _look(self, rows: Iterable[ExecutionRow]) -> list[tuple[ExecutionRow, Keeping]]:
        """The living are asked after the rows were read: a holder that began since is known."""
        workers: list[WorkerRecord] = await self._journal.workers()
        self._at = await self._journal.now()
        alive = {worker.owner for worker in workers}
        looked = (
            (row, keeping_of(row, alive, self._at, max_recoveries=self._max_recoveries))
            for row in rows
        )
        return [(row, keeping) for row, keeping in looked if keeping is not None]

    def _count(self, row: ExecutionRow, keeping: Keeping) -> None:
        self._seen.add(row.key)
        counts = self._counts.setdefault(row.flow, {})
        counts[keeping] = counts.get(keeping, 0) + 1


async def orphan_census(
    journal: Journal,
    *,
    tenant: str | None = None,
    flow: str | None = None,
    max_recoveries: int | None = None,
    most: int = 1000,
    page: int = PAGE,
) -> Census:
    """Count the running and pending executions, and list those that nobody drives.

    Looks and changes nothing. What a sweep is just about to take is among the orphans, so
    a few in a fleet that has just lost a worker are no alarm; the same ones twice are.

    Args:
        journal: where they are.
        tenant: whose; None for all.
        flow: only this one's.
        max_recoveries: what the dispatchers use, to tell what they have given up (F8).
        most: orphans to list; all are counted.
        page: rows per read.

    Raises:
        JournalError: the journal cannot be asked.
    """
    taker = CensusTaker(journal, max_recoveries=max_recoveries, most=most)
    queries = [ListQuery(tenant=tenant, flow=flow, status=status) for status in RECOVERABLE]
    async for rows in iterate_executions(journal, *queries, page=page):
        await taker.add(rows)
    return taker.census()
