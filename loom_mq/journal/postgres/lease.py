"""A process's lease, on a connection of its own (F7).

The connection's session holds an advisory lock as long as it lives, so that its end can
be proved at once. Behind a transaction pooler there is no session to hold it; then the
lease ends by its time alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg
import structlog

from loom_mq.codec.failures import safe_text
from loom_mq.errors import JournalUnreachableError
from loom_mq.journal.postgres.endpoint import Connection, Endpoint
from loom_mq.journal.postgres.faults import refused_by_server, translate, unreachable
from loom_mq.journal.postgres.store import TEXT_LIMIT, micros
from loom_mq.journal.requests import Renewal
from loom_mq.model.execution import ExecutionKey, WorkerRecord

T = TypeVar("T")

_GOODBYE = 1.0
_log = structlog.get_logger(__name__)


class PostgresLease:
    """See the module's docstring. Belongs to the event loop that opened it.

    Args:
        endpoint: how to connect.
        owner: whose lease.
    """

    def __init__(self, endpoint: Endpoint, owner: str) -> None:
        self._endpoint = endpoint
        self._owner = owner
        self._connection: Connection | None = None
        self._guarded = False

    @classmethod
    async def open(cls, endpoint: Endpoint, worker: WorkerRecord, ttl: float) -> PostgresLease:
        """Register `worker` and begin its lease, `ttl` seconds long."""
        lease = cls(endpoint, worker.owner)
        statement = endpoint.sql.call("lease_v1", 9)

        async def register(connection: Connection) -> object:
            return await connection.fetchval(
                statement,
                worker.owner,
                safe_text(worker.role, TEXT_LIMIT),
                safe_text(worker.host, TEXT_LIMIT),
                list(worker.queues),
                worker.slots,
                safe_text(worker.release, TEXT_LIMIT),
                worker.draining,
                micros(ttl),
                endpoint.sessions,
            )

        lease._guarded = bool(await lease._call(register))
        return lease

    async def renew(self, ttl: float) -> Renewal:
        """Extend the lease to now + `ttl` seconds by the journal's clock.

        After a lost connection it makes a new one by itself, and takes the lock again.

        Raises:
            JournalUnreachableError: no connection, or nothing happened.
            CommitOutcomeUnknownError: the connection died, or gave no answer; the
                next renewal tells.
        """
        await self._connected()
        guard = True if self._endpoint.sessions and not self._guarded else None
        record = await self._call(
            lambda connection: connection.fetchrow(
                self._endpoint.sql.call("renew_v1", 3), self._owner, micros(ttl), guard
            )
        )
        if record is None:
            raise JournalUnreachableError("the journal gave no answer to a renewal")
        self._guarded = self._guarded or bool(record["guarded"])
        keys = zip(record["tenants"] or (), record["ids"] or (), strict=True)
        return Renewal(
            held=record["held"],
            now=record["moment"],
            mail=tuple(ExecutionKey(tenant, execution_id) for tenant, execution_id in keys),
        )

    async def drain(self) -> None:
        """Show on the worker's row that it takes nothing new."""
        await self._call(
            lambda connection: connection.execute(self._endpoint.sql["drain"], self._owner)
        )

    async def retire(self) -> None:
        """End the lease at once and release what is still held (graceful stop)."""
        await self._call(
            lambda connection: connection.fetch(
                self._endpoint.sql.call("retire_v1", 1), self._owner
            )
        )

    async def close(self) -> None:
        """Close the connection without ending the lease."""
        connection, self._connection = self._connection, None
        self._guarded = False
        if connection is None:
            return
        try:
            await connection.close(timeout=_GOODBYE)
        except Exception as error:  # a goodbye must not fail
            _log.debug("journal.goodbye_failed", error=error)
            connection.terminate()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._drop()
            try:
                self._connection = await self._endpoint.connect()
            except asyncpg.TooManyConnectionsError as error:
                raise unreachable(error, str(self._endpoint)) from error
        return self._connection

    async def _call(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        connection = await self._connected()
        try:
            async with asyncio.timeout(self._endpoint.timeout):
                return await work(connection)
        except BaseException as error:
            if not refused_by_server(error):
                self._drop()
            if isinstance(error, Exception):
                raise translate(error, str(self._endpoint), writing=True) from error
            raise

    def _drop(self) -> None:
        """Forget a connection whose state is not known; its lock goes with it."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None
        self._guarded = False
