"""Leases, sweeps, timers, flows and dead letters."""

from __future__ import annotations

import asyncio
import itertools

from loom_mq.clock import MICROS
from loom_mq.journal.protocol import IndexUpdate
from loom_mq.model.execution import (
    DEFAULT_TENANT,
    ExecutionKey,
    Status,
    WorkerRecord,
)
from loom_mq.testing.conformance.journal_rig import (
    COMPLETED,
    LONG,
    RUNNING,
    Rig,
    accepted,
    events,
    name,
)


class LeaseRules:
    """F7: who is alive."""

    async def test_lease_makes_a_process_known(self, rig: Rig) -> None:
        """F7: with all that it says about itself."""
        record = WorkerRecord(
            owner=name("w"),
            role="worker",
            host="höst",
            queues=("a", "b"),
            slots=7,
            release="1.2",
            draining=True,
        )
        now = await rig.journal.now()
        lease = await rig.journal.lease(record, LONG)
        (found,) = await rig.second.workers()
        assert found.lease_until >= now + int(LONG * MICROS)
        assert found.started_at >= now
        told = (found.owner, found.role, found.host, found.queues, found.slots)
        assert told == (record.owner, "worker", "höst", ("a", "b"), 7)
        assert (found.release, found.draining) == ("1.2", True)
        assert not await rig.journal.lapse_if_gone(record.owner)
        await lease.close()

    async def test_a_drain_is_shown_and_leaves_the_lease(self, rig: Rig) -> None:
        """F7, F11: for whoever looks; a renewal does not undo it."""
        lease = await rig.alive("w")
        other = await rig.alive("x")
        [before] = [each for each in await rig.second.workers() if each.owner == "w"]
        await lease.drain()
        await lease.drain()
        found = {each.owner: each for each in await rig.second.workers()}
        assert (found["w"].draining, found["x"].draining) == (True, False)
        assert found["w"].lease_until == before.lease_until
        assert (await lease.renew(LONG)).held
        found = {each.owner: each for each in await rig.journal.workers()}
        assert (found["w"].draining, found["x"].draining) == (True, False)
        await other.retire()
        await other.drain()
        assert [each.owner for each in await rig.journal.workers()] == ["w"]

    async def test_renewal_keeps_a_lease(self, rig: Rig) -> None:
        """F7: in the journal's clock."""
        lease = await rig.alive("w", ttl=0.4)
        renewal = await lease.renew(LONG)
        assert renewal.held
        assert abs(renewal.now - await rig.journal.now()) < LONG * MICROS
        await rig.let_pass(0.4)
        assert [each.owner for each in await rig.journal.workers()] == ["w"]
        assert not await rig.journal.lapse_if_gone("w")
        await lease.close()

    async def test_lapsed_lease_is_lost(self, rig: Rig) -> None:
        """F7: its holder is told at its next renewal, and may begin another."""
        lease = await rig.alive("w", ttl=0.2)
        await rig.let_pass(0.2)
        assert await rig.journal.lapse_if_gone("w")
        assert await rig.journal.workers() == []
        renewal = await lease.renew(LONG)
        assert (renewal.held, renewal.mail) == (False, ())
        assert await rig.journal.lapse_if_gone("w")
        await lease.close()
        again = await rig.alive("w")
        assert (await again.renew(LONG)).held
        assert not await rig.journal.lapse_if_gone("w")

    async def test_renewal_reports_mail(self, rig: Rig) -> None:
        """K7: the truth behind every hint that may have been lost; this owner's only."""
        lease = await rig.alive("w")
        await rig.alive("other")
        mine, also, quiet = [await rig.started("w") for _ in range(3)]
        others, parked = await rig.started("other"), await rig.parked()
        for key in (mine, also, others, parked):
            await rig.deliver(key)
        assert set((await lease.renew(LONG)).mail) == {mine, also}
        accepted(await rig.append(mine, events(1), consume=("item",)))
        assert (await lease.renew(LONG)).mail == (also,)
        assert (await rig.row(quiet)).inbox == 0

    async def test_retiring_releases_what_is_held(self, rig: Rig) -> None:
        """F7: at once, and what others hold stays theirs."""
        lease = await rig.alive("w")
        await rig.alive("other")
        running, others = await rig.started("w", deadline=LONG), await rig.started("other")
        woken, ended = await rig.parked(), await rig.ended()
        assert (await rig.claim(woken, "w", 1)).claimed is not None
        untouched = [await rig.row(others), await rig.row(ended)]
        await lease.retire()
        assert [each.owner for each in await rig.journal.workers()] == ["other"]
        assert await rig.journal.lapse_if_gone("w")
        assert [await rig.row(others), await rig.row(ended)] == untouched
        assert await rig.take_abandoned() == []
        runnable = await rig.take_unsent()
        assert {each.row.key for each in runnable} == {running, woken}
        for each in runnable:
            assert (each.row.owner, each.row.deadline) == (None, None)
        assert not (await lease.renew(LONG)).held
        await lease.close()


