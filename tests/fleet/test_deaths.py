"""Processes and servers that die, and what must survive it (F4, F5, F7, F10)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loom_mq.model.execution import Status
from loom_mq.testing.servers import PostgresServer, RabbitServer
from tests.support.fleet import Fleet, assert_no_completed_step_ran_again, rerun_keys
from tests.support.fleet_flows import blocked, held, mixed, sleeper, steps
from tests.support.house import until


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(rabbit_url, postgres_dsn, tmp_path) as fleet:
        yield fleet


async def begun(fleet: Fleet, step: str, times: int = 1, within: float = 30.0) -> None:
    """Return when a step's effect has begun so often."""

    async def seen() -> bool:
        effects = [each for each in fleet.effects() if each.step == step]
        return len([each for each in effects if each.what == "begun"]) >= times

    await until(seen, within=within)


async def test_c03_a_killed_worker_loses_one_attempt_of_one_step(fleet: Fleet) -> None:
    """C03, F7: kill -9 in the middle of a step: the other worker goes on within a second,
    steps that were done stay done, and the attempt that was lost is on the log.
    """
    await fleet.start(workers=2)
    gate = fleet.folder / "go"
    handle = await fleet.client.start(held, str(gate), id="c03")
    await begun(fleet, "wait_for_file")
    first = next(each for each in fleet.effects() if each.step == "wait_for_file")
    victim = next(each for each in fleet.of("worker") if each.pid == first.pid)
    victim.kill()
    loop = asyncio.get_running_loop()
    killed = loop.time()
    await begun(fleet, "wait_for_file", 2)
    took = loop.time() - killed
    gate.touch()
    before, pid, after = await handle.result(timeout=20)
    assert (before, after) == ("1", "2")
    assert int(pid) == fleet.of("worker")[0].pid
    attempts = [each.attempt for each in fleet.effects() if each.step == "wait_for_file"]
    assert attempts == [1, 2, 2]
    kinds = await fleet.kinds("c03")
    assert kinds.count("EXECUTION_RECOVERED") == 1
    assert kinds.count("STEP_STARTED") == 4
    assert took < 15, "well within lease and sweep; the usual figure is a matter of the benchmark"


async def test_c61_a_zombie_that_wakes_writes_nothing(fleet: Fleet) -> None:
    """C61, F5: SIGSTOP for longer than the lease; another finishes; SIGCONT: refused, quiet."""
    await fleet.start(workers=2)
    gate = fleet.folder / "go"
    handle = await fleet.client.start(held, str(gate), id="c61")
    await begun(fleet, "wait_for_file")
    first = next(each for each in fleet.effects() if each.step == "wait_for_file")
    zombie = next(each for each in fleet.of("worker") if each.pid == first.pid)
    zombie.send(signal.SIGSTOP)
    await begun(fleet, "wait_for_file", 2)
    gate.touch()
    _before, pid, _after = await handle.result(timeout=20)
    assert int(pid) != zombie.pid
    log = await fleet.kinds("c61")
    zombie.send(signal.SIGCONT)

    async def refused() -> bool:
        return bool(zombie.events("attempt.superseded"))

    await until(refused, within=20)
    assert await fleet.kinds("c61") == log
    late = [each for each in fleet.effects() if each.pid == zombie.pid]
    assert [each.step for each in late] == ["work", "work", "wait_for_file", "wait_for_file"]
    assert zombie.running
    assert not [line for line in zombie.lines() if line.get("level") == "error"]


async def test_c05_a_blocked_loop_loses_nothing(fleet: Fleet) -> None:
    """C05, F7: a step blocks its worker's loop for longer than the lease and two heartbeats'
    patience: the lease is renewed from its own thread, so nobody takes the execution.
    """
    await fleet.start(workers=2)
    handle = await fleet.client.start(blocked, 8.0, id="c05")
    assert await handle.result(timeout=40) == "done"
    assert [each.what for each in fleet.effects()] == ["begun", "done"]
    assert (await fleet.row("c05")).fence == 1
    assert "EXECUTION_RECOVERED" not in await fleet.kinds("c05")
    holder = fleet.effects()[0].pid
    worker = next(each for each in fleet.of("worker") if each.pid == holder)
    assert worker.events("loop.blocked")
    assert await fleet.client.execute(steps, (1, 0.0), timeout=20) == 1


