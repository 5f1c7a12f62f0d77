"""The floor: the same messages and rows as a three-step execution, without an engine.

client -> start queue -> dispatcher-like hop -> work queue -> worker-like hop -> rows in group
commits -> reply. The client is the calling process; each hop is a process of its own.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Final

import asyncpg

from benchmarks.floor_links import Framing, Link, Package, open_link
from benchmarks.floor_roles import SCHEMA, START_QUEUE, Hop
from benchmarks.measure import cores_used
from benchmarks.process import Child
from benchmarks.system import Context, Role, Workload, WorkloadNotOfferedError

INPUT: Final = b"three steps, nothing to do in any"
RUN_TIMEOUT: Final = 60.0
START_BATCH: Final = {Framing.BATCHED: 128, Framing.PLAIN: 500}
"""Packages that the client sends at once: one message, or one window of confirms."""
SENDERS: Final = 4
"""Batches whose confirms the client awaits at the same time."""


class Floor:
    """The raw pipeline in one of its two framings."""

    role = Role.FLOOR
    workloads = frozenset({Workload.THROUGHPUT, Workload.LATENCY, Workload.IDLE})

    def __init__(self, framing: Framing) -> None:
        self.name = f"floor, {framing}"
        self._framing = framing
        self._children: list[Child] = []
        self._reply_to = f"floor.reply.{uuid.uuid4().hex}"
        self._sent = 0
        self._link: Link | None = None
        self._ctx: Context

    async def prepare(self, ctx: Context) -> None:
        """Lay the two tables, start both hops and the client's link."""
        self._ctx = ctx
        connection = await asyncpg.connect(ctx.dsn)
        try:
            await connection.execute(SCHEMA)
        finally:
            await connection.close()
        for hop in Hop:
            child = await Child.start(
                f"floor-{self._framing}-{hop}",
                "benchmarks.floor_roles",
                [hop, self._framing, ctx.amqp_url, ctx.dsn],
                python=ctx.python,
                workdir=ctx.workdir,
            )
            self._children.append(child)
        self._link = await open_link(self._framing, ctx.amqp_url, self._reply_to, private=True)

    async def w1(self, executions: int) -> float:
        """Executions per second of one burst, in windows of confirms."""
        size = START_BATCH[self._framing]
        packages = self._packages(executions)
        batches = [packages[at : at + size] for at in range(0, executions, size)]
        batches.reverse()
        began = time.perf_counter()
        async with asyncio.timeout(RUN_TIMEOUT), asyncio.TaskGroup() as group:
            for _ in range(SENDERS):
                group.create_task(self._send_all(batches))
            await self._replies(executions)
        return executions / (time.perf_counter() - began)

    async def w2(self, executions: int) -> list[float]:
        """Seconds from start to reply, one after the other."""
        latencies: list[float] = []
        for package in self._packages(executions):
            began = time.perf_counter()
            async with asyncio.timeout(RUN_TIMEOUT):
                await self._client().send(START_QUEUE, [package])
                await self._replies(1)
            latencies.append(time.perf_counter() - began)
        return latencies

    async def w3(self, rounds: int) -> list[float]:
        """Not offered: a pipeline without claims has no takeover."""
        raise WorkloadNotOfferedError(f"{self.name} has no takeover")

    async def w4(self, seconds: float, sleepers: int) -> float:
        """Mean cores of both hops and both servers; no execution can sleep here."""
        if sleepers:
            raise WorkloadNotOfferedError(f"{self.name} has no sleeping executions")
        roots = [child.pid for child in self._children]
        return await cores_used([*roots, self._ctx.postgres_pid, self._ctx.rabbit_pid], seconds)

    async def close(self) -> None:
        """Close the link and end both hops."""
        try:
            if self._link is not None:
                await self._link.close()
        finally:
            await asyncio.gather(*(child.stop() for child in self._children))

    def _client(self) -> Link:
        if self._link is None:
            raise RuntimeError(f"{self.name} is not prepared")
        return self._link

    def _packages(self, count: int) -> list[Package]:
        first = self._sent
        self._sent += count
        return [
            Package(f"execution-{number:012d}", self._reply_to, INPUT)
            for number in range(first, first + count)
        ]

    async def _send_all(self, batches: list[list[Package]]) -> None:
        while batches:
            await self._client().send(START_QUEUE, batches.pop())

    async def _replies(self, count: int) -> None:
        missing = count
        while missing > 0:
            missing -= len(await self._client().take())


def floors() -> Sequence[Floor]:
    """Both framings."""
    return [Floor(Framing.BATCHED), Floor(Framing.PLAIN)]
