"""Whole executions on PostgreSQL: races for an id, and what rows they leave (J7, J8, K16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loom_mq.errors import (
    LoomError,
    StaleFenceError,
    StorageWriteError,
    UnknownExecutionError,
)
from loom_mq.journal.postgres import migrate
from loom_mq.journal.postgres.arguments import admit_arguments
from loom_mq.journal.postgres.lifecycle_arguments import ROW_BYTES, ROW_EVENTS
from loom_mq.journal.protocol import Admission, Append, IndexUpdate, Planting, Rewrite
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status, Waiter
from loom_mq.model.policies import StartPolicy
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    RUNNING,
    Rig,
    Stores,
    accepted,
    events,
    folded,
    name,
    refused,
)
from tests.conformance.postgres_support import Held, Journal, Watcher, watching

WAITER = Waiter("reply", "1")
PARAMETERS = ", ".join(f"${at}" for at in range(1, 15))


@pytest_asyncio.fixture
async def rig(postgres_dsn: str) -> AsyncIterator[Rig]:
    await migrate(postgres_dsn)
    async with Journal(postgres_dsn, pool_size=8) as journal:
        yield Rig(Stores(journal, journal))


@pytest_asyncio.fixture
async def held(rig: Rig, postgres_dsn: str) -> AsyncIterator[Held]:
    async with Held(postgres_dsn) as held:
        yield held


@pytest_asyncio.fixture
async def watcher(rig: Rig, postgres_dsn: str) -> AsyncIterator[Watcher]:
    async with watching(postgres_dsn) as watcher:
        yield watcher


def again(key: ExecutionKey) -> Admission:
    """A start in the place of what has ended."""
    return Admission(
        key=key,
        flow="f",
        version="1",
        queue="q",
        start=b"s",
        input_digest=b"d",
        waiter=WAITER,
        resend_after=LONG,
        policy=StartPolicy.AFTER_CLOSE,
        retire_as=name("retired"),
    )


async def start_again(held: Held, key: ExecutionKey) -> ExecutionKey:
    """Start anew without committing; where the old one is kept."""
    admission = again(key)
    await held.connection.execute(
        f"SELECT FROM loom.admit_v2({PARAMETERS})", *admit_arguments([admission])
    )
    return ExecutionKey(key.tenant, admission.retire_as)


async def end(rig: Rig, key: ExecutionKey, fence: int) -> None:
    """Drive a new execution to its end, of which its starter is told."""
    assert (await rig.claim(key, "w", fence - 1)).claimed is not None
    for seq, index in ((0, RUNNING), (1, COMPLETED)):
        verdict = await rig.append(key, events(seq, fence=fence), fence=fence, index=index)
    assert accepted(verdict).waiters == (WAITER,)


# ---- an id that changes hands --------------------------------------------------------------


@pytest.mark.parametrize("lands", [True, False])
async def test_start_that_waits_for_a_start_anew(
    rig: Rig, held: Held, watcher: Watcher, lands: bool
) -> None:
    """K16: two at once are one: the other's new execution is found, with its waiter added."""
    key, before, after = await rig.ended(), name("a"), name("z")
    aside = await start_again(held, key)
    keys = [ExecutionKey(DEFAULT_TENANT, before), key, ExecutionKey(DEFAULT_TENANT, after)]
    admit = asyncio.ensure_future(rig.journal.admit([again(each) for each in keys]))
    await watcher.until_waiting()
    await (held.commit() if lands else held.roll_back())
    verdicts = await admit
    assert [each.created for each in verdicts] == [True, not lands, True]
    assert [each.row.key for each in verdicts] == keys
    assert verdicts[1].row == await rig.row(key)
    assert (verdicts[1].row.status, verdicts[1].row.fence) == (Status.PENDING, 2)
    (kept,) = await rig.journal.get([aside])
    assert (kept is not None) == lands
    await end(rig, key, 3)


