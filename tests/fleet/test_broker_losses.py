"""Hints that are lost: the journal brings them back (F2, F10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from loom_mq.errors import LoomError
from loom_mq.testing.servers import RabbitServer
from tests.support.fleet import Fleet, assert_no_completed_step_ran_again
from tests.support.fleet_flows import steps
from tests.support.house import until


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(rabbit_url, postgres_dsn, tmp_path) as fleet:
        yield fleet


def vhost(fleet: Fleet) -> str:
    return urlsplit(fleet.broker).path.removeprefix("/")


async def test_c36_packages_outlive_a_broker_that_is_killed(
    fleet: Fleet, rabbit_server: RabbitServer
) -> None:
    """C36: 100 executions queued with no worker; kill -9 of the broker; all of them run."""
    await fleet.start()
    fleet.of("worker")[0].kill()
    handles = await fleet.client.start_many(steps, [(f"c36-{n}", (1, 0.0)) for n in range(100)])
    await rabbit_server.kill()
    await rabbit_server.start()
    await fleet.spawn("worker").ready()
    assert await asyncio.gather(*(each.result(timeout=60) for each in handles)) == [1] * 100
    assert_no_completed_step_ran_again(fleet.effects())


async def test_c02_a_commit_whose_publish_never_happened(
    fleet: Fleet, rabbit_server: RabbitServer
) -> None:
    """C02: the broker stops between admission and package: whoever is in the journal runs,
    whoever was refused left no row.
    """
    await fleet.start()
    fleet.of("worker")[0].kill()
    await fleet.client.start_many(steps, [(f"c02-{n}", (1, 0.0)) for n in range(10)])
    await rabbit_server.purge_queue(vhost(fleet), "loom.work.default")  # every package is lost
    await rabbit_server.stop()
    for number in range(10, 15):
        with pytest.raises(LoomError):
            await fleet.client.start(steps, (1, 0.0), id=f"c02-{number}", timeout=1)
    fleet.of("dispatcher")[0].kill()
    await rabbit_server.start()
    await fleet.spawn("dispatcher").ready()
    await fleet.spawn("worker").ready()

    async def all_ended() -> bool:
        rows = await fleet.rows()
        return all(row.status.terminal for row in rows) and len(rows) >= 10

    await until(all_ended, within=60)
    rows = {row.execution_id for row in await fleet.rows()}
    assert {f"c02-{n}" for n in range(10)} <= rows
    assert_no_completed_step_ran_again(fleet.effects())


async def test_c21_a_work_queue_that_was_deleted_comes_back(
    fleet: Fleet, rabbit_server: RabbitServer
) -> None:
    """C21, C32: the work queue is deleted under the fleet; starts are not lost."""
    await fleet.start()
    await rabbit_server.delete_queue(vhost(fleet), "loom.work.default")
    handles = await fleet.client.start_many(steps, [(f"c21-{n}", (1, 0.0)) for n in range(10)])
    assert await asyncio.gather(*(each.result(timeout=40) for each in handles)) == [1] * 10
    assert_no_completed_step_ran_again(fleet.effects())


async def test_c04_connections_that_are_all_closed(
    fleet: Fleet, rabbit_server: RabbitServer
) -> None:
    """C04: 'close all connections': every service consumes again, nothing is taken over."""
    await fleet.start(workers=2)
    handles = await fleet.client.start_many(steps, [(f"c04-{n}", (4, 0.5)) for n in range(20)])
    assert await rabbit_server.close_all_connections() >= 5
    assert await asyncio.gather(*(each.result(timeout=60) for each in handles)) == [4] * 20
    assert all(row.fence == 1 for row in await fleet.rows())
    assert_no_completed_step_ran_again(fleet.effects())