class SweepRules:
    """F7, F8: what dead holders and lost packages leave lying."""

    async def test_abandoned_executions_are_detached(self, rig: Rig) -> None:
        """F7: of dead and of wedged holders, never of live ones."""
        await rig.alive("w")
        dead, wedged = await rig.started("dead"), await rig.started("w", deadline=0.2)
        alive, parked, ended = await rig.started("w"), await rig.parked(), await rig.ended()
        empty = await rig.admitted(start=b"the start")
        assert (await rig.claim(empty, "dead", 0)).claimed is not None
        await rig.let_pass(0.2)
        untouched = [await rig.row(key) for key in (alive, parked, ended)]
        found = {each.row.key: each for each in await rig.take_abandoned()}
        assert set(found) == {dead, wedged, empty}
        assert [found[key].lost_owner for key in (dead, wedged, empty)] == ["dead", "w", "dead"]
        assert [found[key].start for key in (dead, wedged, empty)] == [None, None, b"the start"]
        now = await rig.journal.now()
        for each in found.values():
            row = each.row
            assert row == await rig.row(row.key)
            assert (row.owner, row.deadline, row.fence, row.attempt) == (None, None, 1, 1)
            assert row.hint_at is not None
            assert row.hint_at > now
        assert [await rig.row(key) for key in (alive, parked, ended)] == untouched
        assert await rig.take_abandoned() == []

    async def test_lapsed_holders_lose_their_executions(self, rig: Rig) -> None:
        """F7: by the journal's clock, and their zombie appends go on until a claim."""
        await rig.alive("w", ttl=0.2)
        key = await rig.started("w")
        assert await rig.take_abandoned() == []
        await rig.let_pass(0.2)
        (found,) = await rig.take_abandoned()
        assert (found.row.key, found.lost_owner) == (key, "w")
        accepted(await rig.append(key, events(1)))
        assert (await rig.claim(key, "next", 1)).claimed is not None

    async def test_given_up_executions_are_listed(self, rig: Rig) -> None:
        """F8: left as they are, and never silently."""
        await rig.alive("w")
        keys = []
        for recoveries in (1, 2, 3):
            key = await rig.started("dead")
            index = IndexUpdate(status=Status.RUNNING, recoveries=recoveries)
            accepted(await rig.append(key, events(1), index=index))
            keys.append(key)
        alive = await rig.started("w")
        index = IndexUpdate(status=Status.RUNNING, recoveries=9)
        accepted(await rig.append(alive, events(1), index=index))
        assert {row.key for row in await rig.journal.exhausted(2, 10)} == set(keys[1:])
        assert len(await rig.journal.exhausted(2, 1)) == 1
        found = await rig.take_abandoned(max_recoveries=2)
        assert [each.row.key for each in found] == keys[:1]
        rows = await rig.journal.exhausted(2, 10)
        assert rows == [await rig.row(row.key) for row in rows]
        assert {row.key for row in rows} == set(keys[1:])

    async def test_two_sweeps_never_get_the_same_abandoned(self, rig: Rig) -> None:
        """F7: whoever detaches it sends it."""
        keys = {await rig.started("dead") for _ in range(30)}
        taken = await asyncio.gather(
            *(
                each.take_abandoned(limit=4, resend_after=LONG, max_recoveries=10)
                for each in [rig.journal, rig.second] * 6
            )
        )
        assert max(len(part) for part in taken) <= 4
        got = [each.row.key for part in taken for each in part]
        assert len(got) == len(set(got))
        got += [each.row.key for each in await rig.take_abandoned()]
        assert sorted(got) == sorted(keys)

    async def test_unsent_packages_are_found(self, rig: Rig) -> None:
        """F2, F7: when due, when nobody holds it, with the start while the log is empty."""
        lost = await rig.admitted(resend_after=0.0, start=b"the start")
        later, held = await rig.admitted(), await rig.admitted(resend_after=0.0)
        await rig.alive("w")
        assert (await rig.claim(held, "w", 0)).claimed is not None
        begun = await rig.started("dead")
        await rig.journal.defer([begun], "dead", 0.0)
        found = {each.row.key: each for each in await rig.take_unsent()}
        assert set(found) == {lost, begun}
        assert (found[lost].start, found[begun].start) == (b"the start", None)
        assert (found[lost].lost_owner, found[begun].lost_owner) == (None, None)
        for each in found.values():
            assert each.row == await rig.row(each.row.key)
            assert each.row.hints == 1
        assert (await rig.row(later)).hints == 0
        assert await rig.take_unsent() == []

    async def test_unsent_packages_of_some_queues(self, rig: Rig) -> None:
        """F2: a queue that is merely slow is left out."""
        names = [name(hint) for hint in ("a", "b/ü'", 'c"')]
        keys = [await rig.admitted(queue=queue, resend_after=0.0) for queue in names]
        assert await rig.take_unsent([]) == []
        found = await rig.take_unsent(names[1:])
        assert {each.row.key for each in found} == set(keys[1:])
        assert [each.row.key for each in await rig.take_unsent(None)] == keys[:1]

    async def test_packages_are_sent_ever_more_seldom(self, rig: Rig) -> None:
        """F7: the pause doubles up to its limit; a claim begins anew."""
        key = await rig.admitted(resend_after=0.0)
        pauses = []
        for _ in range(12):
            before = await rig.journal.now()
            (found,) = await rig.journal.take_unsent(
                limit=1, resend_after=10.0, backoff_limit=200.0, queues=None
            )
            assert found.row.hint_at is not None
            pauses.append((found.row.hint_at - before) / MICROS)
            await rig.journal.defer([key], "", 0.0)
        assert 9.9 < pauses[0] < 21
        for earlier, later in itertools.pairwise(pauses):
            assert min(2 * earlier, 200) - 2 < later < 202
        assert (await rig.row(key)).hints == 12
        assert (await rig.claim(key, "w", 0)).claimed is not None
        assert (await rig.row(key)).hints == 0

    async def test_two_sweeps_never_get_the_same_unsent(self, rig: Rig) -> None:
        """F7: one package per hint."""
        keys = [await rig.admitted(resend_after=0.0) for _ in range(30)]
        taken = await asyncio.gather(
            *(
                each.take_unsent(limit=4, resend_after=LONG, backoff_limit=LONG, queues=None)
                for each in [rig.journal, rig.second] * 6
            )
        )
        assert max(len(part) for part in taken) <= 4
        got = [each.row.key for part in taken for each in part]
        assert len(got) == len(set(got))
        got += [each.row.key for each in await rig.take_unsent()]
        assert sorted(got) == sorted(keys)


