"""Who drives what, timers that lost their row, and sending out again (F4, F9, ADR 0105)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import loom_mq as loom
from loom_mq.errors import (
    ExecutionEndedError,
    HeldByLiveOwnerError,
    InputError,
    JournalUnreachableError,
    StorageWriteError,
    UnknownExecutionError,
)
from loom_mq.ids import RandomIds
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import IndexUpdate
from loom_mq.model.events import EventKind
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.recovery import (
    CensusTaker,
    Keeping,
    ReconcileSummary,
    Search,
    orphan_census,
    reconcile_timers,
    recover_abandoned,
    send_again,
)
from loom_mq.recovery.census import FlowCensus
from loom_mq.testing.conformance.journal_rig import LONG, Rig, Stores, accepted, events
from tests.conformance.test_journal_memory import HandClock
from tests.support.house import House, until
from tests.unit.test_recovery import Post, always, recovered_in_vain

KEY = ExecutionKey(DEFAULT_TENANT, "e")
calls: list[str] = []


@loom.step(retry=loom.NO_RETRY)
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.flow
async def sleeper(ctx: loom.Context) -> str:
    await ctx.sleep(3600)
    return await ctx.run(note, "awake")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    clock = HandClock()
    async with MemoryJournal(clock) as journal:
        rig = Rig(Stores(journal, journal, advance=clock.advance))
        await rig.alive("living")
        yield rig


async def forgotten(rig: Rig) -> ExecutionKey:
    """A running execution that nobody holds and no package is due for."""
    key = await rig.started("dead")
    await rig.journal.defer([key], "dead", None)
    assert (await rig.row(key)).hint_at is None
    return key


# ---- census -------------------------------------------------------------------------------------


async def test_census_tells_who_drives_what(rig: Rig) -> None:
    """ADR 0105 D2, F4: by flow, and each orphan with the reason."""
    await rig.started("living")
    await rig.admitted(flow="other")
    wedged = await rig.started("living", deadline=0.5)
    lapsed, lost, spent = (
        await rig.started("dead"),
        await forgotten(rig),
        await recovered_in_vain(rig, 3),
    )
    await rig.parked()
    await rig.ended()
    await rig.let_pass(1)
    census = await orphan_census(rig.journal, max_recoveries=3, page=2)
    assert census.flows == {
        "flow": FlowCensus(held=1, lapsed=2, given_up=1, forgotten=1),
        "other": FlowCensus(waiting=1),
    }
    assert (census.looked_at, census.orphaned) == (6, 4)
    assert {each.row.key: each.keeping for each in census.orphans} == {
        wedged: Keeping.LAPSED,
        lapsed: Keeping.LAPSED,
        lost: Keeping.FORGOTTEN,
        spent: Keeping.GIVEN_UP,
    }
    few = await orphan_census(rig.journal, flow="flow", most=1)
    assert (len(few.orphans), few.orphaned) == (1, 4)
    assert few.flows["flow"].given_up == 0, "nobody has said what is too often"
    assert (await orphan_census(rig.journal, flow="none")).looked_at == 0


async def test_census_counts_each_once(rig: Rig) -> None:
    """Whoever comes by twice, in two queries of one walk, is one execution."""
    keys = [await rig.started("dead"), await rig.started("living"), await rig.parked()]
    taker = CensusTaker(rig.journal, max_recoveries=None)
    for _ in range(2):
        await taker.add([await rig.row(key) for key in keys])
    assert taker.census().flows == {"flow": FlowCensus(held=1, lapsed=1)}
    assert len(taker.census().orphans) == 1


async def test_census_counts_a_caught_failure(rig: Rig) -> None:
    """ADR 0105: a step failed and was caught, and the process died: that is an orphan."""
    key = await rig.started("dead")
    accepted(await rig.append(key, events(1, kind=EventKind.STEP_FAILED)))
    [orphan] = (await orphan_census(rig.journal)).orphans
    assert orphan.row.key == key


async def test_census_looks_twice_before_it_calls_one_orphaned(rig: Rig) -> None:
    """F7: one that was given back between two reads has a package due."""
    key = await rig.started("retiring")
    lease = await rig.alive("retiring")
    journal = rig.journal
    real = journal.find

    async def find(query: object) -> object:
        rows = await real(query)  # type: ignore[arg-type]
        await lease.retire()
        return rows

    journal.find = find  # type: ignore[method-assign, assignment]
    census = await orphan_census(journal)
    assert census.orphaned == 0
    assert census.flows["flow"] == FlowCensus(waiting=1)
    assert (await rig.row(key)).owner is None


async def test_a_forgotten_execution_is_recovered_by_hand(rig: Rig) -> None:
    """F4: no sweep sees it; a pass gives it a hint and a package."""
    key = await forgotten(rig)
    assert await rig.take_abandoned() == []
    post = Post()
    await recover_abandoned(rig.journal, post, Search(), always)
    assert post.sent == [key]
    assert (await orphan_census(rig.journal)).orphaned == 0


# ---- timers -------------------------------------------------------------------------------------


async def lose_timer(rig: Rig, due: int) -> ExecutionKey:
    """A parked execution whose timer's row is gone, as an old release left them."""
    key = await rig.started("dead")
    index = IndexUpdate(status=Status.SUSPENDED, wake_at=due)
    accepted(await rig.append(key, events(1), index=index, release=True))
    return key


