"""Connections that die, servers that go away, pools that run dry (J4, C24, C29, C63, C89)."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import pytest_asyncio

from loom_mq.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    JournalUnreachableError,
    LoomError,
    StorageWriteError,
)
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.journal.protocol import Append, AppendVerdict, IndexUpdate
from loom_mq.model.execution import Status
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    RUNNING,
    Rig,
    Stores,
    accepted,
    events,
)
from loom_mq.testing.servers import PostgresServer
from tests.conformance.postgres_support import Held, Journal, Line, connected, watching


@pytest_asyncio.fixture
async def dsn(postgres_dsn: str) -> str:
    """A database with an empty journal."""
    await migrate(postgres_dsn)
    return postgres_dsn


@pytest_asyncio.fixture
async def rig(dsn: str) -> AsyncIterator[Rig]:
    async with Journal(dsn) as journal:
        yield Rig(Stores(journal, journal))


# ---- answers that do not come -----------------------------------------------------------------


async def test_lost_answer_to_a_commit(rig: Rig, dsn: str) -> None:
    """J4: the line is cut when the answer is on it: unknown, and the same again is a success."""
    key = await rig.started()
    once = Append(key=key, fence=1, events=events(1, 2), index=RUNNING)
    async with Line(dsn) as line, PostgresJournal(line.dsn, pool_size=1) as journal:
        # the first call of a session asks what the statement is like
        accepted(await Rig(Stores(journal, journal)).append(await rig.started(), events(1)))
        line.hold_answers()
        first = asyncio.ensure_future(journal.append([once]))
        async with watching(dsn) as watcher:
            await watcher.until(
                "SELECT last_seq FROM loom.executions WHERE execution_id = $1",
                2,
                key.execution_id,
            )
        line.cut()
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            await first
        assert caught.value.__cause__ is not None
        line.let_go()
        accepted((await journal.append([once]))[0])
    assert (await rig.log(key))[1:] == list(once.events)


async def test_answer_that_takes_too_long(rig: Rig, dsn: str) -> None:
    """J4, C29: after the timeout the outcome is unknown, and the connection is not used again."""
    key = await rig.started()
    once = Append(key=key, fence=1, events=events(1), index=RUNNING)
    async with (
        Line(dsn) as line,
        PostgresJournal(line.dsn, pool_size=1, command_timeout=0.5) as journal,
    ):
        await journal.now()
        line.hold_answers()
        with pytest.raises(CommitOutcomeUnknownError):
            await journal.append([once])
        with pytest.raises(JournalUnreachableError):
            await journal.now()
        line.let_go()
        accepted((await journal.append([once]))[0])
    assert (await rig.log(key))[1:] == list(once.events)


async def test_silent_loss_of_all_connections_costs_one_timeout(rig: Rig, dsn: str) -> None:
    """C63: where one connection has died in silence, the others are not tried one by one."""
    async with (
        Line(dsn) as line,
        PostgresJournal(line.dsn, pool_size=4, command_timeout=1.0) as journal,
    ):
        await asyncio.gather(*(journal.now() for _ in range(4)))
        line.lose_present()
        with pytest.raises(JournalUnreachableError):
            await journal.now()
        await asyncio.gather(*(journal.now() for _ in range(4)))


async def test_statement_that_takes_too_long_is_given_up_by_the_server(rig: Rig, dsn: str) -> None:
    """J4: then it is certain that nothing was written, and nothing is left running."""
    key = await rig.started()
    async with Held(dsn) as held, PostgresJournal(dsn, command_timeout=3.0) as journal:
        await held.lock(key.execution_id)
        once = Append(key=key, fence=1, events=events(1), index=RUNNING)
        with pytest.raises(JournalUnreachableError):
            await journal.append([once])
        async with watching(dsn) as watcher:
            assert await watcher.busy() == []
        await held.roll_back()
        accepted((await journal.append([once]))[0])


async def test_terminated_backends(rig: Rig, dsn: str, postgres_server: PostgresServer) -> None:
    """C63: idle connections that the server ended cost nothing, one in use one try at most."""
    key = await rig.started()
    database = dsn.rpartition("/")[2]
    assert await postgres_server.terminate_backends(database) > 0
    accepted(await _patiently(rig, Append(key=key, fence=1, events=events(1), index=RUNNING)))
    async with Held(dsn) as held, watching(dsn) as watcher:
        await held.lock(key.execution_id)
        once = Append(key=key, fence=1, events=events(2), index=RUNNING)
        writing = asyncio.ensure_future(rig.journal.append([once]))
        await watcher.until_waiting()
        await watcher.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
        with pytest.raises(CommitOutcomeUnknownError):
            await writing
    accepted((await rig.journal.append([once]))[0])


async def _patiently(rig: Rig, once: Append) -> AppendVerdict:
    """Write as the engine does: again when the outcome is unknown or the journal away."""
    async with asyncio.timeout(30):
        while True:
            try:
                (verdict,) = await rig.journal.append([once])
            except (CommitOutcomeUnknownError, JournalUnreachableError):
                await asyncio.sleep(0.05)
            else:
                return verdict


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_restarted_server(rig: Rig, postgres_server: PostgresServer, mode: str) -> None:
    """C63: the journal works again without being opened again, and so does a lease."""
    key = await rig.started()
    lease = await rig.alive("w")
    await postgres_server.stop("fast" if mode == "fast" else "immediate")
    with pytest.raises((JournalUnreachableError, CommitOutcomeUnknownError)):
        await rig.append(key, events(1))
    with pytest.raises(JournalUnreachableError) as caught:
        await rig.journal.now()
    assert "127.0.0.1" in caught.value.message
    with pytest.raises((JournalUnreachableError, CommitOutcomeUnknownError)):
        await lease.renew(LONG)
    await postgres_server.start()
    accepted(await rig.append(key, events(1)))
    assert (await lease.renew(LONG)).held
    assert [row.last_seq for row in await rig.journal.get([key]) if row] == [1]


# ---- cancelled calls -----------------------------------------------------------------------------


async def test_cancelled_calls_leave_nothing_behind(rig: Rig, dsn: str) -> None:
    """C29, C50: cancelled at any moment, others unharmed, no session stays in a transaction."""
    chance = random.Random(7)
    cancelled = [await rig.started() for _ in range(30)]
    others = [await rig.started() for _ in range(30)]
    async with Line(dsn) as line, PostgresJournal(line.dsn, pool_size=4) as journal:

        async def slowly(_data: bytes) -> None:
            await asyncio.sleep(0.005)

        line.on_answer = slowly
        rigs = Rig(Stores(journal, journal))
        doomed = [asyncio.ensure_future(rigs.append(key, events(1, 2))) for key in cancelled]
        safe = [asyncio.ensure_future(rigs.append(key, events(1, 2))) for key in others]
        loop = asyncio.get_running_loop()
        for task in doomed:
            loop.call_later(chance.uniform(0, 0.2), task.cancel)
        for verdict in await asyncio.gather(*safe):
            accepted(verdict)
        await asyncio.gather(*doomed, return_exceptions=True)
        async with watching(dsn) as watcher:
            await watcher.until(
                "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle'"
                " AND datname = current_database() AND application_name <> 'test'",
                0,
            )
    for key in (*cancelled, *others):
        log = await rig.log(key)
        assert [event.seq for event in log] in ([0], [0, 1, 2])
        assert log[-1].seq == (await rig.row(key)).last_seq


async def test_cancelled_call_that_waits_for_a_lock(rig: Rig, dsn: str) -> None:
    """C29: its connection is ended, not handed to the next call."""
    key, other = await rig.started(), await rig.started()
    async with Held(dsn) as held, PostgresJournal(dsn, pool_size=1) as journal:
        await held.lock(key.execution_id)
        once = Append(key=key, fence=1, events=events(1), index=RUNNING)
        waiting = asyncio.ensure_future(journal.append([once]))
        async with watching(dsn) as watcher:
            await watcher.until_waiting()
            waits = "wait_event_type = 'Lock' AND datname = current_database()"
            session = await watcher.connection.fetchval(
                f"SELECT pid FROM pg_stat_activity WHERE {waits}"
            )
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        more = Append(key=other, fence=1, events=events(1), index=RUNNING)
        accepted((await journal.append([more]))[0])
        await held.roll_back()
        async with watching(dsn) as watcher:
            await watcher.until("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", 0, session)


# ---- pools and limits -------------------------------------------------------------------------


async def test_exhausted_pool_says_so(rig: Rig, dsn: str) -> None:
    """C24: with its size and how many wait; and waiting is bounded."""
    key = await rig.started()
    async with Held(dsn) as held, PostgresJournal(dsn, pool_size=1) as journal:
        await held.lock(key.execution_id)
        journal._endpoint.timeout = 0.3
        once = Append(key=key, fence=1, events=events(1), index=RUNNING)
        journal._endpoint.timeout = 5.0
        writing = asyncio.ensure_future(journal.append([once]))
        async with watching(dsn) as watcher:
            await watcher.until_waiting()
        journal._endpoint.timeout = 0.3
        answers = await asyncio.gather(*(journal.now() for _ in range(3)), return_exceptions=True)
        for error in answers:
            assert isinstance(error, JournalUnreachableError)
            assert "pool is exhausted: none of its 1 connections" in error.message
        waiting = [str(error).partition("0.3 s, and ")[2][0] for error in answers]
        assert sorted(waiting) == ["0", "1", "2"]
        await held.roll_back()
        accepted((await writing)[0])
        assert await journal.now()


async def test_more_callers_than_connections(rig: Rig) -> None:
    """C24: everybody is served, nobody holds one connection while waiting for another."""
    keys = [await rig.started() for _ in range(50)]
    verdicts = await asyncio.gather(*(rig.append(key, events(1)) for key in keys))
    for verdict in verdicts:
        accepted(verdict)


async def test_server_with_too_few_connections(
    rig: Rig, dsn: str, postgres_server: PostgresServer
) -> None:
    """C89: the pool works with what it gets."""
    role = f"few_{secrets.token_hex(4)}"
    database = dsn.rpartition("/")[2]
    await postgres_server.psql(
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret' CONNECTION LIMIT 2;"
        f" GRANT USAGE ON SCHEMA loom TO {role};"
        f" GRANT ALL ON ALL TABLES IN SCHEMA loom TO {role}",
        database,
    )
    few = _as(dsn, role, "secret")
    keys = [await rig.started() for _ in range(20)]
    async with PostgresJournal(few, pool_size=10) as journal:
        limited = Rig(Stores(journal, journal))
        for verdict in await asyncio.gather(*(limited.append(key, events(1)) for key in keys)):
            accepted(verdict)
    async with watching(dsn) as watcher:
        await watcher.until("SELECT count(*) FROM pg_stat_activity WHERE usename = $1", 0, role)
    async with PostgresJournal(few) as unlucky, connected(few):
        unlucky._pool._drop_idle()
        async with connected(few):
            with pytest.raises(JournalUnreachableError):
                await unlucky.now()
        await unlucky.now()
    await postgres_server.psql(f"DROP OWNED BY {role}; DROP ROLE {role}", database)


def _as(dsn: str, user: str, password: str) -> str:
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))


# ---- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (lambda dsn: _as(dsn, "loom", "wr0ng-secret"), True),
        (lambda dsn: dsn.rpartition("/")[0] + "/nowhere", True),
        (lambda dsn: "postgresql://loom:wr0ng-secret@127.0.0.1:1/loom", False),
    ],
)
async def test_addresses_that_do_not_work(
    dsn: str, change: Callable[[str], str], mistake: bool
) -> None:
    """C67, C93: one error, that says where and never with which password."""
    journal = PostgresJournal(change(dsn))
    with pytest.raises(JournalUnreachableError) as caught:
        await journal.__aenter__()
    shown = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__cause__}"
    assert "wr0ng-secret" not in shown
    assert str(urlsplit(dsn).password) not in shown
    assert isinstance(caught.value.__cause__, ConfigurationError) is mistake


# ---- data that the server refuses ----------------------------------------------------------------


async def test_text_that_a_column_cannot_hold(rig: Rig) -> None:
    """C16: error texts are kept in some escaped form; everything else passes unchanged."""
    key = await rig.started()
    index = IndexUpdate(status=Status.FAILED, error="x\x00y \ud800")
    payload = b"\x00\xff" + "\x00\ud800".encode("utf-8", "surrogatepass")
    accepted(await rig.append(key, events(1, payload=payload), index=index, release=True))
    row = await rig.row(key)
    assert row.error == "x\\x00y \\ud800"
    assert (await rig.log(key))[1].payload == payload


async def test_what_cannot_be_stored_fails_alone(rig: Rig) -> None:
    """C16, J3: a typed error at once, and the connection is as good as before."""
    key = await rig.started()
    bad = Append(key=key, fence=1, events=events(1), index=RUNNING, consume=("nul\x00",))
    with pytest.raises(StorageWriteError) as caught:
        await rig.journal.append([bad])
    assert isinstance(caught.value.__cause__, asyncpg.CharacterNotInRepertoireError)
    for hostile in ("nul\x00", "\ud800"):
        with pytest.raises(LoomError):
            await rig.journal.count(hostile)
    assert len(await rig.log(key)) == 1
    accepted(await rig.append(key, events(1), index=COMPLETED, release=True))


async def test_large_batches_go_in_several_calls(rig: Rig) -> None:
    """J10: payloads of a megabyte each, all written, all read back in pages."""
    big = b"\xc6\x00\x0f\xff\xf0" + secrets.token_bytes(1024 * 1024)
    keys = [await rig.started() for _ in range(12)]
    batch = [Append(key=key, fence=1, events=events(1, payload=big), index=RUNNING) for key in keys]
    for verdict in await rig.journal.append(batch):
        accepted(verdict)
    key = keys[0]
    for seq in range(2, 12):
        accepted(await rig.append(key, events(seq, payload=big)))
    found = await rig.journal.read(key)
    assert [event.seq for event in found] == list(range(len(found)))
    assert 2 < len(found) < 12
    while found[-1].seq < 11:
        page = await rig.journal.read(key, first=found[-1].seq + 1)
        assert page
        found += page
    assert [event.seq for event in found] == list(range(12))
    newest = await rig.journal.read(key, newest=True)
    assert [event.seq for event in newest][-2:] == [10, 11]
    claimed = (await rig.claim(key, "next", 1)).claimed
    assert claimed is not None
    assert claimed.more
