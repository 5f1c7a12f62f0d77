"""Schedules from a client's call to the runs that they start (F9), on skipped time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

import loom_mq as loom
from loom_mq.errors import (
    InvalidIdError,
    InvalidScheduleError,
    ScheduleExistsError,
    UnknownFlowError,
    UnknownScheduleError,
)
from loom_mq.testing import TestEnvironment
from tests.support.scheduled import HOUR, MINUTE, NOON, moments, report, runs, slow


@pytest.fixture
async def env() -> AsyncIterator[TestEnvironment]:
    async with TestEnvironment([report, slow], starts_at=NOON) as environment:
        yield environment


# ---- runs -------------------------------------------------------------------------------------


async def test_f9_a_schedule_starts_a_run_at_each_moment_as_its_zones_clocks_show_it(
    env: TestEnvironment,
) -> None:
    """F9: across a change of the clocks; the run is named and labelled after its moment."""
    info = await env.client.schedules.create(
        "s", report, "north", cron="30 2 * * *", zone="Europe/Berlin", labels={"shop": "1"}
    )
    assert [f"{each:%d %H:%M}" for each in info.coming[:2]] == ["29 01:00", "30 00:30"]
    await env.skip(timedelta(days=3))
    found = await runs(env)
    assert [row.execution_id for row in found] == [
        "s@2026-03-29T01:00:00Z",
        "s@2026-03-30T00:30:00Z",
        "s@2026-03-31T00:30:00Z",
    ]
    assert found[0].labels == {
        "shop": "1",
        "schedule": "s",
        "scheduled_for": "2026-03-29T01:00:00Z",
    }
    result = await env.run(found[0].execution_id, report).result()
    assert result == "north 2026-03-29T01:00:00Z"
    info = await env.client.schedules.get("s")
    assert (info.runs, info.missed, info.skipped, info.running) == (3, 0, 0, ())
    assert info.last == datetime(2026, 3, 31, 0, 30, tzinfo=UTC)


async def test_f9_overlap_is_decided_by_what_the_journal_says_of_the_run_before(
    env: TestEnvironment,
) -> None:
    """F9: 90 minutes of work every hour, under each policy."""
    schedules = env.client.schedules
    for overlap in loom.Overlap:
        await schedules.create(overlap.value, slow, 90, every=HOUR, overlap=overlap)
    await env.skip(timedelta(hours=5, minutes=1))
    assert await moments(env, "skip") == ["03-28T13:00", "03-28T15:00", "03-28T17:00"]
    assert (await schedules.get("skip")).skipped == 2
    assert len(await runs(env, "allow")) == 5
    assert await moments(env, "buffer-one") == [
        "03-28T13:00",
        "03-28T14:00",
        "03-28T15:00",
    ]
    cancelled = await runs(env, "cancel-other")
    assert [row.status.value for row in cancelled] == ["cancelled"] * 4 + ["suspended"]
    assert len(cancelled) == 5


async def test_f9_pause_fires_nothing_and_the_next_run_counts_from_the_resume(
    env: TestEnvironment,
) -> None:
    """Schedules: pause, exactly 0 fires; next from the time of the resume."""
    schedules = env.client.schedules
    await schedules.create("s", report, "x", every=HOUR, missed=loom.MissedRuns.ALL)
    await env.skip(2 * HOUR + MINUTE)
    info = await schedules.pause("s", "holidays")
    assert (info.paused, info.note, info.coming) == (True, "holidays", ())
    await env.skip(timedelta(days=30))
    assert len(await runs(env)) == 2
    info = await schedules.resume("s")
    assert info.coming[0] == env.now.replace(minute=0, second=0, microsecond=0) + HOUR
    await env.skip(HOUR)
    assert len(await runs(env)) == 3
    info = await schedules.get("s")
    assert (info.runs, info.missed, info.paused, info.note) == (3, 0, False, "")


async def test_f9_overdue_is_made_up_for_once_and_then_all_is_as_usual(
    env: TestEnvironment,
) -> None:
    """Schedules: overdue, one catch-up, then normal. Nobody looks for three days."""
    await env.client.schedules.create("s", report, "x", cron="0 * * * *")
    await env.skip(MINUTE)
    await env.fleet.timers.drain(5)
    env.fleet.clock.move_to(env.fleet.clock.now() + 72 * 3600 * 10**6 + 10**9)
    await env.fleet.timers.once()
    await env.settle()
    assert await moments(env) == ["03-31T12:00"]
    await env.skip(HOUR)
    assert await moments(env) == ["03-31T12:00", "03-31T13:00"]
    info = await env.client.schedules.get("s")
    assert (info.runs, info.missed) == (2, 71)


async def test_f9_trigger_starts_one_now_also_while_it_is_paused(env: TestEnvironment) -> None:
    schedules = env.client.schedules
    await schedules.create("s", report, "x", every=HOUR, paused=True)
    execution = await schedules.trigger("s")
    await env.skip(1)
    assert [row.execution_id for row in await runs(env)] == [execution]
    assert (await schedules.get("s")).runs == 0
    assert await env.run(execution, report).result()


async def test_f9_backfill_runs_what_has_passed_and_nothing_twice(env: TestEnvironment) -> None:
    schedules = env.client.schedules
    await schedules.create("s", report, "x", cron="0 */6 * * *")
    await env.skip(7 * HOUR)
    assert await moments(env) == ["03-28T18:00"]
    count = await schedules.backfill("s", NOON - timedelta(days=1), env.now + HOUR)
    assert count == 6
    await env.skip(MINUTE)
    assert await moments(env) == [
        "03-27T12:00",
        "03-27T18:00",
        "03-28T00:00",
        "03-28T06:00",
        "03-28T12:00",
        "03-28T18:00",
    ]
    assert all(row.attempt == 1 for row in await runs(env))
    with pytest.raises(InvalidScheduleError, match="names no moment"):
        await schedules.backfill("s", env.now - MINUTE, env.now)
    with pytest.raises(InvalidScheduleError, match="says no time zone"):
        await schedules.backfill("s", datetime(2026, 3, 1), env.now)


async def test_f9_delete_is_no_more(env: TestEnvironment) -> None:
    schedules = env.client.schedules
    await schedules.create("s", report, "x", every=HOUR)
    await env.skip(HOUR)
    assert await schedules.delete("s")
    assert not await schedules.delete("s")
    await env.skip(5 * HOUR)
    assert len(await runs(env)) == 1
    for call in (schedules.get, schedules.pause, schedules.resume, schedules.trigger):
        with pytest.raises(UnknownScheduleError, match="no schedule 's'"):
            await call("s")
    await schedules.create("s", report, "x", every=HOUR)


async def test_f9_update_holds_from_now_on(env: TestEnvironment) -> None:
    schedules = env.client.schedules
    await schedules.create("s", report, "x", every=HOUR, zone="Europe/Berlin", limit=9)
    await env.skip(HOUR)
    info = await schedules.update("s", input="y", every=None, cron=["0 0 * * *", "0 12 * * *"])
    assert info.schedule is not None
    assert (info.schedule.zone, info.schedule.limit, info.schedule.every) == (
        "Europe/Berlin",
        9,
        None,
    )
    with pytest.raises(InvalidScheduleError, match="Europe/Berlin"):
        await schedules.update("s", zone="Mars/Olympus")
    await env.skip(timedelta(hours=13))
    assert await moments(env) == ["03-28T13:00", "03-28T23:00"]
    assert await env.run("s@2026-03-28T23:00:00Z", report).result() == "y 2026-03-28T23:00:00Z"


async def test_f9_a_list_knows_all_of_them(env: TestEnvironment) -> None:
    schedules = env.client.schedules
    assert await schedules.list() == []
    for number in range(120):
        await schedules.create(f"s-{number:03}", report, "x", every=HOUR)
    assert [info.id for info in await schedules.list()] == [f"s-{n:03}" for n in range(120)]


# ---- refusals ---------------------------------------------------------------------------------


async def test_f9_what_cannot_be_used_is_refused_and_nothing_is_stored(
    env: TestEnvironment,
) -> None:
    """Schedules: invalid cron, typed refusal, nothing stored."""
    schedules = env.client.schedules
    with pytest.raises(InvalidScheduleError, match=r"'30 3 [*] [*] mon-fri'"):
        await schedules.create("s", report, "x", cron="every day")
    with pytest.raises(InvalidScheduleError, match="'Europe/Berlin'"):
        await schedules.create("s", report, "x", cron="0 3 * * *", zone="Berlin")
    with pytest.raises(InvalidScheduleError, match="interval or both"):
        await schedules.create("s", report, "x")
    with pytest.raises(InvalidScheduleError, match="no option 'crontab'"):
        await schedules.create("s", report, "x", crontab="* * * * *")  # type: ignore[call-overload]  # what somebody may type
    with pytest.raises(InvalidScheduleError, match="'scheduled_for' is set by"):
        await schedules.create("s", report, "x", every=60, labels={"scheduled_for": "x"})
    with pytest.raises(InvalidScheduleError, match="says no time zone"):
        await schedules.create("s", report, "x", every=60, starts_at=datetime(2030, 1, 1))
    with pytest.raises(UnknownFlowError):
        await schedules.create("s", "nobody", every=60)
    with pytest.raises(InvalidIdError):
        await schedules.create("s" * 201, report, "x", every=60)
    assert await env.fleet.journal.schedules() == []
    await schedules.create("s", report, "x", every=60)
    with pytest.raises(ScheduleExistsError):
        await schedules.create("s", report, "x", every=60)
