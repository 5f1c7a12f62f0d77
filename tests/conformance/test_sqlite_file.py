"""The embedded journal's file: its lock, its schema, its statements, its errors."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from loom_mq.errors import (
    ConfigurationError,
    JournalUnreachableError,
    SchemaVersionError,
    StorageWriteError,
)
from loom_mq.journal.protocol import IndexUpdate, ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.journal.sqlite_ops import migrate
from loom_mq.journal.statements import load_statements, sql_folder
from loom_mq.model.execution import Status
from loom_mq.testing.conformance.journal import Rig, Stores
from loom_mq.testing.conformance.journal_rig import LONG, accepted, events


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest_asyncio.fixture
async def rig(path: Path) -> AsyncIterator[Rig]:
    async with SqliteJournal(path) as journal:
        yield Rig(Stores(journal, journal))


# ---- one engine ---------------------------------------------------------------------------


async def test_second_engine_is_refused(path: Path, rig: Rig) -> None:
    """C97: with a message that says what to do; looking on is allowed."""
    key = await rig.started()
    with pytest.raises(ConfigurationError, match=r"in use by another engine .*another file"):
        async with SqliteJournal(path):
            pass
    async with SqliteJournal(path, exclusive=False) as onlooker:
        assert len(await onlooker.find(ListQuery())) == 1
        (verdict,) = await onlooker.deliver([rig.item(key)])
        assert verdict.error is None
    assert await rig.unread(key) == ["item"]


async def test_engine_that_takes_the_lock_ends_every_lease(path: Path) -> None:
    """F7: whoever held one is gone, so its work is taken over at once; looking on ends none."""
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        await rig.alive("w")
        key = await rig.started("w")
        async with SqliteJournal(path, exclusive=False) as onlooker:
            assert [each.owner for each in await onlooker.workers()] == ["w"]
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        assert await journal.workers() == []
        (found,) = await rig.take_abandoned()
        assert (found.row.key, found.lost_owner) == (key, "w")


async def test_engine_that_takes_the_lock_sends_again_what_was_on_its_way(path: Path) -> None:
    """F7, F9: packages and fires of the process before went with it."""
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        sent, fired = await rig.admitted(), await rig.parked(timers=(5,))
        assert len(await journal.due_timers(limit=10, hold=LONG)) == 1
        async with SqliteJournal(path, exclusive=False):
            pass
        assert await rig.take_unsent() == []
        assert await journal.due_timers(limit=10, hold=LONG) == []
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        assert {each.row.key for each in await rig.take_unsent()} == {sent, fired}
        due = await journal.due_timers(limit=10, hold=LONG)
        assert [(each.row.key, each.due) for each in due] == [(fired, 5)]


async def test_lock_is_free_after_a_failed_open(path: Path) -> None:
    """C97: a refusal leaves nothing behind."""
    path.write_bytes(b"certainly not a database" * 100)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="made by loom-mq"):
            async with SqliteJournal(path):
                pass
    path.unlink()
    async with SqliteJournal(path) as journal:
        assert await journal.count() == {}


# ---- files that cannot be used --------------------------------------------------------------


async def test_unusable_places_are_refused(tmp_path: Path) -> None:
    """C67: with a message that says what is wrong."""
    for exclusive in (True, False):
        for place in (tmp_path / "no" / "folder.db", tmp_path):
            with pytest.raises(ConfigurationError):
                async with SqliteJournal(place, exclusive=exclusive):
                    pass
        with pytest.raises(ConfigurationError, match="needs a file"):
            async with SqliteJournal(":memory:", exclusive=exclusive):
                pass


async def test_database_of_another_program_is_left_alone(path: Path) -> None:
    """J9: nothing is written into it."""
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE meta (name, value)")
    foreign.close()
    with pytest.raises(ConfigurationError, match="another program"):
        async with SqliteJournal(path):
            pass
    with sqlite3.connect(path) as foreign:
        names = [name for (name,) in foreign.execute("SELECT name FROM sqlite_schema")]
    foreign.close()
    assert names == ["meta"]


async def test_newer_schema_is_refused(path: Path) -> None:
    """J9: and the message says what to do."""
    async with SqliteJournal(path):
        pass
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '999' WHERE name = 'schema_version'")
    db.close()
    for exclusive in (True, False):
        with pytest.raises(SchemaVersionError, match=r"schema 999 .*newer release"):
            async with SqliteJournal(path, exclusive=exclusive):
                pass


async def test_older_schema_is_brought_up_to_date_by_the_engine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J9: in one transaction or not at all, and never by who looks on."""
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        key = await rig.started()
    known = list(migrate._MIGRATIONS)
    later = len(known) + 1
    monkeypatch.setattr(migrate, "SCHEMA_VERSION", later)
    broken = "CREATE TABLE more (a INTEGER);\nCREATE TABLE more (b INTEGER);"
    monkeypatch.setattr(migrate, "_MIGRATIONS", [*known, (later, broken)])
    with pytest.raises(ConfigurationError, match="more already exists"):
        async with SqliteJournal(path):
            pass
    monkeypatch.setattr(migrate, "_MIGRATIONS", [*known, (later, "CREATE TABLE more (a INTEGER);")])
    with pytest.raises(SchemaVersionError, match="start an engine"):
        async with SqliteJournal(path, exclusive=False):
            pass
    async with SqliteJournal(path) as journal:
        assert (await Rig(Stores(journal, journal)).row(key)).last_seq == 0
    async with SqliteJournal(path, exclusive=False):
        pass


# ---- storage faults ---------------------------------------------------------------------------


