"""The journal in memory is held to the kit (J9)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from loom_mq.clock import MICROS
from loom_mq.journal.memory import MemoryJournal
from loom_mq.testing.conformance.journal import JournalConformance, Stores


class HandClock:
    """Time that passes when it is told to, and a little with every look."""

    def __init__(self) -> None:
        self._now = 1_700_000_000 * MICROS

    def now(self) -> int:
        self._now += 1
        return self._now

    def monotonic(self) -> float:
        return self.now() / MICROS

    async def advance(self, seconds: float) -> None:
        self._now += int(seconds * MICROS)


class TestMemoryJournal(JournalConformance):
    """J9: one store, one handle, time by hand."""

    @pytest_asyncio.fixture
    async def stores(self) -> AsyncIterator[Stores]:
        clock = HandClock()
        async with MemoryJournal(clock) as journal:
            yield Stores(journal, journal, advance=clock.advance)
