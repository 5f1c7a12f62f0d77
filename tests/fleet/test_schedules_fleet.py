"""Schedules over real servers: timer services that die, and one that knows nothing (F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import loom_mq as loom
from loom_mq.journal.protocol import ListQuery
from loom_mq.model.execution import ExecutionRow
from tests.support.fleet import Fleet
from tests.support.fleet_flows import steps
from tests.support.house import until

SCHEDULES = 20
EVERY = 2


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(rabbit_url, postgres_dsn, tmp_path) as fleet:
        yield fleet


async def runs(fleet: Fleet, schedule: str) -> list[ExecutionRow]:
    return await fleet.journal.find(ListQuery(labels={"schedule": schedule}, limit=1000))


def moments_of(rows: list[ExecutionRow]) -> list[datetime]:
    return sorted(datetime.fromisoformat(row.labels["scheduled_for"]) for row in rows)


async def test_f9_a_killed_timer_service_loses_no_run_and_doubles_none(fleet: Fleet) -> None:
    """F9: two services, twenty schedules; kill -9 one of them again and again. Every moment
    that passed has its one run, and each run its one effect.
    """
    await fleet.start(timers=2)
    schedules = fleet.client.schedules
    for number in range(SCHEDULES):
        await schedules.create(
            f"s-{number}",
            steps,
            (1, 0.0),
            every=EVERY,
            overlap=loom.Overlap.ALLOW,
            missed=loom.MissedRuns.ALL,
        )
    for _ in range(3):
        await asyncio.sleep(2.5)  # it dies at any time, in the middle of anything
        victim, *_others = fleet.of("timer")
        victim.kill()
        await fleet.spawn("timer").ready()
    killed = datetime.now(UTC)

    async def went_on() -> bool:
        """All of them have started runs for moments after the last death."""
        found = [moments_of(await runs(fleet, f"s-{number}")) for number in range(SCHEDULES)]
        return all(moments and moments[-1] > killed for moments in found)

    await until(went_on, within=60)
    for number in range(SCHEDULES):
        await schedules.pause(f"s-{number}")

    async def all_ended() -> bool:
        """What was decided is there, and has ended."""
        for number in range(SCHEDULES):
            rows = await runs(fleet, f"s-{number}")
            decided = (await schedules.get(f"s-{number}")).runs
            if len(rows) < decided or any(not row.status.terminal for row in rows):
                return False
        return True

    await until(all_ended, within=60)
    total = 0
    for number in range(SCHEDULES):
        rows = await runs(fleet, f"s-{number}")
        assert {row.status for row in rows} == {loom.Status.COMPLETED}
        moments = moments_of(rows)
        steps_between = {after - before for before, after in pairwise(moments)}
        assert steps_between == {timedelta(seconds=EVERY)}
        info = await schedules.get(f"s-{number}")
        assert (info.runs, info.missed, info.skipped) == (len(moments), 0, 0)
        total += len(moments)
    done = [each for each in fleet.effects() if each.what == "done"]
    assert len(done) == total
    assert await fleet.journal.dead_letters() == []


async def test_f9_a_restart_of_everything_leaves_the_definition_intact(fleet: Fleet) -> None:
    """Schedules: restart, definition intact; overdue, one catch-up; a pause outlives it too."""
    await fleet.start()
    schedules = fleet.client.schedules
    options = loom.ScheduleOptions(
        cron=["*/5 * * * *"], every=2.0, zone="America/New_York", labels={"shop": "north"}
    )
    made = await schedules.create("s", steps, (1, 0.0), **options)
    await schedules.create("off", steps, (1, 0.0), every=1.0)
    await schedules.pause("off", "not now")

    async def first() -> bool:
        return bool(await runs(fleet, "s"))

    await until(first, within=20)
    for process in fleet.of("dispatcher") + fleet.of("timer"):
        process.kill()
    count = len(await runs(fleet, "off"))
    for role in ("dispatcher", "timer"):
        await fleet.spawn(role).ready()
    before = len(await runs(fleet, "s"))

    async def more() -> bool:
        return len(await runs(fleet, "s")) > before

    await until(more, within=30)
    info = await schedules.get("s")
    assert info.schedule == made.schedule
    off = await schedules.get("off")
    assert (off.paused, off.note, off.coming) == (True, "not now", ())
    assert len(await runs(fleet, "off")) == count
