"""Passes over abandoned executions (F8, ADR 0004 and 0105 D5), over a journal in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest

from loom_mq.errors import ConfigurationError, JournalUnreachableError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import IndexUpdate, ListQuery, Runnable
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from loom_mq.recovery import (
    HolderGone,
    LeaseSweep,
    RecoverySummary,
    Search,
    all_of,
    iterate_executions,
    older_than,
    recover_abandoned,
)
from loom_mq.recovery.sources import AbandonedSource
from loom_mq.recovery.tail import recoveries_since_progress
from loom_mq.testing.conformance.journal_rig import COMPLETED, LONG, Rig, Stores, accepted, events
from tests.conformance.test_journal_memory import HandClock

RECOVERED, STARTED = EventKind.EXECUTION_RECOVERED, EventKind.STEP_STARTED


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    clock = HandClock()
    async with MemoryJournal(clock) as journal:
        rig = Rig(Stores(journal, journal, advance=clock.advance))
        await rig.alive("living")
        yield rig


def always(_row: ExecutionRow) -> bool:
    return True


class Post:
    """Where packages go."""

    def __init__(self) -> None:
        self.sent: list[ExecutionKey] = []
        self.bad: dict[ExecutionKey, Exception | bool] = {}

    async def __call__(self, runnable: Runnable) -> bool:
        fate = self.bad.get(runnable.row.key, True)
        if isinstance(fate, Exception):
            raise fate
        self.sent.append(runnable.row.key)
        return fate


async def recovered_in_vain(rig: Rig, times: int, *, owner: str = "dead") -> ExecutionKey:
    """An execution whose log and row say that it was recovered so often without progress."""
    key = await rig.started(owner)
    for number in range(times):
        index = IndexUpdate(status=Status.RUNNING, recoveries=number + 1)
        accepted(await rig.append(key, events(1 + number, kind=RECOVERED), index=index))
    return key


# ---- what is taken ------------------------------------------------------------------------------


async def test_f8_the_predicate_has_no_default(rig: Rig) -> None:
    with pytest.raises(TypeError):
        await recover_abandoned(rig.journal, Post(), Search())  # type: ignore[call-arg]


async def test_f8_only_running_and_pending_are_asked_about(rig: Rig) -> None:
    """F8: and each is taken, by compare-and-set, before its package goes out."""
    running, pending = await rig.started("dead"), await rig.admitted()
    parked, ended = await rig.parked(timers=(5,)), await rig.ended()
    untouched = [await rig.row(key) for key in (parked, ended)]
    asked: list[ExecutionKey] = []
    post = Post()

    def note(row: ExecutionRow) -> bool:
        asked.append(row.key)
        return True

    now = await rig.journal.now()
    summary = await recover_abandoned(rig.journal, post, Search(), note)
    assert sorted(asked) == sorted(post.sent) == sorted([running, pending])
    assert summary == RecoverySummary(looked_at=2, claimed=2, recovered=2)
    for key in (running, pending):
        row = await rig.row(key)
        assert (row.owner, row.deadline) == (None, None)
        assert row.hint_at is not None
        assert row.hint_at > now, "a dispatcher sends it should the package be lost"
    assert [await rig.row(key) for key in (parked, ended)] == untouched


async def test_f8_what_is_not_claimed_is_left(rig: Rig) -> None:
    dead, living = await rig.started("dead"), await rig.started("living")
    waiting = await rig.admitted()
    wedged = await rig.started("living", deadline=0.5)
    await rig.let_pass(1)
    untouched = [await rig.row(key) for key in (living, waiting)]
    post = Post()
    summary = await recover_abandoned(rig.journal, post, Search(), HolderGone(rig.journal))
    assert sorted(post.sent) == sorted([dead, wedged])
    assert (summary.looked_at, summary.claimed, summary.recovered) == (4, 2, 2)
    assert [await rig.row(key) for key in (living, waiting)] == untouched


async def test_f8_by_age_and_by_flow(rig: Rig) -> None:
    """F8: a caller's predicate is asked in the order given, and no further than it must."""
    old = await rig.admitted()
    other = await rig.admitted(flow="other")
    await rig.let_pass(100)
    young = await rig.admitted()
    post, asked = Post(), []

    async def count(row: ExecutionRow) -> bool:
        asked.append(row.key)
        return True

    aged = older_than(timedelta(seconds=50), await rig.journal.now())
    await recover_abandoned(rig.journal, post, Search(flow="flow"), all_of(aged, count))
    assert post.sent == asked == [old]
    assert {old, other, young} == {row.key for row in await rig.journal.find(ListQuery())}