async def test_c06_sigterm_finishes_what_is_in_hand(fleet: Fleet) -> None:
    """C06, L6: a rolling restart: no step twice, no recovery, exit code 0."""
    await fleet.start(workers=1)
    handles = [await fleet.client.start(steps, (3, 0.3), id=f"c06-{n}") for n in range(5)]
    await begun(fleet, "work", 5)
    old = fleet.of("worker")[0]
    replacement = fleet.spawn("worker")
    old.send(signal.SIGTERM)
    more = [await fleet.client.start(steps, (1, 0.0), id=f"c06-more-{n}") for n in range(20)]
    assert await old.exit_code() == 0
    await replacement.ready()
    results = await asyncio.gather(*(each.result(timeout=30) for each in (*handles, *more)))
    assert results == [3] * 5 + [1] * 20
    assert_no_completed_step_ran_again(fleet.effects())
    assert rerun_keys(fleet.effects()) == set()
    assert all(row.recoveries == 0 for row in await fleet.rows())
    for number in range(5):
        assert "EXECUTION_RECOVERED" not in await fleet.kinds(f"c06-{number}")


async def test_c06_sigterm_with_too_little_time_hands_over_at_once(fleet: Fleet) -> None:
    """C06: grace too short: the unfinished step goes on elsewhere without waiting for a lease."""
    await fleet.start(workers=1)
    gate = fleet.folder / "go"
    handle = await fleet.client.start(held, str(gate), id="c06")
    await begun(fleet, "wait_for_file")
    old = fleet.of("worker")[0]
    hurried = fleet.spawn("worker")
    await hurried.ready()
    old.send(signal.SIGTERM)
    old.send(signal.SIGINT)  # the second signal: now
    await begun(fleet, "wait_for_file", 2, within=2.9)
    gate.touch()
    await handle.result(timeout=20)
    assert await old.exit_code() != 0


async def test_c26_timers_that_came_due_while_everything_was_down(fleet: Fleet) -> None:
    """C26, F9: all services die while executions sleep; all wake once after the restart."""
    await fleet.start()
    handles = [await fleet.client.start(sleeper, 2.0, id=f"c26-{n}") for n in range(20)]

    async def all_asleep() -> bool:
        rows = await fleet.rows()
        return len(rows) == 20 and all(row.status is Status.SUSPENDED for row in rows)

    await until(all_asleep, within=20)
    for process in fleet.processes:
        process.kill()
    rows = await fleet.rows()
    last = max(row.wake_at or 0 for row in rows)
    await until(lambda: _after(fleet, last), within=20)
    for role in ("dispatcher", "worker", "timer"):
        await fleet.spawn(role).ready()
    slept = await asyncio.gather(*(each.result(timeout=20) for each in handles))
    assert min(slept) >= 2.0, "never early by the journal's clock"
    for number in range(20):
        assert (await fleet.kinds(f"c26-{number}")).count("EXECUTION_RESUMED") == 1


async def _after(fleet: Fleet, moment: int) -> bool:
    return await fleet.journal.now() > moment


async def test_everything_dies_and_every_execution_completes(
    fleet: Fleet, rabbit_server: RabbitServer, postgres_server: PostgresServer
) -> None:
    """200 executions; every service killed three times and more, both servers restarted:
    every execution completes, every completed step ran once, only interrupted ones again.
    """
    await fleet.start(dispatchers=2, workers=2, timers=2)
    try:
        handles = await fleet.client.start_many(
            mixed, [(f"e-{number}", 0.3) for number in range(200)]
        )
        deaths = 0
        for number in range(3):
            for role in ("worker", "dispatcher", "timer"):
                await begun(fleet, "work", 60 * (number + 1), within=60)
                fleet.of(role)[0].kill()
                deaths += 1
                await fleet.spawn(role).ready()
            if number == 0:
                await rabbit_server.restart()
            if number == 1:
                await postgres_server.restart("immediate")
        results = await asyncio.gather(*(each.result(timeout=90) for each in handles))
    except BaseException:
        print(fleet.tell_logs())
        raise
    assert results == [[1, 11, 21, 31]] * 200
    assert deaths == 9
    effects = fleet.effects()
    assert_no_completed_step_ran_again(effects)
    done = {each.key for each in effects if each.what == "done"}
    assert len(done) == 800
    rerun = rerun_keys(effects)
    for key in rerun:
        interrupted = [each for each in effects if each.key == key]
        assert len({each.pid for each in interrupted}) > 1, "only a death repeats a step"
    for handle in handles:
        kinds = await fleet.kinds(handle.id)
        assert kinds.count("EXECUTION_STARTED") == 1
        assert kinds.count("STEP_COMPLETED") == 4
        assert kinds[-1] == "EXECUTION_COMPLETED"
