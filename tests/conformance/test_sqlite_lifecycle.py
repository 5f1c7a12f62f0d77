"""The embedded journal's older files, and whole logs that cannot be written."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from loom_mq.errors import DuplicateEnvelopeIdError, SchemaVersionError
from loom_mq.journal.packing import pack_events
from loom_mq.journal.protocol import ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.journal.sqlite_ops import migrate
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, InboxKind, Status
from loom_mq.testing.conformance.journal import Rig, Stores
from loom_mq.testing.conformance.journal_rig import LONG, accepted, events, folded
from loom_mq.testing.conformance.journal_schedules import a_schedule

KEY = ExecutionKey(DEFAULT_TENANT, "old")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def _insert(db: sqlite3.Connection, table: str, **columns: object) -> None:
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))


def _first_schema(path: Path) -> None:
    """A file as the first release left it, with an execution that waits for an answer."""
    db = sqlite3.connect(path, isolation_level=None)
    _number, script = migrate._MIGRATIONS[0]
    for statement in migrate.split(script):
        db.execute(statement)
    _insert(db, "meta", name="schema_version", value="1")
    own = {"tenant": KEY.tenant, "execution_id": KEY.execution_id}
    _insert(
        db,
        "executions",
        **own,
        flow="flow",
        version="1",
        queue="q",
        status="suspended",
        last_seq=1,
        gates=msgspec.msgpack.encode(("gate",)),
        recoveries=0,
        features=msgspec.msgpack.encode(()),
        labels=msgspec.msgpack.encode({"a": "b"}),
        created_at=1,
        updated_at=3,
        started_at=2,
        fence=1,
        attempt=1,
        hint_at=5,
        hints=0,
        inbox=1,
        input_digest=b"digest",
        waiters=msgspec.msgpack.encode(()),
    )
    log = events(0, 2)
    _insert(
        db,
        "events",
        **own,
        first_seq=0,
        last_seq=1,
        first_id=log[0].id,
        events=pack_events(log),
    )
    _insert(
        db,
        "inbox",
        **own,
        item_id="item",
        kind="answer",
        gate="gate",
        payload=b"yes",
        correlation="",
    )
    db.close()


async def test_file_of_the_first_schema_goes_on(path: Path) -> None:
    """J9: what it holds is there, and all that is new works on it."""
    _first_schema(path)
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        row = await rig.row(KEY)
        assert (row.status, row.gates, row.labels) == (Status.SUSPENDED, ("gate",), {"a": "b"})
        assert (row.in_doubt, row.trouble) == ((), None)
        assert await journal.find(ListQuery(in_doubt=True)) == []
        assert await journal.find(ListQuery(troubled=True)) == []
        ((item,),) = await journal.inbox([KEY])
        assert (item.kind, item.payload, item.actor) == (InboxKind.ANSWER, b"yes", "")
        assert [each.row.key for each in await rig.take_unsent()] == [KEY]
        await journal.save_snapshots([(KEY, folded(1))])
        await journal.defer([KEY], "w", None, None, "trouble")
        assert (await rig.row(KEY)).trouble == "trouble"
        claimed = (await rig.claim(KEY, "w", 1)).claimed
        assert claimed is not None
        assert (claimed.snapshot, claimed.events) == (folded(1), ())
        accepted(await rig.append(KEY, events(2, fence=2), fence=2, consume=("item",)))
        assert [event.seq for event in await rig.log(KEY)] == [0, 1, 2]


async def test_file_of_the_second_schema_gets_schedules(path: Path) -> None:
    """J9, F9: what it holds stays, and schedules work on it; who looks on changes nothing."""
    _first_schema(path)
    db = sqlite3.connect(path, isolation_level=None)
    for statement in migrate.split(migrate._MIGRATIONS[1][1]):
        db.execute(statement)
    db.execute("UPDATE meta SET value = '2' WHERE name = 'schema_version'")
    db.close()
    with pytest.raises(SchemaVersionError, match=f"has schema 2 .*needs {migrate.SCHEMA_VERSION}:"):
        async with SqliteJournal(path, exclusive=False):
            pass
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        assert (await rig.row(KEY)).status is Status.SUSPENDED
        assert [event.seq for event in await rig.log(KEY)] == [0, 1]
        assert await journal.schedules() == []
        row = await journal.put_schedule(a_schedule(due=4), None)
        assert await journal.next_timer() == 4
        assert await journal.due_schedules(limit=9, hold=LONG) == [row]
    async with SqliteJournal(path, exclusive=False) as onlooker:
        assert await onlooker.schedule(row.key) == row


async def test_log_with_an_id_twice_is_planted_not_at_all(path: Path) -> None:
    """J2, J8: nor is anything of its batch; no part of a log may be missing in silence."""
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        good, bad = rig.planting(1), rig.planting(299)
        log = list(bad.events)
        log[200] = msgspec.structs.replace(log[200], id=log[0].id)
        with pytest.raises(DuplicateEnvelopeIdError):
            await journal.plant([good, msgspec.structs.replace(bad, events=tuple(log))])
        assert await journal.get([good.row.key, bad.row.key]) == [None, None]
        assert await journal.count() == {}
        await rig.planted(good)
        await rig.planted(bad)
