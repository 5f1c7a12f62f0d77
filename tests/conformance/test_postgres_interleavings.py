"""Races on PostgreSQL, each order forced by a transaction that is held open (J2 to J5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from loom_mq.errors import StaleFenceError
from loom_mq.journal.postgres import migrate
from loom_mq.journal.protocol import Admission, Append, Claim, IndexUpdate
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status, Waiter
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    RUNNING,
    Rig,
    Stores,
    accepted,
    events,
    name,
    refused,
)
from tests.conformance.postgres_support import Held, Journal, Watcher, watching

PARKED = IndexUpdate(status=Status.SUSPENDED, gates=("gate",))


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


def append(
    key: ExecutionKey,
    envelopes: tuple[Envelope, ...],
    *,
    fence: int = 1,
    index: IndexUpdate = RUNNING,
    consume: tuple[str, ...] = (),
) -> Append:
    return Append(
        key=key,
        fence=fence,
        events=envelopes,
        index=index,
        release=index.status is not Status.RUNNING,
        consume=consume,
    )


# ---- the commit that comes late ------------------------------------------------------------


async def test_late_commit_is_found_by_the_retry(rig: Rig, held: Held, watcher: Watcher) -> None:
    """J4: a dying connection commits while the retry waits for its lock: one copy, a success.

    The retry's own snapshot is older than that commit, so an answer from it would be wrong.
    """
    key = await rig.started()
    once = append(key, events(1, 2))
    assert await held.append(once) == [1]
    retry = asyncio.ensure_future(rig.journal.append([once]))
    await watcher.until_waiting()
    await held.commit()
    accepted((await retry)[0])
    assert (await rig.log(key))[1:] == list(once.events)
    assert (await rig.row(key)).last_seq == 2


async def test_late_end_tells_the_retry_who_waits(rig: Rig, held: Held, watcher: Watcher) -> None:
    """J4, K9: the outcome is told although the answer to the first try was lost."""
    key = await rig.started(waiter=Waiter("reply", "1"))
    end = append(key, events(1), index=COMPLETED)
    await held.append(end)
    retry = asyncio.ensure_future(rig.journal.append([end]))
    await watcher.until_waiting()
    await held.commit()
    assert accepted((await retry)[0]).waiters == (Waiter("reply", "1"),)


async def test_commit_that_never_came_is_made_by_the_retry(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """J4: the dying connection rolls back, and the retry writes."""
    key = await rig.started()
    once = append(key, events(1, 2))
    await held.append(once)
    retry = asyncio.ensure_future(rig.journal.append([once]))
    await watcher.until_waiting()
    await held.roll_back()
    accepted((await retry)[0])
    assert (await rig.log(key))[1:] == list(once.events)


async def test_late_commit_refuses_nobody_else_in_the_batch(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """J3, J4: the members of the waiting batch keep their own verdicts."""
    keys = [await rig.started() for _ in range(3)]
    batch = [append(key, events(1)) for key in keys]
    other = append(keys[1], events(1))
    await held.append(batch[0], other)
    retry = asyncio.ensure_future(rig.journal.append(batch))
    await watcher.until_waiting()
    await held.commit()
    first, second, third = await retry
    accepted(first)
    assert second.error is not None
    accepted(third)
    assert [(await rig.row(key)).last_seq for key in keys] == [1, 1, 1]
    assert (await rig.log(keys[1]))[1:] == list(other.events)


# ---- takeover and zombie --------------------------------------------------------------------


async def test_zombie_that_waits_for_a_takeover_is_fenced_out(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """J2, F5: the takeover commits first; the zombie's append sees the new fence."""
    key = await rig.started("dead")
    await held.connection.execute(
        "SELECT FROM loom.claim_v2($1, $2, '{next}', '{1}', '{null}', '{false}', '{-1}', 10)",
        [key.tenant],
        [key.execution_id],
    )
    zombie = asyncio.ensure_future(rig.append(key, events(1)))
    await watcher.until_waiting()
    await held.commit()
    error = refused(await zombie, StaleFenceError)
    assert (error.held, error.current) == (1, 2)
    assert len(await rig.log(key)) == 1


