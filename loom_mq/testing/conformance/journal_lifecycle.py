"""What happens to executions after their end: another log, and none at all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from loom_mq.errors import (
    DuplicateSequenceError,
    ExecutionNotEndedError,
    InvalidIdError,
    LoomError,
    UnknownExecutionError,
)
from loom_mq.journal.protocol import Admission, ListQuery, Rewrite
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status, Waiter
from loom_mq.model.policies import StartPolicy
from loom_mq.model.snapshots import Snapshot
from loom_mq.testing.conformance.journal_index import HOSTILE_IDS
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    RUNNING,
    Rig,
    accepted,
    events,
    folded,
    name,
    refused,
)

ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


async def _of_each_kind(rig: Rig) -> list[ExecutionKey]:
    """Executions that have not ended."""
    return [await rig.admitted(), await rig.started("w", count=2), await rig.parked()]


def _not_ended(refusal: LoomError | None, key: ExecutionKey) -> None:
    error = refused(refusal, ExecutionNotEndedError)
    assert error.execution_id == key.execution_id
    assert key.execution_id in error.message
    # it says what to do
    assert "cancel" in error.message


class RewriteRules:
    """J8: logs are cut and emptied, but of what has ended only."""

    async def _folded_end(self, rig: Rig, *, waiter: Waiter | None = None) -> ExecutionKey:
        """An execution of six events and a snapshot."""
        key = await rig.started(count=2, waiter=waiter)
        accepted(await rig.append(key, events(2, 3)))
        accepted(await rig.append(key, events(5), index=COMPLETED, release=True))
        await rig.journal.save_snapshots([(key, folded(1, "before"))])
        return key

    async def _rewritten(
        self,
        rig: Rig,
        key: ExecutionKey,
        log: Sequence[Envelope],
        snapshot: Snapshot | None = None,
    ) -> LoomError | None:
        (refusal,) = await rig.journal.rewrite(
            [Rewrite(key=key, events=tuple(log), snapshot=snapshot)]
        )
        return refusal

    async def test_log_is_cut_behind_a_snapshot(self, rig: Rig) -> None:
        """J8, J7: what is left is read from its first event on; the end is still known."""
        waiter = Waiter("reply", "c")
        key = await self._folded_end(rig, waiter=waiter)
        log = await rig.log(key)
        assert await self._rewritten(rig, key, log[4:], folded(3)) is None
        for journal in (rig.journal, rig.second):
            assert await journal.read(key) == log[4:]
            assert await journal.read(key, limit=1) == log[4:5]
            assert await journal.read(key, limit=1, newest=True) == log[5:]
            assert await journal.read(key, first=5) == log[5:]
            assert await journal.snapshot(key) == folded(3)
            assert (await journal.watch(key, None)).terminal == log[5]
        # the last append again, after its answer was lost (J4, K9)
        again = await rig.append(key, tuple(log[5:]), index=COMPLETED, release=True)
        assert accepted(again).waiters == (waiter,)
        assert await self._rewritten(rig, key, log[5:], folded(4)) is None
        assert await rig.log(key) == log[5:]

    async def test_snapshot_may_overlap_the_log(self, rig: Rig) -> None:
        """J8: so long as nothing is missing between the two."""
        key = await self._folded_end(rig)
        log = await rig.log(key)
        for first, seq in ((0, 0), (0, 5), (2, 3), (3, 2)):
            assert await self._rewritten(rig, key, log[first:], folded(seq)) is None
            assert await rig.log(key) == log[first:]
            assert await rig.journal.snapshot(key) == folded(seq)

    async def test_payloads_are_taken_out(self, rig: Rig) -> None:
        """J8: the log keeps its shape; what folds and labels said of a person goes too."""
        planting = rig.planting(4, status=Status.FAILED, snapshot=folded(2))
        key = await rig.planted(planting)
        empty = tuple(
            msgspec.structs.replace(event, payload=b"", kind="ERASED") for event in planting.events
        )
        asked = Rewrite(
            key=key, events=empty, error="erased", labels={"b": "kept"}, input_digest=b"erased"
        )
        assert await rig.journal.rewrite([asked]) == [None]
        assert await rig.log(key) == list(empty)
        assert await rig.journal.snapshot(key) is None
        assert await rig.row(key) == msgspec.structs.replace(
            planting.row, error="erased", labels={"b": "kept"}, input_digest=b"erased"
        )
        assert await rig.journal.find(ListQuery(labels={"a": "ü"})) == []
        assert len(await rig.journal.find(ListQuery(labels={"b": "kept"}))) == 1

    async def test_digest_is_kept_where_none_is_given(self, rig: Rig) -> None:
        """J8, K16: the same start still finds it; error and labels are as the rewrite says."""
        planting = rig.planting(1, status=Status.FAILED)
        key = await rig.planted(planting)
        assert await self._rewritten(rig, key, planting.events) is None
        assert await rig.row(key) == msgspec.structs.replace(planting.row, error=None, labels={})

    async def test_long_log_is_rewritten_whole(self, rig: Rig) -> None:
        """J8: in place of many appends, and page by page it comes back."""
        key = await rig.started(count=700)
        for first in (700, 701):
            accepted(await rig.append(key, events(first)))
        accepted(await rig.append(key, events(702, 2), index=COMPLETED, release=True))
        log = await rig.log(key)
        assert await self._rewritten(rig, key, log[3:], folded(2)) is None
        found: list[Envelope] = []
        while page := await rig.journal.read(key, first=3 + len(found), limit=97):
            found += page
        assert found == log[3:]

    # ---- refusals ---------------------------------------------------------------------------

    async def test_rewriting_what_has_not_ended_is_refused(self, rig: Rig) -> None:
        """J8, S25: and changes nothing."""
        for key in await _of_each_kind(rig):
            before, log = await rig.row(key), await rig.log(key)
            _not_ended(await self._rewritten(rig, key, log, folded(0)), key)
            assert await rig.row(key) == before
            assert await rig.log(key) == log
            assert await rig.journal.snapshot(key) is None

    async def test_rewriting_to_another_end_is_refused(self, rig: Rig) -> None:
        """J8: shorter, longer, without any event, or with another last one or its number."""
        key = await self._folded_end(rig)
        log = await rig.log(key)
        for other, seq in (
            (log[:-1], 4),
            ([*log, *events(6)], 6),
            ([], -1),
            ([*log[:-1], *events(5)], 5),
            (log[:1], 0),
            ([*log[:4], msgspec.structs.replace(log[5], seq=4)], 4),
        ):
            refusal = await self._rewritten(rig, key, other, folded(5))
            await self._refused(rig, refusal, key, log, (seq, 6))

    async def test_rewriting_with_a_gap_is_refused(self, rig: Rig) -> None:
        """J8: between the snapshot, or the beginning, and the first event."""
        key = await self._folded_end(rig)
        log = await rig.log(key)
        for first, snapshot in ((1, None), (5, None), (3, folded(1)), (5, folded(3))):
            refusal = await self._rewritten(rig, key, log[first:], snapshot)
            follows = 0 if snapshot is None else snapshot.seq + 1
            await self._refused(rig, refusal, key, log, (first, follows))

    async def _refused(
        self,
        rig: Rig,
        refusal: LoomError | None,
        key: ExecutionKey,
        log: list[Envelope],
        wanted: tuple[int, int],
    ) -> None:
        error = refused(refusal, DuplicateSequenceError)
        assert (error.execution_id, error.seq, error.next_seq) == (key.execution_id, *wanted)
        assert await rig.log(key) == log
        assert await rig.journal.snapshot(key) == folded(1, "before")

    async def test_rewrites_of_a_batch_are_independent(self, rig: Rig) -> None:
        """J3: every kind of refusal, each for its own execution only."""
        first, cut, last = [await self._folded_end(rig) for _ in range(3)]
        running, unknown = await rig.started(), ExecutionKey(DEFAULT_TENANT, name("unknown"))
        keys = [first, unknown, running, cut, last]
        logs = [await rig.log(key) for key in keys]
        logs[3] = logs[3][:2]
        refusals = await rig.journal.rewrite(
            [
                Rewrite(key=key, events=tuple(log), labels={"new": "yes"})
                for key, log in zip(keys, logs, strict=True)
            ]
        )
        wanted = [None, UnknownExecutionError, ExecutionNotEndedError, DuplicateSequenceError, None]
        assert [refusal and type(refusal) for refusal in refusals] == wanted
        for key, refusal in zip(keys, refusals, strict=True):
            if refusal is not None:
                assert refusal.execution_id == key.execution_id
        labels = [(await rig.row(key)).labels for key in (first, running, cut, last)]
        assert labels == [{"new": "yes"}, {}, {}, {"new": "yes"}]
        assert await rig.journal.rewrite([]) == []


class DeleteRules:
    """J8: only what has ended is deleted, and then all of it."""

    async def test_deleted_execution_leaves_nothing(self, rig: Rig) -> None:
        """J8: the same id begins anew as if it had never been: with the same ids of
        envelopes, of inbox items, and the same due times.
        """
        key, later = ExecutionKey(DEFAULT_TENANT, name("again")), 4_000_000_000_000_000
        life, end = events(0, 2), events(2)
        for _ in range(2):
            await rig.admitted(key=key)
            assert (await rig.row(key)).fence == 0
            assert (await rig.claim(key, "w", 0)).claimed is not None
            assert not (await rig.deliver(key, "item")).duplicate
            accepted(await rig.append(key, life, timers=(later,), consume=("item",)))
            assert await rig.journal.snapshot(key) is None
            await rig.journal.save_snapshots([(key, folded(1))])
            ended = await rig.append(key, end, index=COMPLETED, release=True)
            assert accepted(ended).waiters == ()
            await rig.journal.watch(key, Waiter("late", ""))
            assert await rig.journal.delete([key]) == [None]
            assert await rig.journal.get([key]) == [None]
            assert await rig.log(key) == []
            assert await rig.journal.snapshot(key) is None
            assert (await rig.journal.watch(key, None)).row is None
            assert await rig.journal.inbox([key]) == [()]
            assert await rig.journal.find(ListQuery()) == []
            assert await rig.journal.count() == {}
            refused(await rig.claim(key, "w", 1), UnknownExecutionError)
            refused(await rig.append(key, end, index=COMPLETED), UnknownExecutionError)

    async def test_timers_go_with_their_execution(self, rig: Rig) -> None:
        """J8, F9: nothing fires for what is not there."""
        for status in ENDED:
            key = await rig.planted(rig.planting(1, status=status, timers=(5, 6)))
            assert await rig.journal.next_timer() == 5
            assert await rig.journal.delete([key]) == [None]
            assert await rig.journal.next_timer() is None
            assert await rig.journal.due_timers(limit=10, hold=LONG) == []

    async def test_neighbours_are_left_alone(self, rig: Rig) -> None:
        """J8, J10: whatever their names have in common, and in other tenants."""
        text = name("near")
        ids = (f"{text}%", f"{text}_", f"{text}x", f"{text} ", text.upper())
        near = [ExecutionKey(DEFAULT_TENANT, each) for each in ids]
        if rig.stores.many_tenants:
            near.append(ExecutionKey("other", text))
        key = ExecutionKey(DEFAULT_TENANT, text)
        for each in (key, *near):
            await rig.planted(
                rig.planting(2, key=each, status=Status.FAILED, snapshot=folded(1), timers=(5,))
            )
        rows = await rig.journal.get(near)
        assert await rig.journal.delete([key]) == [None]
        assert await rig.journal.get([key, *near]) == [None, *rows]
        for each in near:
            assert len(await rig.log(each)) == 3
            assert await rig.journal.snapshot(each) == folded(1)
        due = await rig.journal.due_timers(limit=10, hold=LONG)
        assert {timer.row.key for timer in due} == set(near)

    async def test_deleting_what_has_not_ended_is_refused(self, rig: Rig) -> None:
        """J8, S25: and changes nothing."""
        for key in await _of_each_kind(rig):
            await rig.deliver(key)
            before, log = await rig.row(key), await rig.log(key)
            (refusal,) = await rig.journal.delete([key])
            _not_ended(refusal, key)
            assert await rig.row(key) == before
            assert await rig.log(key) == log
            assert await rig.unread(key) == ["item"]

    async def test_deletions_of_a_batch_are_independent(self, rig: Rig) -> None:
        """J3: and the second of two equal ones finds nothing."""
        running, unknown = await rig.started(), ExecutionKey(DEFAULT_TENANT, name("unknown"))
        first, last = await rig.ended(), await rig.ended()
        keys = [first, running, unknown, first, last]
        refusals = await rig.journal.delete(keys)
        wanted = [None, ExecutionNotEndedError, UnknownExecutionError, UnknownExecutionError, None]
        assert [refusal and type(refusal) for refusal in refusals] == wanted
        for key, refusal in zip(keys, refusals, strict=True):
            if refusal is not None:
                assert refusal.execution_id == key.execution_id
        rows = await rig.journal.get([first, running, last])
        assert [row is None for row in rows] == [True, False, True]
        assert await rig.journal.delete([]) == []


class LifecycleNameRules:
    """J10, C53: whole executions under any lawful name."""

    async def test_hostile_ids_live_and_go(self, rig: Rig) -> None:
        """J10: planted, folded, rewritten, put aside and deleted, each for itself."""
        for text in HOSTILE_IDS:
            key = ExecutionKey(DEFAULT_TENANT, text)
            aside = ExecutionKey(DEFAULT_TENANT, text[:200] + "-aside")
            if len(aside.execution_id.encode()) > 255:
                aside = ExecutionKey(DEFAULT_TENANT, text[:40] + "-aside")
            planting = rig.planting(2, key=key, status=Status.FAILED)
            await rig.planted(planting)
            await rig.journal.save_snapshots([(key, folded(1, text))])
            rewrite = Rewrite(
                key=key,
                events=planting.events[1:],
                snapshot=folded(2, text),
                error=text,
                labels={text: text},
            )
            assert await rig.journal.rewrite([rewrite]) == [None]
            (row,) = await rig.journal.find(ListQuery(labels={text: text}))
            assert (row.key, row.error) == (key, text)
            start = Admission(
                key=key,
                flow=text,
                version=text,
                queue=text,
                start=b"",
                input_digest=b"",
                policy=StartPolicy.AFTER_CLOSE,
                retire_as=aside.execution_id,
            )
            (verdict,) = await rig.journal.admit([start])
            assert verdict.created
            (row,) = await rig.journal.find(ListQuery(version=text))
            assert row.key == key
            assert await rig.log(aside) == list(planting.events[1:])
            assert await rig.journal.snapshot(aside) == folded(2, text)
            await rig.journal.defer([key], "", LONG, None, text)
            assert (await rig.row(key)).trouble == text
            fence = verdict.row.fence + 1
            assert (await rig.claim(key, "w", fence - 1)).claimed is not None
            for seq, index in ((0, RUNNING), (1, COMPLETED)):
                log = events(seq, fence=fence)
                accepted(await rig.append(key, log, fence=fence, index=index))
            assert await rig.journal.delete([key, aside]) == [None, None]
        assert await rig.journal.find(ListQuery()) == []

    async def test_foreign_tenants_are_refused_by_a_journal_of_one(self, rig: Rig) -> None:
        """J9, J10: where one tenant is served; else they are apart."""
        keys = [ExecutionKey(tenant, name("shared")) for tenant in ("a", "b")]
        planting = rig.planting(0, key=keys[0], status=Status.FAILED)
        if not rig.stores.many_tenants:
            for call in (
                rig.journal.plant([planting]),
                rig.journal.rewrite([Rewrite(key=keys[0], events=planting.events)]),
                rig.journal.delete([keys[0]]),
                rig.journal.snapshot(keys[0]),
                rig.journal.save_snapshots([(keys[0], folded(0))]),
            ):
                with pytest.raises(InvalidIdError):
                    await call
            return
        await rig.planted(planting)
        twin = ExecutionKey("b", keys[0].execution_id)
        await rig.journal.save_snapshots([(twin, folded(0))])
        assert await rig.journal.snapshot(keys[0]) is None
        refusals = await rig.journal.delete([twin])
        refused(refusals[0], UnknownExecutionError)
        assert await rig.row(keys[0]) == planting.row
