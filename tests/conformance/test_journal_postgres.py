"""The journal on PostgreSQL is held to the kit (J9), plainly and seen by a tenant."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import pytest_asyncio

from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.journal.protocol import LeaseSession
from loom_mq.journal.tenant import TenantScopedJournal
from loom_mq.model.execution import WorkerRecord
from loom_mq.testing.conformance.journal import JournalConformance, Stores
from loom_mq.testing.servers import PostgresServer

TABLES = "executions, events, inbox, timers, workers, flows, dead_letters"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def journal_dsn(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A database with an empty journal, used by one test after another."""
    await postgres_server.ensure_running()
    name = f"kit_{secrets.token_hex(6)}"
    dsn = await postgres_server.create_database(name)
    await migrate(dsn)
    yield dsn
    await postgres_server.ensure_running()
    await postgres_server.drop_database(name)


async def empty(server: PostgresServer, dsn: str) -> None:
    """Remove what the last test left."""
    await server.ensure_running()
    tables = ", ".join(f"loom.{name.strip()}" for name in TABLES.split(","))
    await server.psql(f"TRUNCATE {tables}", dsn.rpartition("/")[2])


class Journal(PostgresJournal):
    """Closes the connections of leases that a test leaves open."""

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        session = await super().lease(worker, ttl)
        self._stack.push_async_callback(session.close)
        return session

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        return await super().__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()
        await super().__aexit__(kind, error, trace)


class TestPostgresJournal(JournalConformance):
    """J9: two journals over one database."""

    @pytest_asyncio.fixture
    async def stores(
        self, postgres_server: PostgresServer, journal_dsn: str
    ) -> AsyncIterator[Stores]:
        await empty(postgres_server, journal_dsn)
        async with Journal(journal_dsn) as first, Journal(journal_dsn) as second:
            yield Stores(first, second)


class TestPooledPostgresJournal(JournalConformance):
    """J9, C12: the same without anything that outlives a transaction."""

    @pytest_asyncio.fixture
    async def stores(
        self, postgres_server: PostgresServer, journal_dsn: str
    ) -> AsyncIterator[Stores]:
        await empty(postgres_server, journal_dsn)
        async with (
            Journal(journal_dsn, statement_cache=False) as first,
            Journal(journal_dsn, statement_cache=False) as second,
        ):
            yield Stores(first, second)


class TestTenantOverPostgres(JournalConformance):
    """J9: one tenant's view of it."""

    @pytest_asyncio.fixture
    async def stores(
        self, postgres_server: PostgresServer, journal_dsn: str
    ) -> AsyncIterator[Stores]:
        await empty(postgres_server, journal_dsn)
        async with (
            TenantScopedJournal(Journal(journal_dsn), "acme/ü") as first,
            TenantScopedJournal(Journal(journal_dsn), "acme/ü") as second,
        ):
            yield Stores(first, second, many_tenants=False)