async def test_watch_that_waits_for_a_start_anew(rig: Rig, held: Held, watcher: Watcher) -> None:
    """K16, K9: the id is the new one's now, and whoever watches it is told of its end."""
    key = await rig.ended()
    await start_again(held, key)
    watch = asyncio.ensure_future(rig.journal.watch(key, Waiter("late", "")))
    await watcher.until_waiting()
    await held.commit()
    verdict = await watch
    assert verdict.row is not None
    assert (verdict.row.status, verdict.terminal) == (Status.PENDING, None)
    claim = await rig.claim(key, "w", 2)
    assert claim.claimed is not None
    accepted(await rig.append(key, events(0, fence=3), fence=3))
    last = await rig.append(key, events(1, fence=3), fence=3, index=COMPLETED)
    assert accepted(last).waiters == (WAITER, Waiter("late", ""))


async def test_mail_that_waits_for_a_start_anew(rig: Rig, held: Held, watcher: Watcher) -> None:
    """K16, K7: it comes to the new one, once, and is counted."""
    key = await rig.ended()
    aside = await start_again(held, key)
    delivery = asyncio.ensure_future(rig.deliver(key))
    await watcher.until_waiting()
    await held.commit()
    row = (await delivery).row
    assert row is not None
    assert (row.status, row.inbox) == (Status.PENDING, 1)
    assert await rig.unread(key) == ["item"]
    assert await rig.unread(aside) == []
    assert (await rig.row(aside)).inbox == 0


async def test_zombie_never_writes_to_the_new_one(rig: Rig, held: Held, watcher: Watcher) -> None:
    """K16, J2: whatever fence it holds, the new one is past it."""
    key = await rig.ended()
    await start_again(held, key)
    zombie = asyncio.ensure_future(rig.append(key, events(2)))
    await watcher.until_waiting()
    await held.commit()
    error = refused(await zombie, StaleFenceError)
    assert (error.held, error.current) == (1, 2)
    assert await rig.log(key) == []
    refused(await rig.claim(key, "zombie", 1), StaleFenceError)


async def test_many_starts_anew_at_once(rig: Rig, watcher: Watcher) -> None:
    """K16: one is made each time, in batches of any order, and nobody waits in a ring."""
    keys = [await rig.ended() for _ in range(6)]
    for turn in range(1, 4):
        batches = [[again(key) for key in order] for order in (keys, keys[::-1], keys[3:])]
        answers = await asyncio.gather(*(rig.journal.admit(batch) for batch in batches))
        made = [verdict.row.key for verdicts in answers for verdict in verdicts if verdict.created]
        assert sorted(made) == sorted(keys)
        for key in keys:
            row = await rig.row(key)
            assert row.fence == 2 * turn
            await end(rig, key, row.fence + 1)
    assert await watcher.deadlocks() == 0


# ---- an id that goes -----------------------------------------------------------------------


@pytest.mark.parametrize("lands", [True, False])
async def test_start_that_waits_for_a_deletion(
    rig: Rig, held: Held, watcher: Watcher, lands: bool
) -> None:
    """J8, F2: it finds the old one or makes a new one."""
    key = await rig.ended()
    await held.connection.execute(
        "SELECT FROM loom.delete_v1($1, $2)", [key.tenant], [key.execution_id]
    )
    admit = asyncio.ensure_future(rig.journal.admit([again(key)]))
    await watcher.until_waiting()
    await (held.commit() if lands else held.roll_back())
    (verdict,) = await admit
    assert verdict.created
    assert verdict.row.fence == (0 if lands else 2)
    await end(rig, key, verdict.row.fence + 1)


async def test_snapshot_that_waits_for_a_deletion(rig: Rig, held: Held, watcher: Watcher) -> None:
    """J7, J8: a belated fold does not outlive its execution."""
    key = await rig.ended()
    await held.connection.execute(
        "SELECT FROM loom.delete_v1($1, $2)", [key.tenant], [key.execution_id]
    )
    save = asyncio.ensure_future(rig.journal.save_snapshots([(key, folded(1))]))
    await watcher.until_waiting()
    await held.commit()
    await save
    assert await watcher.connection.fetchval("SELECT count(*) FROM loom.snapshots") == 0


