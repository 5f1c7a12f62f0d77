"""Who takes over from whom, and what a death costs (F4, F7, C06, C63)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from loom_mq.ids import new_owner
from loom_mq.model.execution import Status
from loom_mq.testing.servers import PostgresServer, RabbitServer
from tests.support.fleet import (
    Fleet,
    Process,
    assert_no_completed_step_ran_again,
    rerun_keys,
)
from tests.support.fleet_flows import held, mixed, steps
from tests.support.house import until
from tests.support.unruly_flows import lingering


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(
        rabbit_url,
        postgres_dsn,
        tmp_path,
        app="tests.support.fleet_flows,tests.support.unruly_flows",
        LOOM_SLOTS="300",
    ) as fleet:
        yield fleet


async def begun(fleet: Fleet, step: str, times: int = 1, within: float = 30.0) -> None:
    """Return when a step's effect has begun so often."""

    async def seen() -> bool:
        effects = [each for each in fleet.effects() if each.step == step]
        return len([each for each in effects if each.what == "begun"]) >= times

    await until(seen, within=within)


def owner_of(process: Process) -> str:
    """The name of a process's run, as its log has it."""
    return str(process.events("service.ready")[0]["worker"])


# ---- a death, and who goes on ----------------------------------------------------------------


async def test_f7_each_holder_that_is_killed_is_followed_by_another(fleet: Fleet) -> None:
    """F7, C03: three holders in a row; only the step in flight runs again, once per death."""
    await fleet.start(workers=2)
    gate = fleet.folder / "go"
    handle = await fleet.client.start(held, str(gate), id="e")
    for death in range(1, 4):
        await begun(fleet, "wait_for_file", death)
        holder = [each for each in fleet.effects() if each.step == "wait_for_file"][-1]
        next(each for each in fleet.of("worker") if each.pid == holder.pid).kill()
        await fleet.spawn("worker").ready()
    await begun(fleet, "wait_for_file", 4)
    gate.touch()
    before, _pid, after = await handle.result(timeout=30)
    assert (before, after) == ("1", "2")
    effects = [(each.step, each.what, each.attempt) for each in fleet.effects()]
    begins = [attempt for step, what, attempt in effects if (step, what) == (held_step, "begun")]
    assert begins == [1, 2, 3, 4]
    assert Counter(step for step, what, _ in effects if what == "done") == {"work": 2, held_step: 1}
    assert (await fleet.kinds("e")).count("EXECUTION_RECOVERED") == 3
    assert (await fleet.row("e")).fence == 4


held_step = "wait_for_file"

Mishap = Callable[[Fleet, RabbitServer], Awaitable[None]]


async def dispatcher_killed(fleet: Fleet, _rabbit: RabbitServer) -> None:
    fleet.of("dispatcher")[0].kill()
    await fleet.spawn("dispatcher").ready()


async def timer_killed(fleet: Fleet, _rabbit: RabbitServer) -> None:
    fleet.of("timer")[0].kill()
    await fleet.spawn("timer").ready()


async def broker_restarted(_fleet: Fleet, rabbit: RabbitServer) -> None:
    await rabbit.restart()


async def broker_killed(_fleet: Fleet, rabbit: RabbitServer) -> None:
    await rabbit.kill()
    await rabbit.start()


async def workers_rolled(fleet: Fleet, _rabbit: RabbitServer) -> None:
    for old in fleet.of("worker"):
        await fleet.spawn("worker").ready()
        old.send(signal.SIGTERM)
        assert await old.exit_code() == 0


@pytest.mark.parametrize(
    "mishap", [dispatcher_killed, timer_killed, broker_restarted, broker_killed, workers_rolled]
)
async def test_f7_nothing_but_a_workers_death_repeats_a_step(
    fleet: Fleet, rabbit_server: RabbitServer, mishap: Mishap
) -> None:
    """F7, C04, C06: in the middle of 80 executions, twice; 0 steps run again, and no execution
    changes hands but by its own parks.
    """
    await fleet.start(workers=2)
    number = 80
    handles = await fleet.client.start_many(mixed, [(f"e-{n}", 0.5) for n in range(number)])
    for round_ in (1, 2):
        await begun(fleet, "work", number * round_)
        await mishap(fleet, rabbit_server)
    results = await asyncio.gather(*(each.result(timeout=60) for each in handles))
    assert results == [[1, 11, 21, 31]] * number
    effects = fleet.effects()
    assert rerun_keys(effects) == set()
    assert Counter(each.what for each in effects) == {"begun": 3 * number, "done": 4 * number}
    for row in await fleet.rows():
        assert row.recoveries == 0
        assert "EXECUTION_RECOVERED" not in await fleet.kinds(row.execution_id)


