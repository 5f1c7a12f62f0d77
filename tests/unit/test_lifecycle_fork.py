"""Forks and restored states: new executions from what an old one has been through (J8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loom_mq.engine.admission import Admitter, KnownFlows
from loom_mq.errors import ExecutionAlreadyExistsError, InputError, InvalidIdError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.kernel.fold import ExecutionState, FrameStatus, decode_payload, fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.lifecycle.archive import fetch, state_of
from loom_mq.lifecycle.fork import fork, restore_state
from loom_mq.lifecycle.truncation import truncate_prefix
from loom_mq.model import events as ev
from loom_mq.model.events import EventKind
from loom_mq.model.execution import DEFAULT_QUEUE, FlowRecord, Status
from loom_mq.model.messages import StartItem
from tests.support.house import House, until
from tests.unit.lifecycle_kit import (
    ENDS,
    PARKED,
    SECRET,
    Clock,
    book,
    booking,
    dump,
    effects,
    execution,
    full_log,
    has_ended,
    key_of,
    log_of,
    shelf,
    started,
    stored,
)

X, Y = key_of("x"), key_of("y")


async def forked(journal: MemoryJournal, **options: object) -> int:
    """Fork `x` as `y`; the sequence that the fork ends at."""
    assert await fork(journal, X, "y", **options) == Y  # type: ignore[arg-type]  # as given
    found = await fetch(journal, Y)
    [source] = await journal.get([X])
    assert source is not None
    state = state_of(found)
    row, now = found.row, await journal.now()
    # J6, and what a new execution starts with
    assert (row.status, row.last_seq, row.gates) == (state.status, state.last_seq, state.gates)
    assert (row.wake_at, row.in_doubt, row.labels) == (state.wake_at, state.in_doubt, state.labels)
    assert (row.flow, row.queue, row.created_at) == (source.flow, source.queue, now)
    assert (row.owner, row.error, row.ended_at, row.attempt) == (None, None, None, 0)
    return row.last_seq


@pytest.mark.parametrize("at", range(22))
async def test_a_fork_ends_at_any_event(at: int) -> None:
    """J8: same events at the same times under ids of their own; the source is untouched."""
    journal = await shelf(execution("x", full_log()))
    before = await dump(journal, X)
    assert await forked(journal, at=at) == at
    assert await dump(journal, X) == before
    old, new = await journal.read(X), await journal.read(Y)
    assert [replace(event, id=b"") for event in new] == [
        replace(event, id=b"") for event in old[: at + 1]
    ]
    assert not {event.id for event in new} & {event.id for event in old}


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_is_never_part_of_a_fork(end: ev.ExecutionCompleted) -> None:
    """J8: at the end, or at nothing said, it goes on from right before it."""
    for options in ({}, {"at": 22}):
        journal = await shelf(execution("x", full_log(end)))
        assert await forked(journal, **options) == 21
        [row] = await journal.get([Y])
        assert row is not None
        assert row.status is Status.RUNNING


async def test_a_fork_of_a_park_is_parked_with_its_timers() -> None:
    """J8, F9: it waits at the same gate until the same time."""
    journal = await shelf(execution("x", full_log()))
    await forked(journal, at=PARKED - 1)
    [row] = await journal.get([Y])
    assert row is not None
    assert (row.status, row.gates, row.hint_at) == (Status.SUSPENDED, ("approve",), None)
    assert await journal.next_timer() == row.wake_at == 1_050_000
    journal = await shelf(execution("x", full_log()))
    await forked(journal, at=13)
    [row] = await journal.get([Y])
    assert row is not None
    assert (row.in_doubt, row.gates, await journal.next_timer()) == (("notify",), (), None)


async def test_a_running_fork_is_sent_at_once_under_a_fresh_fence() -> None:
    """J8, J5: the fence of the fork is its own and follows those of its events."""
    journal = await shelf(execution("x", full_log()))
    await forked(journal, at=6)
    [sent] = await journal.take_unsent(limit=9, resend_after=1, backoff_limit=1, queues=None)
    assert sent.row.key == Y
    assert sent.row.fence == max(event.fence for event in await journal.read(Y)) == 2
    assert await journal.acquire_fence(Y, 2) == 3


@pytest.mark.parametrize(
    ("step", "last"),
    [("ship", 7), ("#3", 7), ("charge", 1), ("now", 0), ("progress", 6), ("#6", 19), ("#5", 17)],
)
async def test_a_fork_right_before_something_began(step: str, last: int) -> None:
    """J8: by place or by name, whatever takes a place; the first of a name."""
    assert await forked(await shelf(execution("x", full_log())), step=step) == last


async def test_a_place_goes_before_a_name() -> None:
    """K3: names are the flow's author's, and may look like places."""
    log = log_of(started(), ev.StepStarted("#0", "#1", 1), ev.StepStarted("#1", "b", 1), ENDS[0])
    assert await forked(await shelf(execution("x", log)), step="#1") == 1


async def test_other_labels_are_in_the_log_and_in_the_row() -> None:
    """J6: and the input is the same."""
    journal = await shelf(execution("x", full_log()))
    await forked(journal, at=3, labels={"try": "2"})
    [row] = await journal.get([Y])
    assert row is not None
    assert row.labels == {"try": "2"}
    first = decode_payload((await journal.read(Y))[0])
    assert isinstance(first, ev.ExecutionStarted)
    assert (first.labels, first.input) == ({"try": "2"}, stored({"name": SECRET}))


async def test_forks_that_are_refused() -> None:
    """J8: each with a sentence, and nothing is planted."""
    journal = await shelf(
        execution("x", full_log()),
        execution("short", log_of(started(), ENDS[0])),
        execution("taken", full_log()),
    )
    for options, what in (
        ({"at": -1}, "-1 is no event's sequence"),
        ({"at": 23}, "no event 23 .* last one is 22"),
        ({"step": "dance"}, "no step or place 'dance'"),
        ({"at": 3, "step": "ship"}, "not both"),
        ({"labels": {"": "x"}}, "label name"),
    ):
        with pytest.raises(InputError, match=what):
            await forked(journal, **options)
    with pytest.raises(ExecutionAlreadyExistsError):
        await fork(journal, X, "taken", at=3)
    with pytest.raises(InvalidIdError):
        await fork(journal, X, "", at=3)
    await truncate_prefix(journal, X)
    for options in ({}, {"at": 3}, {"at": 22}):
        with pytest.raises(InputError, match="was cut"):
            await forked(journal, **options)
    assert await journal.get([Y]) == [None]
    assert await fork(journal, key_of("short"), "short-2") == key_of("short-2")
    assert (await fetch(journal, key_of("short-2"))).row.last_seq == 0


async def test_a_fork_goes_on_by_itself() -> None:
    """J8, K2: what is in the prefix is not done again, what is not is."""
    async with House([booking]) as house:
        await book(house, "x", answer=False)
        effects.clear()
        await fork(house.journal, X, "y", step="charge", labels={"why": "again"})
        await until(lambda: gates(house, "y", ("board",)))
        assert effects == [f"charge {SECRET}", f"charge {SECRET}", f"print {SECRET}"]
        handle = house.client.handle("y", booking)
        await handle.resume("board", True)
        result = f"seat of {SECRET} without a ticket for 50"
        assert await handle.result(timeout=5) == result
        assert (await house.row("x")).status is Status.FAILED
        # the other way to decide: from the park of one that had ended
        kinds = await house.kinds("x")
        await fork(house.journal, X, "z", at=kinds.index(EventKind.EXECUTION_SUSPENDED))
        effects.clear()
        await house.client.handle("z").resume("board", True)
        assert await house.client.handle("z", booking).result(timeout=5) == result
        assert effects == []


@pytest.mark.parametrize("at", range(17))
async def test_any_prefix_of_a_real_log_goes_on(at: int) -> None:
    """J8: from wherever it is forked, it comes to the same end."""
    async with House([booking]) as house:
        await book(house, "x")
        last = (await house.row("x")).last_seq
        await fork(house.journal, X, "y", at=min(at, last))
        await until(lambda: at_gate_or_ended(house, "y"))
        handle = house.client.handle("y", booking)
        if not await has_ended(house, "y"):
            await handle.resume("board", True)
        assert await handle.result(timeout=5) == f"seat of {SECRET} without a ticket for 50"


async def gates(house: House, execution_id: str, names: tuple[str, ...]) -> bool:
    return (await house.row(execution_id)).gates == names


async def at_gate_or_ended(house: House, execution_id: str) -> bool:
    row = await house.row(execution_id)
    return row.gates == ("board",) or row.status.terminal


# ---- restored states -------------------------------------------------------------------------


async def test_a_state_is_planted_without_a_log() -> None:
    """J7: the fold is all there is, and the row says the same."""
    journal = MemoryJournal(Clock())
    state = fold(full_log()[:PARKED])
    await restore_state(journal, "y", state, queue="slow", labels={"a": "b"})
    found = await fetch(journal, Y)
    assert found.events == ()
    assert state_of(found) == replace(state, labels={"a": "b"})
    row = found.row
    assert (row.status, row.gates, row.queue) == (Status.SUSPENDED, ("approve",), "slow")
    assert (row.labels, row.last_seq, row.fence) == ({"a": "b"}, PARKED - 1, 0)
    assert await journal.next_timer() == 1_050_000
    with pytest.raises(ExecutionAlreadyExistsError):
        await restore_state(journal, "y", state, queue="slow")


async def test_a_state_of_the_old_fold_is_normalised() -> None:
    """ADR 0105 D4: a step's failure had made it failed, and it is not."""
    journal = MemoryJournal(Clock())
    for parked, status in ((False, Status.RUNNING), (True, Status.SUSPENDED)):
        state = fold(full_log()[: PARKED if parked else 10])
        assert any(frame.status is FrameStatus.FAILED for frame in state.frames.values())
        old = replace(state, status=Status.FAILED)
        key = await restore_state(journal, f"y{parked}", old, queue="q")
        found = await fetch(journal, key)
        assert found.row.status is status
        assert found.snapshot is not None
        kept = decode_snapshot(found.snapshot)
        assert kept is not None
        assert (kept.status, kept.failed_while_parked) == (status, parked)


