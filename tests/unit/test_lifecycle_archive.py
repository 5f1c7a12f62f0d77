"""Archives: out of a journal and into one again, exact to the byte (J8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loom_mq.errors import (
    ArchiveError,
    ExecutionAlreadyExistsError,
    InputError,
    InvalidIdError,
    UnknownExecutionError,
)
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Admission
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.kernel.fold import fold
from loom_mq.kernel.snapshots import encode_state
from loom_mq.lifecycle.archive import (
    ArchivedExecution,
    fetch,
    read_archive,
    restore_archived,
    to_lines,
)
from loom_mq.lifecycle.truncation import truncate_prefix
from loom_mq.model import events as ev
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from tests.support.house import House
from tests.unit.lifecycle_kit import (
    ENDS,
    PARKED,
    SECRET,
    Clock,
    book,
    booking,
    execution,
    full_log,
    key_of,
    log_of,
    random_log,
    shelf,
    started,
    stored,
)


def again(archived: ArchivedExecution, **options: bool) -> ArchivedExecution:
    [back] = read_archive(to_lines(archived, **options))
    return back


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
async def test_export_import_export_gives_the_same_bytes(seed: int) -> None:
    """J8: for any log, through a journal of its own; a log that was cut included."""
    source = await shelf(execution("x/ü:1", random_log(seed)))
    key = key_of("x/ü:1")
    for _ in range(2):
        first = await fetch(source, key)
        lines = list(to_lines(first))
        [back] = read_archive(f"{line}\n" for line in lines)
        assert back == first
        if not first.row.status.terminal:
            return
        other = MemoryJournal(Clock())
        assert await restore_archived(other, back) == key
        assert list(to_lines(await fetch(other, key))) == lines
        await truncate_prefix(source, key)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
async def test_a_suspended_one_keeps_its_bytes_too_but_for_its_name(seed: int) -> None:
    """J8: only ids and what names them differ."""
    log = [*random_log(seed)]
    if fold(log).status is not Status.SUSPENDED:
        return
    first = await fetch(await shelf(execution("a", log)), key_of("a"))
    other = MemoryJournal(Clock())
    back = await fetch(other, await restore_archived(other, first, execution_id="b"))
    assert replace(back.row, execution_id="a") == first.row
    assert [event.payload for event in back.events] == [event.payload for event in first.events]


def test_every_kind_of_event_is_shown_to_people() -> None:
    """J8: `data` shows what the payload holds; without it the archive is the same."""
    archived = execution("x", full_log())
    shown = [json.loads(line) for line in to_lines(archived)][1:]
    assert shown[0]["data"]["input"] == {"name": SECRET}
    assert shown[3]["data"]["failure"]["payload"] == SECRET
    assert shown[18]["data"]["waits"][0]["name"] == "approve"
    assert shown[-1]["data"] == {"result": SECRET}
    hidden = list(to_lines(archived, readable=False))
    assert SECRET not in "".join(hidden[1:])
    assert again(archived, readable=False) == again(archived) == archived


def test_what_cannot_be_shown_is_archived_all_the_same() -> None:
    """J1: kinds of a newer release and payloads that nobody reads stay as they are."""
    log = full_log()
    odd = [replace(log[0], kind="EXECUTION_CONTINUED"), replace(log[1], payload=b"\xc1")]
    archived = execution("x", log)
    archived = replace(archived, events=(*odd, *log[2:]))
    assert again(archived) == archived


def cut(lines: list[str]) -> list[str]:
    return lines[:-1]


def torn(lines: list[str]) -> list[str]:
    return [*lines[:3], lines[3][:40]]


def newer(lines: list[str]) -> list[str]:
    return [lines[0].replace('"loom_archive":1', '"loom_archive":2'), *lines[1:]]


def gap(lines: list[str]) -> list[str]:
    return [*lines[:3], *lines[4:]]


def headless(lines: list[str]) -> list[str]:
    return lines[1:]


def overlapping(lines: list[str]) -> list[str]:
    return [*lines[:5], *lines]


def nothing(_lines: list[str]) -> list[str]:
    return ["\n"]


def other_text(_lines: list[str]) -> list[str]:
    return ["-- PostgreSQL database dump"]


def other_json(_lines: list[str]) -> list[str]:
    return ['{"items": []}']


def spoilt(lines: list[str]) -> list[str]:
    return [lines[0].replace('"status":"completed"', '"status":"merry"'), *lines[1:]]


def beheaded(lines: list[str]) -> list[str]:
    shorter = json.loads(lines[0])
    shorter["events"] -= 2
    return [json.dumps(shorter), *lines[3:]]


@pytest.mark.parametrize(
    ("damage", "number", "what"),
    [
        (cut, 23, "has 23 events, but only 22 are here: the archive is cut off"),
        (torn, 4, "only 2 are here: the archive is cut off or damaged"),
        (newer, 1, "format version 2, and this release reads up to 1"),
        (gap, 4, "event 3 of execution 'x' follows event 1"),
        (headless, 1, "the header of an execution should stand here"),
        (overlapping, 6, "another execution begins here"),
        (nothing, 1, "nothing here"),
        (other_text, 1, "no archive of loom-mq"),
        (other_json, 1, "no archive"),
        (spoilt, 1, "merry"),
        (beheaded, 22, "event 0 is missing"),
    ],
)
def test_a_damaged_archive_says_where_and_what(
    damage: Callable[[list[str]], list[str]], number: int, what: str
) -> None:
    """J8: with the number of the line."""
    lines = damage(list(to_lines(execution("x", full_log()))))
    with pytest.raises(ArchiveError) as refusal:
        list(read_archive(lines))
    assert refusal.value.message.startswith(f"line {number}: ")
    assert what in refusal.value.message


def test_an_archive_is_read_one_execution_at_a_time() -> None:
    """J8: what stands before the damage is given, and no line is read ahead."""
    good = list(to_lines(execution("good", full_log())))
    read: list[int] = []

    def lines() -> object:
        for number, line in enumerate([*good, "", *good[:3]]):
            read.append(number)
            yield line

    executions = read_archive(lines())  # type: ignore[arg-type]  # a generator of lines
    assert next(executions).row.execution_id == "good"
    assert len(read) == len(good)
    with pytest.raises(ArchiveError, match="line 28: "):
        next(executions)


async def test_fetching_what_is_not_there() -> None:
    """J8."""
    journal = await shelf()
    with pytest.raises(UnknownExecutionError):
        await fetch(journal, key_of("x"))
    admission = Admission(
        key=key_of("x"), flow="f", version="1", queue="q", start=b"", input_digest=b""
    )
    await journal.admit([admission])
    with pytest.raises(InputError, match="has not begun"):
        await fetch(journal, key_of("x"))


async def test_a_snapshot_is_part_of_the_archive() -> None:
    """J7, J8: and one that has run ahead of the row that was read is not."""
    log = log_of(started(), ev.DecisionRecorded("#0", "a", stored(1)))
    journal = await shelf(execution("x", log))
    await journal.save_snapshots([(key_of("x"), encode_state(fold(log[:1])))])
    found = await fetch(journal, key_of("x"))
    assert found.snapshot is not None
    assert found.snapshot.seq == 0
    assert again(found) == found


class Busy(MemoryJournal):
    """A journal in which executions go on right after their row was read."""

    async def get(self, keys: Sequence[ExecutionKey]) -> list[ExecutionRow | None]:
        rows = await super().get(keys)
        for key, row in zip(keys, rows, strict=True):
            if row is not None and not row.status.terminal:
                entry = self._store.entries[key]
                entry.events += log_of(*[ev.ExecutionRecovered("w", 1)] * (row.last_seq + 2))[-1:]
                self._store.put(entry, replace(row, last_seq=row.last_seq + 1))
                await self.save_snapshots([(key, encode_state(fold(entry.events)))])
        return rows


async def test_what_goes_on_is_read_as_of_one_moment() -> None:
    """J6, J7: row and log agree, and a snapshot that knows more is left out."""
    journal = Busy(Clock())
    journal._store = (await shelf(execution("x", full_log()[:5])))._store
    found = await fetch(journal, key_of("x"))
    assert (found.row.last_seq, len(found.events), found.snapshot) == (4, 5, None)
    assert again(found) == found
    assert (await fetch(journal, key_of("x"))).row.last_seq == 5


async def test_stores_may_keep_labels_in_any_order() -> None:
    """J8, J9: the bytes do not depend on the store."""
    one = execution("x", full_log())
    turned = dict(reversed(one.row.labels.items()))
    other = replace(one, row=replace(one.row, labels=turned))
    assert list(to_lines(one)) == list(to_lines(other))


@pytest.mark.parametrize("seed", range(8))
async def test_from_one_store_to_another(seed: int, tmp_path: Path) -> None:
    """J8, J9: through SQLite the bytes are the same, whole and cut."""
    async with SqliteJournal(tmp_path / "loom.db") as journal:
        for archived in (execution("x", random_log(seed)), execution("full", full_log())):
            if not archived.row.status.terminal:
                continue
            await restore_archived(journal, archived)
            key = archived.key
            assert await fetch(journal, key) == archived
            await truncate_prefix(journal, key)
            cut_off = await fetch(journal, key)
            assert again(cut_off) == cut_off
            memory = MemoryJournal(Clock())
            await restore_archived(memory, cut_off)
            assert list(to_lines(await fetch(memory, key))) == list(to_lines(cut_off))


# ---- planting --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
async def test_an_ended_one_is_planted_as_it_was(end: ev.ExecutionCompleted) -> None:
    """J8: nothing drives it, whatever its end."""
    archived = execution("x", full_log(end))
    journal = MemoryJournal(Clock())
    await restore_archived(journal, archived)
    assert (await fetch(journal, key_of("x"))).row == archived.row
    assert await journal.next_timer() is None
    sent = await journal.take_unsent(limit=9, resend_after=1, backoff_limit=1, queues=None)
    assert sent == []
    with pytest.raises(ExecutionAlreadyExistsError):
        await restore_archived(journal, archived)
    with pytest.raises(InvalidIdError):
        await restore_archived(journal, archived, execution_id="a\x00b")
    key = await restore_archived(journal, archived, tenant="other")
    assert (await fetch(journal, key)).row == replace(archived.row, tenant="other")


async def test_a_live_one_takes_another_id() -> None:
    """J8: a second one is meant, or it is refused; its timers are armed."""
    archived = execution("x", full_log()[:PARKED])
    archived = replace(archived, row=replace(archived.row, inbox=2, hint_at=5, trouble="old code"))
    journal = MemoryJournal(Clock())
    for same in (None, "x"):
        with pytest.raises(InputError, match="was suspended when it was archived"):
            await restore_archived(journal, archived, execution_id=same)
    await restore_archived(journal, archived, execution_id="y")
    row = (await fetch(journal, key_of("y"))).row
    assert (row.status, row.gates, row.wake_at) == (Status.SUSPENDED, ("approve",), 1_050_000)
    assert (row.owner, row.hint_at, row.inbox, row.trouble) == (None, None, 0, None)
    assert await journal.next_timer() == 1_050_000


async def test_a_running_one_is_sent_at_once() -> None:
    """J8."""
    archived = execution("x", full_log()[:5])
    archived = replace(archived, row=replace(archived.row, owner="dead"))
    journal = MemoryJournal(Clock())
    await restore_archived(journal, archived, execution_id="y")
    [sent] = await journal.take_unsent(limit=9, resend_after=1, backoff_limit=1, queues=None)
    assert sent.row.key == key_of("y")


@pytest.mark.parametrize(
    "changed",
    [
        lambda one: replace(one, row=replace(one.row, status=Status.FAILED)),
        lambda one: replace(one, row=replace(one.row, flow="another")),
        lambda one: replace(one, events=(replace(one.events[0], payload=b"\xc1"), *one.events[1:])),
    ],
)
async def test_a_row_that_its_log_does_not_bear_out_is_refused(
    changed: Callable[[ArchivedExecution], ArchivedExecution],
) -> None:
    """J6: the index is the fold of the log, or nothing is planted."""
    journal = MemoryJournal(Clock())
    with pytest.raises(ArchiveError, match="execution 'x'"):
        await restore_archived(journal, changed(execution("x", full_log())))
    assert await journal.get([key_of("x")]) == [None]


async def test_a_real_execution_moves_house() -> None:
    """J8, K7: archived at its gate, it goes on under another id in another fleet."""
    async with House([booking]) as old:
        await book(old, "b-1", answer=None)
        await book(old, "b-2")
        lines = [
            line
            for id_ in ("b-1", "b-2")
            for line in to_lines(await fetch(old.journal, key_of(id_)))
        ]
    waiting, ended = read_archive(lines)
    async with House([booking]) as new:
        await restore_archived(new.journal, ended)
        result = await new.client.handle("b-2", booking).result(timeout=5)
        assert result == f"seat of {SECRET} without a ticket for 50"
        await restore_archived(new.journal, waiting, execution_id="b-3")
        handle = new.client.handle("b-3", booking)
        await handle.resume("board", True)
        assert await handle.result(timeout=5) == result