class TimerRules:
    """F9: timers."""

    async def test_timers_fire_when_due_and_never_early(self, rig: Rig) -> None:
        """F9: by the journal's clock, earliest first."""
        now = await rig.journal.now()
        soon, later = now + 300_000, now + int(LONG * MICROS)
        one, two = await rig.parked(timers=(soon, later)), await rig.parked(timers=(soon - 1,))
        assert await rig.journal.due_timers(limit=10, hold=LONG) == []
        assert await rig.journal.next_timer() == soon - 1
        await rig.let_pass((soon - await rig.journal.now()) / MICROS)
        due = await rig.journal.due_timers(limit=10, hold=LONG)
        assert await rig.journal.now() >= soon
        assert [(each.row.key, each.due) for each in due] == [(two, soon - 1), (one, soon)]
        assert due[0].row == await rig.row(two)
        assert await rig.journal.next_timer() == later

    async def test_due_timers_are_held(self, rig: Rig) -> None:
        """F9: from every caller, until the hold is over."""
        key = await rig.parked(timers=(5, 7))
        first = await rig.journal.due_timers(limit=1, hold=0.3)
        assert [each.due for each in first] == [5]
        assert await rig.journal.next_timer() == 7
        second = await rig.second.due_timers(limit=10, hold=0.3)
        assert [each.due for each in second] == [7]
        assert await rig.journal.due_timers(limit=10, hold=0.3) == []
        assert await rig.journal.next_timer() is None
        await rig.let_pass(0.3)
        assert await rig.journal.next_timer() == 5
        again = await rig.second.due_timers(limit=10, hold=LONG)
        assert [(each.row.key, each.due) for each in again] == [(key, 5), (key, 7)]

    async def test_fired_timers_are_dropped(self, rig: Rig) -> None:
        """F9: these and no others."""
        key, other = await rig.parked(timers=(5, 7)), await rig.parked(timers=(5,))
        assert len(await rig.journal.due_timers(limit=10, hold=0.2)) == 3
        await rig.journal.drop_timers([(key, 5), (key, 999), (other, 7)])
        await rig.let_pass(0.2)
        due = await rig.journal.due_timers(limit=10, hold=LONG)
        assert [(each.row.key, each.due) for each in due] == [(other, 5), (key, 7)]
        await rig.journal.drop_timers([])

    async def test_arming_twice_is_arming_once(self, rig: Rig) -> None:
        """F9: idempotent per execution and due time."""
        key = await rig.parked(timers=(5, 5))
        accepted(await rig.append(key, events(2), timers=(5,), index=RUNNING))
        due = await rig.journal.due_timers(limit=10, hold=LONG)
        assert [(each.row.key, each.due) for each in due] == [(key, 5)]

    async def test_timer_armed_again_while_held_is_not_lost(self, rig: Rig) -> None:
        """F9: a park that comes between a fire and its drop keeps its row."""
        key = await rig.parked(timers=(5,))
        assert len(await rig.journal.due_timers(limit=10, hold=LONG)) == 1
        index = IndexUpdate(status=Status.SUSPENDED, wake_at=5)
        accepted(await rig.append(key, events(2), index=index, release=True, timers=(5,)))
        await rig.journal.drop_timers([(key, 5)])
        due = await rig.journal.due_timers(limit=10, hold=LONG)
        assert [(each.row.key, each.due) for each in due] == [(key, 5)]

    async def test_missing_timers_are_armed(self, rig: Rig) -> None:
        """F9: only those, once, and only where somebody waits; the end takes them along."""
        lost, whole, fired = [await rig.parked(timers=due) for due in ((), (5,), (6,))]
        running, ended, pending = await rig.started(), await rig.ended(), await rig.admitted()
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        held = await rig.journal.due_timers(limit=10, hold=LONG)
        assert [each.row.key for each in held] == [whole, fired]
        await rig.journal.drop_timers([(fired, 6)])
        wanted = [(key, 5) for key in (whole, lost, running, ended, pending, unknown, lost)]
        armed = await rig.journal.arm_timers([*wanted, (fired, 6), (lost, 7)])
        assert armed == [False, True, False, False, False, False, False, True, True]
        assert await rig.second.arm_timers([*wanted, (fired, 6), (lost, 7)]) == [False] * 9
        assert await rig.journal.arm_timers([]) == []
        due = await rig.journal.due_timers(limit=10, hold=LONG)
        assert [(each.row.key, each.due) for each in due] == [(lost, 5), (fired, 6), (lost, 7)]
        (again,) = await rig.journal.arm_timers([(lost, 9)])
        assert again
        accepted(await rig.append(lost, events(2), index=COMPLETED, release=True))
        assert await rig.journal.next_timer() is None

    async def test_wake_that_is_lost_is_sent_again(self, rig: Rig) -> None:
        """F9: like any package, once the timer's row is gone; a running holder needs none."""
        key = await rig.parked(timers=(5,))
        await rig.alive("w")
        running = await rig.started("w")
        accepted(await rig.append(running, events(1), timers=(5,)))
        (fired,) = [
            each for each in await rig.journal.due_timers(limit=10, hold=0.2) if each.row.key == key
        ]
        assert fired.row == await rig.row(key)
        await rig.journal.drop_timers([(key, 5), (running, 5)])
        assert await rig.take_unsent() == []
        await rig.let_pass(0.2)
        assert [each.row.key for each in await rig.take_unsent()] == [key]
        assert (await rig.row(running)).hint_at is None

    async def test_two_services_never_get_the_same_timer(self, rig: Rig) -> None:
        """F9: any number of them share the table."""
        keys = [await rig.parked(timers=(number + 1,)) for number in range(30)]
        taken = await asyncio.gather(
            *(each.due_timers(limit=4, hold=LONG) for each in [rig.journal, rig.second] * 6)
        )
        assert max(len(part) for part in taken) <= 4
        got = [each.row.key for part in taken for each in part]
        assert len(got) == len(set(got))
        got += [each.row.key for each in await rig.journal.due_timers(limit=100, hold=LONG)]
        assert sorted(got) == sorted(keys)
