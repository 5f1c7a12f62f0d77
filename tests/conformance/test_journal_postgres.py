"""The journal on PostgreSQL is held to the kit (J9), plainly and seen by a tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from hypothesis import HealthCheck, given, settings

from loom_mq.clock import JournalClock
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.postgres import migrate
from loom_mq.journal.tenant import TenantScopedJournal
from loom_mq.testing.conformance.journal import JournalConformance, Stores, differential
from loom_mq.testing.conformance.journal_differential import operations
from loom_mq.testing.conformance.journal_operations import Operation
from loom_mq.testing.servers import PostgresServer
from tests.conformance.postgres_support import Journal

TABLES = ", ".join(
    f"loom.{name}"
    for name in (
        *("executions", "events", "snapshots", "inbox", "timers", "schedules"),
        *("workers", "flows", "dead_letters"),
    )
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


class ServerConformance(JournalConformance):
    """The kit, with fewer rounds of what takes a hundred calls each."""

    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(plan=operations())
    async def test_any_operations_give_equal_answers(
        self, stores: Stores, plan: list[Operation]
    ) -> None:
        """J9: equal to the journal in memory, under any operations."""
        await differential(MemoryJournal(JournalClock()), stores.first, plan)


class TestPostgresJournal(ServerConformance):
    """J9: two journals over one database."""

    @pytest_asyncio.fixture
    async def stores(self, journal_dsn: str) -> AsyncIterator[Stores]:
        async with Journal(journal_dsn) as first, Journal(journal_dsn) as second:
            yield Stores(first, second)


class TestPooledPostgresJournal(ServerConformance):
    """J9, C12: the same without anything that outlives a transaction."""

    @pytest_asyncio.fixture
    async def stores(self, journal_dsn: str) -> AsyncIterator[Stores]:
        async with (
            Journal(journal_dsn, statement_cache=False) as first,
            Journal(journal_dsn, statement_cache=False) as second,
        ):
            yield Stores(first, second)


class TestTenantOverPostgres(ServerConformance):
    """J9: one tenant's view of it."""

    @pytest_asyncio.fixture
    async def stores(self, journal_dsn: str) -> AsyncIterator[Stores]:
        async with (
            TenantScopedJournal(Journal(journal_dsn), "acme/ü") as first,
            TenantScopedJournal(Journal(journal_dsn), "acme/ü") as second,
        ):
            yield Stores(first, second, many_tenants=False)