async def test_takeover_that_waits_for_the_zombie_sees_its_events(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """J5: the zombie's append commits first; the claimant goes on from it."""
    key = await rig.started("dead")
    last = events(1, 2)
    await held.append(append(key, last))
    takeover = asyncio.ensure_future(rig.claim(key, "next", 1))
    await watcher.until_waiting()
    await held.commit()
    claimed = (await takeover).claimed
    assert claimed is not None
    assert claimed.events[1:] == last
    assert (claimed.row.last_seq, claimed.row.fence) == (2, 2)
    refused(await rig.append(key, events(3)), StaleFenceError)


# ---- park and mail --------------------------------------------------------------------------


async def test_mail_that_waits_for_a_park_leaves_a_hint(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """K7: the park commits first, so the delivery finds it parked."""
    key = await rig.started()
    await held.append(append(key, events(1), index=PARKED))
    delivery = asyncio.ensure_future(rig.deliver(key))
    await watcher.until_waiting()
    await held.commit()
    row = (await delivery).row
    assert row is not None
    assert (row.status, row.owner, row.inbox) == (Status.SUSPENDED, None, 1)
    assert row.hint_at is not None


async def test_park_that_waits_for_mail_is_told_of_it(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """K7: the delivery commits first, so the park is to be driven again."""
    key = await rig.started()
    await held.connection.execute(
        r"SELECT FROM loom.deliver_v1($1, $2, '{1}', '{item}', '{answer}', '{\\x00}', 1000000)",
        [key.tenant],
        [key.execution_id],
    )
    park = asyncio.ensure_future(rig.append(key, events(1), index=PARKED, release=True))
    await watcher.until_waiting()
    await held.commit()
    assert accepted(await park).inbox == 1
    row = await rig.row(key)
    assert row.hint_at is not None
    assert row.hint_at <= await rig.journal.now()


async def test_end_that_waits_for_mail_leaves_none_lying(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """J2: the inbox of an ended execution is empty, whatever came in at the last moment."""
    key = await rig.started()
    await held.connection.execute(
        r"SELECT FROM loom.deliver_v1($1, $2, '{1}', '{item}', '{answer}', '{\\x00}', 1000000)",
        [key.tenant],
        [key.execution_id],
    )
    end = asyncio.ensure_future(rig.append(key, events(1), index=COMPLETED, release=True))
    await watcher.until_waiting()
    await held.commit()
    assert accepted(await end).inbox == 0
    assert await rig.unread(key) == []
    assert (await rig.row(key)).inbox == 0


async def test_watch_that_waits_for_the_end_learns_of_it(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """K9: whoever watches is told by the append or by the watch."""
    key = await rig.started()
    end = append(key, events(1), index=COMPLETED)
    await held.append(end)
    watch = asyncio.ensure_future(rig.journal.watch(key, Waiter("reply", "1")))
    await watcher.until_waiting()
    await held.commit()
    verdict = await watch
    assert verdict.terminal == end.events[0]


# ---- starts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lands", [True, False])
async def test_start_that_waits_for_the_same_start(
    rig: Rig, held: Held, watcher: Watcher, lands: bool
) -> None:
    """F2: the other's commit decides which of them made it; the waiter is never lost."""
    first, key, last = (ExecutionKey(DEFAULT_TENANT, name(hint)) for hint in "abc")
    await held.connection.execute(
        "SELECT FROM loom.admit_v2($1, $2, '{f}', '{1}', '{q}', '{s}', '{d}', '{null}', '{null}',"
        " '{null}', '{null}', '{1000000}', '{null}', '{false}')",
        [key.tenant],
        [key.execution_id],
    )
    batch = [
        Admission(
            key=each,
            flow="f",
            version="1",
            queue="q",
            start=b"s",
            input_digest=b"d",
            waiter=Waiter("reply", "1"),
        )
        for each in (last, key, first)
    ]
    admit = asyncio.ensure_future(rig.journal.admit(batch))
    await watcher.until_waiting()
    await (held.commit() if lands else held.roll_back())
    verdicts = await admit
    assert [each.created for each in verdicts] == [True, not lands, True]
    assert [each.row.key for each in verdicts] == [last, key, first]
    accepted(await rig.append(key, events(0), fence=0))
    ended = accepted(await rig.append(key, events(1), fence=0, index=COMPLETED, release=True))
    assert ended.waiters == (Waiter("reply", "1"),)


# ---- order of locks -------------------------------------------------------------------------

Work = Callable[[Rig, list[ExecutionKey]], Awaitable[object]]

WRITERS: dict[str, Work] = {
    "append": lambda rig, keys: rig.journal.append([append(key, events(1)) for key in keys]),
    "claim": lambda rig, keys: rig.journal.claim(
        [Claim(key=key, owner="w", expected_fence=1) for key in keys]
    ),
    "deliver": lambda rig, keys: rig.journal.deliver([rig.item(key, name("i")) for key in keys]),
    "discard": lambda rig, keys: rig.journal.discard([(key, "item") for key in keys]),
    "defer": lambda rig, keys: rig.journal.defer(keys, "dead", 0.0),
    "admit": lambda rig, keys: rig.journal.admit(
        [
            Admission(
                key=key,
                flow="f",
                version="1",
                queue="q",
                start=b"",
                input_digest=b"",
                waiter=Waiter("r", "c"),
            )
            for key in keys
        ]
    ),
}


@pytest.mark.parametrize("other", WRITERS)
@pytest.mark.parametrize("one", ["append", "deliver"])
async def test_batches_in_opposite_order_do_not_deadlock(
    rig: Rig, held: Held, watcher: Watcher, one: str, other: str
) -> None:
    """J3: a row in the middle is locked elsewhere while two batches come from both ends."""
    keys = sorted([await rig.started("dead") for _ in range(5)])
    await held.lock(keys[2].execution_id)
    first = asyncio.ensure_future(WRITERS[one](rig, keys))
    await watcher.until_waiting(1)
    second = asyncio.ensure_future(WRITERS[other](rig, keys[::-1]))
    await watcher.until_waiting(2)
    await held.commit()
    await asyncio.gather(first, second)
    assert await watcher.deadlocks() == 0


async def test_retiring_does_not_deadlock_with_appends(
    rig: Rig, held: Held, watcher: Watcher
) -> None:
    """F7: it takes its executions in the same order."""
    lease = await rig.alive("w")
    keys = sorted([await rig.started("w") for _ in range(5)])
    await held.lock(keys[2].execution_id)
    writing = asyncio.ensure_future(rig.journal.append([append(k, events(1)) for k in keys[::-1]]))
    await watcher.until_waiting(1)
    retiring = asyncio.ensure_future(lease.retire())
    await watcher.until_waiting(2)
    await held.commit()
    await asyncio.gather(writing, retiring)
    assert await watcher.deadlocks() == 0
    assert {(await rig.row(key)).owner for key in keys} == {None}


# ---- sweeps ---------------------------------------------------------------------------------


async def test_sweeps_share_what_is_abandoned(rig: Rig, held: Held) -> None:
    """F7: what one caller is taking the other passes by, without waiting."""
    keys = {await rig.started("dead") for _ in range(10)}
    rows = await held.connection.fetch(
        "SELECT (execution).* FROM loom.take_abandoned_v1(4, 1000000, 10)"
    )
    found = await rig.take_abandoned()
    mine = {each.row.key for each in found}
    theirs = {ExecutionKey(row["tenant"], row["execution_id"]) for row in rows}
    assert (len(theirs), len(mine)) == (4, 6)
    assert mine | theirs == keys
    await held.commit()
    assert await rig.take_abandoned() == []


async def test_sweeps_share_what_is_unsent(rig: Rig, held: Held) -> None:
    """F7: one package per hint."""
    keys = {await rig.admitted(resend_after=0.0) for _ in range(10)}
    rows = await held.connection.fetch(
        "SELECT (execution).* FROM loom.take_unsent_v1(4, 1000000, 1000000, NULL)"
    )
    mine = {each.row.key for each in await rig.take_unsent()}
    theirs = {ExecutionKey(row["tenant"], row["execution_id"]) for row in rows}
    assert (len(theirs), len(mine)) == (4, 6)
    assert mine | theirs == keys


async def test_timers_pass_by_what_is_being_written(rig: Rig, held: Held) -> None:
    """F9: neither waits for the other; what was passed by is found at the next look."""
    busy, free = await rig.parked(timers=(5,)), await rig.parked(timers=(6,))
    await held.append(append(busy, events(2), index=COMPLETED))
    due = await rig.journal.due_timers(limit=10, hold=LONG)
    assert [each.row.key for each in due] == [free]
    await rig.journal.drop_timers([(busy, 5), (free, 6)])
    await held.roll_back()
    assert [each.due for each in await rig.journal.due_timers(limit=10, hold=LONG)] == [5]