async def test_f9_lost_timers_are_armed_and_others_left(rig: Rig) -> None:
    """F9, ADR 0105 D4: idempotent; a healthy row, held or not, stays as it is."""
    lost = [await lose_timer(rig, 5), await lose_timer(rig, 7)]
    whole = await rig.parked(timers=(6,))
    await rig.parked()
    await rig.started("living")
    assert [each.due for each in await rig.journal.due_timers(limit=9, hold=LONG)] == [6]
    summary = await reconcile_timers(rig.journal, page=2)
    assert summary == ReconcileSummary(looked_at=4, timed=3, armed=2, rearmed=tuple(lost[::-1]))
    due = await rig.journal.due_timers(limit=9, hold=LONG)
    assert [(each.row.key, each.due) for each in due] == [(lost[0], 5), (lost[1], 7)]
    assert (await reconcile_timers(rig.journal)).armed == 0
    await rig.journal.drop_timers([(whole, 6)])
    assert (await reconcile_timers(rig.journal)).rearmed == (whole,)


async def test_f9_one_that_cannot_be_armed_strands_no_other(rig: Rig) -> None:
    keys = [await lose_timer(rig, 5) for _ in range(4)]
    journal = rig.journal
    real = journal.arm_timers

    async def arm(timers: list[tuple[ExecutionKey, int]]) -> list[bool]:
        if any(key == keys[1] for key, _due in timers):
            raise StorageWriteError("a damaged page")
        return await real(timers)

    journal.arm_timers = arm  # type: ignore[method-assign, assignment]
    summary = await reconcile_timers(journal)
    assert (summary.armed, summary.failed) == (3, 1)
    assert [(left.key, left.why) for left in summary.failures] == [(keys[1], "a damaged page")]

    async def away(_timers: object) -> list[bool]:
        raise JournalUnreachableError("gone")

    journal.arm_timers = away  # type: ignore[method-assign, assignment]
    with pytest.raises(JournalUnreachableError):
        await reconcile_timers(journal)


async def test_f9_a_lost_timer_wakes_once_it_is_armed_again() -> None:
    """F9, ADR 0105 D4: and a second fire of it does nothing: nobody waits any more."""
    calls.clear()
    async with House([sleeper]) as house:
        handle = await house.client.start(sleeper, id="e")

        async def parked() -> bool:
            return (await house.row("e")).status is Status.SUSPENDED

        await until(parked)
        journal = house.journal
        assert isinstance(journal, MemoryJournal)
        entry = journal._store.entries[KEY]
        [due] = list(entry.timers)
        journal._store.disarm(entry, due)
        assert await journal.next_timer() is None
        assert (await reconcile_timers(journal)).rearmed == (KEY,)
        assert await journal.next_timer() == due
        # its time comes: as if it had been parked an hour ago
        journal._store.disarm(entry, due)
        past = due - 3_700_000_000
        assert await journal.arm_timers([(KEY, past)]) == [True]
        await until(lambda: _fired(house, past))
        assert (await house.row("e")).status is Status.SUSPENDED, "it is not its time yet"
        assert await house.kinds("e") == ["EXECUTION_STARTED", "EXECUTION_SUSPENDED"]
        await handle.cancel("enough")