# ---- names and goodbyes ----------------------------------------------------------------------


def test_f7_a_name_is_never_given_twice() -> None:
    """F7: same host, same pid (as in a container), same role: another process all the same."""
    names = {new_owner("worker", "host") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("worker/host/") for name in names)


async def test_f7_a_worker_that_comes_back_is_a_stranger(fleet: Fleet) -> None:
    """F7: killed and started again at once on the same host. It holds nothing of what its
    predecessor held until recovery has taken that away; then it drives it under its own name.
    """
    await fleet.start(workers=1)
    first = fleet.of("worker")[0]
    handles = [await fleet.client.start(lingering, 1.0, id=f"e-{n}") for n in range(20)]
    await begun(fleet, "linger", 20)
    first.kill()
    held_by_the_dead = {row.owner for row in await fleet.rows()}
    second = await fleet.spawn("worker").ready()
    assert await asyncio.gather(*(each.result(timeout=30) for each in handles)) == ["done"] * 20
    assert owner_of(first) != owner_of(second)
    assert held_by_the_dead <= {owner_of(first), None}
    for number in range(20):
        kinds = await fleet.kinds(f"e-{number}")
        assert kinds.count("EXECUTION_RECOVERED") == 1
        assert (await fleet.row(f"e-{number}")).fence == 2
    by_attempt = Counter(
        (each.attempt, each.pid) for each in fleet.effects() if each.what == "begun"
    )
    assert by_attempt == {(1, first.pid): 20, (2, second.pid): 20}


async def test_c06_a_worker_that_drains_takes_nothing(fleet: Fleet) -> None:
    """C06, F10: what it has in hand it finishes, what comes is for others; the list of workers
    says so meanwhile, and when it has gone it holds nothing.
    """
    await fleet.start(workers=1)
    old = fleet.of("worker")[0]
    mine = [await fleet.client.start(lingering, 4.0, id=f"mine-{n}") for n in range(5)]
    await begun(fleet, "linger", 5)
    old.send(signal.SIGTERM)

    async def drains() -> bool:
        return any(each.draining for each in await fleet.journal.workers())

    await until(drains, within=3)
    new = await fleet.spawn("worker").ready()
    others = await fleet.client.start_many(steps, [(f"other-{n}", (2, 0.0)) for n in range(30)])
    assert await asyncio.gather(*(each.result(timeout=30) for each in others)) == [2] * 30
    assert await asyncio.gather(*(each.result(timeout=30) for each in mine)) == ["done"] * 5
    assert await old.exit_code() == 0
    pids = {(each.step, each.pid) for each in fleet.effects()}
    assert pids == {("linger", old.pid), ("work", new.pid)}
    assert rerun_keys(fleet.effects()) == set()
    assert owner_of(old) not in {each.owner for each in await fleet.journal.workers()}
    assert {row.owner for row in await fleet.rows()} == {None}


# ---- PostgreSQL goes away under a recovery -----------------------------------------------------


async def test_c63_a_journal_that_restarts_twice_while_the_survivor_recovers(
    fleet: Fleet, postgres_server: PostgresServer
) -> None:
    """C63: 250 executions of a worker that was killed; immediate restarts, two seconds apart.
    All complete without a restart of anybody, and what was done is not done again.
    """
    await fleet.start(workers=1)
    victim = fleet.of("worker")[0]
    gate = fleet.folder / "go"
    handles = await fleet.client.start_many(held, [(f"e-{n}", str(gate)) for n in range(250)])
    await begun(fleet, held_step, 250)
    survivor = await fleet.spawn("worker").ready()
    victim.kill()
    for _ in range(2):
        await postgres_server.restart("immediate")
        await asyncio.sleep(2)
    gate.touch()
    await asyncio.gather(*(each.result(timeout=90) for each in handles))
    rows = await fleet.rows()
    assert Counter(row.status for row in rows) == {Status.COMPLETED: 250}
    assert survivor.running
    assert fleet.of("dispatcher")[0].running
    effects = fleet.effects()
    assert_no_completed_step_ran_again(effects)
    done = Counter(each.step for each in effects if each.what == "done")
    assert done == {"work": 500, held_step: 250}
