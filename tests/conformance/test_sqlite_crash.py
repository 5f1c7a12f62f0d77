"""A writing process is killed: nothing that was answered is lost (J2, F7)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from loom_mq.errors import ConfigurationError
from loom_mq.journal.protocol import ListQuery
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.testing.conformance.journal import Rig, Stores
from loom_mq.testing.conformance.journal_rig import accepted, events

_KEYS: Final = [ExecutionKey(DEFAULT_TENANT, f"run-{number}") for number in range(4)]

_WRITER: Final = """
import asyncio, sys
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.testing.conformance.journal import Rig, Stores
from loom_mq.testing.conformance.journal_rig import accepted, events
from tests.conformance.test_sqlite_crash import _KEYS

async def write(rig, key):
    await rig.started("engine", key=key)
    for seq in range(1, 100_000):
        accepted(await rig.append(key, events(seq, payload=b"x" * (seq % 3000))))
        print(key.execution_id, seq, flush=True)

async def main():
    async with SqliteJournal(sys.argv[1]) as journal:
        rig = Rig(Stores(journal, journal))
        await rig.alive("engine")
        await asyncio.gather(*(write(rig, key) for key in _KEYS))

asyncio.run(main())
"""


async def _killed_after(path: Path, answers: int) -> dict[str, int]:
    """Run the writer until it was answered so often, kill it, and say what it was told."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITER, str(path), stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    told: dict[str, int] = {}
    async with asyncio.timeout(60):
        for _ in range(answers):
            text = await writer.stdout.readline()
            assert text.endswith(b"\n"), "the writer failed"
            name, seq = text.split()
            told[name.decode()] = int(seq)
        if answers == 1:
            with pytest.raises(ConfigurationError, match=f"process {writer.pid}"):
                async with SqliteJournal(path):
                    pass
        writer.kill()
        for text in (await writer.stdout.read()).splitlines(keepends=True):
            if text.endswith(b"\n"):  # answered before the kill, printed meanwhile
                name, seq = text.split()
                told[name.decode()] = int(seq)
        await writer.wait()
    return told


@pytest.mark.parametrize("answers", [1, 7, 60, 300])
async def test_killed_writer_loses_nothing(tmp_path: Path, answers: int) -> None:
    """J2, F7: every answered append is there, whole; and its work can be taken at once."""
    path = tmp_path / "journal.db"
    told = await _killed_after(path, answers)
    async with SqliteJournal(path) as journal:
        rig = Rig(Stores(journal, journal))
        rows = {row.execution_id: row for row in await journal.find(ListQuery())}
        for name, seq in told.items():
            assert rows[name].last_seq >= seq
        for row in rows.values():
            log = await journal.read(row.key, limit=100_000)
            assert [event.seq for event in log] == list(range(row.last_seq + 1))
            for event in log[1:]:
                assert event.payload == b"x" * (event.seq % 3000)
        running = {row.key for row in rows.values() if row.status is Status.RUNNING}
        assert {each.row.key for each in await rig.take_abandoned()} == running
        for key in running:
            claimed = (await rig.claim(key, "next", 1)).claimed
            assert claimed is not None
            seq = claimed.row.last_seq + 1
            accepted(await rig.append(key, events(seq, fence=2), fence=2))
