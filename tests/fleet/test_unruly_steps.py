"""Steps that end the process they run in (C68, F4, F8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import loom_mq as loom
from loom_mq.cli.main import run
from loom_mq.flows.definition import Flow
from loom_mq.model.execution import Status
from loom_mq.recovery import Keeping, orphan_census
from tests.support.fleet import Fleet
from tests.support.fleet_flows import steps
from tests.support.house import until
from tests.support.supervisor import Supervisor
from tests.support.unruly_flows import (
    deadly,
    deadly_in_a_thread,
    deadly_itself,
    deadly_once,
    greedy,
)

MOST = 2
"""Recoveries before an execution is given up."""


@pytest.fixture
async def fleet(rabbit_url: str, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(
        rabbit_url,
        postgres_dsn,
        tmp_path,
        app="tests.support.fleet_flows,tests.support.unruly_flows",
        LOOM_MAX_RECOVERIES=str(MOST),
        LOOM_UVLOOP="false",
    ) as fleet:
        yield fleet


async def given_up(fleet: Fleet) -> bool:
    """Whether the only execution that nobody drives was recovered too often."""
    census = await orphan_census(fleet.journal, max_recoveries=MOST)
    return [each.keeping for each in census.orphans] == [Keeping.GIVEN_UP]


@pytest.mark.parametrize(
    ("flow", "how"),
    [(deadly, "exit"), (deadly, "segfault"), (deadly_in_a_thread, "segfault")],
)
async def test_c68_a_step_that_kills_every_worker_is_given_up_and_listed(
    fleet: Fleet,
    flow: Flow[str, str],
    how: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """C68, F4, F8: no exit code 0, started again each time, as often as the bound says; then
    `loom stuck` has it, and the worker that is there does other work.
    """
    await fleet.start(workers=1)
    async with Supervisor(fleet, fleet.of("worker")[0]) as supervisor:
        await fleet.client.start(flow, how, id="poison")
        await until(lambda: given_up(fleet), within=60, every=0.2)
        assert await fleet.client.execute(steps, (2, 0.0), timeout=30) == 2
        assert len(supervisor.codes) == MOST + 1
        assert 0 not in supervisor.codes
        assert supervisor.process.running
    row = await fleet.row("poison")
    assert (row.status, row.recoveries) == (Status.RUNNING, MOST)
    begun = [each.attempt for each in fleet.effects() if each.execution == "poison"]
    assert begun == list(range(1, MOST + 2)), "each attempt that was lost is on the log"
    assert (await fleet.kinds("poison")).count("EXECUTION_RECOVERED") == MOST
    where = ("--max-recoveries", str(MOST), "--json", "--journal", fleet.dsn)
    capsys.readouterr()
    with capture_logs():  # in a process of its own `loom` keeps the log out of its answers
        assert await asyncio.to_thread(run, ["stuck", "--ids", "--check", *where]) == 7
    [item] = json.loads(capsys.readouterr().out)["items"]
    assert (item["id"], item["code"]) == ("poison", "recovery_exhausted")


@pytest.mark.parametrize("how", ["at once", "after a step", "after a sleep"])
async def test_c68_a_flow_that_kills_every_worker_is_given_up(fleet: Fleet, how: str) -> None:
    """C68, F8: also where its code does so before anything new was durable. A start and a wake
    are not counted, for nobody had died before them; all that follow are.
    """
    await fleet.start(workers=1)
    async with Supervisor(fleet, fleet.of("worker")[0]) as supervisor:
        with suppress(TimeoutError):
            await fleet.client.start(deadly_itself, how, id="poison", timeout=0.5)
        await until(lambda: given_up(fleet), within=60, every=0.2)
        assert await fleet.client.execute(steps, (2, 0.0), timeout=30) == 2
        assert MOST + 1 <= len(supervisor.codes) <= MOST + 2
        assert 0 not in supervisor.codes
    assert (await fleet.row("poison")).recoveries == MOST


@pytest.mark.parametrize("how", ["exit", "segfault"])
async def test_c68_a_step_that_kills_its_worker_once_is_tried_again(fleet: Fleet, how: str) -> None:
    """C68: retried after the restart; completed by the second attempt and not by the first."""
    await fleet.start(workers=1)
    async with Supervisor(fleet, fleet.of("worker")[0]) as supervisor:
        plan = (how, str(fleet.folder / "died"))
        handle = await fleet.client.start(deadly_once, plan, id="once")
        assert await handle.result(timeout=60) == "lived"
        assert len(supervisor.codes) == 1
        assert 0 not in supervisor.codes
    assert [each.attempt for each in fleet.effects()] == [1, 2]


async def test_c68_a_step_without_memory_fails_and_its_worker_stays(fleet: Fleet) -> None:
    """C68: an ordinary failure, retried as the step says, and never completed."""
    await fleet.start(workers=1)
    handle = await fleet.client.start(greedy, id="greedy")
    with pytest.raises(loom.ExecutionFailedError) as failed:
        await handle.result(timeout=30)
    assert failed.value.error_type == "MemoryError"
    assert [each.attempt for each in fleet.effects()] == [1, 2]
    assert fleet.of("worker")[0].running
    assert await fleet.client.execute(steps, (1, 0.0), timeout=30) == 1
