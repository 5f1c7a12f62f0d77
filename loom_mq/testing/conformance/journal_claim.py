"""Ownership: claims, fences, and giving back."""

from __future__ import annotations

import asyncio

import pytest

from loom_mq.clock import MICROS
from loom_mq.errors import (
    ExecutionEndedError,
    HeldByLiveOwnerError,
    StaleFenceError,
    UnknownExecutionError,
)
from loom_mq.journal.protocol import CLAIM_PAGE, Claim, ClaimVerdict, IndexUpdate
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.testing.conformance.journal_rig import (
    LONG,
    Rig,
    accepted,
    events,
    name,
    refused,
)


class ClaimRules:
    """J5 and F7."""

    async def test_claim_takes_the_next_fence(self, rig: Rig) -> None:
        """J5: fence and attempt grow by one, and the old holder is fenced out."""
        key = await rig.started("dead")
        before = await rig.row(key)
        now = await rig.journal.now()
        claimed = (await rig.claim(key, "next", 1, deadline=LONG)).claimed
        assert claimed is not None
        row = claimed.row
        assert (row.fence, row.owner, row.attempt) == (2, "next", before.attempt + 1)
        assert (row.hint_at, row.hints) == (None, 0)
        assert row.deadline is not None
        assert row.deadline >= now + int(LONG * MICROS)
        assert claimed.now >= now
        assert await rig.row(key) == row
        assert (row.status, row.last_seq) == (before.status, before.last_seq)
        refused(await rig.append(key, events(1)), StaleFenceError)
        accepted(await rig.append(key, events(1, fence=2), fence=2))

    async def test_claim_names_the_fence_that_it_supersedes(self, rig: Rig) -> None:
        """J5: whoever comes second loses, so takeovers cannot play ping-pong."""
        key = await rig.started("dead")
        assert (await rig.claim(key, "b", 1)).claimed is not None
        before = await rig.row(key)
        for expected in (0, 1, 3):
            error = refused(await rig.claim(key, "c", expected, preempt=True), StaleFenceError)
            assert (error.execution_id, error.held, error.current) == (
                key.execution_id,
                expected,
                2,
            )
        refused(await rig.claim(key, "dead", 1, preempt=True), StaleFenceError)
        assert await rig.row(key) == before

    async def test_concurrent_claims_have_one_winner(self, rig: Rig) -> None:
        """J5: through two handles at once."""
        keys = [await rig.started("dead") for _ in range(5)]

        async def take(owner: str) -> list[ClaimVerdict]:
            journal = rig.journal if owner < "w4" else rig.second
            return await journal.claim([Claim(key=k, owner=owner, expected_fence=1) for k in keys])

        answers = await asyncio.gather(*(take(f"w{n}") for n in range(8)))
        for place, key in enumerate(keys):
            winners = [answer[place].claimed for answer in answers if answer[place].claimed]
            assert len(winners) == 1
            row = await rig.row(key)
            assert winners[0] is not None
            assert (row.fence, row.owner, row.attempt) == (2, winners[0].row.owner, 2)

    async def test_claim_again_after_a_lost_answer(self, rig: Rig) -> None:
        """J4, J5: the same claim answers as claimed, and takes nothing twice."""
        key = await rig.started("dead", count=2)
        await rig.alive("w")
        first = (await rig.claim(key, "w", 1)).claimed
        again = (await rig.claim(key, "w", 1)).claimed
        assert first is not None
        assert again is not None
        assert (again.row, again.events, again.inbox) == (first.row, first.events, first.inbox)
        accepted(await rig.append(key, events(2, fence=2), fence=2))
        later = (await rig.claim(key, "w", 1)).claimed
        assert later is not None
        assert (later.row.fence, later.row.attempt, len(later.events)) == (2, 2, 3)

    async def test_live_owner_is_left_alone(self, rig: Rig) -> None:
        """F7: whoever claims, and with the right fence too; but it may claim itself."""
        await rig.alive("holder")
        key = await rig.started("holder")
        before = await rig.row(key)
        error = refused(await rig.claim(key, "other", 1), HeldByLiveOwnerError)
        assert (error.execution_id, error.owner) == (key.execution_id, "holder")
        assert await rig.row(key) == before
        claimed = (await rig.claim(key, "holder", 1)).claimed
        assert claimed is not None
        assert claimed.row.fence == 2

    async def test_live_owner_can_be_preempted(self, rig: Rig) -> None:
        """ADR 0004's policy, which the fleet never uses."""
        await rig.alive("holder")
        key = await rig.started("holder")
        claimed = (await rig.claim(key, "other", 1, preempt=True)).claimed
        assert claimed is not None
        assert (claimed.row.owner, claimed.row.fence) == ("other", 2)

    async def test_lapsed_owner_is_taken_over(self, rig: Rig) -> None:
        """F7: by the journal's clock."""
        lease = await rig.alive("holder", ttl=0.3)
        key = await rig.started("holder")
        refused(await rig.claim(key, "other", 1), HeldByLiveOwnerError)
        await rig.let_pass(0.3)
        claimed = (await rig.claim(key, "other", 1)).claimed
        assert claimed is not None
        assert claimed.row.owner == "other"
        await lease.close()

    async def test_wedged_owner_is_taken_over(self, rig: Rig) -> None:
        """F7: alive, but its attempt has passed its deadline."""
        await rig.alive("holder")
        key = await rig.started("holder", deadline=0.3)
        refused(await rig.claim(key, "other", 1), HeldByLiveOwnerError)
        await rig.let_pass(0.3)
        assert (await rig.claim(key, "other", 1)).claimed is not None

    async def test_claim_of_what_has_ended_or_is_unknown(self, rig: Rig) -> None:
        """F3: nothing is taken from a terminal execution."""
        key = await rig.ended()
        before = await rig.row(key)
        error = refused(await rig.claim(key, "w", 1, preempt=True), ExecutionEndedError)
        assert error.execution_id == key.execution_id
        assert await rig.row(key) == before
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        assert (
            refused(await rig.claim(unknown, "w", 0), UnknownExecutionError).execution_id
            == unknown.execution_id
        )

    async def test_claims_of_a_batch_are_independent(self, rig: Rig) -> None:
        """J3: each has its own answer, in the order given."""
        await rig.alive("holder")
        ended, held, free = await rig.ended(), await rig.started("holder"), await rig.parked()
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        stale = await rig.started("dead")
        keys = [ended, held, free, unknown, stale]
        fences = [1, 1, 1, 0, 0]
        verdicts = await rig.journal.claim(
            [
                Claim(key=key, owner="w", expected_fence=fence)
                for key, fence in zip(keys, fences, strict=True)
            ]
        )
        refused(verdicts[0], ExecutionEndedError)
        refused(verdicts[1], HeldByLiveOwnerError)
        assert verdicts[2].claimed is not None
        refused(verdicts[3], UnknownExecutionError)
        refused(verdicts[4], StaleFenceError)
        assert await rig.journal.claim([]) == []

    async def test_claim_brings_what_the_claimant_needs(self, rig: Rig) -> None:
        """F3: log, inbox and, while the log is empty, the start payload."""
        key = await rig.admitted(start=b"\x00the start")
        claimed = (await rig.claim(key, "dead", 0)).claimed
        assert claimed is not None
        assert (claimed.events, claimed.more, claimed.start) == ((), False, b"\x00the start")
        assert claimed.row.status is Status.PENDING
        accepted(await rig.append(key, events(0, 3)))
        for item_id in ("z", "a", "m"):
            await rig.deliver(key, item_id)
        claimed = (await rig.claim(key, "next", 1)).claimed
        assert claimed is not None
        assert (list(claimed.events), claimed.start) == (await rig.log(key), None)
        assert [item.item_id for item in claimed.inbox] == ["z", "a", "m"]
        assert claimed.inbox[0] == rig.item(key, "z")
        assert claimed.row.inbox == 3

    async def test_claim_sends_what_the_claimant_lacks(self, rig: Rig) -> None:
        """J5: events after `known_seq`, a page at most."""
        key = await rig.started("dead", count=CLAIM_PAGE - 2)
        accepted(await rig.append(key, events(CLAIM_PAGE - 2, 5)))
        last = CLAIM_PAGE + 2
        fence = 1
        for known, wanted in ((-1, CLAIM_PAGE), (1, CLAIM_PAGE), (2, CLAIM_PAGE), (last - 1, 1)):
            claimed = (await rig.claim(key, f"w{known}", fence, known_seq=known)).claimed
            assert claimed is not None
            assert [e.seq for e in claimed.events] == list(range(known + 1, known + 1 + wanted))
            assert claimed.more == (known + wanted < last)
            fence += 1
        claimed = (await rig.claim(key, "w", fence, known_seq=last)).claimed
        assert claimed is not None
        assert (claimed.events, claimed.more) == ((), False)

    # ---- fences by hand ------------------------------------------------------------------

    async def test_acquire_fence_is_compare_and_set(self, rig: Rig) -> None:
        """J5: it names what it supersedes, or takes it whatever stands."""
        key = await rig.started("dead")
        assert await rig.journal.acquire_fence(key, 1) == 2
        for expected in (0, 1, 3):
            with pytest.raises(StaleFenceError) as caught:
                await rig.journal.acquire_fence(key, expected)
            assert (caught.value.execution_id, caught.value.current) == (key.execution_id, 2)
        assert await rig.journal.acquire_fence(key, None) == 3
        refused(await rig.append(key, events(1)), StaleFenceError)
        accepted(await rig.append(key, events(1, fence=3), fence=3))
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        with pytest.raises(UnknownExecutionError) as missing:
            await rig.journal.acquire_fence(unknown, None)
        assert missing.value.execution_id == unknown.execution_id

    async def test_displaced_holder_leaves_nothing_lying(self, rig: Rig) -> None:
        """J5, F7: it will go quiet, so nobody holds the execution and it is sent again."""
        await rig.alive("holder")
        key = await rig.started("holder")
        await rig.journal.acquire_fence(key, 1)
        row = await rig.row(key)
        assert (row.owner, row.deadline) == (None, None)
        assert row.hint_at is not None

    async def test_concurrent_fences_are_handed_out_once(self, rig: Rig) -> None:
        """J5: through two handles at once."""
        key = await rig.started("dead")
        handles = [rig.journal, rig.second] * 4
        fences = await asyncio.gather(*(each.acquire_fence(key, None) for each in handles))
        assert sorted(fences) == list(range(2, 10))

    # ---- giving back ---------------------------------------------------------------------

    async def test_defer_gives_back_what_is_held(self, rig: Rig) -> None:
        """F7: by its holder, or by nobody; to be sent again after the delay."""
        await rig.alive("w")
        held, other = await rig.started("w", deadline=LONG), await rig.started("other")
        free, ended = await rig.parked(), await rig.ended()
        untouched = [await rig.row(other), await rig.row(ended)]
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        await rig.journal.defer([held, other, free, ended, unknown], "w", 0.0)
        now = await rig.journal.now()
        for key in (held, free):
            row = await rig.row(key)
            assert (row.owner, row.deadline, row.fence) == (None, None, 1)
            assert row.hint_at is not None
            assert row.hint_at <= now
        assert [await rig.row(other), await rig.row(ended)] == untouched
        await rig.journal.defer([held], "w", LONG)
        row = await rig.row(held)
        assert row.hint_at is not None
        assert row.hint_at > now
        await rig.journal.defer([], "w", 0.0)

    async def test_belated_giving_back_takes_no_newer_claim(self, rig: Rig) -> None:
        """J5: where it names the fence that it gives back."""
        await rig.alive("w")
        key, other = await rig.started("w"), await rig.started("w")
        assert (await rig.claim(key, "w", 1)).claimed is not None
        before = await rig.row(key)
        await rig.journal.defer([key, other], "w", 0.0, [1, 1])
        assert await rig.row(key) == before
        assert (await rig.row(other)).owner is None
        await rig.journal.defer([key], "w", 0.0, [2])
        assert (await rig.row(key)).owner is None

    async def test_defer_without_a_delay_leaves_a_park_alone(self, rig: Rig) -> None:
        """F7: a parked execution that had nothing to do is not sent again."""
        key = await rig.parked()
        assert (await rig.claim(key, "w", 1)).claimed is not None
        await rig.journal.defer([key], "w", None)
        row = await rig.row(key)
        assert (row.owner, row.hint_at, row.status) == (None, None, Status.SUSPENDED)

    async def test_defer_keeps_the_hint_of_mail_that_came_meanwhile(self, rig: Rig) -> None:
        """K7: the holder may not have seen what came between its claim and its giving back."""
        key = await rig.parked()
        assert (await rig.claim(key, "w", 1)).claimed is not None
        await rig.deliver(key, resend_after=0.0)
        await rig.journal.defer([key], "w", None)
        assert (await rig.row(key)).hint_at is not None
        assert [each.row.key for each in await rig.take_unsent()] == [key]

    async def test_defer_does_not_bring_seen_mail_back_for_ever(self, rig: Rig) -> None:
        """K7: an answer that waits for its gate does not wake the execution again and again."""
        key = await rig.parked()
        await rig.deliver(key, resend_after=0.0)
        assert (await rig.claim(key, "w", 1)).claimed is not None
        await rig.journal.defer([key], "w", None)
        assert (await rig.row(key)).hint_at is None

    async def test_defer_keeps_the_hint_of_a_timer_that_fired_meanwhile(self, rig: Rig) -> None:
        """F9: the holder may have looked before the timer was due, and the timer's row goes."""
        key = await rig.parked(timers=(1,))
        assert (await rig.claim(key, "w", 1)).claimed is not None
        assert [each.row.key for each in await rig.journal.due_timers(limit=10, hold=0.0)] == [key]
        await rig.journal.defer([key], "w", None, [2])
        assert (await rig.row(key)).hint_at is not None

    async def test_defer_leaves_a_newer_claim_alone(self, rig: Rig) -> None:
        """J5: giving back late takes nothing from the same owner's newer claim."""
        await rig.alive("w")
        key = await rig.parked()
        assert (await rig.claim(key, "w", 1)).claimed is not None
        await rig.journal.defer([key], "w", 0.0, [2])
        assert (await rig.claim(key, "w", 2)).claimed is not None
        held = await rig.row(key)
        await rig.journal.defer([key], "w", 0.0, [2])
        assert await rig.row(key) == held
        await rig.journal.defer([key], "w", 0.0, [3])
        assert (await rig.row(key)).owner is None

    async def test_trouble_stays_until_something_is_written(self, rig: Rig) -> None:
        """K3: why the last attempt could do nothing, for people; attempts do not clear it."""
        key, other = await rig.parked(), await rig.started("other")
        unknown, ended = ExecutionKey(DEFAULT_TENANT, name("unknown")), await rig.ended()
        assert (await rig.row(key)).trouble is None
        assert (await rig.claim(key, "w", 1)).claimed is not None
        before = [await rig.row(other), await rig.row(ended)]
        told = "the code asks for step 'ü', the log holds\n'b'"
        await rig.journal.defer([key, other, ended, unknown], "w", LONG, None, told)
        row = await rig.row(key)
        assert (row.trouble, row.owner) == (told, None)
        assert row.hint_at is not None
        assert [await rig.row(other), await rig.row(ended)] == before
        await rig.journal.defer([key], "w", 0.0)
        assert (await rig.row(key)).trouble == told
        claimed = (await rig.claim(key, "w", 2)).claimed
        assert claimed is not None
        assert claimed.row.trouble == told
        await rig.journal.defer([key], "w", None, [2], "belated")
        assert (await rig.row(key)).trouble == told
        await rig.journal.defer([key], "w", None, [3], "newer")
        assert (await rig.row(key)).trouble == "newer"
        assert (await rig.claim(key, "w", 3)).claimed is not None
        accepted(await rig.append(key, events(2, fence=4), fence=4))
        assert (await rig.row(key)).trouble is None

    async def test_trouble_ends_with_the_execution(self, rig: Rig) -> None:
        """K3: also where nothing but the end is written, and a park is like any append."""
        for status in (Status.SUSPENDED, Status.COMPLETED, Status.CANCELLED):
            key = await rig.parked()
            await rig.journal.defer([key], "w", LONG, None, "trouble")
            end = await rig.append(key, events(2), index=IndexUpdate(status=status), release=True)
            accepted(end)
            assert (await rig.row(key)).trouble is None
