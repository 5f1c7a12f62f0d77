"""Parks, inboxes, waiters and ends."""

from __future__ import annotations

import asyncio

import msgspec

from loom_mq.clock import MICROS
from loom_mq.errors import (
    ExecutionEndedError,
    StaleFenceError,
    UnknownExecutionError,
)
from loom_mq.journal.protocol import Admission, IndexUpdate
from loom_mq.model.execution import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    ExecutionKey,
    InboxItem,
    InboxKind,
    Status,
    Waiter,
)
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    RUNNING,
    Rig,
    accepted,
    events,
    name,
    refused,
    untimed,
)

MAX_WAITERS = 64


class MailRules:
    """K7, K13, and what ends with an execution."""

    async def test_park_writes_everything_in_one_commit(self, rig: Rig) -> None:
        """F9, K7: status, gates, wake time, timers, ownership."""
        await rig.alive("w")
        key = await rig.started("w", deadline=LONG)
        later = await rig.journal.now() + int(LONG * MICROS)
        index = IndexUpdate(
            status=Status.SUSPENDED, wake_at=later, gates=("one", "two/ü"), recoveries=0
        )
        verdict = accepted(
            await rig.append(key, events(1), index=index, release=True, timers=(later, later + 5))
        )
        assert verdict.inbox == 0
        row = await rig.row(key)
        assert (row.status, row.gates, row.wake_at) == (Status.SUSPENDED, ("one", "two/ü"), later)
        assert (row.owner, row.deadline, row.fence, row.hint_at) == (None, None, 1, None)
        assert await rig.journal.next_timer() == later
        assert await rig.take_unsent() == []

    async def test_park_with_unread_mail_is_driven_again(self, rig: Rig) -> None:
        """K7: no hint may be lost between a park and what came in before it."""
        await rig.alive("w")
        key = await rig.started("w")
        await rig.deliver(key, "a")
        await rig.deliver(key, "b")
        index = IndexUpdate(status=Status.SUSPENDED, gates=("gate",))
        verdict = accepted(
            await rig.append(key, events(1), index=index, release=True, consume=("a",))
        )
        assert verdict.inbox == 1
        row = await rig.row(key)
        assert (row.inbox, row.owner) == (1, None)
        assert row.hint_at is not None
        assert row.hint_at <= await rig.journal.now()
        assert [each.row.key for each in await rig.take_unsent()] == [key]

    async def test_append_tells_of_unread_mail(self, rig: Rig) -> None:
        """K7: also while running, and when the append is a repetition."""
        key = await rig.started()
        await rig.deliver(key, "a")
        written = events(1)
        for _ in range(2):
            assert accepted(await rig.append(key, written)).inbox == 1

    # ---- items ------------------------------------------------------------------------------

    async def test_items_are_kept_in_order(self, rig: Rig) -> None:
        """K7: every field comes back, oldest first."""
        key = await rig.started()
        items = [
            rig.item(key, "z"),
            InboxItem(
                tenant=key.tenant,
                execution_id=key.execution_id,
                item_id="a/ü'",
                kind=InboxKind.CANCEL,
                payload=b"why\x00\xff",
                actor="who/ü'",
            ),
            InboxItem(
                tenant=key.tenant,
                execution_id=key.execution_id,
                item_id="v",
                kind=InboxKind.VERDICT,
                gate="charge",
                payload=b"\x93\x00\xff",
                actor="operator",
            ),
            rig.item(key, "m", gate=""),
        ]
        for item in items:
            (verdict,) = await rig.journal.deliver([item])
            assert (verdict.error, verdict.duplicate) == (None, False)
            assert verdict.row is not None
            assert verdict.row.key == key
        other = await rig.started()
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        assert await rig.journal.inbox([other, key, unknown]) == [(), tuple(items), ()]
        assert (await rig.row(key)).inbox == len(items)

    async def test_same_item_twice_is_one(self, rig: Rig) -> None:
        """K7: within a batch, in another batch, through another handle."""
        key = await rig.started()
        item = rig.item(key)
        verdicts = await rig.journal.deliver([item, item])
        assert [verdict.duplicate for verdict in verdicts] == [False, True]
        before = await rig.row(key)
        (again,) = await rig.second.deliver([item])
        assert again.duplicate
        assert again.row is not None
        assert again.row.key == key
        assert await rig.unread(key) == ["item"]
        assert await rig.row(key) == before

    async def test_taken_item_never_comes_back(self, rig: Rig) -> None:
        """K7: the same answer id twice is taken once, however late the second one is."""
        key = await rig.started()
        await rig.deliver(key)
        accepted(await rig.append(key, events(1), consume=("item", "never-there")))
        assert await rig.unread(key) == []
        assert (await rig.row(key)).inbox == 0
        verdict = await rig.deliver(key)
        assert verdict.duplicate
        assert await rig.unread(key) == []
        assert (await rig.row(key)).inbox == 0

    async def test_refused_append_takes_no_item(self, rig: Rig) -> None:
        """K7: an answer is taken by the append that records it or not at all."""
        key = await rig.started()
        await rig.deliver(key)
        refused(await rig.append(key, events(1), fence=5, consume=("item",)), StaleFenceError)
        assert await rig.unread(key) == ["item"]

    async def test_discarded_item_may_come_again(self, rig: Rig) -> None:
        """K7: a refused answer is gone; the gate stays open for a better one."""
        key = await rig.started()
        await rig.deliver(key, "bad")
        await rig.deliver(key, "good")
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        await rig.journal.discard([(key, "bad"), (key, "never-there"), (unknown, "bad")])
        assert await rig.unread(key) == ["good"]
        assert (await rig.row(key)).inbox == 1
        assert not (await rig.deliver(key, "bad")).duplicate
        assert await rig.unread(key) == ["good", "bad"]
        await rig.journal.discard([])

    async def test_delivery_is_refused_where_nobody_will_read(self, rig: Rig) -> None:
        """K7: unknown and ended, each with its own refusal in a mixed batch (J3)."""
        ended, running = await rig.ended(), await rig.started()
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        verdicts = await rig.journal.deliver([rig.item(key) for key in (ended, running, unknown)])
        assert refused(verdicts[0], ExecutionEndedError).execution_id == ended.execution_id
        assert verdicts[1].error is None
        assert refused(verdicts[2], UnknownExecutionError).execution_id == unknown.execution_id
        assert await rig.unread(ended) == []
        assert await rig.journal.deliver([]) == []

    async def test_delivery_sees_to_a_lost_wake_package(self, rig: Rig) -> None:
        """K7: for what is parked or pending; a running holder reads its mail itself."""
        parked, pending = await rig.parked(), await rig.admitted()
        await rig.alive("w")
        running = await rig.started("w")
        for key in (parked, pending, running):
            await rig.deliver(key, resend_after=0.0)
        sent = {each.row.key for each in await rig.take_unsent()}
        assert sent == {parked, pending}
        assert (await rig.row(running)).hint_at is None

    async def test_verdict_wakes_like_an_answer(self, rig: Rig) -> None:
        """K6: it is told to what is parked in doubt, taken once, and brought by a claim."""
        key = await rig.started()
        index = IndexUpdate(status=Status.SUSPENDED, in_doubt=("charge",))
        accepted(await rig.append(key, events(1), index=index, release=True))
        verdict = msgspec.structs.replace(
            rig.item(key, "v", gate="charge"), kind=InboxKind.VERDICT, actor="operator"
        )
        (delivered,) = await rig.journal.deliver([verdict], 0.0)
        assert (delivered.error, delivered.duplicate) == (None, False)
        assert (await rig.row(key)).in_doubt == ("charge",)
        assert [each.row.key for each in await rig.take_unsent()] == [key]
        claimed = (await rig.claim(key, "w", 1)).claimed
        assert claimed is not None
        assert claimed.inbox == (verdict,)
        assert claimed.row.in_doubt == ("charge",)
        accepted(await rig.append(key, events(2, fence=2), fence=2, consume=("v",)))
        assert (await rig.row(key)).in_doubt == ()
        (again,) = await rig.second.deliver([verdict])
        assert again.duplicate

    async def test_delivery_never_puts_a_package_off(self, rig: Rig) -> None:
        """K7: however much comes in."""
        parked = await rig.parked()
        await rig.deliver(parked, "a", resend_after=0.0)
        await rig.deliver(parked, "b", resend_after=LONG)
        assert [each.row.key for each in await rig.take_unsent()] == [parked]

    async def test_mail_meets_a_park_in_any_order(self, rig: Rig) -> None:
        """K7: through two handles at once, an answer is never left without a hint."""
        for _ in range(5):
            key = await rig.started()
            index = IndexUpdate(status=Status.SUSPENDED, gates=("gate",))
            parking = rig.append(key, events(1), index=index, release=True)
            delivering = rig.second.deliver([rig.item(key)], 0.0)
            _parked, (delivered,) = await asyncio.gather(parking, delivering)
            assert delivered.error is None
            row = await rig.row(key)
            assert (row.inbox, row.owner) == (1, None)
            assert row.hint_at is not None

    # ---- the end ------------------------------------------------------------------------------

    async def test_end_empties_inbox_and_timers(self, rig: Rig) -> None:
        """K9, F9: and tells whoever waits."""
        waiter = Waiter("reply/ü", "c'1")
        for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
            key = await rig.started(waiter=waiter, deadline=LONG)
            await rig.deliver(key, "left")
            await rig.deliver(key, "taken")
            accepted(await rig.append(key, events(1), timers=(1, 2)))
            end = events(2)
            index = IndexUpdate(status=status, error="Error: why" if status == "failed" else None)
            verdict = accepted(
                await rig.append(key, end, index=index, release=True, consume=("taken",))
            )
            assert (verdict.inbox, verdict.waiters) == (0, (waiter,))
            row = await rig.row(key)
            assert (row.status, row.inbox, row.owner, row.deadline) == (status, 0, None, None)
            assert (row.hint_at, row.ended_at, row.error) == (None, end[0].at, index.error)
            assert await rig.unread(key) == []
            assert await rig.journal.due_timers(limit=10, hold=LONG) == []
            assert await rig.journal.next_timer() is None

    async def test_end_is_told_by_watching(self, rig: Rig) -> None:
        """K9: who comes late learns the outcome, and is not kept waiting."""
        key = await rig.started(count=2)
        late, early = Waiter("late", "l"), Waiter("early", "e")
        verdict = await rig.journal.watch(key, early)
        assert (verdict.row, verdict.terminal) == (await rig.row(key), None)
        end = events(2)
        ended = accepted(await rig.append(key, end, index=COMPLETED, release=True))
        assert ended.waiters == (early,)
        verdict = await rig.journal.watch(key, late)
        assert (verdict.row, verdict.terminal) == (await rig.row(key), end[0])
        again = accepted(await rig.append(key, end, index=COMPLETED, release=True))
        assert again.waiters == (early,)
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        assert (await rig.journal.watch(unknown, late)).row is None

    async def test_a_start_waits_for_what_it_would_have_made(self, rig: Rig) -> None:
        """F2: one that is refused for its other input hears nothing of another's end."""
        first, again, other = Waiter("first", "1"), Waiter("again", "2"), Waiter("other", "3")
        key = await rig.started(waiter=first)
        for waiter, digest in ((other, b"another"), (again, b"digest")):
            (verdict,) = await rig.journal.admit(
                [
                    Admission(
                        key=key,
                        flow="flow",
                        version="1",
                        queue=DEFAULT_QUEUE,
                        start=b"start",
                        input_digest=digest,
                        waiter=waiter,
                    )
                ]
            )
            assert (verdict.created, verdict.same) == (False, waiter is again)
        ended = accepted(await rig.append(key, events(1), index=COMPLETED, release=True))
        assert ended.waiters == (first, again)

    async def test_looking_registers_nobody(self, rig: Rig) -> None:
        """K9: `watch` without a waiter."""
        key = await rig.started()
        assert (await rig.journal.watch(key, None)).row == await rig.row(key)
        ended = accepted(await rig.append(key, events(1), index=COMPLETED, release=True))
        assert ended.waiters == ()
        assert (await rig.journal.watch(key, None)).terminal is not None

    async def test_the_newest_waiters_are_kept(self, rig: Rig) -> None:
        """K9: so many and no more, however often clients come back."""
        key = await rig.started(waiter=Waiter("first", ""))
        for number in range(MAX_WAITERS + 5):
            await rig.journal.watch(key, Waiter("reply", str(number)))
        ended = accepted(await rig.append(key, events(1), index=COMPLETED, release=True))
        wanted = {Waiter("reply", str(number)) for number in range(5, MAX_WAITERS + 5)}
        assert set(ended.waiters) == wanted
        assert len(ended.waiters) == MAX_WAITERS

    # ---- admission -----------------------------------------------------------------------------

    async def test_same_start_twice_is_one_execution(self, rig: Rig) -> None:
        """F2, K16: in one batch and later; a conflict is told apart."""
        key, waiters = ExecutionKey(DEFAULT_TENANT, name("once")), [Waiter("r", c) for c in "abc"]
        first, second, other = (
            Admission(
                key=key,
                flow="flow",
                version="1",
                queue="q",
                start=b"start",
                input_digest=digest,
                waiter=waiter,
                parent="parent",
                features=("f1", "f2"),
                labels={"a": "ü", "b": ""},
            )
            for digest, waiter in zip((b"same", b"same", b"other"), waiters, strict=True)
        )
        verdicts = await rig.journal.admit([first, second])
        assert [verdict.created for verdict in verdicts] == [True, False]
        assert verdicts[1].same
        (conflict,) = await rig.second.admit([other])
        assert (conflict.created, conflict.same) == (False, False)
        row = await rig.row(key)
        assert [untimed(verdict.row) for verdict in (*verdicts, conflict)] == [untimed(row)] * 3
        assert (row.flow, row.version, row.queue, row.parent) == ("flow", "1", "q", "parent")
        assert (row.features, row.labels) == (("f1", "f2"), {"a": "ü", "b": ""})
        assert (row.input_digest, row.attempt, row.inbox) == (b"same", 0, 0)
        claimed = (await rig.claim(key, "w", 0)).claimed
        assert claimed is not None
        assert claimed.start == b"start"
        accepted(await rig.append(key, events(0), index=RUNNING))
        ended = accepted(await rig.append(key, events(1), index=COMPLETED, release=True))
        assert {waiters[0], waiters[1]} <= set(ended.waiters)

    async def test_start_of_what_has_ended_adds_no_waiter(self, rig: Rig) -> None:
        """F2: the outcome is read, not waited for."""
        key = await rig.started(count=1)
        end = events(1)
        accepted(await rig.append(key, end, index=COMPLETED, release=True))
        again = Admission(
            key=key,
            flow="flow",
            version="1",
            queue="q",
            start=b"",
            input_digest=b"digest",
            waiter=Waiter("late", ""),
        )
        (verdict,) = await rig.journal.admit([again])
        assert (verdict.created, verdict.same) == (False, True)
        assert verdict.row.status is Status.COMPLETED
        assert accepted(await rig.append(key, end, index=COMPLETED, release=True)).waiters == ()
        assert await rig.journal.admit([]) == []

    async def test_concurrent_starts_make_one_execution(self, rig: Rig) -> None:
        """F2: through two handles at once."""
        keys = [ExecutionKey(DEFAULT_TENANT, name("race")) for _ in range(5)]
        batch = [
            Admission(key=k, flow="f", version="1", queue="q", start=b"", input_digest=b"d")
            for k in keys
        ]
        answers = await asyncio.gather(
            *(each.admit(batch) for each in [rig.journal, rig.second] * 3)
        )
        for place in range(len(keys)):
            assert sum(answer[place].created for answer in answers) == 1