@pytest.mark.parametrize(
    "what", ["ends", "is claimed", "is given back", "is parked", "parks and is held", "is deleted"]
)
async def test_f8_what_moved_since_it_was_listed_is_left(rig: Rig, what: str) -> None:
    """F8: status and owner are looked at again right before acting."""
    key = await rig.started("dead")
    parked = IndexUpdate(status=Status.SUSPENDED)
    post, found = Post(), []

    async def meanwhile(_row: ExecutionRow) -> bool:
        match what:
            case "is claimed":
                assert (await rig.claim(key, "living", 1)).claimed is not None
            case "is given back":
                await rig.journal.defer([key], "dead", LONG)
            case "is parked" | "parks and is held":
                release = what == "is parked"
                accepted(await rig.append(key, events(1), index=parked, release=release))
            case _:
                accepted(await rig.append(key, events(1), index=COMPLETED, release=True))
        if what == "is deleted":
            assert await rig.journal.delete([key]) == [None]
        found.extend(await rig.journal.get([key]))
        return True

    summary = await recover_abandoned(rig.journal, post, Search(), meanwhile)
    assert (post.sent, summary.claimed, summary.moved, summary.failed) == ([], 1, 1, 0)
    assert await rig.journal.get([key]) == found, "it was not touched"


@pytest.mark.parametrize("claimant", ["living", "dead"])
async def test_f8_a_claim_between_the_last_look_and_the_taking_wins(
    rig: Rig, claimant: str
) -> None:
    """F7, J5: the taking names owner and fence as they were seen, so a newer claim stands."""
    key = await rig.started("dead")
    journal = rig.journal
    real: Callable[..., Awaitable[None]] = journal.defer

    async def late(*arguments: object) -> None:
        assert (await rig.claim(key, claimant, 1)).claimed is not None
        await real(*arguments)

    journal.defer = late  # type: ignore[method-assign, assignment]
    post = Post()
    summary = await recover_abandoned(journal, post, Search(), always)
    assert (post.sent, summary.moved) == ([], 1)
    assert (await rig.row(key)).owner == claimant


async def test_f8_one_that_raises_strands_no_other(rig: Rig) -> None:
    """F8: whatever raises is left for the next pass, counted and named."""
    keys = [await rig.started("dead") for _ in range(5)]
    post = Post()
    post.bad = {keys[1]: RuntimeError("no such queue"), keys[2]: False}

    def predicate(row: ExecutionRow) -> bool:
        if row.key == keys[0]:
            raise ValueError("unreadable label\nand more")
        return True

    summary = await recover_abandoned(rig.journal, post, Search(page=2), predicate)
    assert sorted(post.sent) == sorted(keys[2:])
    assert (summary.recovered, summary.unconfirmed, summary.failed) == (2, 1, 2)
    assert {left.key: left.why for left in summary.failures} == {
        keys[0]: "unreadable label",
        keys[1]: "no such queue",
    }
    assert (await rig.row(keys[0])).owner == "dead"
    await rig.let_pass(6)
    due = {each.row.key for each in await rig.take_unsent()}
    assert due == set(keys[1:]), "what was taken and not sent has its hint"


async def test_f8_a_journal_that_goes_away_ends_the_pass(rig: Rig) -> None:
    """C63: nobody waits out a timeout for every execution; the next pass goes on."""
    await rig.started("dead")
    await rig.started("dead")
    asked = []

    def away(row: ExecutionRow) -> bool:
        asked.append(row.key)
        raise JournalUnreachableError("gone")

    with pytest.raises(JournalUnreachableError):
        await recover_abandoned(rig.journal, Post(), Search(), away)
    assert len(asked) == 1


