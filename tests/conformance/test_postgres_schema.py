"""Setting up the journal's schema, changing it under load, and numbers past 32 bits."""

from __future__ import annotations

import asyncio
import sys

import msgspec
import pytest

from loom_mq.errors import ConfigurationError, SchemaVersionError
from loom_mq.journal.postgres import PostgresJournal, migrate, migration_script
from loom_mq.journal.postgres.sql import FUNCTIONS_REVISION, Sql
from loom_mq.journal.protocol import Admission, DeadLetter, Rewrite
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.model.policies import StartPolicy
from loom_mq.model.snapshots import Snapshot
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    Rig,
    Stores,
    accepted,
    events,
    folded,
    name,
)
from tests.conformance.postgres_support import NEWEST, Journal, connected

NEAR_THE_END = 2**31 - 5
MIGRATE = """
import asyncio, sys
from loom_mq.journal.postgres import migrate
print(asyncio.run(migrate(sys.argv[1], sys.argv[2])))
"""


async def _live(journal: PostgresJournal) -> ExecutionKey:
    """A short life, to see that everything is there."""
    rig = Rig(Stores(journal, journal))
    key = await rig.started("w")
    accepted(await rig.append(key, events(1), index=COMPLETED, release=True))
    return key


# ---- versions ----------------------------------------------------------------------------------


async def test_missing_journal_is_told(postgres_dsn: str) -> None:
    """C67: with what to do, and nothing is made by the way."""
    with pytest.raises(SchemaVersionError, match="loom migrate") as caught:
        await PostgresJournal(postgres_dsn).__aenter__()
    assert "loom" in caught.value.message
    async with connected(postgres_dsn) as connection:
        assert not await connection.fetchval("SELECT to_regnamespace('loom') IS NOT NULL")


async def test_migrating_twice_changes_nothing(postgres_dsn: str) -> None:
    """C88: and a journal in use is left alone."""
    assert await migrate(postgres_dsn) == NEWEST
    async with PostgresJournal(postgres_dsn) as journal:
        key = await _live(journal)
        assert await migrate(postgres_dsn) == NEWEST
        assert (await journal.get([key]))[0] is not None


async def test_migrating_at_once(postgres_dsn: str) -> None:
    """C88: three processes: neither deadlock nor twice."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MIGRATE, postgres_dsn, "loom"),
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(3)
    ]
    async with asyncio.timeout(60):
        answers = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [answer.split()[-1] for answer in answers] == [str(NEWEST).encode()] * 3
    async with PostgresJournal(postgres_dsn) as journal:
        await _live(journal)


async def test_newer_journal_is_refused(postgres_dsn: str) -> None:
    """C67: an older program neither works on it nor changes it."""
    await migrate(postgres_dsn)
    async with connected(postgres_dsn) as connection:
        await connection.execute("UPDATE loom.meta SET value = '7' WHERE name = 'schema_version'")
    with pytest.raises(SchemaVersionError, match="upgrade this program"):
        await PostgresJournal(postgres_dsn).__aenter__()
    with pytest.raises(SchemaVersionError, match="upgrade this program"):
        await migrate(postgres_dsn)


async def test_older_functions_are_refused_and_renewed(postgres_dsn: str) -> None:
    """C28: what an older release left behind."""
    await migrate(postgres_dsn)
    async with connected(postgres_dsn) as connection:
        await connection.execute(
            "UPDATE loom.meta SET value = '0' WHERE name = 'functions_revision';"
            "DROP FUNCTION loom.next_timer_v2"
        )
    with pytest.raises(SchemaVersionError, match="loom migrate"):
        await PostgresJournal(postgres_dsn).__aenter__()
    await migrate(postgres_dsn)
    async with PostgresJournal(postgres_dsn) as journal:
        assert await journal.next_timer() is None


async def test_newer_functions_stay(postgres_dsn: str) -> None:
    """C28: an older release of the same schema works with them, and puts none of its own over."""
    await migrate(postgres_dsn)
    newer = str(FUNCTIONS_REVISION + 1)
    async with connected(postgres_dsn) as connection:
        await connection.execute(
            "UPDATE loom.meta SET value = $1 WHERE name = 'functions_revision'", newer
        )
        await connection.execute(
            "UPDATE loom.meta SET value = 'other' WHERE name = 'functions_checksum'"
        )
        await migrate(postgres_dsn)
        assert newer == await connection.fetchval(
            "SELECT value FROM loom.meta WHERE name = 'functions_revision'"
        )
    async with PostgresJournal(postgres_dsn) as journal:
        await _live(journal)


async def test_script_by_hand(postgres_dsn: str) -> None:
    """C67: for those whose services may not change schemas."""
    async with connected(postgres_dsn) as connection:
        await connection.execute(migration_script("by_hand"))
    async with PostgresJournal(postgres_dsn, schema="by_hand") as journal:
        await _live(journal)


async def test_two_journals_in_one_database(postgres_dsn: str) -> None:
    """J9: each in its own schema, whatever its name."""
    for schema in ("Select", "other_1"):
        await migrate(postgres_dsn, schema)
    async with (
        Journal(postgres_dsn, schema="Select") as one,
        Journal(postgres_dsn, schema="other_1") as other,
    ):
        key = await _live(one)
        assert await other.get([key]) == [None]
        for journal in (one, other):
            await Rig(Stores(journal, journal)).alive("w")
        assert [each.owner for each in await other.workers()] == ["w"]


@pytest.mark.parametrize("schema", ['a"b', "a b", "", "1a", "ä", "x" * 64])
def test_schema_is_a_plain_name(schema: str) -> None:
    """C53: it stands in statements."""
    with pytest.raises(ConfigurationError):
        PostgresJournal("postgresql://localhost/loom", schema=schema)


def test_every_function_says_its_settings() -> None:
    """C28: a function that joins a batch leaves nothing to the planner's taste."""
    for text in Sql("loom").functions().split("CREATE OR REPLACE FUNCTION ")[1:]:
        if "FROM unnest(" in text or "FOR UPDATE" in text or "FOR NO KEY UPDATE" in text:
            assert "SET plan_cache_mode = force_generic_plan SET jit = off" in text, text[:60]
            assert ("SET enable_indexscan = on" in text) != ("SET enable_indexscan = off" in text)


