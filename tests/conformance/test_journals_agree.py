"""Memory, SQLite and PostgreSQL give the same answers to the same operations (J9).

The kit compares each store with memory for a fixed number of rounds. Here it goes on for as
long as it learns something: a signature is what was asked and in which way it was answered,
and the end has come when plan after plan brings no new one.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, settings

from loom_mq.clock import JournalClock
from loom_mq.errors import LoomError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.journal.protocol import Journal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.testing.conformance.journal_differential import differential, operations
from loom_mq.testing.conformance.journal_operations import Operation

PLATEAU = 12
"""Plans in a row that must bring nothing new."""
MOST = 150
FEWEST = 40
"""Signatures that any run meets; fewer would mean that nothing was really asked."""


class Signatures:
    """What was asked, and how it was answered.

    Attributes:
        seen: all of them.
        dull: plans in a row without a new one.
    """

    def __init__(self) -> None:
        self.seen: set[object] = set()
        self.dull = 0
        self.plans = 0

    @property
    def complete(self) -> bool:
        return self.dull >= PLATEAU

    def of(self, journal: Journal) -> Journal:
        """A journal whose answers are noted."""
        return cast(Journal, _Noted(journal, self.seen))


class _Noted:
    def __init__(self, journal: Journal, seen: set[object]) -> None:
        self._journal = journal
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        method: Any = getattr(self._journal, name)
        if not callable(method):
            return method

        async def noted(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = await method(*args, **kwargs)
            except LoomError as error:
                self._seen.add((name, type(error).__name__))
                raise
            items = answer if isinstance(answer, list | tuple) else [answer]
            self._seen.update((name, _shape(item)) for item in items)
            return answer

        return noted


def _shape(value: object, depth: int = 2) -> object:
    """What kind of answer it is, whatever names, numbers and times are in it."""
    if isinstance(value, LoomError):
        return type(value).__name__
    if value is None or isinstance(value, bool | enum.Enum):
        return value
    if isinstance(value, msgspec.Struct) and depth:
        fields = (getattr(value, each) for each in value.__struct_fields__)
        return type(value).__name__, *(_shape(field, depth - 1) for field in fields)
    return type(value).__name__


@pytest_asyncio.fixture
async def stores(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[list[Journal]]:
    await migrate(postgres_dsn)
    async with (
        PostgresJournal(postgres_dsn) as postgres,
        SqliteJournal(tmp_path / "journal.db") as sqlite,
    ):
        yield [postgres, sqlite]


@pytest.fixture
def signatures() -> Signatures:
    return Signatures()


@pytest.mark.timeout(400)
@settings(
    max_examples=MOST,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(plan=operations())
async def test_three_stores_agree_until_there_is_nothing_new(
    stores: list[Journal], signatures: Signatures, plan: list[Operation]
) -> None:
    """J9: verdicts, refusals, rows, logs, snapshots and inboxes after every operation."""
    if signatures.complete:
        return
    before = len(signatures.seen)
    for number, store in enumerate(stores):
        reference = MemoryJournal(JournalClock())
        await differential(reference if number else signatures.of(reference), store, plan)
    signatures.plans += 1
    signatures.dull = 0 if len(signatures.seen) > before else signatures.dull + 1
    assert signatures.plans < PLATEAU or len(signatures.seen) >= FEWEST
