"""Appends: compare-and-set, all or nothing, independent of each other, safe to repeat."""

from __future__ import annotations

from loom_mq.errors import (
    DuplicateEnvelopeIdError,
    DuplicateSequenceError,
    ExecutionAlreadyExistsError,
    HeldByLiveOwnerError,
    LoomError,
    StaleFenceError,
    StartFencedOutError,
    UnknownExecutionError,
)
from loom_mq.journal.protocol import Append, ClaimIntent, IndexUpdate
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status, Waiter
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    RUNNING,
    Rig,
    accepted,
    events,
    name,
    refused,
)


def _append(
    key: ExecutionKey,
    envelopes: tuple[Envelope, ...],
    fence: int = 1,
    status: Status = Status.RUNNING,
) -> Append:
    return Append(key=key, fence=fence, events=envelopes, index=IndexUpdate(status=status))


class AppendRules:
    """J1 to J4."""

    async def test_start_takes_ownership_in_the_same_append(self, rig: Rig) -> None:
        """F2, J2: the claim travels in the append that starts the execution."""
        key = await rig.admitted()
        pending = await rig.row(key)
        claim = ClaimIntent(owner="w", expected_fence=0, deadline=60.0)
        first = events(0, 2)
        verdict = accepted(await rig.append(key, first, claim=claim))
        assert (verdict.inbox, verdict.waiters) == (0, ())
        row = await rig.row(key)
        assert (row.status, row.last_seq, row.fence, row.owner) == (Status.RUNNING, 1, 1, "w")
        assert (row.attempt, row.hints, row.hint_at) == (1, 0, None)
        assert (row.started_at, row.updated_at, row.ended_at) == (first[0].at, first[1].at, None)
        assert row.deadline is not None
        assert row.deadline > await rig.journal.now()
        assert (pending.status, pending.last_seq, pending.fence) == (Status.PENDING, -1, 0)
        assert (pending.owner, pending.started_at) == (None, None)
        assert pending.hint_at is not None
        assert row.created_at == pending.created_at
        assert await rig.log(key) == list(first)

    async def test_append_without_the_current_fence_is_refused(self, rig: Rig) -> None:
        """J2: an older fence, and one that was never handed out."""
        key = await rig.started()
        await rig.journal.acquire_fence(key, 1)
        before, log = await rig.row(key), await rig.log(key)
        for fence in (0, 1, 3):
            error = refused(
                await rig.append(key, events(1, fence=fence), fence=fence), StaleFenceError
            )
            assert (error.execution_id, error.held, error.current) == (key.execution_id, fence, 2)
        assert await rig.row(key) == before
        assert await rig.log(key) == log
        accepted(await rig.append(key, events(1, fence=2), fence=2))

    async def test_append_at_another_sequence_is_refused(self, rig: Rig) -> None:
        """J2: a gap, and a place that is taken."""
        key = await rig.started(count=3)
        before, log = await rig.row(key), await rig.log(key)
        for seq in (1, 2, 4, 50):
            error = refused(await rig.append(key, events(seq)), DuplicateSequenceError)
            assert (error.execution_id, error.seq, error.next_seq) == (key.execution_id, seq, 3)
        assert await rig.row(key) == before
        assert await rig.log(key) == log

    async def test_append_is_all_or_nothing(self, rig: Rig) -> None:
        """J2: events that would be fine alone do not land with one that is not."""
        key = await rig.started(count=2)
        log = await rig.log(key)
        refused(await rig.append(key, events(1, 3)), DuplicateSequenceError)
        refused(await rig.append(key, (log[1], *events(2, 2))), DuplicateSequenceError)
        assert await rig.log(key) == log
        assert (await rig.row(key)).last_seq == 1

    async def test_refused_append_changes_nothing_beside_the_log(self, rig: Rig) -> None:
        """J2: neither timers nor inbox nor ownership."""
        key = await rig.started()
        await rig.deliver(key, "kept")
        before = await rig.row(key)
        index = IndexUpdate(status=Status.SUSPENDED, gates=("g",), wake_at=1)
        for envelopes, fence in ((events(1), 7), (events(9), 1)):
            verdict = await rig.append(
                key,
                envelopes,
                fence=fence,
                index=index,
                release=True,
                timers=(1,),
                consume=("kept",),
            )
            assert isinstance(verdict.error, StaleFenceError | DuplicateSequenceError)
        assert await rig.row(key) == before
        assert await rig.unread(key) == ["kept"]
        assert await rig.journal.due_timers(limit=10, hold=1.0) == []

    async def test_members_of_a_batch_are_independent(self, rig: Rig) -> None:
        """J3: every kind of refusal in one batch, each for its own execution only."""
        good, stale, gap, twice, late, last = [await rig.started(hint=f"m{n}") for n in range(6)]
        await rig.journal.acquire_fence(stale, 1)
        recorded = (await rig.log(twice))[0]
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        again = _append(late, events(1))
        accepted((await rig.journal.append([again]))[0])
        batch = [
            _append(good, events(1, 2)),
            _append(stale, events(1)),
            _append(unknown, events(0)),
            _append(gap, events(5)),
            again,
            _append(twice, (Envelope(recorded.id, 1, "K", 1, 1, True, 1, b""),)),
            _append(last, events(1), status=Status.COMPLETED),
        ]
        verdicts = await rig.journal.append(batch)
        wanted: list[type[LoomError] | None] = [
            None,
            StaleFenceError,
            UnknownExecutionError,
            DuplicateSequenceError,
            None,
            DuplicateEnvelopeIdError,
            None,
        ]
        assert [v.error and type(v.error) for v in verdicts] == wanted
        for append, verdict in zip(batch, verdicts, strict=True):
            if verdict.error is not None:
                assert verdict.error.execution_id == append.key.execution_id
        keys = [good, stale, gap, twice, late, last]
        rows = [await rig.row(key) for key in keys]
        assert [row.last_seq for row in rows] == [2, 0, 0, 0, 1, 1]
        assert [len(await rig.log(key)) for key in keys] == [3, 1, 1, 1, 2, 2]
        assert rows[-1].status is Status.COMPLETED

    async def test_verdict_in_a_batch_is_the_verdict_alone(self, rig: Rig) -> None:
        """J3: the place in the batch does not matter."""
        bad = [await rig.started(hint="bad") for _ in range(4)]
        fine = [await rig.started(hint="fine") for _ in range(5)]
        batch = [_append(key, events(1), fence=9) for key in bad]
        for place, key in enumerate(fine):
            batch.insert(2 * place, _append(key, events(1)))
        verdicts = await rig.journal.append(batch)
        for append, verdict in zip(batch, verdicts, strict=True):
            assert (verdict.error is None) == (append.key in fine)
        assert await rig.journal.append([]) == []

    # ---- again, after the answer was lost -----------------------------------------------

    async def test_same_append_again_is_a_success(self, rig: Rig) -> None:
        """J4: at once, after later appends, and after the fence has moved on; never doubled."""
        key = await rig.admitted()
        claim = ClaimIntent(owner="w", expected_fence=0)
        start, middle = events(0, 2), events(2, 3)
        for _ in range(2):
            accepted(await rig.append(key, start, claim=claim))
        row = await rig.row(key)
        assert (row.fence, row.attempt) == (1, 1)
        for _ in range(2):
            accepted(await rig.append(key, middle))
        accepted(await rig.append(key, events(5)))
        log = await rig.log(key)
        assert [event.seq for event in log] == list(range(6))
        await rig.journal.acquire_fence(key, 1)
        before = await rig.row(key)
        accepted(await rig.append(key, start, claim=claim))
        accepted(await rig.append(key, middle))
        assert await rig.row(key) == before
        assert await rig.log(key) == log
        refused(await rig.append(key, events(6)), StaleFenceError)

    async def test_terminal_append_again_names_the_waiters_again(self, rig: Rig) -> None:
        """J4, K9: whoever lost the answer still learns whom to tell."""
        waiter = Waiter("reply", "c")
        key = await rig.started(waiter=waiter)
        end = events(1)
        for _ in range(3):
            verdict = accepted(await rig.append(key, end, index=COMPLETED, release=True))
            assert verdict.waiters == (waiter,)
            assert verdict.inbox == 0
        assert len(await rig.log(key)) == 2

    async def test_other_ids_at_a_taken_sequence_are_refused(self, rig: Rig) -> None:
        """J4: only the very same envelopes are a repetition."""
        key = await rig.started()
        written = events(1, 2)
        accepted(await rig.append(key, written))
        for envelopes in (events(1, 2), (written[0], *events(2)), (*events(1), written[1])):
            refused(await rig.append(key, envelopes), DuplicateSequenceError)
        refused(await rig.append(key, (*written, *events(3))), DuplicateSequenceError)
        assert (await rig.log(key))[1:] == list(written)

    async def test_recorded_envelope_id_at_another_sequence_is_refused(self, rig: Rig) -> None:
        """J2: an id is recorded once."""
        key = await rig.started()
        written = events(1, 2)
        accepted(await rig.append(key, written))
        moved = Envelope(written[0].id, 3, "K", 1, 1, True, 1, b"")
        error = refused(await rig.append(key, (moved, *events(4))), DuplicateEnvelopeIdError)
        assert error.execution_id == key.execution_id
        assert len(await rig.log(key)) == 3
        other = await rig.started()
        accepted(await rig.append(other, (written[0],)))

    # ---- the race for sequence 0 -----------------------------------------------------------

    async def test_second_start_finds_the_execution(self, rig: Rig) -> None:
        """J2, F5: the race for sequence 0 has one winner, and the loser is superseded."""
        key = await rig.admitted()
        intents = [ClaimIntent(owner=owner, expected_fence=0) for owner in ("a", "b")]
        starts = [
            Append(key=key, fence=1, events=events(0), index=RUNNING, claim=intent)
            for intent in intents
        ]
        accepted((await rig.journal.append(starts[:1]))[0])
        error = refused((await rig.second.append(starts[1:]))[0], ExecutionAlreadyExistsError)
        assert error.execution_id == key.execution_id
        row = await rig.row(key)
        assert (row.owner, row.fence, row.attempt) == ("a", 1, 1)
        refused(await rig.append(key, events(0)), ExecutionAlreadyExistsError)

    async def test_start_fenced_out_by_a_silent_holder(self, rig: Rig) -> None:
        """F6: not superseded, but told which fence to take instead; then it starts."""
        key = await rig.admitted(start=b"the start")
        assert await rig.journal.acquire_fence(key, 0) == 1
        claim = ClaimIntent(owner="w", expected_fence=0)
        error = refused(await rig.append(key, events(0), claim=claim), StartFencedOutError)
        assert (error.execution_id, error.current) == (key.execution_id, 1)
        assert await rig.log(key) == []
        claimed = (await rig.claim(key, "w", error.current)).claimed
        assert claimed is not None
        assert (claimed.row.fence, claimed.start, claimed.events) == (2, b"the start", ())
        accepted(await rig.append(key, events(0, fence=2), fence=2))
        refused(await rig.append(key, events(0), claim=claim), ExecutionAlreadyExistsError)

    async def test_start_leaves_a_live_holder_alone(self, rig: Rig) -> None:
        """F7: also when the fence it names is the current one."""
        key = await rig.admitted()
        await rig.alive("holder")
        assert (await rig.claim(key, "holder", 0)).claimed is not None
        claim = ClaimIntent(owner="other", expected_fence=1)
        error = refused(
            await rig.append(key, events(0, fence=2), fence=2, claim=claim), HeldByLiveOwnerError
        )
        assert (error.execution_id, error.owner) == (key.execution_id, "holder")
        own = ClaimIntent(owner="holder", expected_fence=1)
        accepted(await rig.append(key, events(0, fence=2), fence=2, claim=own))
        assert (await rig.row(key)).fence == 2

    async def test_start_takes_over_from_a_dead_holder(self, rig: Rig) -> None:
        """F7: a holder without a lease is dead."""
        key = await rig.admitted()
        assert (await rig.claim(key, "dead", 0)).claimed is not None
        claim = ClaimIntent(owner="w", expected_fence=1)
        accepted(await rig.append(key, events(0, fence=2), fence=2, claim=claim))
        row = await rig.row(key)
        assert (row.owner, row.fence, row.attempt) == ("w", 2, 2)

    async def test_unknown_execution(self, rig: Rig) -> None:
        """J2: nothing is made by an append."""
        key = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        claim = ClaimIntent(owner="w", expected_fence=0)
        for intent in (None, claim):
            error = refused(await rig.append(key, events(0), claim=intent), UnknownExecutionError)
            assert error.execution_id == key.execution_id
        assert await rig.journal.get([key]) == [None]
        assert await rig.log(key) == []

    # ---- envelopes and pages ---------------------------------------------------------------

    async def test_envelopes_come_back_as_they_were(self, rig: Rig) -> None:
        """J1, J10: any bytes in a payload, kinds from a newer release, NUL in text included."""
        key = await rig.started()
        payloads = [b"", b"\x00", bytes(range(256)), '"\u0000"'.encode(), b"\xff" * 300_000]
        written = [
            Envelope(events(0)[0].id, seq, f"KIND_{seq}", 1 << 52, 1, seq % 2 == 0, 9, payload)
            for seq, payload in enumerate(payloads, start=1)
        ]
        accepted(await rig.append(key, tuple(written)))
        assert (await rig.log(key))[1:] == written
        claimed = (await rig.claim(key, "next", 1, known_seq=0)).claimed
        assert claimed is not None
        assert list(claimed.events) == written

    async def test_pages_of_a_log(self, rig: Rig) -> None:
        """J1: any page, whatever appends its events came in."""
        key = await rig.started(count=3)
        seq = 3
        for size in (1, 4, 2, 5):
            accepted(await rig.append(key, events(seq, size)))
            seq += size
        log = await rig.log(key)
        assert [event.seq for event in log] == list(range(seq))
        for first in range(seq + 2):
            for limit in (1, 2, 3, 7, 100):
                page = await rig.journal.read(key, first=first, limit=limit)
                assert page == log[first : first + limit]
                tail = await rig.journal.read(key, first=first, limit=limit, newest=True)
                assert tail == log[first:][-limit:]
