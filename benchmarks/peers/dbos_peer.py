"""DBOS under the four workloads, run as documented for use without its Conductor service.

Three ways: executors that run their own flows, executors behind a queue with a client of its own,
and (for W3 only) the same executor started again, which is DBOS's own recovery.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from benchmarks.measure import cores_used
from benchmarks.process import Child
from benchmarks.system import Context, Role, Workload

APP: Final = "benchmarks.peers.dbos_app"
RUN_TIMEOUT: Final = 120.0
SETTLE: Final = 2.0
"""Seconds between the last execution falling asleep and the measurement of W4."""


class Way(StrEnum):
    """How DBOS is run."""

    DIRECT = "direct"
    QUEUE = "queue"
    RESTART = "restart"


_OFFERS: Final = {
    Way.DIRECT: frozenset(Workload),
    Way.QUEUE: frozenset(Workload),
    Way.RESTART: frozenset({Workload.TAKEOVER}),
}
_TITLES: Final = {
    Way.DIRECT: "DBOS, direct",
    Way.QUEUE: "DBOS, queue, poll 10 ms",
    Way.RESTART: "DBOS, same executor again",
}


class DbosPeer:
    """Two executors over one PostgreSQL."""

    role = Role.PEER

    def __init__(self, way: Way) -> None:
        self.name = _TITLES[way]
        self.workloads = _OFFERS[way]
        self._way = way
        self._executors: dict[str, Child] = {}
        self._client: Child | None = None
        self._ctx: Context

    async def prepare(self, ctx: Context) -> None:
        """Start the executors (the first lays DBOS's schema), then the client if there is one."""
        self._ctx = ctx
        for name in ("a",) if self._way is Way.RESTART else ("a", "b"):
            await self._start_executor(name)
        if self._way is Way.QUEUE:
            self._client = await self._start("client", "client")

    async def w1(self, executions: int) -> float:
        """Executions per second; directly, each executor runs its half."""
        began = time.perf_counter()
        starters = [self._client] if self._client else list(self._executors.values())
        async with asyncio.TaskGroup() as group:
            for starter in starters:
                group.create_task(self._burst(starter, executions // len(starters)))
        return executions / (time.perf_counter() - began)

    async def w2(self, executions: int) -> list[float]:
        """Seconds from call (or enqueue) to result."""
        starter = self._client or self._executors["a"]
        await starter.tell(do="latency", executions=executions)
        said = await starter.expect("latencies", RUN_TIMEOUT)
        return _floats(said["seconds"])

    async def w3(self, rounds: int) -> list[float]:
        """Seconds from ``kill -9`` to step 2 running again; stops after a round without end."""
        seconds: list[float] = []
        for _ in range(rounds):
            seconds.append(await self._takeover())
            if math.isinf(seconds[-1]):
                break
        return seconds

    async def w4(self, seconds: float, sleepers: int) -> float:
        """Mean cores of all DBOS processes and PostgreSQL."""
        if sleepers:
            share = sleepers // len(self._executors)
            for executor in self._executors.values():
                await executor.tell(do="sleep", sleepers=share)
            for executor in self._executors.values():
                await executor.expect("asleep", RUN_TIMEOUT)
        await asyncio.sleep(SETTLE)
        roots = [child.pid for child in self._children()]
        return await cores_used([*roots, self._ctx.postgres_pid], seconds)

    async def close(self) -> None:
        """End every process."""
        await asyncio.gather(*(child.stop() for child in self._children()))

    def _children(self) -> Sequence[Child]:
        return [*self._executors.values(), *([self._client] if self._client else [])]

    async def _start(self, role: str, name: str) -> Child:
        return await Child.start(
            f"dbos-{self._way}-{name}",
            APP,
            [role, name, self._ctx.dsn],
            python=self._ctx.python,
            workdir=self._ctx.workdir,
        )

    async def _start_executor(self, name: str) -> None:
        role = "polling" if self._way is Way.QUEUE else "executor"
        self._executors[name] = await self._start(role, name)

    async def _burst(self, starter: Child, executions: int) -> None:
        await starter.tell(do="burst", executions=executions)
        await starter.expect("done", RUN_TIMEOUT)

    async def _takeover(self) -> float:
        marker = self._ctx.workdir / f"held-{uuid.uuid4().hex}"
        starter = self._client or self._executors["a"]
        await starter.tell(do="hold", marker=str(marker))
        holder, _ = await self._running(RUN_TIMEOUT)
        killed = time.monotonic()
        self._executors[holder].kill()
        await self._executors.pop(holder).stop()
        if self._way is Way.RESTART:
            await self._start_executor(holder)
        try:
            _, again = await self._running(self._ctx.takeover_bound - (time.monotonic() - killed))
        except TimeoutError:
            again = math.inf
        if self._way is not Way.RESTART:
            await self._start_executor(holder)
        return again - killed

    async def _running(self, timeout: float) -> tuple[str, float]:
        """The executor that next says it runs step 2, and when it said so."""
        waits = {
            asyncio.create_task(child.expect("running", timeout)): name
            for name, child in self._executors.items()
        }
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        task = done.pop()
        return waits[task], _floats([task.result()["at"]])[0]


def _floats(values: object) -> list[float]:
    if not isinstance(values, list) or not all(isinstance(value, float) for value in values):
        raise TypeError(f"not a list of numbers: {values!r}")
    return values


def peers() -> Sequence[DbosPeer]:
    """Every way of running DBOS."""
    return [DbosPeer(way) for way in Way]
