"""Starts under an id that is taken: found, or in the place of what has ended."""

from __future__ import annotations

import asyncio

import msgspec

from loom_mq.errors import JournalError, StartFencedOutError
from loom_mq.journal.protocol import Admission, ClaimIntent, IndexUpdate, ListQuery
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status, Waiter
from loom_mq.model.policies import StartPolicy
from loom_mq.testing.conformance.journal_rig import (
    LONG,
    RUNNING,
    Rig,
    accepted,
    events,
    folded,
    name,
    refused,
)

ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
ANEW = (StartPolicy.AFTER_CLOSE, StartPolicy.AFTER_FAILURE)
OLD, NEW = Waiter("reply", "old"), Waiter("reply", "new")


def _start(
    key: ExecutionKey,
    policy: StartPolicy,
    *,
    retire_as: str | None = None,
    digest: bytes = b"other",
) -> Admission:
    return Admission(
        key=key,
        flow="another",
        version="2",
        queue="other",
        start=b"new start",
        input_digest=digest,
        labels={"new": "yes"},
        waiter=NEW,
        resend_after=LONG,
        policy=policy,
        retire_as=name("retired") if retire_as is None else retire_as,
    )


def _retired(admission: Admission) -> ExecutionKey:
    return ExecutionKey(admission.key.tenant, admission.retire_as)


