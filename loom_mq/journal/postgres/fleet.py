"""Leases, sweeps, timers, flows and dead letters: what belongs to no single execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import asyncpg
import msgspec
import structlog

from loom_mq.codec.failures import safe_text
from loom_mq.journal.postgres.endpoint import Connection
from loom_mq.journal.postgres.lease import PostgresLease
from loom_mq.journal.postgres.rows import (
    dead_letter,
    execution_row,
    flow_record,
    pack_pairs,
    worker_record,
)
from loom_mq.journal.postgres.store import TEXT_LIMIT, Store, micros
from loom_mq.journal.protocol import LeaseSession
from loom_mq.journal.requests import DeadLetter, DueTimer, Runnable
from loom_mq.model.execution import ExecutionKey, ExecutionRow, FlowRecord, WorkerRecord

_log = structlog.get_logger(__name__)


class PostgresFleet(Store):
    """The part of `PostgresJournal` that belongs to no single execution."""

    # ---- leases ---------------------------------------------------------------------

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        """Register a process and open its lease on a connection of its own (F7).

        It may be called on another event loop than the journal's, and belongs to the
        loop that it is called on.
        """
        return await PostgresLease.open(self._endpoint, worker, ttl)

    async def workers(self) -> list[WorkerRecord]:
        """Processes whose lease has not lapsed, by name."""
        return [worker_record(each) for each in await self._read_rows(self._sql["workers"])]

    async def lapse_if_gone(self, owner: str) -> bool:
        """End a lease early if its holder's session is provably gone (F7).

        The proof takes a lock that the holder's session would hold, and a witness: see
        ``lapse_v1``. Without it the lease's own time decides.
        """
        record = await self._write_row(self._sql.call("lapse_v1", 1), owner)
        return bool(record[0])

    # ---- flows ----------------------------------------------------------------------

    async def register_flows(self, flows: Sequence[FlowRecord]) -> None:
        """Make flows known; they stay known (F2)."""
        newest = {(each.flow, each.version): each.queue for each in flows}
        if newest:
            ordered = sorted(newest)
            await self._write_rows(
                self._sql["register_flows"],
                [flow for flow, _version in ordered],
                [version for _flow, version in ordered],
                [newest[name] for name in ordered],
            )

    async def flows(self) -> list[FlowRecord]:
        """Flows that any worker has ever registered, by name and version."""
        return [flow_record(each) for each in await self._read_rows(self._sql["flows"])]

    # ---- sweeps ---------------------------------------------------------------------

    async def take_abandoned(
        self, *, limit: int, resend_after: float, max_recoveries: int
    ) -> list[Runnable]:
        """Detach executions from dead or wedged holders (F7, F8)."""
        records = await self._write_rows(
            self._sql.call("take_abandoned_v1", 3, "lost_owner, start, (execution).*"),
            limit,
            micros(resend_after),
            max_recoveries,
        )
        return [
            Runnable(row, record["start"], record["lost_owner"])
            for row, record in _readable(records)
        ]

    async def take_unsent(
        self, *, limit: int, resend_after: float, backoff_limit: float, queues: Sequence[str] | None
    ) -> list[Runnable]:
        """Count and put off the hints that have come due and that nobody has followed."""
        records = await self._write_rows(
            self._sql.call("take_unsent_v1", 4, "start, (execution).*"),
            limit,
            micros(resend_after),
            micros(backoff_limit),
            None if queues is None else list(queues),
        )
        return [Runnable(row, record["start"]) for row, record in _readable(records)]

    async def exhausted(self, max_recoveries: int, limit: int) -> list[ExecutionRow]:
        """Executions left with their dead holder after `max_recoveries` recoveries (F8)."""
        records = await self._write_rows(self._sql.call("exhausted_v1", 2), max_recoveries, limit)
        return [execution_row(record) for record in records]

    # ---- timers ---------------------------------------------------------------------

    async def due_timers(self, *, limit: int, hold: float) -> list[DueTimer]:
        """Due timers, earliest first, held from other callers for `hold` seconds (F9)."""
        records = await self._write_rows(
            self._sql.call("due_timers_v1", 2, "due, (execution).*"), limit, micros(hold)
        )
        return [DueTimer(row, record["due"]) for row, record in _readable(records)]

    async def drop_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> None:
        """Delete timers whose fire was published; one armed again meanwhile stays."""
        if timers:
            await self._write_rows(
                self._sql.call("drop_timers_v1", 3),
                [key.tenant for key, _due in timers],
                [key.execution_id for key, _due in timers],
                [due for _key, due in timers],
            )

    async def arm_timers(self, timers: Sequence[tuple[ExecutionKey, int]]) -> list[bool]:
        """Arm timers that are missing, of executions that are suspended (F9)."""
        if not timers:
            return []
        places = sorted(range(len(timers)), key=timers.__getitem__)
        record = await self._write_row(
            self._sql.call("arm_timers_v1", 3, "arm_timers_v1 AS armed"),
            [timers[place][0].tenant for place in places],
            [timers[place][0].execution_id for place in places],
            [timers[place][1] for place in places],
        )
        armed = {places[item - 1] for item in record["armed"]}
        return [place in armed for place in range(len(timers))]

    async def next_timer(self) -> int | None:
        """The earliest due time, of timers and of schedules, that is not held."""
        record = await self._read_row(self._sql.call("next_timer_v2", 0))
        due = record[0]
        return None if due is None else int(due)

    # ---- dead letters ---------------------------------------------------------------

    async def record_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters; the same id twice is one (F2)."""
        if not letters:
            return

        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(
                self._sql["record_dead_letters"],
                [each.at or None for each in letters],
                [each.id for each in letters],
                [safe_text(each.queue, TEXT_LIMIT) for each in letters],
                [safe_text(each.reason, TEXT_LIMIT) for each in letters],
                [pack_pairs(_shown(each.headers)) for each in letters],
                [each.body for each in letters],
            )

        await self._pool.write(work)

    async def dead_letters(self, limit: int = 50) -> list[DeadLetter]:
        """Dead letters, newest first."""
        records = await self._read_rows(self._sql["dead_letters"], limit)
        return [dead_letter(record) for record in records]

    async def drop_dead_letters(self, ids: Sequence[str]) -> list[bool]:
        """Delete dead letters; of each, whether this very call did."""
        if not ids:
            return []
        records = await self._write_rows(self._sql["drop_dead_letters"], list(ids))
        gone = {record["id"] for record in records}
        return [each in gone for each in ids]


def _shown(headers: dict[str, str]) -> dict[str, str]:
    return {
        safe_text(name, TEXT_LIMIT): safe_text(text, TEXT_LIMIT) for name, text in headers.items()
    }


def _readable(
    records: Sequence[asyncpg.Record],
) -> Iterator[tuple[ExecutionRow, asyncpg.Record]]:
    """Rows as Structs. One that is damaged must not strand what was taken with it (C63)."""
    for record in records:
        try:
            row = execution_row(record)
        except (ValueError, msgspec.MsgspecError) as error:
            _log.error(
                "execution.unreadable",
                tenant=record["tenant"],
                execution_id=record["execution_id"],
                error=str(error),
            )
        else:
            yield row, record