async def test_f8_a_dry_run_takes_nothing(rig: Rig) -> None:
    keys = [await rig.started("dead"), await recovered_in_vain(rig, 3)]
    untouched = [await rig.row(key) for key in keys]
    post = Post()
    told: dict[ExecutionKey, int] = {}
    summary = await recover_abandoned(
        rig.journal,
        post,
        Search(),
        always,
        max_recoveries=3,
        dry_run=True,
        on_exhausted=told.__setitem__,
    )
    assert (post.sent, told) == ([], {keys[1]: 3})
    assert (summary.claimed, summary.exhausted, summary.recovered) == (2, 1, 0)
    assert [await rig.row(key) for key in keys] == untouched


# ---- the bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, -1])
async def test_f8_a_bound_of_nothing_is_refused(rig: Rig, bound: int) -> None:
    """ADR 0105 D5: 0 would be a pass that does nothing and looks as if it did."""
    for source in (Search(), LeaseSweep()):
        with pytest.raises(ConfigurationError, match="at least 1"):
            await recover_abandoned(
                rig.journal, Post(), source, HolderGone(rig.journal), max_recoveries=bound
            )


@pytest.mark.parametrize("source", [Search(), LeaseSweep(exhausted=True)], ids=["search", "sweep"])
async def test_f8_the_exhausted_are_reported_and_left(rig: Rig, source: AbandonedSource) -> None:
    """F4, F8: counted, told of, left running; not those that the predicate did not claim."""
    tried, spent = await recovered_in_vain(rig, 1), await recovered_in_vain(rig, 2)
    more = await recovered_in_vain(rig, 3)
    await recovered_in_vain(rig, 9, owner="living")
    untouched = [await rig.row(key) for key in (spent, more)]
    for _ in range(2):
        post = Post()
        told: dict[ExecutionKey, int] = {}

        def note(key: ExecutionKey, number: int, told: dict[ExecutionKey, int] = told) -> None:
            told[key] = number
            raise RuntimeError("a listener that cannot listen")

        summary = await recover_abandoned(
            rig.journal,
            post,
            source,
            HolderGone(rig.journal),
            max_recoveries=2,
            on_exhausted=note,
        )
        assert told == {spent: 2, more: 3}
        assert (summary.exhausted, summary.claimed) == (2, 2 + len(post.sent))
        assert [await rig.row(key) for key in (spent, more)] == untouched
        assert post.sent in ([tried], [])


async def test_f8_the_bound_is_asked_after_the_predicate(rig: Rig) -> None:
    """ADR 0105 D5: one that is alive is never reported."""
    await recovered_in_vain(rig, 5)
    told: dict[ExecutionKey, int] = {}
    summary = await recover_abandoned(
        rig.journal,
        Post(),
        Search(),
        lambda _row: False,
        max_recoveries=1,
        on_exhausted=told.__setitem__,
    )
    assert (told, summary.exhausted, summary.claimed) == ({}, 0, 0)


@pytest.mark.parametrize(
    "progress",
    [EventKind.STEP_COMPLETED, EventKind.EXECUTION_RESUMED, EventKind.EXECUTION_SUSPENDED],
)
async def test_f8_a_log_with_progress_has_the_last_word(rig: Rig, progress: EventKind) -> None:
    """F8: nothing is given up on the word of a row that its log gainsays."""
    key = await recovered_in_vain(rig, 3)
    wrong = IndexUpdate(status=Status.RUNNING, recoveries=3)
    accepted(await rig.append(key, events(4, kind=progress), index=wrong))
    accepted(await rig.append(key, events(5, kind=RECOVERED), index=wrong))
    post = Post()
    summary = await recover_abandoned(rig.journal, post, Search(), always, max_recoveries=2)
    assert (post.sent, summary.exhausted) == ([key], 0)


