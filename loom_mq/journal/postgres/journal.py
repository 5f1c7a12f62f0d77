"""The shared journal (J9)."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from loom_mq.journal.postgres.endpoint import Connection, Endpoint
from loom_mq.journal.postgres.fleet import PostgresFleet
from loom_mq.journal.postgres.lifecycle import PostgresLifecycle
from loom_mq.journal.postgres.migrate import check_schema
from loom_mq.journal.postgres.pool import Pool
from loom_mq.journal.postgres.reads import PostgresReads
from loom_mq.journal.postgres.schedules import PostgresSchedules
from loom_mq.journal.postgres.writes import PostgresWrites


class PostgresJournal(
    PostgresWrites, PostgresReads, PostgresLifecycle, PostgresSchedules, PostgresFleet
):
    """A journal on PostgreSQL 14 or newer, to be entered before use.

    Every method is one statement and one commit, with the server's own
    ``synchronous_commit``. A journal that lost its connections makes new ones with the
    next call; it need not be opened again.

    Args:
        dsn: the server's URL, password included; it is never shown.
        pool_size: connections at most, opened as they are needed. The lease has one
            more.
        command_timeout: seconds that an answer may take; a quarter of the lease at
            most is sensible.
        schema: the schema that holds the journal.
        statement_cache: False behind a transaction pooler.

    Raises:
        ConfigurationError: `schema` is no plain name.
    """

    def __init__(
        self,
        dsn: str,
        *,
        pool_size: int = 4,
        command_timeout: float = 5.0,
        schema: str = "loom",
        statement_cache: bool = True,
    ) -> None:
        endpoint = Endpoint(dsn, schema=schema, timeout=command_timeout, sessions=statement_cache)
        super().__init__(endpoint, Pool(endpoint, pool_size))

    async def __aenter__(self) -> Self:
        """Connect, and check the schema's version. Nothing is tried twice.

        Raises:
            JournalUnreachableError: no connection; has a `ConfigurationError` as its
                cause when waiting will not help.
            SchemaVersionError: the schema does not fit this program; says what to do.
        """
        try:
            await self._pool.read(self._check)
        except BaseException:
            await self._pool.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        await self._pool.close()

    async def _check(self, connection: Connection) -> None:
        await check_schema(connection, self._endpoint)
