"""The embedded journal beside other processes: nobody meets 'database is locked' (C97)."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from loom_mq.errors import JournalUnreachableError
from loom_mq.journal.protocol import ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.journal.sqlite_ops import database
from loom_mq.model.execution import Status
from loom_mq.testing.conformance.journal import Rig, Stores
from loom_mq.testing.conformance.journal_rig import COMPLETED, accepted, events


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest_asyncio.fixture
async def rig(path: Path) -> AsyncIterator[Rig]:
    async with SqliteJournal(path) as journal:
        yield Rig(Stores(journal, journal))


class OtherProcess:
    """A connection of somebody else, with a transaction of its own."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._timer = threading.Timer(0.0, self.rests)

    def writes(self) -> None:
        """Hold the write lock."""
        self._db.execute("BEGIN IMMEDIATE")

    def rests_after(self, seconds: float) -> None:
        """Give up what is held after a while."""
        self._timer = threading.Timer(seconds, self.rests)
        self._timer.start()

    def reads(self) -> None:
        """Hold a read transaction, as a backup tool does."""
        self._db.execute("BEGIN")
        self._db.execute("SELECT count(*) FROM executions").fetchall()

    def rests(self) -> None:
        self._db.execute("ROLLBACK")

    def close(self) -> None:
        if self._timer.ident is not None:
            self._timer.join()
        self._db.close()


async def test_writes_wait_for_another_writer(path: Path, rig: Rig) -> None:
    """C97: 'database is locked' reaches nobody."""
    key = await rig.started()
    other = OtherProcess(path)
    for seq in range(1, 4):
        other.writes()
        other.rests_after(0.7)
        accepted(await rig.append(key, events(seq)))
    other.close()
    assert len(await rig.log(key)) == 4


async def test_reads_never_wait_behind_a_writer(path: Path, rig: Rig) -> None:
    """C97: not behind another process, and not behind our own write that waits for it."""
    key = await rig.started()
    other = OtherProcess(path)
    other.writes()
    writing = asyncio.create_task(rig.append(key, events(1)))
    async with asyncio.timeout(2.0):
        for _ in range(20):
            assert [row.key for row in await rig.journal.find(ListQuery())] == [key]
            assert await rig.journal.count() == {Status.RUNNING: 1}
    assert not writing.done()
    other.rests()
    accepted(await writing)
    other.close()


async def test_patience_with_another_writer_ends(path: Path) -> None:
    """C97: with our own error, after `busy_timeout`; nothing was written, and it goes on."""
    async with SqliteJournal(path, busy_timeout=0.2) as journal:
        rig = Rig(Stores(journal, journal))
        key = await rig.started()
        other = OtherProcess(path)
        other.writes()
        with pytest.raises(JournalUnreachableError, match=r"busy for 0\.2 s") as caught:
            await rig.append(key, events(1))
        assert "locked" not in str(caught.value)
        other.rests()
        accepted(await rig.append(key, events(1)))
        other.close()


async def test_log_is_bounded_after_a_long_read(
    path: Path, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C97: a backup that reads for long makes the log grow; then it is cut off."""
    monkeypatch.setattr(database, "_LOG_LIMIT", 1 << 20)
    monkeypatch.setattr(database, "_WRITES_PER_LOOK", 4)
    log = path.with_name(path.name + "-wal")
    key = await rig.started()
    other = OtherProcess(path)
    other.reads()
    seq = 1
    while log.stat().st_size < 4 << 20:
        accepted(await rig.append(key, events(seq, payload=b"x" * 200_000)))
        seq += 1
    other.rests()
    for _ in range(8):
        accepted(await rig.append(key, events(seq)))
        seq += 1
    assert log.stat().st_size <= 1 << 20
    other.close()
    assert len(await rig.journal.read(key)) == seq


_ONLOOKER: Final = """
import asyncio, sys
from loom_mq.journal.protocol import ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.testing.conformance.journal import Rig, Stores

async def main():
    async with SqliteJournal(sys.argv[1], exclusive=False) as journal:
        rig = Rig(Stores(journal, journal))
        print("looking", flush=True)
        looks = 0
        while True:
            rows = await journal.find(ListQuery(limit=1000))
            await journal.deliver([rig.item(row.key, f"{looks}") for row in rows[:5]])
            looks += 1
            ended = sum(row.status.terminal for row in rows)
            if ended == int(sys.argv[2]):
                print(looks, flush=True)
                return
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


async def test_engine_among_onlookers(path: Path, rig: Rig) -> None:
    """C97: a hundred executions of five steps, each append a commit of its own; beside them
    another process lists and delivers all the time, and a backup tool holds its snapshot.
    """
    executions = 100
    onlooker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ONLOOKER, str(path), str(executions), stdout=subprocess.PIPE
    )
    assert onlooker.stdout is not None
    assert await onlooker.stdout.readline() == b"looking\n"
    backup = OtherProcess(path)
    backup.reads()

    async def run() -> None:
        key = await rig.started()
        for seq in range(1, 6):
            accepted(await rig.append(key, events(seq)))
        accepted(await rig.append(key, events(6), index=COMPLETED, release=True))

    async with asyncio.timeout(60):
        await asyncio.gather(*(run() for _ in range(executions)))
        looks = int(await onlooker.stdout.readline())
        assert await onlooker.wait() == 0
    backup.rests()
    backup.close()
    assert looks > 1
    assert await rig.journal.count() == {Status.COMPLETED: executions}
