"""Retention and cut logs: only what has ended is ever touched (J8)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loom_mq.errors import (
    ConfigurationError,
    ExecutionNotEndedError,
    InputError,
    LoomError,
    StorageWriteError,
    UnknownExecutionError,
)
from loom_mq.journal.memory import MemoryJournal
from loom_mq.kernel.fold import fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.lifecycle.archive import ArchivedExecution, fetch, read_archive, state_of, to_lines
from loom_mq.lifecycle.retention import Retention, retain
from loom_mq.lifecycle.truncation import truncate_prefix
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.snapshots import FOLD_VERSION, Snapshot
from tests.support.house import House
from tests.unit.lifecycle_kit import (
    ENDS,
    PARKED,
    SECRET,
    Clock,
    book,
    booking,
    dump,
    execution,
    full_log,
    key_of,
    log_of,
    random_log,
    shelf,
    started,
)

DAY = timedelta(days=1)
NOW = 100 * 86_400_000_000


def ended(
    execution_id: str, *, days: float, flow: str = "order", end: int = 0
) -> ArchivedExecution:
    """One that ended so many days ago."""
    at = NOW - int(days * 86_400_000_000)
    return execution(execution_id, log_of(started(flow), ENDS[end], begin=at - 1000))


def live(execution_id: str, *, events: int = PARKED, days: float = 90) -> ArchivedExecution:
    """One that has not ended, however old."""
    log = full_log()[:events]
    old = NOW - int(days * 86_400_000_000)
    return execution(execution_id, [replace(event, at=old + event.seq) for event in log])


class Kept:
    """An archive that fails for some."""

    def __init__(self, journal: MemoryJournal, *, fails: Sequence[str] = ()) -> None:
        self.journal = journal
        self.fails = fails
        self.lines: list[str] = []
        self.names: list[str] = []

    async def __call__(self, archived: ArchivedExecution) -> None:
        name = archived.row.execution_id
        if name in self.fails:
            raise OSError(f"no room for {name}\nand a long story")
        assert await self.journal.get([archived.key]) == [archived.row], "deleted before"
        self.names.append(name)
        self.lines += to_lines(archived)


async def left(journal: MemoryJournal, *names: str) -> list[str]:
    rows = await journal.get([key_of(name) for name in names])
    return [row.execution_id for row in rows if row is not None]


async def test_each_flow_has_its_age_and_live_ones_stay() -> None:
    """J8: ages by flow, the default for the others, None for good; live ones never."""
    names = {"o8": 8.0, "o6": 6.0, "p2": 2.0, "p0": 0.5, "k99": 99.0}
    flows = {"o": "order", "p": "ping", "k": "keep"}
    rows = [ended(name, days=days, flow=flows[name[0]]) for name, days in names.items()]
    journal = await shelf(*rows, live("suspended"), live("running", events=5))
    before = [await dump(journal, key_of(name)) for name in ("suspended", "running")]
    retention = Retention(default=7 * DAY, flows={"ping": DAY, "keep": None, "absent": DAY})
    archive = Kept(journal)
    report = await retain(journal, retention, now=NOW, archive=archive, batch=1)
    assert (report.due, report.archived, report.deleted, report.failed) == (2, 2, 2, 0)
    assert report.flows == {"ping": 1, "order": 1}
    assert await left(journal, *names) == ["o6", "p0", "k99"]
    assert before == [await dump(journal, key_of(name)) for name in ("suspended", "running")]
    assert [one.row for one in read_archive(archive.lines)] == [rows[2].row, rows[0].row]


async def test_a_flow_with_the_default_age_is_counted_once() -> None:
    """J8: the general pass leaves named flows to their own."""
    journal = await shelf(ended("a", days=3), ended("b", days=3, flow="ping"))
    retention = Retention(default=DAY, flows={"order": DAY})
    report = await retain(journal, retention, now=NOW, archive=None, dry_run=True)
    assert (report.due, report.flows) == (2, {"order": 1, "ping": 1})


async def test_an_age_is_reached_to_the_microsecond() -> None:
    """J8: an execution is due once it is older than its age, not before."""
    journal = await shelf(ended("a", days=1))
    [row] = await journal.get([key_of("a")])
    assert row is not None
    assert row.ended_at == NOW - 86_400_000_000
    assert (await retain(journal, Retention(default=DAY), now=NOW, archive=None)).due == 0
    assert (await retain(journal, Retention(default=DAY), now=NOW + 1, archive=None)).deleted == 1


async def test_a_dry_run_changes_nothing() -> None:
    """J8."""
    journal = await shelf(ended("a", days=9), ended("b", days=8))
    archive = Kept(journal)
    report = await retain(
        journal, Retention(default=DAY), now=NOW, archive=archive, dry_run=True, batch=1
    )
    assert (report.due, report.archived, report.deleted, report.dry_run) == (2, 0, 0, True)
    assert archive.names == []
    assert await left(journal, "a", "b") == ["a", "b"]


async def test_nothing_is_kept_for_ever_by_mistake() -> None:
    """J8: an age that cannot be meant is refused before anything is looked at."""
    journal = await shelf(ended("a", days=9))
    with pytest.raises(ConfigurationError, match="flow 'order'"):
        await retain(journal, Retention(flows={"order": -DAY}), now=NOW, archive=None)
    with pytest.raises(InputError, match="batch"):
        await retain(journal, Retention(default=DAY), now=NOW, archive=None, batch=0)
    assert (await retain(journal, Retention(), now=NOW, archive=None)).due == 0
    assert await left(journal, "a") == ["a"]


async def test_one_that_cannot_be_archived_stops_no_other() -> None:
    """J8: it stays, is counted and named; the next pass meets it again."""
    rows = [ended(f"x{number}", days=9) for number in range(7)]
    journal = await shelf(*rows)
    archive = Kept(journal, fails=("x1", "x4"))
    report = await retain(journal, Retention(default=DAY), now=NOW, archive=archive, batch=3)
    assert (report.due, report.archived, report.deleted, report.failed) == (7, 5, 5, 2)
    assert [(each.key.execution_id, each.why) for each in report.failures] == [
        ("x4", "no room for x4"),
        ("x1", "no room for x1"),
    ]
    assert await left(journal, *(f"x{number}" for number in range(7))) == ["x1", "x4"]
    assert (await retain(journal, Retention(default=DAY), now=NOW, archive=None)).deleted == 2


async def test_of_many_failures_all_are_counted_and_the_first_are_named() -> None:
    """J8: a report stays a report."""
    journal = await shelf(*(ended(f"x{number}", days=9) for number in range(120)))
    archive = Kept(journal, fails=[f"x{number}" for number in range(120)])
    report = await retain(journal, Retention(default=DAY), now=NOW, archive=archive)
    assert (report.failed, len(report.failures)) == (120, 100)


class Faulty(MemoryJournal):
    """A journal whose first delete does not go out."""

    broken = True

    async def delete(self, keys: Sequence[ExecutionKey]) -> list[LoomError | None]:
        if self.broken:
            self.broken = False
            raise StorageWriteError("the disk is full")
        return await super().delete(keys)


async def test_a_delete_that_fails_stops_no_later_page() -> None:
    """J8, J3: what was not deleted is named."""
    journal = Faulty(Clock())
    filled = await shelf(*(ended(f"x{number}", days=9) for number in range(4)))
    journal._store = filled._store
    report = await retain(journal, Retention(default=DAY), now=NOW, archive=None, batch=2)
    assert (report.deleted, report.failed) == (2, 2)
    assert {each.why for each in report.failures} == {"the disk is full"}


async def test_an_id_that_began_a_new_life_meanwhile_is_left_alone() -> None:
    """J8, K16: what was archived is not what would be deleted."""
    journal = await shelf(ended("a", days=9))

    async def archive(archived: ArchivedExecution) -> None:
        assert await journal.delete([archived.key]) == [None]
        newer = await shelf(ended("a", days=0))
        journal._store = newer._store

    report = await retain(journal, Retention(default=DAY), now=NOW, archive=archive)
    assert (report.archived, report.deleted, report.failed) == (1, 0, 1)
    assert "changed while" in report.failures[0].why
    assert await left(journal, "a") == ["a"]


async def test_only_the_tenant_that_was_named() -> None:
    """J8, J10."""
    other = execution("a", log_of(started(), ENDS[0], begin=1000), tenant="other")
    journal = await shelf(ended("a", days=9), other)
    report = await retain(journal, Retention(default=DAY), now=NOW, archive=None, tenant="other")
    assert report.deleted == 1
    assert await left(journal, "a") == ["a"]


# ---- cut logs --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(ENDS))
async def test_a_cut_log_folds_as_the_whole_one(seed: int, end: object) -> None:
    """J7, J8: snapshot and what is left fold to what all events folded to."""
    log = random_log(seed)
    whole = fold(log)
    if not whole.status.terminal:
        with pytest.raises(ExecutionNotEndedError):
            await truncate_prefix(await shelf(execution("x", log)), key_of("x"))
        return
    journal = await shelf(execution("x", log))
    [row] = await journal.get([key_of("x")])
    assert await truncate_prefix(journal, key_of("x")) == len(log) - 1
    assert await journal.read(key_of("x")) == log[-1:]
    snapshot = await journal.snapshot(key_of("x"))
    assert snapshot is not None
    state = decode_snapshot(snapshot)
    tail = [event for event in log[-1:] if event.seq > snapshot.seq]
    assert fold(tail, state) == whole
    assert state_of(await fetch(journal, key_of("x"))) == whole
    assert await journal.get([key_of("x")]) == [row]
    assert await truncate_prefix(journal, key_of("x")) == 0


async def test_live_ones_are_never_cut_deleted_or_rewritten() -> None:
    """J8: a refusal that names the execution, and not a byte changed."""
    for events in (5, PARKED):
        journal = await shelf(live("x", events=events))
        before = await dump(journal, key_of("x"))
        with pytest.raises(ExecutionNotEndedError, match="execution 'x'"):
            await truncate_prefix(journal, key_of("x"))
        [refusal] = await journal.delete([key_of("x")])
        assert isinstance(refusal, ExecutionNotEndedError)
        await retain(journal, Retention(default=timedelta(0)), now=NOW, archive=None)
        assert await dump(journal, key_of("x")) == before
    with pytest.raises(UnknownExecutionError):
        await truncate_prefix(journal, key_of("nobody"))


async def test_a_log_cut_by_a_newer_release_is_left_to_it() -> None:
    """J7: nothing is folded from a snapshot that this release cannot read."""
    journal = await shelf(execution("x", full_log()))
    await truncate_prefix(journal, key_of("x"))
    found = await fetch(journal, key_of("x"))
    assert found.snapshot is not None
    newer = Snapshot(found.snapshot.seq, FOLD_VERSION + 1, found.snapshot.state)
    with pytest.raises(LoomError, match="newer release"):
        state_of(replace(found, snapshot=newer))


async def test_a_real_execution_is_read_after_its_log_was_cut() -> None:
    """J8: its outcome is there for whoever asks, and retention takes it in the end."""
    async with House([booking]) as house:
        await book(house, "b-1")
        await truncate_prefix(house.journal, key_of("b-1"))
        assert await house.kinds("b-1") == ["EXECUTION_COMPLETED"]
        handle = house.client.handle("b-1", booking)
        assert await handle.result(timeout=5) == f"seat of {SECRET} without a ticket for 50"
        await book(house, "b-2", answer=None)
        lines: list[str] = []

        async def archive(archived: ArchivedExecution) -> None:
            lines.extend(to_lines(archived))

        now = await house.journal.now() + 1
        everything = Retention(default=timedelta(0))
        report = await retain(house.journal, everything, now=now, archive=archive)
        assert (report.deleted, report.failed) == (1, 0)
        assert await house.journal.get([key_of("b-1")]) == [None]
        await house.client.handle("b-2").resume("board", True)
        assert await house.client.handle("b-2", booking).result(timeout=5)
    [kept] = read_archive(lines)
    assert state_of(kept).status is Status.COMPLETED
