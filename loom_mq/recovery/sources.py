"""Where a recovery pass gets abandoned executions from, and how it takes them (F7, F8).

`Search` enumerates, asks the predicate of each, and takes one after another: for any
predicate. `LeaseSweep` has the journal do all that in one statement per batch: for the
lease, which only the journal knows at the very moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from loom_mq.errors import ConfigurationError, JournalUnreachableError
from loom_mq.journal.protocol import Journal, ListQuery, Runnable
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from loom_mq.recovery.iteration import NAMED, PAGE, Left, iterate_executions, told
from loom_mq.recovery.predicates import HolderGone, Predicate, holds
from loom_mq.recovery.tail import recoveries_since_progress

RECOVERABLE: Final = (Status.RUNNING, Status.PENDING)
"""What a recovery drives again; what is parked waits for something, and what has ended is over."""
_UNBOUNDED: Final = 1 << 62
_NOBODY: Final = ""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass takes; see `recover_abandoned`."""

    is_abandoned: Predicate
    max_recoveries: int | None
    dry_run: bool
    resend_after: float


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what a pass meets.

    Attributes:
        looked_at: executions of which the predicate was asked.
        claimed: how many of them it called abandoned.
        taken: they are nobody's now, and want a package.
        exhausted: left running, with the recoveries that they have had without progress.
        moved: had settled, or changed hands, before they could be taken.
        left: looking at them or taking them raised.
    """

    looked_at: int = 0
    claimed: int = 0
    taken: Sequence[Runnable] = ()
    exhausted: Sequence[tuple[ExecutionKey, int]] = ()
    moved: int = 0
    left: Sequence[Left] = ()


class AbandonedSource(Protocol):
    """See the module's docstring."""

    def batches(self, journal: Journal, rule: Rule) -> AsyncIterator[Batch]:
        """What is abandoned by the rule, taken unless it is a dry run.

        Raises:
            JournalError: the journal cannot be asked.
        """


# ---- any predicate ------------------------------------------------------------------------------


class Search:
    """Runnable executions of the journal's index, looked at one after another.

    Args:
        tenant: whose; None for all.
        flow: only this one's.
        page: rows per read.
    """

    def __init__(
        self, *, tenant: str | None = None, flow: str | None = None, page: int = PAGE
    ) -> None:
        self._queries = [
            ListQuery(tenant=tenant, flow=flow, status=status) for status in RECOVERABLE
        ]
        self._page = page

    async def batches(self, journal: Journal, rule: Rule) -> AsyncIterator[Batch]:
        """See `AbandonedSource`."""
        async for rows in iterate_executions(journal, *self._queries, page=self._page):
            sift = _Sift(journal, rule)
            for row in rows:
                await sift.look(row)
            yield sift.batch()


class _Sift:
    """One page of a search. Nothing that happens to one execution touches another."""

    def __init__(self, journal: Journal, rule: Rule) -> None:
        self._journal = journal
        self._rule = rule
        self._looked_at = self._claimed = self._moved = 0
        self._taken: list[Runnable] = []
        self._exhausted: list[tuple[ExecutionKey, int]] = []
        self._left: list[Left] = []

    def batch(self) -> Batch:
        return Batch(
            looked_at=self._looked_at,
            claimed=self._claimed,
            taken=self._taken,
            exhausted=self._exhausted,
            moved=self._moved,
            left=self._left,
        )

    async def look(self, row: ExecutionRow) -> None:
        """Judge one execution, and take it if it is to be taken."""
        self._looked_at += 1
        try:
            await self._judge(row)
        except JournalUnreachableError:
            raise  # nothing can be asked any more; what was taken is sent by its hint
        except Exception as error:
            self._left.append(Left(row.key, told(error)))

    async def _judge(self, row: ExecutionRow) -> None:
        if not await holds(self._rule.is_abandoned, row):
            return
        self._claimed += 1
        spent = await self._spent(row)
        if spent is not None:
            self._exhausted.append((row.key, spent))
        elif not self._rule.dry_run:
            taken = await self._take(row)
            if taken is None:
                self._moved += 1
            else:
                self._taken.append(taken)

    async def _spent(self, row: ExecutionRow) -> int | None:
        """How often it was recovered in vain, once that is too often; else None.

        The row has the count (J6). Before anything is given up on its word the log is asked.
        """
        most = self._rule.max_recoveries
        if most is None or row.recoveries < most:
            return None
        count = await recoveries_since_progress(
            self._journal, row.key, row.last_seq, stop_at=row.recoveries
        )
        return count if count >= most else None

    async def _take(self, row: ExecutionRow) -> Runnable | None:
        """Take it from its holder by compare-and-set; None when it is not what it was."""
        [fresh] = await self._journal.get([row.key])
        if fresh is None or fresh.status not in RECOVERABLE or _hands(fresh) != _hands(row):
            return None
        await self._journal.defer(
            [row.key],
            _NOBODY if fresh.owner is None else fresh.owner,
            self._rule.resend_after,
            [fresh.fence],
        )
        [left] = await self._journal.get([row.key])
        if left is None or left.status not in RECOVERABLE or _hands(left) != (None, row.fence):
            return None
        return Runnable(left, lost_owner=row.owner)


def _hands(row: ExecutionRow) -> tuple[str | None, int]:
    return row.owner, row.fence


# ---- the lease ----------------------------------------------------------------------------------


class LeaseSweep:
    """What dead and wedged holders have left, taken by the journal itself, in batches.

    Two sweeps at once never get the same execution. One statement is enumeration,
    predicate, bound and taking; what a holder had woken and not yet resumed is taken, too.

    Args:
        batch: executions per statement.
        exhausted: look for those that were given up, too; the first hundred are named.
    """

    def __init__(self, *, batch: int = 500, exhausted: bool = False) -> None:
        self._batch = batch
        self._exhausted = exhausted

    async def batches(self, journal: Journal, rule: Rule) -> AsyncIterator[Batch]:
        """See `AbandonedSource`.

        Raises:
            ConfigurationError: the rule asks for what no statement does.
        """
        if not isinstance(rule.is_abandoned, HolderGone):
            raise ConfigurationError(
                "a LeaseSweep takes what the lease says: use HolderGone, or Search for any other "
                "predicate"
            )
        if rule.dry_run:
            raise ConfigurationError("a LeaseSweep takes what it finds: use Search for a dry run")
        most = _UNBOUNDED if rule.max_recoveries is None else rule.max_recoveries
        found: Sequence[Runnable] | None = None
        while found is None or len(found) >= self._batch:
            found = await journal.take_abandoned(
                limit=self._batch, resend_after=rule.resend_after, max_recoveries=most
            )
            yield Batch(looked_at=len(found), claimed=len(found), taken=found)
        if self._exhausted:
            rows = await journal.exhausted(most, NAMED)
            spent = [(row.key, row.recoveries) for row in rows]
            yield Batch(looked_at=len(rows), claimed=len(rows), exhausted=spent)
