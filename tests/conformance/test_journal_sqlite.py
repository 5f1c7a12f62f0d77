"""The embedded journal is held to the kit, and to what a file on a disk adds (J9, C97)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.testing.conformance.journal import JournalConformance, Stores
from tests.conformance.test_journal_memory import HandClock


class TestSqliteJournal(JournalConformance):
    """J9: the engine's handle, and one of another process that looks on."""

    @pytest_asyncio.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        path = tmp_path / "journal.db"
        async with (
            SqliteJournal(path) as first,
            SqliteJournal(path, exclusive=False) as second,
        ):
            yield Stores(first, second)


class TestSqliteJournalByHand(JournalConformance):
    """J9: the same under a clock that only the test moves: nothing asks another one."""

    @pytest_asyncio.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        clock = HandClock()
        async with SqliteJournal(tmp_path / "journal.db", clock=clock) as journal:
            yield Stores(journal, journal, advance=clock.advance)
