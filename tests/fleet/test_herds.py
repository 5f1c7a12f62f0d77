"""Much at once: timers due in one second, queues full when the workers die (F9, F10, C66, C77)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from loom_mq.broker import topology
from loom_mq.model.execution import Status
from loom_mq.testing.servers import RabbitServer
from tests.support.fleet import Fleet, Process, assert_no_completed_step_ran_again
from tests.support.fleet_flows import steps
from tests.support.house import until
from tests.support.unruly_flows import alarm, lingering

MICROS = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")
WORK = topology.work("default").name


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(
        rabbit_url,
        postgres_dsn,
        tmp_path,
        app="tests.support.fleet_flows,tests.support.unruly_flows",
    ) as fleet:
        yield fleet


def vhost(fleet: Fleet) -> str:
    return urlsplit(fleet.broker).path.removeprefix("/")


# ---- F9: a herd of timers -----------------------------------------------------------------------


async def test_f9_a_herd_of_timers_and_a_timer_service_that_dies_in_it(fleet: Fleet) -> None:
    """F9: 2,000 due in one second, two timer services, one killed in the middle. Each wakes once
    and none early, other work goes on meanwhile, and no timer is left.
    """
    number = 2000
    await fleet.start(workers=2, timers=2)
    begin = await fleet.journal.now() / MICROS + 12
    due = {f"alarm-{n}": begin + n / number for n in range(number)}
    await fleet.client.start_many(alarm, list(due.items()))

    async def all_asleep() -> bool:
        return (await fleet.journal.count()).get(Status.SUSPENDED) == number

    await until(all_asleep, within=12, every=0.1)

    async def some_awake() -> bool:
        return (await fleet.journal.count()).get(Status.COMPLETED, 0) > number // 10

    await until(some_awake, within=20)
    fleet.of("timer")[0].kill()
    beside = 0
    while (await fleet.journal.count()).get(Status.SUSPENDED):
        await fleet.client.execute(steps, (1, 0.0), timeout=20)
        beside += 1
    assert beside > 2

    async def all_over() -> bool:
        counts = await fleet.journal.count()
        return counts == {Status.COMPLETED: number + beside}

    await until(all_over, within=20)
    rows = {row.execution_id: row for row in await fleet.rows(number + beside)}
    for name, moment in due.items():
        ended = rows[name].ended_at
        assert ended is not None
        assert ended >= moment * MICROS - 1, "never early by the journal's clock"
    for name in list(due)[:: number // 50]:
        assert (await fleet.kinds(name)).count("EXECUTION_RESUMED") == 1
    assert await fleet.journal.next_timer() is None


# ---- C66: a worker that lives and takes nothing --------------------------------------------------


async def test_c66_a_consumer_that_is_ended_twenty_times(
    fleet: Fleet, rabbit_server: RabbitServer
) -> None:
    """C66: the broker ends the worker's consuming channel again and again during 500 executions:
    each time it consumes again within 15 s, and nothing is lost.
    """
    await fleet.start(workers=1)
    handles = await fleet.client.start_many(steps, [(f"e-{n}", (1, 0.2)) for n in range(500)])
    queue = f'rabbit_misc:r(<<"{vhost(fleet)}">>, queue, <<"{WORK}">>)'
    ended = set()
    for _ in range(20):

        async def ended_one() -> bool:
            answer = await rabbit_server.evaluate(
                f"{{ok, Q}} = rabbit_amqqueue:lookup({queue}),"
                " Pids = [element(1, C) || C <- rabbit_amqqueue:consumers(Q)],"
                ' [exit(P, kill) || P <- Pids], iolist_to_binary(io_lib:format("~p", [Pids]))'
            )
            new = answer not in ended and answer != "[]"
            ended.add(answer)
            return new

        await until(ended_one, within=15, every=0.05)
    assert await asyncio.gather(*(each.result(timeout=60) for each in handles)) == [1] * 500
    worker = fleet.of("worker")[0]

    async def healthy() -> bool:
        return await asyncio.to_thread(ready, worker)

    await until(healthy, within=15)
    assert_no_completed_step_ran_again(fleet.effects())


async def test_c66_health_says_so_while_there_is_no_consumer(
    fleet: Fleet, rabbit_server: RabbitServer
) -> None:
    """C66: as long as the broker is away the worker is not ready, and says why."""
    await fleet.start(workers=1)
    worker = fleet.of("worker")[0]
    assert await asyncio.to_thread(ready, worker)
    await rabbit_server.stop()

    async def ill() -> bool:
        return not await asyncio.to_thread(ready, worker)

    await until(ill, within=15)
    await rabbit_server.start()

    async def well() -> bool:
        return await asyncio.to_thread(ready, worker)

    await until(well, within=15)
    assert await fleet.client.execute(steps, (1, 0.0), timeout=20) == 1


def ready(process: Process) -> bool:
    """What ``/readyz`` says."""
    try:
        return bool(json.loads(_get(process, "readyz"))["ready"])
    except OSError:
        return False  # 503


def _get(process: Process, page: str) -> str:
    port = process.events("health.served")[0]["port"]
    with urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as answer:
        text: bytes = answer.read()
        return text.decode()


# ---- C77: a full queue, and all workers die ------------------------------------------------------


async def test_c77_a_backlog_after_the_death_of_all_workers(
    rabbit_url: str, postgres_dsn: str, tmp_path: Path
) -> None:
    """C77: 3,000 packages, four workers and everybody who could prove their death are killed, so
    that the leases must run out. Until then what their owners held waits, without being sent
    round and round; the rest goes on at once, and all of it completes.
    """
    lease = 12.0
    number = 3000
    async with Fleet(
        rabbit_url,
        postgres_dsn,
        tmp_path,
        app="tests.support.fleet_flows,tests.support.unruly_flows",
        LOOM_LEASE=str(lease),
        LOOM_PREFETCH="50",
    ) as fleet:
        await fleet.start(workers=4)
        held = await fleet.client.start_many(lingering, [(f"held-{n}", 1.0) for n in range(100)])
        many = await fleet.client.start_many(
            steps, [(f"e-{n}", (1, 0.0)) for n in range(number)], timeout=60
        )

        async def in_the_middle() -> bool:
            counts = await fleet.journal.count()
            return counts.get(Status.COMPLETED, 0) >= number // 4

        await until(in_the_middle, within=60)
        for process in fleet.of("worker") + fleet.of("dispatcher"):
            process.kill()
        killed = time.monotonic()
        left = [row for row in await fleet.rows(number + 100) if row.owner is not None]
        assert left, "the dead hold something"
        workers = [fleet.spawn("worker") for _ in range(4)]
        await fleet.spawn("dispatcher").ready()
        for worker in workers:
            await worker.ready()

        async def only_the_held_are_left() -> bool:
            counts = await fleet.journal.count()
            return counts.get(Status.COMPLETED, 0) >= number + 100 - len(left)

        await until(only_the_held_are_left, within=60)
        quiet = await _watch(workers, until_=killed + lease - 2)
        await asyncio.gather(*(each.result(timeout=60) for each in (*many, *held)))
        assert time.monotonic() - killed < lease + 60
        received = sum(map(_received, workers))
        assert received <= 10 * (number + 100), "packages per completion"
        assert_no_completed_step_ran_again(fleet.effects())
        by_key = Counter(each.key for each in fleet.effects() if each.what == "done")
        assert max(by_key.values()) <= 2
        if quiet is not None:
            cores, lines, packages = quiet
            assert cores < 0.5, "of a core, for each worker, while it waits"
            assert lines < 50, "a second, of all workers"
            assert packages < 50, "a second, of all workers"


async def _watch(workers: list[Process], *, until_: float) -> tuple[float, float, float] | None:
    """Cores of the busiest worker, lines and packages a second, while only leases are waited for;
    None where the machine was too slow to leave any time for that.
    """
    seconds = until_ - time.monotonic()
    if seconds < 1:
        return None
    before = [(_cpu(each), len(each.lines()), _received(each)) for each in workers]
    await asyncio.sleep(seconds)
    after = [(_cpu(each), len(each.lines()), _received(each)) for each in workers]
    spent = [
        [new - old for new, old in zip(later, earlier, strict=True)]
        for later, earlier in zip(after, before, strict=True)
    ]
    busiest = max(each[0] for each in spent) / seconds
    return busiest, sum(each[1] for each in spent) / seconds, sum(e[2] for e in spent) / seconds


def _cpu(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _received(process: Process) -> float:
    """Messages with packages that a worker was given so far."""
    lines = [line for line in _get(process, "metrics").splitlines() if "received_total{" in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
