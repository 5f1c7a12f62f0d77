"""Executions that come into the journal with a log: forks, restored and archived ones."""

from __future__ import annotations

from typing import Final

import msgspec

from loom_mq.errors import (
    DuplicateSequenceError,
    ExecutionAlreadyExistsError,
    ExecutionEndedError,
)
from loom_mq.journal.protocol import ListQuery
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    Rig,
    accepted,
    events,
    folded,
    name,
    refused,
)

LONG_LOG: Final = 1234
"""Events of a planted log: more than a row or a page of any store is likely to hold."""


class PlantRules:
    """J8."""

    async def test_planted_execution_is_as_it_was_given(self, rig: Rig) -> None:
        """J8: row, log, snapshot and timers, in every status."""
        for status in Status:
            planting = rig.planting(4, status=status, snapshot=folded(2), timers=(5, 9))
            key = await rig.planted(planting)
            assert await rig.row(key) == planting.row
            assert await rig.log(key) == list(planting.events)
            assert await rig.journal.snapshot(key) == folded(2)
            due = await rig.journal.due_timers(limit=10, hold=LONG)
            assert [(each.row.key, each.due) for each in due] == [(key, 5), (key, 9)]
            await rig.journal.drop_timers([(key, 5), (key, 9)])
        assert await rig.journal.count() == dict.fromkeys(Status, 1)
        assert len(await rig.journal.find(ListQuery(version="7", in_doubt=True))) == len(Status)
        assert len(await rig.journal.find(ListQuery(labels={"a": "ü"}, troubled=True))) == len(
            Status
        )

    async def test_planted_execution_goes_on(self, rig: Rig) -> None:
        """J8: like any other: it is sent, claimed, written to, told things, and ends."""
        planting = rig.planting(2)
        planting = msgspec.structs.replace(
            planting, row=msgspec.structs.replace(planting.row, hint_at=17)
        )
        key = await rig.planted(planting)
        assert [each.row.key for each in await rig.take_unsent()] == [key]
        assert (await rig.deliver(key)).error is None
        claimed = (await rig.claim(key, "w", 3)).claimed
        assert claimed is not None
        assert (list(claimed.events), claimed.snapshot) == (list(planting.events), None)
        assert (claimed.start, claimed.row.fence, claimed.row.attempt) == (None, 4, 5)
        refused(await rig.append(key, events(2, fence=4), fence=4), DuplicateSequenceError)
        more, end = events(3, 2, fence=4), events(5, fence=4)
        accepted(await rig.append(key, more, fence=4, consume=("item",)))
        accepted(await rig.append(key, end, fence=4, index=COMPLETED, release=True))
        assert await rig.log(key) == [*planting.events, *more, *end]
        row = await rig.row(key)
        assert (row.status, row.started_at, row.ended_at) == (Status.COMPLETED, 12, end[0].at)

    async def test_planted_start_is_claimed(self, rig: Rig) -> None:
        """J8, F2: an execution that has not begun."""
        planting = msgspec.structs.replace(
            rig.planting(-1, status=Status.PENDING), start=b"\x00the start"
        )
        assert planting.events == ()
        key = await rig.planted(planting)
        claimed = (await rig.claim(key, "w", 3)).claimed
        assert claimed is not None
        assert (claimed.start, claimed.events, claimed.more) == (b"\x00the start", (), False)
        accepted(await rig.append(key, events(0, fence=4), fence=4))
        assert len(await rig.log(key)) == 1

    async def test_log_that_begins_after_its_snapshot(self, rig: Rig) -> None:
        """J8, J7: pages begin with the first event that is kept."""
        planting = rig.planting(9, first=5, snapshot=folded(4))
        key = await rig.planted(planting)
        log = list(planting.events)
        assert await rig.log(key) == log
        for first, limit, newest, wanted in (
            (0, 2, False, log[:2]),
            (3, 3, False, log[:3]),
            (5, 1, False, log[:1]),
            (7, 9, False, log[2:]),
            (0, 2, True, log[-2:]),
            (0, 100, True, log),
            (10, 5, False, []),
        ):
            page = await rig.journal.read(key, first=first, limit=limit, newest=newest)
            assert page == wanted, (first, limit, newest)
        claimed = (await rig.claim(key, "w", 3)).claimed
        assert claimed is not None
        assert (claimed.snapshot, list(claimed.events)) == (folded(4), log)
        assert not claimed.more

    async def test_log_that_begins_after_its_snapshot_goes_on(self, rig: Rig) -> None:
        """J8, J2: by the sequences, not by the number of events that are kept."""
        key = await rig.planted(rig.planting(9, first=5, snapshot=folded(4)))
        assert (await rig.claim(key, "w", 3)).claimed is not None
        for seq in (1, 5, 9, 11):
            error = refused(
                await rig.append(key, events(seq, fence=4), fence=4), DuplicateSequenceError
            )
            assert (error.seq, error.next_seq) == (seq, 10)
        refused(await rig.append(key, events(0, fence=4), fence=4), ExecutionAlreadyExistsError)
        written = events(10, 2, fence=4)
        for _ in range(2):
            accepted(await rig.append(key, written, fence=4))
        assert [event.seq for event in await rig.log(key)] == list(range(5, 12))

    async def test_snapshot_may_stand_for_the_whole_log(self, rig: Rig) -> None:
        """J8, J7: no event is kept, and the next one follows the snapshot."""
        key = await rig.planted(rig.planting(5, first=6, snapshot=folded(5)))
        assert (await rig.row(key)).last_seq == 5
        assert await rig.log(key) == []
        assert await rig.journal.read(key, limit=1, newest=True) == []
        claimed = (await rig.claim(key, "w", 3)).claimed
        assert claimed is not None
        assert (claimed.snapshot, claimed.events, claimed.more) == (folded(5), (), False)
        accepted(await rig.append(key, events(6, fence=4), fence=4))
        assert [event.seq for event in await rig.log(key)] == [6]

    async def test_long_log_is_planted_whole(self, rig: Rig) -> None:
        """J8: page by page it comes back as it was."""
        planting = rig.planting(LONG_LOG - 1)
        key = await rig.planted(planting)
        found: list[Envelope] = []
        while page := await rig.journal.read(key, first=len(found), limit=97):
            found += page
        assert found == list(planting.events)
        last = await rig.journal.read(key, limit=3, newest=True)
        assert last == list(planting.events[-3:])

    async def test_planted_end_is_an_end(self, rig: Rig) -> None:
        """J8, F3: nothing follows, and whoever asks learns of it."""
        planting = rig.planting(3, status=Status.FAILED)
        key = await rig.planted(planting)
        refused(await rig.claim(key, "w", 3), ExecutionEndedError)
        refused(await rig.deliver(key), ExecutionEndedError)
        assert (await rig.journal.watch(key, None)).terminal == planting.events[-1]

    async def test_planting_over_what_exists_is_refused(self, rig: Rig) -> None:
        """J8: whatever stands there, and it is left alone; all or nothing."""
        taken = [await rig.admitted(), await rig.parked(), await rig.ended()]
        for key in taken:
            before, log = await rig.row(key), await rig.log(key)
            planting = rig.planting(0, key=key, snapshot=folded(0), timers=(5,))
            (refusal,) = await rig.journal.plant([planting])
            error = refused(refusal, ExecutionAlreadyExistsError)
            assert error.execution_id == key.execution_id
            assert await rig.row(key) == before
            assert await rig.log(key) == log
            assert await rig.journal.snapshot(key) is None
        assert await rig.journal.due_timers(limit=10, hold=1.0) == []

    async def test_plantings_of_a_batch_are_independent(self, rig: Rig) -> None:
        """J3: the first of two equal ids is planted, the second one finds it."""
        taken, twice = await rig.started(), ExecutionKey(DEFAULT_TENANT, name("twice"))
        plantings = [
            rig.planting(3, key=twice),
            rig.planting(1, key=taken),
            rig.planting(5, key=twice, snapshot=folded(2)),
            rig.planting(2),
        ]
        refusals = await rig.journal.plant(plantings)
        assert [refusal is None for refusal in refusals] == [True, False, False, True]
        for refusal, planting in zip(refusals, plantings, strict=True):
            if refusal is not None:
                error = refused(refusal, ExecutionAlreadyExistsError)
                assert error.execution_id == planting.row.execution_id
        assert await rig.log(twice) == list(plantings[0].events)
        assert await rig.journal.snapshot(twice) is None
        assert await rig.row(plantings[3].row.key) == plantings[3].row
        assert await rig.journal.plant([]) == []
