"""A journal of the first version, in use, becomes one of the newest (C28, C88)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from loom_mq.errors import SchemaVersionError
from loom_mq.journal.packing import pack_events
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.journal.postgres.endpoint import Connection
from loom_mq.journal.postgres.sql import Sql
from loom_mq.journal.protocol import ListQuery
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, InboxItem, InboxKind, Status
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    Rig,
    Stores,
    accepted,
    events,
    folded,
)
from loom_mq.testing.conformance.journal_schedules import a_schedule
from tests.conformance.postgres_support import NEWEST, Held, Journal, connected, watching

PARKED = ExecutionKey(DEFAULT_TENANT, "parked")
ENDED = ExecutionKey(DEFAULT_TENANT, "ended")
MAIL = ("item", "answer", "gate", "/gate:0", b"yes", "reply", "c-1")
"""An inbox item as the first version packs it."""

SEEN_BY_FIRST = """
CREATE VIEW loom.execution_v1 AS
SELECT tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest
FROM loom.executions;
CREATE FUNCTION loom.of_first_v1(p_id text) RETURNS SETOF loom.execution_v1
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT e.* FROM loom.execution_v1 AS e WHERE e.execution_id = p_id;
END
$$
"""
SECONDS_NEXT_TIMER = """
CREATE FUNCTION loom.next_timer_v1() RETURNS bigint
LANGUAGE sql STABLE AS 'SELECT min(due) FROM loom.timers WHERE visible_at = due'
"""
"""As the second version answered, as far as the tests ask."""
EXECUTION = """
INSERT INTO loom.executions (fence, last_seq, attempt, hints, inbox, recoveries, created_at,
    updated_at, started_at, ended_at, littered, tenant, execution_id, status, queue, flow,
    version, labels, gates, input_digest, waiters)
VALUES (1, 1, 1, 0, $5, 0, 10, 20, 15, $4, $5::bigint > 0, $1, $2, $3, 'q', 'flow', '1',
    '{"a":"b"}', $6, '\\x00', '{}')
