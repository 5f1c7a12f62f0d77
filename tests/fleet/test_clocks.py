"""Wrong clocks and long sleeps (C26, C27, C54, F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from loom_mq.model.events import Envelope, ExecutionSuspended
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.testing.servers import RabbitServer
from tests.support.fleet import ROOT, Fleet
from tests.support.fleet_flows import sleeper
from tests.support.house import until
from tests.support.unruly_flows import lingering

APP = "tests.support.fleet_flows,tests.support.unruly_flows"
MICROS = 1_000_000
DAYS_60 = 60 * 86_400
SKEW = 600.0
SKEWED = f"{ROOT / 'tests' / 'support' / 'skewed'}:{ROOT}"


async def log_of(fleet: Fleet, name: str) -> list[Envelope]:
    return await fleet.journal.read(ExecutionKey(DEFAULT_TENANT, name))


async def asleep(fleet: Fleet, *names: str) -> None:
    """Return when all of them are parked."""

    async def so() -> bool:
        rows = await fleet.journal.get([ExecutionKey(DEFAULT_TENANT, name) for name in names])
        return all(row is not None and row.status is Status.SUSPENDED for row in rows)

    await until(so, within=30)


# ---- C54 ---------------------------------------------------------------------------------------


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(rabbit_url, postgres_dsn, tmp_path, app=APP) as fleet:
        yield fleet


async def test_c54_hosts_whose_clocks_are_wrong(fleet: Fleet) -> None:
    """C54: worker and timer ten minutes ahead, another worker as much behind. Sleeps take their
    time by the database's clock, a step longer than the lease is not taken over, events never go
    back in time, and the log tells of the difference.
    """

    def skew(seconds: float) -> dict[str, str]:
        return {"PYTHONPATH": SKEWED, "FLEET_CLOCK_AHEAD": str(seconds)}

    fast = fleet.spawn("worker", **skew(SKEW))
    slow = fleet.spawn("worker", **skew(-SKEW))
    timer = fleet.spawn("timer", **skew(SKEW))
    for process in (fast, slow, timer, fleet.spawn("dispatcher")):
        await process.ready()
    await fleet.open()
    long_ = [await fleet.client.start(lingering, 8.0, id=f"long-{n}") for n in range(4)]
    sleepers = [await fleet.client.start(sleeper, 4.0, id=f"e-{n}") for n in range(20)]
    slept = await asyncio.gather(*(each.result(timeout=30) for each in sleepers))
    assert min(slept) >= 4.0
    assert max(slept) < 7.0
    assert await asyncio.gather(*(each.result(timeout=30) for each in long_)) == ["done"] * 4
    assert all(row.recoveries == 0 for row in await fleet.rows())
    for number in range(4):
        assert (await fleet.row(f"long-{number}")).fence == 1
    workers = {each.pid for each in fleet.effects()}
    assert workers <= {fast.pid, slow.pid}
    now = await fleet.journal.now()
    for number in range(20):
        log = await log_of(fleet, f"e-{number}")
        assert all(a.at <= b.at for a, b in pairwise(log))
        assert now - 60 * MICROS < log[0].at <= log[-1].at <= now
        told = {each.kind: each.at for each in log}
        assert 4.0 <= (told["EXECUTION_RESUMED"] - told["EXECUTION_SUSPENDED"]) / MICROS + 0.1 < 7.0
    for process, ahead in ((fast, SKEW), (slow, -SKEW), (timer, SKEW)):
        [told_of] = process.events("clock.corrected")
        assert told_of["level"] == "warning"
        assert told_of["seconds_ahead"] == pytest.approx(ahead, abs=5)


# ---- C26 ---------------------------------------------------------------------------------------


async def test_c26_the_log_tells_when_it_was_due_and_when_it_fired(fleet: Fleet) -> None:
    """C26: 100 sleep, everything is killed, they come due, everything is started: each wakes once
    within ten seconds, and its log has the due time and the later fire.
    """
    await fleet.start()
    names = [f"c26-{n}" for n in range(100)]
    handles = await fleet.client.start_many(sleeper, [(name, 3.0) for name in names])
    await asleep(fleet, *names)
    for process in fleet.processes:
        process.kill()
    due = {row.execution_id: row.wake_at or 0 for row in await fleet.rows()}

    async def all_due() -> bool:
        return await fleet.journal.now() > max(due.values())

    await until(all_due, within=20)
    for process in [fleet.spawn(role) for role in ("timer", "worker", "dispatcher")]:
        await process.ready()
    back = await fleet.journal.now()
    await asyncio.gather(*(each.result(timeout=20) for each in handles))
    for name in names:
        log = await log_of(fleet, name)
        [suspended] = [each for each in log if each.kind == "EXECUTION_SUSPENDED"]
        [resumed] = [each for each in log if each.kind == "EXECUTION_RESUMED"]
        [wait] = msgspec.msgpack.decode(suspended.payload, type=ExecutionSuspended).waits
        assert wait.due == due[name]
        assert due[name] <= resumed.at < back + 10 * MICROS


# ---- C27 ---------------------------------------------------------------------------------------


async def test_c27_who_sleeps_is_not_in_the_broker(postgres_dsn: str, tmp_path: Path) -> None:
    """C27: 60 days and some seconds, both longer than the broker holds a message, which is
    restarted meanwhile: nothing of them is there, one wakes once, the other's time stays exact.
    """
    async with RabbitServer(settings={"consumer_timeout": "12000"}) as rabbit:
        await look_often(rabbit)
        url = await rabbit.create_vhost("c27")
        async with Fleet(url, postgres_dsn, tmp_path, app=APP) as fleet:
            await fleet.start()
            await fleet.client.start(sleeper, float(DAYS_60), id="long")
            short = await fleet.client.start(sleeper, 16.0, id="short")
            await asleep(fleet, "long", "short")
            await nothing_in_broker(fleet, rabbit)
            await rabbit.restart()
            await look_often(rabbit)
            await nothing_in_broker(fleet, rabbit)
            slept = await short.result(timeout=40)
            assert 16.0 <= slept < 21.0
            assert (await fleet.kinds("short")).count("EXECUTION_RESUMED") == 1
            [suspended] = [
                each for each in await log_of(fleet, "long") if each.kind == "EXECUTION_SUSPENDED"
            ]
            row = await fleet.row("long")
            assert row.wake_at is not None
            assert abs(row.wake_at - suspended.at - DAYS_60 * MICROS) < MICROS
            assert await fleet.journal.next_timer() == row.wake_at
        told = rabbit.log_file.read_text(errors="replace")
    assert "delivery acknowledgement" not in told.lower()
    assert "timeout" not in "\n".join(line for line in told.splitlines() if "channel" in line)


async def look_often(rabbit: RabbitServer) -> None:
    """Have channels made from now on look for unacknowledged messages more than once a minute."""
    await rabbit.evaluate("application:set_env(rabbit, channel_tick_interval, 2000)")


async def nothing_in_broker(fleet: Fleet, rabbit: RabbitServer) -> None:
    """Return when no queue for work, starts or requests has a message, waiting or in hand."""
    vhost = urlsplit(fleet.broker).path.removeprefix("/")

    async def empty() -> bool:
        shared = [
            each
            for each in await rabbit.list_queues(vhost)
            if each.name.startswith(("loom.work.", "loom.start", "loom.control"))
        ]
        return bool(shared) and not any(
            each.messages_ready + each.messages_unacknowledged for each in shared
        )

    await until(empty, within=20, every=0.2)