async def _fired(house: House, due: int) -> bool:
    journal = house.journal
    assert isinstance(journal, MemoryJournal)
    return due not in journal._store.entries[KEY].timers


# ---- again --------------------------------------------------------------------------------------


async def test_f4_what_was_given_up_is_sent_out_again(rig: Rig) -> None:
    """F4, F8, J6: the new count is on the log, and the row still equals its fold."""
    key = await recovered_in_vain(rig, 3)
    assert await rig.take_abandoned(max_recoveries=3) == []
    row = await send_again(rig.journal, key, ids=RandomIds())
    assert (row.recoveries, row.owner, row.status) == (0, None, Status.RUNNING)
    assert (await rig.log(key))[-1].kind == EventKind.EXECUTION_RESUMED
    [runnable] = await rig.take_unsent()
    assert (runnable.row.key, runnable.row.fence) == (key, 2)
    verdict = await rig.append(key, events(5), fence=1)
    assert verdict.error is not None, "the old holder is fenced out"
    assert (await rig.claim(key, "living", 2)).claimed is not None


async def test_f4_what_is_parked_or_ended_is_refused(rig: Rig) -> None:
    """F4: it waits for something, or is over; nobody has given it up."""
    parked, ended = await rig.parked(), await rig.ended()
    untouched = [await rig.row(key) for key in (parked, ended)]
    with pytest.raises(InputError, match="loom why"):
        await send_again(rig.journal, parked, ids=RandomIds())
    with pytest.raises(ExecutionEndedError):
        await send_again(rig.journal, ended, ids=RandomIds())
    assert [await rig.row(key) for key in (parked, ended)] == untouched


@pytest.mark.parametrize("status", [Status.SUSPENDED, Status.COMPLETED])
async def test_f4_a_holder_that_was_not_dead_after_all_keeps_what_it_wrote(
    rig: Rig, status: Status
) -> None:
    """F4, K1: its last append came between the look and the fence; no event follows it."""
    key = await recovered_in_vain(rig, 3)
    journal = rig.journal
    real = journal.acquire_fence

    async def late(*arguments: object) -> int:
        index = IndexUpdate(status=status)
        accepted(await rig.append(key, events(4), index=index, release=True))
        return await real(*arguments)  # type: ignore[arg-type]

    journal.acquire_fence = late  # type: ignore[method-assign, assignment]
    row = await send_again(journal, key, ids=RandomIds())
    assert (row.status, row.last_seq) == (status, 4)


async def test_f4_what_is_driven_or_not_there_is_refused(rig: Rig) -> None:
    living = await rig.started("living")
    untouched = await rig.row(living)
    with pytest.raises(HeldByLiveOwnerError):
        await send_again(rig.journal, living, ids=RandomIds())
    assert await rig.row(living) == untouched
    with pytest.raises(UnknownExecutionError):
        await send_again(rig.journal, ExecutionKey(DEFAULT_TENANT, "no"), ids=RandomIds())


async def test_f4_what_has_not_begun_is_only_sent(rig: Rig) -> None:
    """F6: a start taken by a holder that wrote nothing has no log to write into."""
    key = await rig.admitted()
    assert (await rig.claim(key, "dead", 0)).claimed is not None
    row = await send_again(rig.journal, key, ids=RandomIds())
    assert (row.last_seq, row.fence, row.owner) == (-1, 1, None)
    assert [each.row.key for each in await rig.take_unsent()] == [key]
