"""Schedules, as far as they are the journal's."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from loom_mq.errors import (
    InvalidIdError,
    LoomError,
    ScheduleExistsError,
    StaleScheduleError,
    UnknownScheduleError,
)
from loom_mq.model.execution import DEFAULT_TENANT
from loom_mq.model.schedules import ScheduleKey, ScheduleRow
from loom_mq.testing.conformance.journal_index import HOSTILE_IDS
from loom_mq.testing.conformance.journal_rig import LONG, Rig, name

PAST = 5
"""A due time that has long passed."""


def a_schedule(
    hint: str = "schedule", *, due: int | None = None, key: ScheduleKey | None = None
) -> ScheduleRow:
    """A new schedule, not yet written."""
    tenant, name_ = key or ScheduleKey(DEFAULT_TENANT, name(hint))
    return ScheduleRow(
        tenant=tenant,
        schedule_id=name_,
        flow="flow",
        definition=b"definition\x00\xff",
        state=b"",
        due=due,
    )


class ScheduleRules:
    """F9."""

    async def test_schedules_change_by_revision(self, rig: Rig) -> None:
        """F9: who names another revision than the newest changes nothing."""
        row = a_schedule()
        first = await rig.journal.put_schedule(row, None)
        assert replace(first, created_at=0, updated_at=0) == replace(row, revision=1)
        assert first.created_at == first.updated_at > 0
        changed = replace(first, flow="other", paused=True, definition=b"d", state=b"s", due=PAST)
        second = await rig.second.put_schedule(changed, 1)
        assert (second.revision, second.created_at) == (2, first.created_at)
        assert second.updated_at >= first.updated_at
        assert replace(second, revision=1, updated_at=0) == replace(changed, updated_at=0)
        with pytest.raises(StaleScheduleError):
            await rig.journal.put_schedule(replace(changed, state=b"late"), 1)
        with pytest.raises(ScheduleExistsError):
            await rig.journal.put_schedule(replace(row, state=b"another"), None)
        with pytest.raises(UnknownScheduleError):
            await rig.journal.put_schedule(a_schedule(), 1)
        assert await rig.journal.schedule(row.key) == second
        assert await rig.journal.schedule(ScheduleKey(DEFAULT_TENANT, name("none"))) is None

    async def test_a_schedule_written_again_is_written(self, rig: Rig) -> None:
        """J4: a commit that nobody heard of is repeated without harm."""
        row = a_schedule(due=PAST)
        first = await rig.journal.put_schedule(row, None)
        assert await rig.second.put_schedule(row, None) == first
        changed = replace(row, state=b"1", due=None)
        second = await rig.journal.put_schedule(changed, 1)
        assert await rig.journal.put_schedule(changed, 1) == second
        with pytest.raises(StaleScheduleError):
            await rig.journal.put_schedule(replace(changed, due=PAST), 1)
        with pytest.raises(StaleScheduleError):
            await rig.journal.put_schedule(replace(changed, paused=True), 1)

    async def test_one_of_many_changes_a_schedule(self, rig: Rig) -> None:
        """F9: of those who saw the same revision."""
        row = a_schedule()
        journals = [rig.journal, rig.second] * 4
        for expected in (None, 1):
            fates = await asyncio.gather(
                *(
                    journal.put_schedule(
                        replace(row, state=f"{expected} {number}".encode()), expected
                    )
                    for number, journal in enumerate(journals)
                ),
                return_exceptions=True,
            )
            won = [fate for fate in fates if isinstance(fate, ScheduleRow)]
            kind = ScheduleExistsError if expected is None else StaleScheduleError
            assert len(won) == 1
            assert sum(isinstance(fate, kind) for fate in fates) == len(journals) - 1
            assert await rig.journal.schedule(row.key) == won[0]

    async def test_due_schedules_are_held(self, rig: Rig) -> None:
        """F9: from every caller, until the hold is over or they are written; earliest first."""
        late = await rig.journal.put_schedule(a_schedule("late", due=PAST + 1), None)
        early = await rig.journal.put_schedule(a_schedule("early", due=PAST), None)
        await rig.journal.put_schedule(a_schedule("never"), None)
        future = await rig.journal.now() + 10**12
        await rig.journal.put_schedule(a_schedule("one day", due=future), None)
        assert await rig.journal.next_timer() == PAST
        assert await rig.journal.due_schedules(limit=1, hold=LONG) == [early]
        assert await rig.journal.next_timer() == PAST + 1
        assert await rig.second.due_schedules(limit=10, hold=LONG) == [late]
        assert await rig.journal.due_schedules(limit=10, hold=LONG) == []
        assert await rig.journal.next_timer() == future
        # whoever writes it lets it go, due as it now says
        written = await rig.second.put_schedule(replace(early, state=b"seen"), early.revision)
        assert await rig.journal.due_schedules(limit=10, hold=LONG) == [written]
        done = await rig.journal.put_schedule(replace(written, due=None), written.revision)
        assert done.due is None
        assert await rig.journal.due_schedules(limit=10, hold=LONG) == []

    async def test_a_held_schedule_is_due_again(self, rig: Rig) -> None:
        """F9: a service that dies between taking and firing delays it by its hold."""
        row = await rig.journal.put_schedule(a_schedule(due=PAST), None)
        assert await rig.journal.due_schedules(limit=10, hold=0.2) == [row]
        assert await rig.second.due_schedules(limit=10, hold=0.2) == []
        await rig.let_pass(0.3)
        assert await rig.second.due_schedules(limit=10, hold=LONG) == [row]

    async def test_the_earliest_is_first_whoever_had_it_before(self, rig: Rig) -> None:
        """F9: by its due time, and not by the end of the hold that came to nothing."""
        early = await rig.journal.put_schedule(a_schedule("early", due=PAST), None)
        assert await rig.journal.due_schedules(limit=1, hold=0.2) == [early]
        late = await rig.journal.put_schedule(a_schedule("late", due=PAST + 1), None)
        assert await rig.journal.next_timer() == PAST + 1
        await rig.let_pass(0.3)
        assert await rig.journal.due_schedules(limit=10, hold=LONG) == [early, late]

    async def test_many_callers_share_what_is_due(self, rig: Rig) -> None:
        """F9: nobody gets what another has."""
        rows = [
            await rig.journal.put_schedule(a_schedule(str(number), due=PAST + number), None)
            for number in range(12)
        ]
        answers = await asyncio.gather(
            *(each.due_schedules(limit=3, hold=LONG) for each in [rig.journal, rig.second] * 6)
        )
        got = [row.key for answer in answers for row in answer]
        got += [row.key for row in await rig.journal.due_schedules(limit=100, hold=LONG)]
        assert sorted(got) == sorted(row.key for row in rows)

    async def test_timers_and_schedules_are_apart(self, rig: Rig) -> None:
        """F9: an execution of a schedule's name has timers of its own."""
        key = await rig.parked(timers=(PAST,))
        same = ScheduleKey(*key)
        row = await rig.journal.put_schedule(a_schedule(key=same, due=PAST + 1), None)
        assert [each.row.key for each in await rig.journal.due_timers(limit=9, hold=LONG)] == [key]
        assert await rig.journal.due_schedules(limit=9, hold=LONG) == [row]
        assert await rig.journal.drop_schedule(same)
        await rig.journal.drop_timers([(key, PAST)])
        assert await rig.journal.next_timer() is None

    async def test_a_dropped_schedule_is_gone(self, rig: Rig) -> None:
        """F9: with its due time; the same id may come again."""
        row = await rig.journal.put_schedule(a_schedule(due=PAST), None)
        with pytest.raises(StaleScheduleError):
            await rig.journal.drop_schedule(row.key, 2)
        assert await rig.journal.drop_schedule(row.key, 1)
        assert not await rig.second.drop_schedule(row.key)
        assert not await rig.second.drop_schedule(row.key, 1)
        assert await rig.journal.schedule(row.key) is None
        assert await rig.journal.due_schedules(limit=10, hold=LONG) == []
        assert await rig.journal.next_timer() is None
        with pytest.raises(UnknownScheduleError):
            await rig.journal.put_schedule(row, 1)
        assert (await rig.journal.put_schedule(row, None)).revision == 1

    async def test_a_schedule_comes_and_goes_under_many(self, rig: Rig) -> None:
        """F9: a new one is written or is there already, whoever deletes it meanwhile."""
        key = ScheduleKey(DEFAULT_TENANT, name("busy"))
        made: list[ScheduleRow] = []

        async def make(number: int) -> None:
            row = replace(a_schedule(key=key, due=PAST), state=b"%d" % number)
            try:
                made.append(await (rig.journal, rig.second)[number % 2].put_schedule(row, None))
            except ScheduleExistsError:
                return

        async def drop(number: int) -> bool:
            return await (rig.second, rig.journal)[number % 2].drop_schedule(key)

        dropped = 0
        for first in range(0, 40, 4):
            _made, gone = await asyncio.gather(
                asyncio.gather(*(make(first + each) for each in range(4))),
                asyncio.gather(*(drop(each) for each in range(4))),
            )
            dropped += sum(gone)
        left = await rig.journal.drop_schedule(key)
        assert len(made) == dropped + left > 0

    async def test_schedules_of_hostile_ids_are_themselves(self, rig: Rig) -> None:
        """J10, C53: byte for byte in every method, and none touches another."""
        keys = [ScheduleKey(DEFAULT_TENANT, each) for each in HOSTILE_IDS]
        rows: dict[ScheduleKey, ScheduleRow] = {}
        for at, key in enumerate(keys):
            row = replace(a_schedule(key=key, due=PAST + at), flow=key.schedule_id)
            rows[key] = await rig.journal.put_schedule(row, None)
        for key in keys:
            changed = replace(rows[key], state=key.schedule_id.encode())
            rows[key] = await rig.second.put_schedule(changed, 1)
            with pytest.raises(StaleScheduleError) as caught:
                await rig.journal.put_schedule(replace(changed, paused=True), 1)
            assert repr(key.schedule_id) in str(caught.value)
        assert [await rig.journal.schedule(key) for key in keys] == list(rows.values())
        in_order = sorted(keys, key=lambda key: key.schedule_id.encode())
        assert [row.key for row in await rig.journal.schedules(limit=1000)] == in_order
        for at, key in enumerate(in_order[:-1]):
            (behind,) = await rig.journal.schedules(DEFAULT_TENANT, after=key, limit=1)
            assert behind.key == in_order[at + 1]
        due = await rig.journal.due_schedules(limit=1000, hold=LONG)
        assert due == list(rows.values())
        for left, key in enumerate(keys, start=1 - len(keys)):
            assert await rig.journal.drop_schedule(key, 2)
            assert len(await rig.journal.schedules(limit=1000)) == -left

    async def test_schedules_are_listed_by_pages(self, rig: Rig) -> None:
        """F9: in the order of their bytes, each once."""
        prefix = name("list")
        names = sorted(
            (f"{prefix}{each}" for each in ("", "/", "ä", "z", "\U0001f9f5", "é")), key=str.encode
        )
        keys = [ScheduleKey(DEFAULT_TENANT, each) for each in names]
        for key in reversed(keys):
            await rig.journal.put_schedule(a_schedule(key=key), None)
        listed: list[ScheduleKey] = []
        after = None
        while page := await rig.journal.schedules(DEFAULT_TENANT, after=after, limit=4):
            assert len(page) <= 4
            after = page[-1].key
            listed += [row.key for row in page]
        assert listed == keys
        assert [row.key for row in await rig.journal.schedules()] == keys

    async def test_schedules_of_tenants_are_apart(self, rig: Rig) -> None:
        """J10, J9: the same id in two tenants is two schedules."""
        shared = name("shared")
        if not rig.stores.many_tenants:
            for work in (
                rig.journal.schedule(ScheduleKey("b", shared)),
                rig.journal.drop_schedule(ScheduleKey("b", shared)),
                rig.journal.put_schedule(a_schedule(key=ScheduleKey("b", shared)), None),
                rig.journal.schedules("b"),
            ):
                with pytest.raises(InvalidIdError):
                    await work
            return
        keys = [ScheduleKey(tenant, shared) for tenant in ("a", "b", "a/b")]
        for key in keys:
            await rig.journal.put_schedule(a_schedule(key=key, due=PAST), None)
        assert await rig.journal.drop_schedule(keys[0])
        assert await rig.journal.schedule(keys[0]) is None
        assert [row.key for row in await rig.journal.schedules("b")] == [keys[1]]
        assert [row.key for row in await rig.journal.schedules("a")] == []
        due = await rig.journal.due_schedules(limit=10, hold=LONG)
        assert sorted(row.key for row in due) == sorted(keys[1:])

    async def test_refusals_name_the_schedule(self, rig: Rig) -> None:
        """J9: and say what to do."""
        row = a_schedule("näme/of:it", due=PAST)
        await rig.journal.put_schedule(row, None)
        for change, expected in ((replace(row, state=b"x"), None), (row, 7)):
            with pytest.raises(LoomError) as caught:
                await rig.journal.put_schedule(change, expected)
            assert repr(row.schedule_id) in str(caught.value)