async def test_rewrite_is_judged_again_when_things_move(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """J8: what was seen without a lock is not what is written over."""
    gone, renewed, still = await rig.ended(), await rig.ended(), await rig.ended()
    keys = [gone, renewed, still]
    asked = [
        Rewrite(key=key, events=tuple(await rig.log(key)), labels={"new": "yes"}) for key in keys
    ]
    await held.connection.execute(
        "SELECT FROM loom.delete_v1($1, $2)", [gone.tenant], [gone.execution_id]
    )
    aside = await start_again(held, renewed)
    rewrite = asyncio.ensure_future(rig.journal.rewrite(asked))
    await watcher.until_waiting()
    await held.commit()
    refusals = await rewrite
    refused(refusals[0], UnknownExecutionError)
    assert isinstance(refusals[1], LoomError)
    assert "is pending" in refusals[1].message
    assert refusals[2] is None
    assert [(await rig.row(key)).labels for key in (aside, still)] == [{}, {"new": "yes"}]


# ---- rows ----------------------------------------------------------------------------------


async def test_planted_log_is_put_together(rig: Rig, watcher: Watcher) -> None:
    """J8: few rows, none of them large, and every page of the log comes out of them."""
    planting = rig.planting(999)
    large = events(1000, 6, payload=b"x" * (ROW_BYTES // 2), fence=3)
    row = rig.planting(1005, key=planting.row.key).row
    await rig.planted(Planting(row=row, events=(*planting.events, *large)))
    sizes = await watcher.connection.fetch(
        "SELECT last_seq - seq + 1 AS events, octet_length(body) AS bytes FROM loom.events"
    )
    assert sum(each["events"] for each in sizes) == 1006
    assert max(each["events"] for each in sizes) == ROW_EVENTS
    assert max(each["bytes"] for each in sizes) < 2 * ROW_BYTES
    assert len(sizes) <= 1000 // ROW_EVENTS + 5
    log = [*planting.events, *large]
    for first, limit in ((0, 10), (63, 2), (500, 200), (990, 12)):
        assert await rig.journal.read(row.key, first=first, limit=limit) == log[first:][:limit]
    assert await rig.journal.read(row.key, limit=1, newest=True) == log[-1:]
    claimed = (await rig.claim(row.key, "w", 3)).claimed
    assert claimed is not None
    assert (list(claimed.events), claimed.more) == (log[:1000], True)
    accepted(await rig.append(row.key, events(1006, fence=4), fence=4))


async def test_append_stays_in_its_page(rig: Rig, held: Held) -> None:
    """J6: what is to be looked at by people has indexes of its own, which an append that
    only moves the log on, and a snapshot, do not touch.
    """
    key = await rig.started()
    await held.append(Append(key=key, fence=1, events=events(1), index=RUNNING))
    await held.connection.execute(
        "SELECT loom.save_snapshots_v1($1, $2, '{1}', '{2}', $3)",
        *([key.tenant], [key.execution_id], [b"state"]),
    )
    updated = await held.connection.fetchrow(
        "SELECT pg_stat_get_xact_tuples_updated(t) AS all,"
        " pg_stat_get_xact_tuples_hot_updated(t) AS hot"
        " FROM CAST('loom.executions'::regclass AS oid) AS t"
    )
    assert tuple(updated or ()) == (2, 2)


async def test_nothing_is_planted_in_part(rig: Rig, watcher: Watcher) -> None:
    """J8: a log that cannot be stored leaves no execution without one, and says so."""
    planting = rig.planting(1)
    twice = Planting(row=planting.row, events=planting.events[:1] * 2 * ROW_EVENTS)
    with pytest.raises(StorageWriteError):
        await rig.journal.plant([rig.planting(2), twice])
    for table in ("executions", "events", "snapshots", "timers"):
        assert await watcher.connection.fetchval(f"SELECT count(*) FROM loom.{table}") == 0


async def test_trouble_is_cleared_and_doubt_follows_the_log(rig: Rig, watcher: Watcher) -> None:
    """K3, K6: the columns behind both lists are empty again when there is nothing to see."""
    key = await rig.started("w")
    await rig.journal.defer([key], "w", None, None, "the code is another one\x00")
    assert (await rig.row(key)).trouble is not None
    doubtful = IndexUpdate(status=Status.SUSPENDED, in_doubt=("charge",))
    accepted(await rig.append(key, events(1), index=doubtful, release=True))
    row = await rig.row(key)
    assert (row.in_doubt, row.trouble) == (("charge",), None)
    await rig.claim(key, "w", 1)
    accepted(await rig.append(key, events(2, fence=2), fence=2))
    empty = await watcher.connection.fetchval(
        "SELECT in_doubt IS NULL AND trouble IS NULL FROM loom.executions"
    )
    assert empty
