"""Reading, and what comes in from outside: inbox and waiters (K7, K13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import asyncpg

from loom_mq.journal import verdicts
from loom_mq.journal.packing import page_range, slice_page, unpack_events
from loom_mq.journal.postgres.endpoint import Connection
from loom_mq.journal.postgres.rows import (
    execution_row,
    pack_item,
    pack_waiter,
    pack_wanted,
    unpack_item,
)
from loom_mq.journal.postgres.store import Store, loads, micros
from loom_mq.journal.requests import CLAIM_PAGE, DeliverVerdict, ListQuery, WatchVerdict
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow, InboxItem, Status, Waiter

_END_OF_TIME: Final = (1 << 63) - 1


class PostgresReads(Store):
    """The part of `PostgresJournal` that looks, and that takes in mail."""

    async def now(self) -> int:
        """Journal time by the server's clock, microseconds since the epoch."""
        record = await self._read_row(self._sql["now"])
        return int(record[0])

    async def get(self, keys: Sequence[ExecutionKey]) -> list[ExecutionRow | None]:
        """Index rows."""
        if not keys:
            return []
        records = await self._read_rows(
            self._sql.call("rows_v1", 2, "item, (execution).*"),
            [key.tenant for key in keys],
            [key.execution_id for key in keys],
        )
        found = {record["item"]: execution_row(record) for record in records}
        return [found.get(place) for place in range(1, len(keys) + 1)]

    async def read(
        self, key: ExecutionKey, *, first: int = 0, limit: int = CLAIM_PAGE, newest: bool = False
    ) -> list[Envelope]:
        """A page of the log."""
        record = await self._read_row(self._sql.call("read_v2", 5), *key, first, limit, newest)
        if record["last_seq"] is None:
            return []
        first = max(first, record["begins"] or 0)
        low, high = page_range(record["last_seq"], first=first, limit=limit, newest=newest)
        return slice_page(record["bodies"], low, high)

    async def inbox(self, keys: Sequence[ExecutionKey]) -> list[tuple[InboxItem, ...]]:
        """Unread items, oldest first."""
        if not keys:
            return []
        records = await self._read_rows(
            self._sql.call("inbox_v1", 2),
            [key.tenant for key in keys],
            [key.execution_id for key in keys],
        )
        return [
            tuple(unpack_item(keys[record["item"] - 1], body) for body in record["bodies"])
            for record in sorted(records, key=_item)
        ]

    async def deliver(
        self, items: Sequence[InboxItem], resend_after: float = 5.0
    ) -> list[DeliverVerdict]:
        """Put items in inboxes (K7, K13); an id that was taken is a duplicate, too."""
        answers: list[DeliverVerdict] = []
        for places in loads(range(len(items)), [len(each.payload) for each in items]):
            answers += await self._deliver([items[place] for place in places], resend_after)
        return answers

    async def _deliver(
        self, items: Sequence[InboxItem], resend_after: float
    ) -> list[DeliverVerdict]:
        if not items:
            return []
        statement = self._sql.call("deliver_v1", 7, "item, fresh, (execution).*")
        keys, targets = _targets([each.key for each in items])

        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(
                statement,
                [key.tenant for key in keys],
                [key.execution_id for key in keys],
                targets,
                [each.item_id for each in items],
                [each.kind for each in items],
                [pack_item(each) for each in items],
                micros(resend_after),
            )

        records = sorted(await self._pool.write(work), key=_item)
        return [_delivered(item, record) for item, record in zip(items, records, strict=True)]

    async def discard(self, items: Sequence[tuple[ExecutionKey, str]]) -> None:
        """Delete inbox items that were refused; their ids may come in again."""
        if items:
            keys, targets = _targets([key for key, _item_id in items])
            await self._write_rows(
                self._sql.call("discard_v1", 4),
                [key.tenant for key in keys],
                [key.execution_id for key in keys],
                targets,
                [item_id for _key, item_id in items],
            )

    async def watch(self, key: ExecutionKey, waiter: Waiter | None) -> WatchVerdict:
        """Register a waiter, or learn that the execution has ended."""
        statement = self._sql.call("watch_v1", 3, "newest, (execution).*")

        async def work(connection: Connection) -> asyncpg.Record | None:
            return await connection.fetchrow(statement, *key, pack_waiter(waiter))

        if waiter is None:
            record = await self._pool.read(work)
        else:
            record = await self._pool.write(work)
        if record is None:
            return WatchVerdict(None)
        newest = record["newest"]
        terminal = None if newest is None else unpack_events(newest)[-1]
        return WatchVerdict(execution_row(record), terminal)

    async def count(self, tenant: str | None = None) -> dict[Status, int]:
        """How many executions stand in each status."""
        records = await self._read_rows(self._sql["count"], tenant)
        return {Status(record["status"]): record["number"] for record in records}

    async def find(self, query: ListQuery) -> list[ExecutionRow]:
        """Executions, newest first."""
        statuses = [
            each.value
            for each in Status
            if query.status in (None, each) and (query.ended_before is None or each.terminal)
        ]
        created_at, execution_id = query.before or (_END_OF_TIME, "")
        records = await self._read_rows(
            self._sql.call("find_v1", 12),
            statuses,
            created_at,
            execution_id,
            query.tenant,
            query.flow,
            query.version,
            query.queue,
            pack_wanted(query.labels),
            query.ended_before,
            query.in_doubt,
            query.troubled,
            query.limit,
        )
        return [execution_row(record) for record in records]


def _targets(wanted: Sequence[ExecutionKey]) -> tuple[list[ExecutionKey], list[int]]:
    """Every key once, in the order of locks, and for each wanted key its place among them."""
    keys = sorted(set(wanted))
    place = {key: at for at, key in enumerate(keys, start=1)}
    return keys, [place[key] for key in wanted]


def _item(record: asyncpg.Record) -> int:
    return int(record["item"])


def _delivered(item: InboxItem, record: asyncpg.Record) -> DeliverVerdict:
    if record["execution_id"] is None:
        return DeliverVerdict(error=verdicts.unknown(item.key))
    row = execution_row(record)
    if row.status.terminal:
        return DeliverVerdict(error=verdicts.ended(row))
    return DeliverVerdict(row, duplicate=not record["fresh"])