async def test_states_that_are_refused() -> None:
    """J8: what has not begun is started, what has ended is planted from its archive."""
    journal = MemoryJournal(Clock())
    with pytest.raises(InputError, match="start it instead"):
        await restore_state(journal, "y", ExecutionState(), queue="q")
    for end in ENDS:
        with pytest.raises(InputError, match="plant its archive"):
            await restore_state(journal, "y", fold(full_log(end)), queue="q")
    with pytest.raises(InvalidIdError):
        await restore_state(journal, "y", fold(full_log()[:5]), queue="")
    assert await journal.get([Y]) == [None]


async def test_the_same_start_finds_a_restored_execution() -> None:
    """F2, K16: its digest is the one that admission computes."""
    journal = MemoryJournal(Clock())
    await journal.register_flows([FlowRecord(flow="order", version="1", queue=DEFAULT_QUEUE)])
    admitter = Admitter(KnownFlows(journal, Clock()), payload_limit=1000, resend_after=1)
    state = fold(full_log()[:5])
    item = StartItem(id="y", flow="order", payload=state.input)
    admission = await admitter.admission(item, "", None, "")
    await restore_state(journal, "y", state, queue="q")
    [verdict] = await journal.admit([admission])
    assert (verdict.created, verdict.same) == (False, True)


async def test_a_restored_state_goes_on_by_itself() -> None:
    """J7, K2: from a fold alone, with nothing done twice."""
    async with House([booking]) as house:
        await book(house, "x")
        log = await house.log("x")
        kinds = [event.kind for event in log]
        cut = kinds.index(EventKind.CUSTOM_EMITTED) + 1
        effects.clear()
        await restore_state(house.journal, "y", fold(log[:cut]), queue=DEFAULT_QUEUE)
        await until(lambda: gates(house, "y", ("board",)))
        assert effects == [f"charge {SECRET}", f"charge {SECRET}", f"print {SECRET}"]
        handle = house.client.handle("y", booking)
        await handle.resume("board", True)
        assert await handle.result(timeout=5) == f"seat of {SECRET} without a ticket for 50"
