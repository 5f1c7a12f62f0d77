"""Races for a schedule on PostgreSQL, each order forced by a transaction that is held open (F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from loom_mq.errors import ScheduleExistsError, StaleScheduleError, UnknownScheduleError
from loom_mq.journal.postgres import PostgresJournal, migrate
from loom_mq.model.schedules import ScheduleRow
from loom_mq.testing.conformance.journal_rig import LONG
from loom_mq.testing.conformance.journal_schedules import PAST, a_schedule
from tests.conformance.postgres_support import Held, Watcher, watching


@pytest_asyncio.fixture
async def journal(postgres_dsn: str) -> AsyncIterator[PostgresJournal]:
    await migrate(postgres_dsn)
    async with PostgresJournal(postgres_dsn, pool_size=4) as journal:
        yield journal


@pytest_asyncio.fixture
async def held(journal: PostgresJournal, postgres_dsn: str) -> AsyncIterator[Held]:
    async with Held(postgres_dsn) as held:
        yield held


@pytest_asyncio.fixture
async def watcher(journal: PostgresJournal, postgres_dsn: str) -> AsyncIterator[Watcher]:
    async with watching(postgres_dsn) as watcher:
        yield watcher


async def put(held: Held, row: ScheduleRow, expected: int | None) -> None:
    """Write a schedule without committing."""
    verdict = await held.connection.fetchval(
        "SELECT verdict FROM loom.put_schedule_v1($1, $2, $3, $4, $5, $6, $7, $8)",
        *(row.tenant, row.schedule_id, row.flow, row.paused, row.definition, row.state),
        *(row.due, expected),
    )
    assert verdict == "stored"


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("expected", [None, 1])
async def test_schedule_is_written_by_one_of_two(
    journal: PostgresJournal, held: Held, watcher: Watcher, expected: int | None, same: bool
) -> None:
    """F9, J4: whoever waited for the other's commit hears of it; a retry finds its own."""
    row = a_schedule(due=PAST)
    if expected is not None:
        await journal.put_schedule(row, None)
    first = replace(row, state=b"first")
    await put(held, first, expected)
    second = first if same else replace(row, state=b"second")
    other = asyncio.ensure_future(journal.put_schedule(second, expected))
    await watcher.until_waiting()
    await held.commit()
    if same:
        assert (await other).state == b"first"
    else:
        with pytest.raises(StaleScheduleError if expected else ScheduleExistsError):
            await other
    there = await journal.schedule(row.key)
    assert there is not None
    assert (there.state, there.revision) == (b"first", (expected or 0) + 1)


@pytest.mark.parametrize("expected", [None, 1])
async def test_schedule_whose_rival_rolls_back_is_written(
    journal: PostgresJournal, held: Held, watcher: Watcher, expected: int | None
) -> None:
    """F9: what never was committed is in nobody's way."""
    row = a_schedule(due=PAST)
    if expected is not None:
        await journal.put_schedule(row, None)
    await put(held, replace(row, state=b"first"), expected)
    other = asyncio.ensure_future(journal.put_schedule(replace(row, state=b"2"), expected))
    await watcher.until_waiting()
    await held.roll_back()
    assert (await other).state == b"2"
    assert await journal.schedule(row.key) == await other


@pytest.mark.parametrize("expected", [None, 1])
async def test_schedule_that_goes_while_it_is_written(
    journal: PostgresJournal, held: Held, watcher: Watcher, expected: int | None
) -> None:
    """F9: a change finds nothing any more; a new one takes the id."""
    row = a_schedule(due=PAST)
    await journal.put_schedule(row, None)
    await held.connection.execute(
        "DELETE FROM loom.schedules WHERE schedule_id = $1", row.schedule_id
    )
    writer = asyncio.ensure_future(journal.put_schedule(replace(row, state=b"2"), expected))
    await watcher.until_waiting()
    await held.commit()
    if expected is None:
        assert (await writer).revision == 1
    else:
        with pytest.raises(UnknownScheduleError):
            await writer
        assert await journal.next_timer() is None


async def test_due_schedules_wait_for_nobody(journal: PostgresJournal, held: Held) -> None:
    """F9: one that is being changed is left to the next look, the others are not."""
    changing = await journal.put_schedule(a_schedule(due=PAST), None)
    other = await journal.put_schedule(a_schedule(due=PAST + 1), None)
    await put(held, replace(changing, state=b"new"), 1)
    async with asyncio.timeout(LONG / 2):
        assert await journal.due_schedules(limit=10, hold=LONG) == [other]
    await held.commit()
    (found,) = await journal.due_schedules(limit=10, hold=LONG)
    assert (found.key, found.state, found.revision) == (changing.key, b"new", 2)