"""
SHAPE = {
    "columns": "SELECT table_name, column_name, data_type, collation_name, is_nullable"
    " FROM information_schema.columns WHERE table_schema = 'loom' AND table_name <> 'meta'"
    " ORDER BY table_name, column_name",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'loom'"
    " ORDER BY indexname",
    "options": "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'loom'::regnamespace"
    " AND relkind = 'r' ORDER BY relname",
    "compression": "SELECT attrelid::regclass::text, attname, attcompression FROM pg_attribute"
    " WHERE attcompression <> '' AND attrelid IN"
    " (SELECT oid FROM pg_class WHERE relnamespace = 'loom'::regnamespace)"
    " ORDER BY attrelid::regclass::text, attname",
}


async def make_first(dsn: str) -> dict[ExecutionKey, tuple[Envelope, ...]]:
    """A journal of the first version with a parked and an ended execution; their logs."""
    sql = Sql("loom")
    logs = {PARKED: events(0, 2), ENDED: events(0, 2)}
    async with connected(dsn) as connection:
        await connection.execute("CREATE SCHEMA loom")
        await connection.execute(sql["create_meta"])
        await connection.execute(dict(sql.migrations())[1])
        await connection.execute(SEEN_BY_FIRST)
        for name, value in (("schema_version", "1"), ("functions_revision", "1")):
            await connection.execute(sql["write_meta"], name, value)
        await connection.execute(EXECUTION, *PARKED, "suspended", None, 1, '["gate"]')
        await connection.execute(EXECUTION, *ENDED, "completed", 20, 0, None)
        for key, log in logs.items():
            await connection.execute(
                "INSERT INTO loom.events (tenant, execution_id, seq, last_seq, first_id, body)"
                " VALUES ($1, $2, 0, 1, $3, $4)",
                *(*key, log[0].id, pack_events(log)),
            )
        await connection.execute(
            "INSERT INTO loom.inbox (received_at, tenant, execution_id, item_id, kind, body)"
            " VALUES (20, $1, $2, 'item', 'answer', $3)",
            *(*PARKED, msgspec.msgpack.encode(MAIL)),
        )
        await connection.execute("INSERT INTO loom.timers VALUES (5, 5, $1, $2)", *PARKED)
    return logs


async def shape(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    """What the tables are like."""
    return {
        what: [tuple(record) for record in await connection.fetch(question)]
        for what, question in SHAPE.items()
    }


async def test_journal_of_the_first_version_goes_on(postgres_dsn: str) -> None:
    """C88: all of it is there, and can do what is new."""
    logs = await make_first(postgres_dsn)
    with pytest.raises(SchemaVersionError, match="loom migrate"):
        await PostgresJournal(postgres_dsn).__aenter__()
    assert await migrate(postgres_dsn) == NEWEST
    async with Journal(postgres_dsn) as journal:
        rig = Rig(Stores(journal, journal))
        for key, log in logs.items():
            assert await rig.log(key) == list(log)
            row = await rig.row(key)
            assert (row.in_doubt, row.trouble, row.labels) == ((), None, {"a": "b"})
            assert await journal.snapshot(key) is None
        assert await journal.find(ListQuery(in_doubt=True)) == []
        assert await journal.find(ListQuery(troubled=True)) == []
        assert len(await journal.find(ListQuery(labels={"a": "b"}))) == 2
        assert [each.row.key for each in await journal.due_timers(limit=9, hold=LONG)] == [PARKED]
        item = InboxItem(
            tenant=PARKED.tenant,
            execution_id=PARKED.execution_id,
            item_id="item",
            kind=InboxKind.ANSWER,
            gate="gate",
            wait_id="/gate:0",
            payload=b"yes",
            reply_to="reply",
            correlation="c-1",
        )
        assert await journal.inbox([PARKED]) == [(item,)]
        await journal.save_snapshots([(PARKED, folded(0)), (ENDED, folded(1))])
        claimed = (await rig.claim(PARKED, "w", 1)).claimed
        assert claimed is not None
        assert (claimed.snapshot, claimed.events) == (folded(0), logs[PARKED][1:])
        last = await rig.append(PARKED, events(2, fence=2), fence=2, index=COMPLETED, release=True)
        assert accepted(last).inbox == 0
        assert await journal.delete([PARKED, ENDED]) == [None, None]
        assert await journal.count() == {}


async def test_migrated_tables_are_like_new_ones(postgres_dsn: str) -> None:
    """C88: whichever way a journal came to be."""
    await make_first(postgres_dsn)
    await migrate(postgres_dsn)
    async with connected(postgres_dsn) as connection:
        migrated = await shape(connection)
        await connection.execute("DROP SCHEMA loom CASCADE")
        await migrate(postgres_dsn)
        assert migrated == await shape(connection)
        assert {row[0] for row in migrated["columns"]} >= {"executions", "snapshots"}


async def test_open_session_of_the_first_version_is_not_disturbed(postgres_dsn: str) -> None:
    """C28: functions that only it calls stay, and rows have more columns than it asks for."""
    await make_first(postgres_dsn)
    async with connected(postgres_dsn) as old:
        statement = "SELECT * FROM loom.of_first_v1($1)"
        before = await old.fetch(statement, PARKED.execution_id)
        await migrate(postgres_dsn)
        (after,) = await old.fetch(statement, PARKED.execution_id)
        assert dict(after).items() >= dict(before[0]).items()


async def test_migration_waits_for_writers_and_loses_none(postgres_dsn: str) -> None:
    """C28, C88: what is under way when the columns come is there afterwards."""
    await make_first(postgres_dsn)
    async with Held(postgres_dsn) as held, watching(postgres_dsn) as watcher:
        await held.connection.execute(
            "UPDATE loom.executions SET status = 'running', owner = 'w' WHERE status = 'suspended'"
        )
        migration = asyncio.ensure_future(migrate(postgres_dsn))
        await watcher.until_waiting()
        await held.commit()
        assert await migration == NEWEST
    async with Journal(postgres_dsn) as journal:
        (row,) = await journal.find(ListQuery(status=Status.RUNNING))
        assert (row.key, row.owner) == (PARKED, "w")


# ---- from the second version -------------------------------------------------------------------


async def make_second(dsn: str) -> dict[ExecutionKey, tuple[Envelope, ...]]:
    """A journal of the second version, without schedules, with what `make_first` puts in."""
    logs = await make_first(dsn)
    sql = Sql("loom")
    async with connected(dsn) as connection:
        await connection.execute(dict(sql.migrations())[2])
        await connection.execute(SECONDS_NEXT_TIMER)
        await connection.execute(sql["write_meta"], "schema_version", "2")
        await connection.execute(sql["write_meta"], "functions_revision", "4")
    return logs


async def test_journal_of_the_second_version_gets_schedules(postgres_dsn: str) -> None:
    """C88, F9: what it holds stays, and schedules work beside its timers."""
    logs = await make_second(postgres_dsn)
    with pytest.raises(SchemaVersionError, match=f"has version 2 .*needs {NEWEST} "):
        await PostgresJournal(postgres_dsn).__aenter__()
    assert await migrate(postgres_dsn) == NEWEST
    async with Journal(postgres_dsn) as journal:
        rig = Rig(Stores(journal, journal))
        assert [await rig.log(key) for key in logs] == [list(log) for log in logs.values()]
        assert await journal.schedules() == []
        assert await journal.next_timer() == 5
        row = await journal.put_schedule(a_schedule(due=4), None)
        assert await journal.next_timer() == 4
        assert await journal.due_schedules(limit=9, hold=LONG) == [row]
        assert [each.row.key for each in await journal.due_timers(limit=9, hold=LONG)] == [PARKED]
        assert await journal.drop_schedule(row.key)
        assert await journal.schedules() == []


async def test_timer_service_of_the_second_version_sees_no_schedules(postgres_dsn: str) -> None:
    """C28, F9: it could not fire them, and would look again and again for what it never gets."""
    await make_second(postgres_dsn)
    async with connected(postgres_dsn) as old:
        statement = "SELECT loom.next_timer_v1()"
        assert await old.fetchval(statement) == 5
        await migrate(postgres_dsn)
        async with Journal(postgres_dsn) as journal:
            await journal.put_schedule(a_schedule(due=4), None)
            assert await journal.next_timer() == 4
            assert await old.fetchval(statement) == 5
