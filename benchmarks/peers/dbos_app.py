"""The DBOS processes: an executor that runs the flows, or a client that only enqueues.

``python -m benchmarks.peers.dbos_app executor|polling|client NAME DSN``

Every step is durable (a row in DBOS's system database), nothing is tuned down. Plain functions on
threads, because they are faster here than DBOS's coroutines; the sleepers are coroutines, because
a thousand threads would be unfair.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, WorkflowHandle

from benchmarks.process import commands, say

APPLICATION: Final = "bench"
THREADS: Final = 4
"""Executions at a time in each process: more brought nothing."""
QUEUE: Final = "bench"
POLL: Final = 0.01
"""Seconds between two looks at the queue, and at a result by its client. DBOS's default is 1."""
HOLD: Final = 300.0
NAP: Final = 3600.0
ASLEEP_TIMEOUT: Final = 60.0

asleep: Final[list[None]] = []
"""One entry for each sleeper of this process that has reached its sleep."""


@DBOS.step()
def step(value: int) -> int:
    """A durable step with nothing to do."""
    return value + 1


@DBOS.step()
def held_step(marker: str) -> int:
    """Says that it runs; holds its worker the first time, passes the second."""
    say("running", at=time.monotonic())
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return 0
    time.sleep(HOLD)
    return 0


@DBOS.workflow()
def three_steps(value: int) -> int:
    """W1 and W2."""
    return step(step(step(value)))


@DBOS.workflow()
def held(marker: str) -> int:
    """W3: three steps, the second of which waits to be killed."""
    step(0)
    return step(held_step(marker))


@DBOS.workflow()
async def sleeper() -> None:
    """W4: a durable sleep, longer than any measurement."""
    asleep.append(None)
    await DBOS.sleep_async(NAP)


class Direct:
    """The executor calls its own flow: no hop, no other process."""

    def once(self, value: int) -> int:
        """One execution, from call to result."""
        return three_steps(value)

    def burst(self, executions: int) -> None:
        """`THREADS` executions at a time until all have their result."""
        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(three_steps, range(executions)):
                pass

    def hold(self, marker: str) -> None:
        """Start the execution that waits to be killed."""
        DBOS.start_workflow(held, marker)


class Queued:
    """A client of its own enqueues and collects the results; executors poll the queue."""

    def __init__(self, dsn: str) -> None:
        self._client = DBOSClient(system_database_url=dsn, application_name=APPLICATION)

    def _enqueue(self, name: str, argument: int | str) -> WorkflowHandle[int]:
        options: EnqueueOptions = {"queue_name": QUEUE, "workflow_name": name}
        handle: WorkflowHandle[int] = self._client.enqueue(options, argument)
        return handle

    def once(self, value: int) -> int:
        """One execution, from enqueue to result."""
        return self._enqueue("three_steps", value).get_result(polling_interval_sec=POLL)

    def burst(self, executions: int) -> None:
        """Enqueue all, then collect every result."""
        with ThreadPoolExecutor(THREADS) as threads:
            handles = threads.map(partial(self._enqueue, "three_steps"), range(executions))
            for handle in list(handles):
                handle.get_result(polling_interval_sec=POLL)

    def hold(self, marker: str) -> None:
        """Start the execution that waits to be killed."""
        self._enqueue("held", marker)


def launch(name: str, dsn: str, *, polling: bool) -> None:
    """Launch DBOS in this process as the executor ``name``; ``polling`` makes it serve the queue.

    An executor without the queue does not pay for its polls.
    """
    config: DBOSConfig = {
        "name": APPLICATION,
        "system_database_url": dsn,
        "executor_id": name,
        "application_version": "bench",
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    if polling:
        DBOS.register_queue(QUEUE, polling_interval_sec=POLL)


async def fall_asleep(sleepers: int) -> None:
    """Start the sleepers and wait until each has reached its durable sleep."""
    for _ in range(sleepers):
        await DBOS.start_workflow_async(sleeper)
    async with asyncio.timeout(ASLEEP_TIMEOUT):
        while len(asleep) < sleepers:
            await asyncio.sleep(0.05)


def timed(run: Callable[[int], int], executions: int) -> list[float]:
    """Seconds of each of ``executions``, one after the other."""
    seconds: list[float] = []
    for value in range(executions):
        began = time.perf_counter()
        run(value)
        seconds.append(time.perf_counter() - began)
    return seconds


async def obey(face: Direct | Queued) -> None:
    """Carry out the driver's commands until it closes its end."""
    async for command in commands():
        match command:
            case {"do": "burst", "executions": int(executions)}:
                await asyncio.to_thread(face.burst, executions)
                say("done")
            case {"do": "latency", "executions": int(executions)}:
                say("latencies", seconds=await asyncio.to_thread(timed, face.once, executions))
            case {"do": "hold", "marker": str(marker)}:
                await asyncio.to_thread(face.hold, marker)
            case {"do": "sleep", "sleepers": int(sleepers)}:
                await fall_asleep(sleepers)
                say("asleep")
            case _:
                raise ValueError(f"unknown command {command}")


def main(role: str, name: str, dsn: str) -> None:
    """Run one process. It leaves without DBOS's shutdown, which waits for what is held."""
    face: Direct | Queued
    match role:
        case "client":
            face = Queued(dsn)
        case "executor" | "polling":
            launch(name, dsn, polling=role == "polling")
            face = Direct()
        case _:
            raise ValueError(f"unknown role {role}")
    say("ready")
    asyncio.run(obey(face))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:4])