class Reads(MemoryJournal):
    """Notes what is read of logs, and cuts every page as a large one would be."""

    sequences: list[int]
    cut = 1000

    async def read(
        self, key: ExecutionKey, *, first: int = 0, limit: int = 1000, newest: bool = False
    ) -> list[Envelope]:
        page = await super().read(key, first=first, limit=min(limit, self.cut), newest=newest)
        self.sequences += [each.seq for each in page]
        return page


@pytest.mark.parametrize("page", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("cut", [1, 2, 1000])
async def test_f8_the_tail_is_read_backwards_and_no_further_than_it_must(
    page: int, cut: int
) -> None:
    """F8: in pages, to the last progress or to the bound, whichever comes first."""
    clock = HandClock()
    async with Reads(clock) as journal:
        journal.sequences, journal.cut = [], cut
        rig = Rig(Stores(journal, journal))
        key = await rig.started("dead", count=90)
        kinds = [EventKind.STEP_COMPLETED, RECOVERED, STARTED, RECOVERED, STARTED, RECOVERED]
        for number, kind in enumerate(kinds):
            accepted(await rig.append(key, events(90 + number, kind=kind)))
        count = partial(recoveries_since_progress, journal, key, 95, page=page)
        assert await count(stop_at=9) == 3
        assert min(journal.sequences) >= 90 - page
        assert len(journal.sequences) == len(set(journal.sequences)), "nothing is read twice"
        journal.sequences = []
        assert await count(stop_at=1) == 1
        assert min(journal.sequences) >= 95 - page + 1
        assert await recoveries_since_progress(journal, key, 93, stop_at=9, page=page) == 2
        assert await recoveries_since_progress(journal, key, -1, stop_at=9, page=page) == 0


# ---- the lease ----------------------------------------------------------------------------------


async def test_f8_the_fleets_sweep_is_the_same_pass(rig: Rig) -> None:
    """F7, F8: in batches; what it takes a search with the same predicate would have taken."""
    keys = [await rig.started("dead") for _ in range(7)]
    await rig.started("living")
    dry = await recover_abandoned(
        rig.journal, Post(), Search(), HolderGone(rig.journal), dry_run=True
    )
    post = Post()
    post.bad = {keys[3]: RuntimeError("no")}
    sweep = partial(
        recover_abandoned, rig.journal, post, LeaseSweep(batch=3), HolderGone(rig.journal)
    )
    summary = await sweep(max_recoveries=10)
    assert sorted(post.sent) == sorted(keys[:3] + keys[4:])
    assert (summary.claimed, summary.recovered, summary.failed) == (dry.claimed, 6, 1)
    assert await sweep() == RecoverySummary()


async def test_f8_a_sweep_takes_by_the_lease_only(rig: Rig) -> None:
    """F8: the statement asks the lease, so any other predicate would be a lie."""
    await rig.started("dead")
    for predicate, dry_run in ((always, False), (HolderGone(rig.journal), True)):
        with pytest.raises(ConfigurationError, match="Search"):
            await recover_abandoned(rig.journal, Post(), LeaseSweep(), predicate, dry_run=dry_run)
    assert len(await rig.take_abandoned()) == 1


# ---- the iterator -------------------------------------------------------------------------------


async def test_the_iterator_sees_everything_once_while_rows_go(rig: Rig) -> None:
    """F8: pages follow a place and not a count; several queries one after another."""
    ended = [await rig.ended() for _ in range(6)]
    running = [await rig.started("dead") for _ in range(5)]
    seen: list[ExecutionKey] = []
    queries = [ListQuery(status=status) for status in (Status.COMPLETED, Status.RUNNING)]
    async for rows in iterate_executions(rig.journal, *queries, page=2):
        assert 1 <= len(rows) <= 2
        seen += [row.key for row in rows]
        gone = [row.key for row in rows if row.status.terminal]
        assert await rig.journal.delete(gone) == [None] * len(gone)
    assert seen == [*ended[::-1], *running[::-1]]
    everything = [row.key async for rows in iterate_executions(rig.journal) for row in rows]
    assert everything == running[::-1]
    assert [rows async for rows in iterate_executions(rig.journal, ListQuery(flow="none"))] == []
