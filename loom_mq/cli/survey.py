"""A look at everything that has not ended, with the reason of each: for `stuck` and `doctor`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from loom_mq.cli import brokering, letters
from loom_mq.cli.reach import Reach
from loom_mq.cli.reading import LETTERS, folded, usual_times
from loom_mq.errors import LoomError
from loom_mq.journal.protocol import Journal, ListQuery
from loom_mq.kernel.explain import MAX_RECOVERIES, SLOW_AT_LEAST, Reason, ReasonCode, explain
from loom_mq.kernel.facts import BrokerFacts, DeadPackage
from loom_mq.model.execution import (
    ExecutionKey,
    ExecutionRow,
    FlowRecord,
    Status,
    WorkerRecord,
)
from loom_mq.recovery.census import Census, CensusTaker
from loom_mq.recovery.iteration import iterate_executions

PAGE: Final = 500
_LOOKED_INTO: Final = 100
"""Running executions whose logs are read to find slow steps, at most."""
UNENDED: Final = (Status.PENDING, Status.RUNNING, Status.SUSPENDED)


class Survey:
    """See the module's docstring.

    Args:
        reach: where the command is.
        journal: where the executions are.
        limit: how many of each status to look at.
        most: recoveries after which the dispatchers give up (F8).
        ask_broker: look at the broker, too, where there is one.
    """

    def __init__(
        self,
        reach: Reach,
        journal: Journal,
        *,
        limit: int,
        most: int = MAX_RECOVERIES,
        ask_broker: bool = True,
    ) -> None:
        self._reach = reach
        self._journal = journal
        self._limit = limit
        self._most = most
        self._ask_broker = ask_broker
        self._taker = CensusTaker(journal, max_recoveries=most)
        self._usual: dict[str, Mapping[str, int]] = {}
        self._looked_into = 0
        self._dead: dict[ExecutionKey, DeadPackage] = {}
        self.workers: list[WorkerRecord] = []
        self.flows: list[FlowRecord] = []
        self.broker: BrokerFacts | None = None
        self.rows: dict[ExecutionKey, ExecutionRow] = {}
        self.stuck: list[tuple[ExecutionRow, Reason]] = []
        self.cut = False

    @property
    def census(self) -> Census:
        """Who drives what of what was looked at."""
        return self._taker.census()

    async def look(self, queries: Sequence[ListQuery] | None = None) -> None:
        """Look once.

        Args:
            queries: what to look at; everything that has not ended by default.

        Raises:
            JournalError: the journal cannot be asked.
        """
        journal = self._journal
        self.workers, self.flows = await journal.workers(), await journal.flows()
        self._dead = letters.dead_packages(await journal.dead_letters(LETTERS))
        served = {queue for worker in self.workers for queue in worker.queues}
        queues = sorted(served | {flow.queue for flow in self.flows})
        if self._ask_broker:
            self.broker = await brokering.facts(self._reach, queues)
        for query in unended(self._reach.tenant) if queries is None else queries:
            async for rows in self._pages(query):
                new = [row for row in rows if row.key not in self.rows and not row.status.terminal]
                self.rows.update((row.key, row) for row in new)
                self.stuck += [each for each in await self.reasons(new) if each[1].stuck]
                await self._taker.add(new)

    async def reasons(self, rows: Sequence[ExecutionRow]) -> list[tuple[ExecutionRow, Reason]]:
        """Why each of some executions is where it is."""
        now = await self._journal.now()
        keys = [row.key for row in rows if row.inbox]
        mail = dict(zip(keys, await self._journal.inbox(keys), strict=True)) if keys else {}
        found = []
        for row in rows:
            reason = explain(
                row,
                self.workers,
                self.flows,
                now,
                mail=mail.get(row.key, ()),
                embedded=self._reach.embedded,
                max_recoveries=self._most,
                broker=self.broker,
                dead=self._dead.get(row.key),
            )
            if reason.code is ReasonCode.RUNNING and now - row.updated_at > SLOW_AT_LEAST:
                reason = await self._slow(row, reason, now)
            found.append((row, reason))
        return found

    async def _slow(self, row: ExecutionRow, reason: Reason, now: int) -> Reason:
        """The same, or that one of its steps takes far too long."""
        if self._looked_into >= _LOOKED_INTO:
            return reason
        self._looked_into += 1
        try:
            if row.flow not in self._usual:
                self._usual[row.flow] = await usual_times(self._journal, row)
            state = await folded(self._journal, row.key)
        except LoomError:
            return reason  # a log that cannot be read is no reason to tell nothing of the others
        return explain(
            row,
            self.workers,
            self.flows,
            now,
            state=state,
            embedded=self._reach.embedded,
            max_recoveries=self._most,
            broker=self.broker,
            usual=self._usual[row.flow],
        )

    async def _pages(self, query: ListQuery) -> AsyncIterator[list[ExecutionRow]]:
        left = self._limit
        async with aclosing(
            iterate_executions(self._journal, query, page=min(self._limit, PAGE))
        ) as found:
            async for rows in found:
                yield rows[:left]
                left -= len(rows)
                if left <= 0:
                    self.cut = True
                    return


def unended(tenant: str) -> list[ListQuery]:
    """Where to look. What the index knows to need a person comes first, however old it is."""
    return [
        ListQuery(tenant=tenant, in_doubt=True),
        ListQuery(tenant=tenant, troubled=True),
        *(ListQuery(tenant=tenant, status=status) for status in UNENDED),
    ]
