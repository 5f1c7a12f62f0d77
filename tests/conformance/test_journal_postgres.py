"""The journal on PostgreSQL is held to the kit (J9), plainly and seen by a tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from loom_mq.journal.postgres import migrate
from loom_mq.journal.tenant import TenantScopedJournal
from loom_mq.testing.conformance.journal import JournalConformance, Stores
from loom_mq.testing.servers import PostgresServer
from tests.conformance.postgres_support import Journal

TABLES = ", ".join(
    f"loom.{name}"
    for name in ("executions", "events", "inbox", "timers", "workers", "flows", "dead_letters")
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fast_server() -> AsyncIterator[PostgresServer]:
    """A server that the kit does not kill, so it need not be durable."""
    async with PostgresServer(fsync=False) as server:
        await migrate(server.dsn)
        yield server


@pytest_asyncio.fixture
async def journal_dsn(fast_server: PostgresServer) -> str:
    """A database with an empty journal, used by one test after another."""
    await fast_server.psql(f"TRUNCATE {TABLES}")
    return fast_server.dsn


class TestPostgresJournal(JournalConformance):
    """J9: two journals over one database."""

    @pytest_asyncio.fixture
    async def stores(self, journal_dsn: str) -> AsyncIterator[Stores]:
        async with Journal(journal_dsn) as first, Journal(journal_dsn) as second:
            yield Stores(first, second)


class TestPooledPostgresJournal(JournalConformance):
    """J9, C12: the same without anything that outlives a transaction."""

    @pytest_asyncio.fixture
    async def stores(self, journal_dsn: str) -> AsyncIterator[Stores]:
        async with (
            Journal(journal_dsn, statement_cache=False) as first,
            Journal(journal_dsn, statement_cache=False) as second,
        ):
            yield Stores(first, second)


class TestTenantOverPostgres(JournalConformance):
    """J9: one tenant's view of it."""

    @pytest_asyncio.fixture
    async def stores(self, journal_dsn: str) -> AsyncIterator[Stores]:
        async with (
            TenantScopedJournal(Journal(journal_dsn), "acme/ü") as first,
            TenantScopedJournal(Journal(journal_dsn), "acme/ü") as second,
        ):
            yield Stores(first, second, many_tenants=False)
