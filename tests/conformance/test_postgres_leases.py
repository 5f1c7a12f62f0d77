"""Leases on PostgreSQL: what proves that a process is gone, and what does not (F7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loom_mq.errors import CommitOutcomeUnknownError, JournalUnreachableError
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.testing.conformance.journal_rig import LONG, Rig, Stores
from loom_mq.testing.servers import PostgresServer
from tests.conformance.postgres_support import Held, Journal, Watcher, watching


@pytest_asyncio.fixture
async def dsn(postgres_dsn: str) -> str:
    """A database with an empty journal."""
    await migrate(postgres_dsn)
    return postgres_dsn


@pytest_asyncio.fixture
async def rig(dsn: str) -> AsyncIterator[Rig]:
    async with Journal(dsn) as journal:
        yield Rig(Stores(journal, journal))


@pytest_asyncio.fixture
async def held(rig: Rig, dsn: str) -> AsyncIterator[Held]:
    async with Held(dsn) as held:
        yield held


@pytest_asyncio.fixture
async def watcher(rig: Rig, dsn: str) -> AsyncIterator[Watcher]:
    async with watching(dsn) as watcher:
        yield watcher


# ---- proof ------------------------------------------------------------------------------------


async def test_end_of_a_session_is_proof(rig: Rig, dsn: str) -> None:
    """F7: the lease of a process whose session ended lapses at once."""
    await rig.alive("alive")
    session = await rig.alive("gone")
    assert not await rig.journal.lapse_if_gone("gone")
    await session.close()
    async with watching(dsn) as watcher:
        await watcher.until("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 1)
    assert await rig.journal.lapse_if_gone("gone")
    assert not await rig.journal.lapse_if_gone("alive")
    assert [each.owner for each in await rig.journal.workers()] == ["alive"]
    assert not (await session.renew(LONG)).held
    await session.close()


async def test_restart_of_the_server_is_no_proof(rig: Rig, postgres_server: PostgresServer) -> None:
    """F7: it ends every session, and nobody has died; only later ends count."""
    session = await rig.alive("w")
    await postgres_server.restart()
    assert not await rig.journal.lapse_if_gone("w")
    assert (await session.renew(LONG)).held
    assert not await rig.journal.lapse_if_gone("w")
    await session.close()


async def test_new_session_proves_nothing(rig: Rig, dsn: str) -> None:
    """F7: whoever came after the last renewal has not seen the server stand since."""
    session = await rig.alive("w")
    await session.close()
    async with watching(dsn) as watcher:
        await watcher.until("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 0)
    async with PostgresJournal(dsn) as late:
        assert not await late.lapse_if_gone("w")
    assert await rig.journal.lapse_if_gone("w")


async def test_lease_takes_its_lock_again(rig: Rig, dsn: str) -> None:
    """F7: after a lost connection, so that its end can be proved again."""
    session = await rig.alive("w")
    async with watching(dsn) as watcher:
        await watcher.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        )
        with pytest.raises((CommitOutcomeUnknownError, JournalUnreachableError)):
            await session.renew(LONG)
        assert (await session.renew(LONG)).held
        await watcher.until("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 1)
        assert not await rig.journal.lapse_if_gone("w")
        await session.close()
        await watcher.until("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 0)
    assert await rig.journal.lapse_if_gone("w")


async def test_lease_without_sessions_ends_by_time_alone(rig: Rig, dsn: str) -> None:
    """C12, C88: behind a transaction pooler no lock is taken, and nobody is taken for dead."""
    async with Journal(dsn, statement_cache=False) as pooled:
        session = await Rig(Stores(pooled, pooled)).alive("w", ttl=0.5)
        assert (await session.renew(0.5)).held
        async with watching(dsn) as watcher:
            assert (
                await watcher.connection.fetchval(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                )
                == 0
            )
        await session.close()
        assert not await rig.journal.lapse_if_gone("w")
        await rig.let_pass(0.5)
        assert await rig.journal.lapse_if_gone("w")


async def test_lease_lives_on_another_event_loop(rig: Rig, dsn: str) -> None:
    """F7: opened and renewed on the loop of a thread of its own."""

    async def life(journal: PostgresJournal) -> bool:
        session = await Rig(Stores(journal, journal)).alive("threaded")
        renewal = await session.renew(LONG)
        await session.retire()
        await session.close()
        return renewal.held

    async with PostgresJournal(dsn) as journal:
        assert await asyncio.to_thread(asyncio.run, life(journal))
        assert await journal.workers() == []


# ---- races ------------------------------------------------------------------------------------


async def test_renewal_under_way_is_not_swept(rig: Rig, held: Held) -> None:
    """F7: a holder that is renewing this very moment is left to the next round."""
    await rig.alive("w", ttl=0.2)
    key = await rig.started("w")
    until = (await rig.journal.workers())[0].lease_until
    await held.connection.execute("UPDATE loom.workers SET lease_until = $1", until + 3_600_000_000)
    await rig.let_pass(0.3)
    assert await rig.take_abandoned() == []
    await held.commit()
    assert await rig.take_abandoned() == []
    assert (await rig.row(key)).owner == "w"


async def test_renewal_that_waits_for_a_sweep_is_lost(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """F7: once taken, a lease is not brought back by a renewal that was on its way."""
    lease = await rig.alive("w")
    await rig.started("w")
    until = (await rig.journal.workers())[0].lease_until
    # the renewal's clock is read before it waits, so it still says that the lease runs
    await held.connection.execute("SELECT loom.dead_owners_v1($1)", until + 1)
    renewal = asyncio.ensure_future(lease.renew(LONG))
    await watcher.until_waiting()
    await held.commit()
    assert not (await renewal).held