async def test_storage_fault_is_told_with_its_cause(path: Path, rig: Rig) -> None:
    """J2, K9: nothing of the batch was written, and the next one is."""
    key = await rig.started()
    index = IndexUpdate(status=Status.RUNNING, error="lone surrogate \ud800")
    with pytest.raises(StorageWriteError) as caught:
        await rig.append(key, events(1), index=index)
    assert isinstance(caught.value.__cause__, UnicodeEncodeError)
    assert len(await rig.log(key)) == 1
    accepted(await rig.append(key, events(1)))


async def test_full_disk_is_told_with_its_cause(path: Path, rig: Rig) -> None:
    """K9: and what was written before stays readable."""
    key = await rig.started()
    assert isinstance(rig.journal, SqliteJournal)
    writer = rig.journal._writer

    def limit(db: sqlite3.Connection, _now: int, pages: int) -> None:
        db.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    await writer.write(limit, 60)

    async def fill() -> None:
        for seq in range(1, 10):
            accepted(await rig.append(key, events(seq, payload=b"x" * 100_000)))

    with pytest.raises(StorageWriteError, match="full") as caught:
        await fill()
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    written = len(await rig.log(key))
    assert (await rig.row(key)).last_seq == written - 1
    await writer.write(limit, 10_000)
    accepted(await rig.append(key, events(written, payload=b"x" * 100_000)))


async def test_cancelled_caller_leaves_the_journal_whole(rig: Rig) -> None:
    """J4: a write goes through or not at all, whoever still waits for it."""
    keys = [await rig.started() for _ in range(20)]
    tasks = [asyncio.create_task(rig.append(key, events(1, 3))) for key in keys]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for key in keys:
        assert (await rig.row(key)).last_seq + 1 == len(await rig.log(key))
        assert len(await rig.log(key)) in (1, 4)
    for key in keys[1::2]:
        assert len(await rig.log(key)) == 4


async def test_closed_journal_says_so(path: Path) -> None:
    """F11: before it is opened, and after it was closed."""
    journal = SqliteJournal(path)
    with pytest.raises(JournalUnreachableError, match="not open"):
        await journal.count()
    await journal.__aenter__()
    await journal.__aexit__(None, None, None)
    for call in (journal.count(), journal.defer([], "", None)):
        with pytest.raises(JournalUnreachableError, match="closed"):
            await call
    assert not path.with_name(path.name + "-wal").exists()


async def test_usable_from_another_event_loop(rig: Rig) -> None:
    """F7: the lease is renewed on a loop of its own, in a thread of its own."""

    async def keep() -> bool:
        lease = await rig.alive("w")
        held = (await lease.renew(LONG)).held
        await lease.close()
        return held

    assert await asyncio.to_thread(lambda: asyncio.run(keep()))
    assert [each.owner for each in await rig.journal.workers()] == ["w"]


# ---- statements --------------------------------------------------------------------------------


def _plans() -> dict[str, list[str]]:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate.migrate(db, Path("x"), upgrade=True)
    plans = {}
    for file in sql_folder("sqlite").iterdir():
        if re.match(r"\d", file.name):
            continue
        stem = file.name.removesuffix(".sql")
        for statement, text in load_statements("sqlite", stem).items():
            names = set(re.findall(r":(\w+)", text))
            arguments: dict[str, object] | tuple[int, ...] = (1,) * text.count("?")
            if names:
                arguments = {each: "[]" if each == "queues" else 1 for each in names}
            found = db.execute(f"EXPLAIN QUERY PLAN {text}", arguments)
            plans[f"{stem}.{statement}"] = [detail for *_ids, detail in found]
    db.close()
    return plans


def test_every_statement_uses_its_index() -> None:
    """J6: cost follows what is asked for or due, not what is stored."""
    plans = _plans()
    walks = {
        name: detail
        for name, details in plans.items()
        for detail in details
        if detail.startswith("SCAN") and "json_each" not in detail
    }
    assert walks == {
        "fleet.end_all_leases": "SCAN workers",
        "fleet.forget_workers": "SCAN workers",
        "fleet.live_workers": "SCAN workers",
        "fleet.flows": "SCAN flows",
        "fleet.release_all_timers": "SCAN timers USING COVERING INDEX timers_due",
        "fleet.letters": "SCAN dead_letters USING INDEX dead_letters_newest",
        "listing.count": "SCAN executions USING COVERING INDEX executions_by_status",
        "timers.next": "SCAN timers USING COVERING INDEX timers_due",
    }
    for name, index in {
        "sweeps.unsent": "executions_hinted (hint_at<?)",
        "sweeps.abandoned": "executions_owned",
        "timers.due": "timers_due (due<?)",
        "listing.newest": "executions_newest ((created_at,execution_id)<(?,?))",
        "listing.newest_with_status": "executions_by_status (status=? AND",
        "listing.newest_in_doubt": "executions_in_doubt ((created_at,execution_id)<(?,?))",
        "listing.newest_troubled": "executions_troubled ((created_at,execution_id)<(?,?))",
        "events.begin": "(tenant=? AND execution_id=?)",
    }.items():
        assert any(index in detail for detail in plans[name]), (name, plans[name])


async def test_commits_are_synchronous(rig: Rig) -> None:
    """J2: a write-ahead log that is on the disk before a commit is answered."""
    assert isinstance(rig.journal, SqliteJournal)

    def look(db: sqlite3.Connection) -> list[object]:
        return [
            db.execute(f"PRAGMA {each}").fetchone()[0] for each in ("journal_mode", "synchronous")
        ]

    full = 2
    assert await rig.journal._writer.write(lambda db, _now: look(db)) == ["wal", full]