# ---- changes under load ------------------------------------------------------------------------


async def test_schema_changed_while_in_use(postgres_dsn: str) -> None:
    """C28: columns come and go, and no statement of an open session fails."""
    await migrate(postgres_dsn)
    async with PostgresJournal(postgres_dsn, pool_size=2) as journal:
        rig = Rig(Stores(journal, journal))
        changed = asyncio.Event()

        async def write() -> int:
            done = 0
            while not changed.is_set():
                key = await rig.parked(timers=(5,))
                await rig.deliver(key)
                claimed = (await rig.claim(key, "w", 1)).claimed
                assert claimed is not None
                accepted(
                    await rig.append(
                        key, events(2, fence=2), fence=2, index=COMPLETED, release=True
                    )
                )
                done += 1
            return done

        writers = [asyncio.ensure_future(write()) for _ in range(3)]
        async with connected(postgres_dsn) as connection:
            for action in ("ADD COLUMN extra text", "DROP COLUMN extra"):
                for table in ("events", "executions", "timers"):
                    await connection.execute(f"ALTER TABLE loom.{table} {action}")
                    await asyncio.gather(*(rig.ended() for _ in range(3)))
            await connection.execute("DROP INDEX loom.events_first_id")
            await connection.execute(
                "CREATE UNIQUE INDEX events_first_id"
                " ON loom.events (first_id, execution_id, tenant)"
            )
        changed.set()
        assert min(await asyncio.gather(*writers)) > 0


# ---- numbers -----------------------------------------------------------------------------------


async def test_numbers_past_32_bits(postgres_dsn: str) -> None:
    """C78: sequences, fences, attempts, hints, positions."""
    await migrate(postgres_dsn)
    async with PostgresJournal(postgres_dsn) as journal:
        rig = Rig(Stores(journal, journal))
        key = await rig.started("dead")
        async with connected(postgres_dsn) as connection:
            await connection.execute(
                "UPDATE loom.executions SET fence = $1::bigint, last_seq = $1, attempt = $1,"
                " hints = $1, recoveries = $1",
                NEAR_THE_END,
            )
            for table in ("inbox", "dead_letters"):
                await connection.execute(
                    f"ALTER TABLE loom.{table} ALTER position RESTART WITH {NEAR_THE_END}"
                )
        fence, seq = NEAR_THE_END, NEAR_THE_END + 1
        for _ in range(10):
            claimed = (await rig.claim(key, "dead", fence, known_seq=seq - 1)).claimed
            assert claimed is not None
            fence += 1
            assert (claimed.row.fence, claimed.row.attempt) == (fence, fence)
            accepted(await rig.append(key, events(seq, 2, fence=fence), fence=fence))
            seq += 2
            await rig.deliver(key, name("item"))
        log = await journal.read(key, first=NEAR_THE_END)
        assert [each.seq for each in log] == list(range(NEAR_THE_END + 1, seq))
        assert len((await journal.inbox([key]))[0]) == 10
        far = await journal.now() + int(200 * 365.25 * 86400 * 1_000_000)
        parked = await rig.parked(timers=(far,))
        assert await journal.next_timer() == far
        assert (await rig.row(parked)).wake_at == far
        letters = [DeadLetter(id=str(n), queue="q", reason="r", body=b"") for n in range(10)]
        await journal.record_dead_letters(letters)
        assert [each.id for each in await journal.dead_letters()] == list("9876543210")
        assert [each.row.key for each in await rig.take_abandoned(max_recoveries=2**40)] == [key]