class StartPolicyRules:
    """K16, as far as it is the journal's."""

    async def _at_end(self, rig: Rig, status: Status) -> tuple[ExecutionKey, tuple[Envelope, ...]]:
        """An execution of three events, and its last append."""
        key = await rig.started(count=2, waiter=OLD)
        await rig.deliver(key, "item")
        end = events(2)
        accepted(await rig.append(key, end, index=IndexUpdate(status=status), release=True))
        return key, end

    async def test_ended_execution_makes_way(self, rig: Rig) -> None:
        """K16: it is kept under another id with all that it has, and a new one is pending."""
        for policy, status in [(StartPolicy.AFTER_CLOSE, each) for each in ENDS] + [
            (StartPolicy.AFTER_FAILURE, each) for each in ENDS[1:]
        ]:
            key, end = await self._at_end(rig, status)
            await rig.journal.save_snapshots([(key, folded(1))])
            before, log = await rig.row(key), await rig.log(key)
            asked = _start(key, policy)
            (verdict,) = await rig.journal.admit([asked])
            assert (verdict.created, verdict.same) == (True, True)
            old = _retired(asked)
            assert await rig.row(old) == msgspec.structs.replace(
                before, execution_id=old.execution_id
            )
            assert await rig.log(old) == log
            assert await rig.journal.snapshot(old) == folded(1)
            watched = await rig.journal.watch(old, None)
            assert watched.terminal == end[0]
            # sent again to where it now is, the end still names who waited for it (J4, K9)
            again = await rig.append(old, end, index=IndexUpdate(status=status), release=True)
            assert accepted(again).waiters == (OLD,)

    async def test_new_execution_has_nothing_of_the_old_one(self, rig: Rig) -> None:
        """K16, F2: its row, log, snapshot, inbox and waiters are its own."""
        key, _end = await self._at_end(rig, Status.FAILED)
        await rig.journal.save_snapshots([(key, folded(1))])
        old_row, old_log = await rig.row(key), await rig.log(key)
        now = await rig.journal.now()
        (verdict,) = await rig.journal.admit([_start(key, StartPolicy.AFTER_CLOSE)])
        row = await rig.row(key)
        assert verdict.row == row
        assert (row.flow, row.version, row.queue) == ("another", "2", "other")
        assert (row.labels, row.input_digest) == ({"new": "yes"}, b"other")
        assert (row.status, row.last_seq, row.owner, row.attempt) == (Status.PENDING, -1, None, 0)
        assert (row.error, row.started_at, row.ended_at, row.inbox) == (None, None, None, 0)
        assert row.created_at >= now > old_row.created_at
        assert row.hint_at is not None
        assert await rig.log(key) == []
        assert await rig.journal.snapshot(key) is None
        claimed = (await rig.claim(key, "w", row.fence)).claimed
        assert claimed is not None
        assert (claimed.start, claimed.snapshot, claimed.events) == (b"new start", None, ())
        fence = claimed.row.fence
        # neither ids of envelopes nor ids of items are taken
        begin = [msgspec.structs.replace(old_log[0], fence=fence)]
        accepted(await rig.append(key, tuple(begin), fence=fence))
        assert not (await rig.deliver(key, "item")).duplicate
        end = events(1, fence=fence)
        completed = IndexUpdate(status=Status.COMPLETED)
        verdict_of_end = await rig.append(key, end, fence=fence, index=completed, release=True)
        assert accepted(verdict_of_end).waiters == (NEW,)
        assert await rig.log(key) == [*begin, *end]

    async def test_nothing_of_the_old_one_reaches_the_new_one(self, rig: Rig) -> None:
        """K16, J2, J4: its appends, sent again or held up on the way, and its first package,
        which may be redelivered: they name fences that have passed.
        """
        key = await rig.admitted()
        claimed = (await rig.claim(key, "w", 0)).claimed
        assert claimed is not None
        life = events(0, 2)
        completed = IndexUpdate(status=Status.COMPLETED)
        accepted(await rig.append(key, life, index=completed, release=True))
        (verdict,) = await rig.journal.admit([_start(key, StartPolicy.AFTER_CLOSE)])
        assert verdict.created
        before = await rig.row(key)
        again = await rig.append(key, life, index=completed, release=True)
        assert isinstance(again.error, JournalError)
        package = ClaimIntent(owner="w", expected_fence=0)
        error = refused(await rig.append(key, life, claim=package), StartFencedOutError)
        assert error.current == before.fence
        assert await rig.row(key) == before
        assert await rig.log(key) == []
        taken = (await rig.claim(key, "w", error.current)).claimed
        assert taken is not None
        assert (taken.row.fence, taken.start) == (error.current + 1, b"new start")
        late = await rig.append(key, life, index=completed, release=True)
        assert isinstance(late.error, JournalError)
        assert await rig.log(key) == []

    async def test_completed_execution_stays_after_failure(self, rig: Rig) -> None:
        """K16: what succeeded is not done again."""
        key, _end = await self._at_end(rig, Status.COMPLETED)
        await self._finds(rig, _start(key, StartPolicy.AFTER_FAILURE))

    async def test_existing_and_reject_find_what_has_ended(self, rig: Rig) -> None:
        """K16: a refusal is the caller's affair."""
        for policy in (StartPolicy.EXISTING, StartPolicy.REJECT):
            for status in ENDS:
                key, _end = await self._at_end(rig, status)
                await self._finds(rig, _start(key, policy))

    async def test_unended_execution_is_found(self, rig: Rig) -> None:
        """K16, F2: under every policy, and the waiter is added."""
        for policy in StartPolicy:
            pending, parked = await rig.admitted(), await rig.parked()
            running = await rig.started("w")
            for key in (pending, parked, running):
                await self._finds(rig, _start(key, policy))
                (same,) = await rig.journal.admit([_start(key, policy, digest=b"digest")])
                assert (same.created, same.same) == (False, True)
            end = events(1)
            verdict = await rig.append(
                running, end, index=IndexUpdate(status=Status.COMPLETED), release=True
            )
            assert accepted(verdict).waiters == (NEW,)

    async def _finds(self, rig: Rig, asked: Admission) -> None:
        before, log = await rig.row(asked.key), await rig.log(asked.key)
        (verdict,) = await rig.journal.admit([asked])
        assert (verdict.created, verdict.same) == (False, False)
        assert verdict.row == before
        assert await rig.row(asked.key) == before
        assert await rig.log(asked.key) == log
        assert await rig.journal.get([_retired(asked)]) == [None]

    async def test_same_start_again_is_found(self, rig: Rig) -> None:
        """K16, J4: before the new one has ended and after, however often its answer is lost:
        the id that it retires under is taken, and what stands there is left alone.
        """
        for policy in ANEW:
            key, _end = await self._at_end(rig, Status.FAILED)
            asked = _start(key, policy)
            both = await rig.journal.admit([asked, asked])
            assert [verdict.created for verdict in both] == [True, False]
            old = await rig.row(_retired(asked))
            (pending,) = await rig.second.admit([asked])
            assert (pending.created, pending.same) == (False, True)
            fence = pending.row.fence + 1
            claim = ClaimIntent(owner="w", expected_fence=fence - 1)
            begin, end = events(0, fence=fence), events(1, fence=fence)
            accepted(await rig.append(key, begin, fence=fence, claim=claim, index=RUNNING))
            failed = IndexUpdate(status=Status.FAILED)
            accepted(await rig.append(key, end, fence=fence, index=failed, release=True))
            before = await rig.row(key)
            (found,) = await rig.journal.admit([asked])
            assert (found.created, found.same, found.row) == (False, True, before)
            assert await rig.row(_retired(asked)) == old
            assert await rig.log(key) == [*begin, *end]
            (anew,) = await rig.journal.admit([_start(key, policy)])
            assert anew.created
            assert anew.row.fence > fence

    async def test_starts_of_a_batch_are_independent(self, rig: Rig) -> None:
        """J3: new, in the place of another, and found."""
        failed, _end = await self._at_end(rig, Status.FAILED)
        completed, _end = await self._at_end(rig, Status.COMPLETED)
        new = ExecutionKey(DEFAULT_TENANT, name("new"))
        asked = [_start(key, StartPolicy.AFTER_FAILURE) for key in (failed, completed, new)]
        verdicts = await rig.journal.admit(asked)
        assert [verdict.created for verdict in verdicts] == [True, False, True]
        assert [verdict.row.key for verdict in verdicts] == [failed, completed, new]
        kept = await rig.journal.get([_retired(each) for each in asked])
        assert [row and row.status for row in kept] == [Status.FAILED, None, None]
        assert await rig.journal.count() == {
            Status.FAILED: 1,
            Status.COMPLETED: 1,
            Status.PENDING: 2,
        }
        found = await rig.journal.find(ListQuery())
        assert {row.key for row in found} == {failed, completed, new, _retired(asked[0])}
        order = [(row.created_at, row.execution_id) for row in found]
        assert order == sorted(order, reverse=True)

    async def test_concurrent_starts_make_one_new_execution(self, rig: Rig) -> None:
        """K16, F2: through two handles at once, each with an id of its own to retire under."""
        keys = [(await self._at_end(rig, Status.FAILED))[0] for _ in range(3)]
        answers = await asyncio.gather(
            *(
                each.admit([_start(key, StartPolicy.AFTER_CLOSE) for key in keys])
                for each in [rig.journal, rig.second] * 3
            )
        )
        for place in range(len(keys)):
            assert sum(answer[place].created for answer in answers) == 1
        assert await rig.journal.count() == {Status.FAILED: 3, Status.PENDING: 3}