async def test_logs_past_32_bits_are_folded_and_moved(postgres_dsn: str) -> None:
    """C78: snapshots, whole logs, and what takes their place."""
    await migrate(postgres_dsn)
    async with PostgresJournal(postgres_dsn) as journal:
        rig = Rig(Stores(journal, journal))
        first, last = NEAR_THE_END, NEAR_THE_END + 150
        planting = rig.planting(last, first=first, snapshot=Snapshot(first - 1, 2**40, b"state"))
        row = msgspec.structs.replace(
            planting.row, fence=NEAR_THE_END, attempt=2**40, hints=2**40, recoveries=2**40
        )
        key = await rig.planted(msgspec.structs.replace(planting, row=row))
        assert await rig.row(key) == row
        assert await rig.log(key) == list(planting.events)
        claimed = (await rig.claim(key, "w", NEAR_THE_END)).claimed
        assert claimed is not None
        assert claimed.snapshot == planting.snapshot
        assert claimed.events == planting.events
        fence = claimed.row.fence
        end = events(last + 1, 2, fence=fence)
        accepted(await rig.append(key, end, fence=fence, index=COMPLETED, release=True))
        await journal.save_snapshots([(key, folded(last))])
        assert await journal.rewrite([Rewrite(key=key, events=end, snapshot=folded(last))]) == [
            None
        ]
        assert await rig.log(key) == list(end)
        start = Admission(
            key=key,
            flow="f",
            version="1",
            queue="q",
            start=b"",
            input_digest=b"",
            policy=StartPolicy.AFTER_CLOSE,
            retire_as="retired",
        )
        (verdict,) = await journal.admit([start])
        assert (verdict.created, verdict.row.fence) == (True, fence + 1)
        aside = ExecutionKey(DEFAULT_TENANT, "retired")
        assert await rig.log(aside) == list(end)
        assert await journal.snapshot(aside) == folded(last)
        assert await journal.delete([aside]) == [None]


async def test_every_number_is_64_bits_wide(postgres_dsn: str) -> None:
    """C78: every column, every parameter, every sequence."""
    await migrate(postgres_dsn)
    async with connected(postgres_dsn) as connection:
        narrow = await connection.fetch(
            "SELECT c.relname, a.attname FROM pg_attribute AS a"
            " JOIN pg_class AS c ON c.oid = a.attrelid"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'loom' AND c.relkind = 'r' AND a.attnum > 0"
            " AND a.atttypid IN ('integer'::regtype, 'smallint'::regtype, 'integer[]'::regtype)"
        )
        assert narrow == []
        functions = await connection.fetch(
            "SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p"
            " JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'loom'"
        )
        assert [each["name"] for each in functions if "integer" in each["name"]] == []
        sequences = await connection.fetch(
            "SELECT data_type FROM pg_sequences WHERE schemaname = 'loom'"
        )
        assert {each["data_type"] for each in sequences} == {"bigint"}


async def test_starts_that_exist_use_up_nothing(postgres_dsn: str) -> None:
    """C78: neither rows nor places of a sequence, however often they come."""
    await migrate(postgres_dsn)
    async with PostgresJournal(postgres_dsn) as journal:
        rig = Rig(Stores(journal, journal))
        keys = [ExecutionKey(DEFAULT_TENANT, name("again")) for _ in range(50)]
        batch = [
            Admission(
                key=key,
                flow="f",
                version="1",
                queue="q",
                start=b"",
                input_digest=b"",
                resend_after=LONG,
            )
            for key in keys
        ]
        for _ in range(20):
            verdicts = await journal.admit(batch)
        assert not any(each.created for each in verdicts)
        async with connected(postgres_dsn) as connection:
            used = await connection.fetchval(
                "SELECT sum(coalesce(last_value, 0)) FROM pg_sequences WHERE schemaname = 'loom'"
            )
        assert used == 0
        assert (await rig.row(keys[0])).hints == 0
