"""The real fleet under the four workloads: services as processes, at their defaults."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.loom_flows import asleep, held, three_steps
from benchmarks.measure import cores_used
from benchmarks.process import ROOT
from benchmarks.system import Context, Role, Workload
from loom_mq.broker.amqp import AmqpBroker
from loom_mq.client.client import Client

READY: Final = 60.0
RUN_TIMEOUT: Final = 300.0
SETTLE: Final = 2.0
LONG: Final = 86_400.0
"""Seconds that W4's executions sleep."""


class Service:
    """One process of the fleet."""

    def __init__(self, role: str, number: int, ctx: Context) -> None:
        self.log = ctx.workdir / f"loom-{role}-{number}.log"
        env = {
            **os.environ,
            "LOOM_BROKER": ctx.amqp_url,
            "LOOM_JOURNAL": ctx.dsn,
            "LOOM_APP": "benchmarks.loom_flows",
            "LOOM_LOG_LEVEL": "info",
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [ctx.python, "-m", f"services.{role}"], cwd=ROOT, env=env, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        """The operating system's id of the process."""
        return self._process.pid

    async def ready(self) -> None:
        """Return when it says that it is ready.

        Raises:
            RuntimeError: it ended, or stayed silent.
        """
        deadline = time.monotonic() + READY
        while "service.ready" not in self.log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not ready: {self.log.read_text()[-2000:]}")
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """``kill -9``, now."""
        self._process.kill()

    def freeze(self) -> None:
        """``SIGSTOP``: it answers nobody, and nobody can know whether it ever will."""
        self._process.send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        """Ask, wait, kill."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)


class LoomFleet:
    """One dispatcher, two workers, timers, and a client in the driver."""

    name = "loom-mq"
    role = Role.LOOM
    workloads = frozenset(Workload)

    def __init__(self, timers: int = 1) -> None:
        self._number_of_timers = timers
        self._timers: list[Service] = []
        self._services: list[Service] = []
        self._workers: list[Service] = []
        self._client: Client | None = None
        self._ctx: Context
        self._made = 0

    async def prepare(self, ctx: Context) -> None:
        """Start every service and the client."""
        self._ctx = ctx
        self._workers = [self._start("worker") for _ in range(2)]
        self._timers = [self._start("timer") for _ in range(self._number_of_timers)]
        self._services = [self._start("dispatcher"), *self._timers]
        for service in (*self._services, *self._workers):
            await service.ready()
        self._client = await Client(AmqpBroker(ctx.amqp_url, name="benchmark")).__aenter__()

    async def w1(self, executions: int) -> float:
        """Executions per second, all started at once."""
        client = self.client
        began = time.perf_counter()
        async with asyncio.timeout(RUN_TIMEOUT):
            await asyncio.gather(
                *(client.execute(three_steps, number) for number in range(executions))
            )
        return executions / (time.perf_counter() - began)

    async def w2(self, executions: int) -> list[float]:
        """Seconds from start to result."""
        client = self.client
        seconds: list[float] = []
        async with asyncio.timeout(RUN_TIMEOUT):
            for number in range(executions):
                began = time.perf_counter()
                await client.execute(three_steps, number)
                seconds.append(time.perf_counter() - began)
        return seconds

    async def w3(self, rounds: int) -> list[float]:
        """Seconds from ``kill -9`` to step 2 running again."""
        return [await self._takeover(Service.kill) for _ in range(rounds)]

    async def frozen(self, rounds: int) -> list[float]:
        """Seconds from ``SIGSTOP`` to step 2 running elsewhere."""
        return [await self._takeover(Service.freeze) for _ in range(rounds)]

    def kill_timer(self) -> None:
        """``kill -9`` of one timer service."""
        self._timers.pop().kill()

    async def w4(self, seconds: float, sleepers: int) -> float:
        """Mean cores of all services and both servers."""
        client = self.client
        if sleepers:
            handles = await client.start_many(
                asleep, [(f"asleep-{uuid.uuid4().hex}", LONG) for _ in range(sleepers)]
            )
            async with asyncio.timeout(RUN_TIMEOUT):
                while (await handles[-1].state()).status != "suspended":
                    await asyncio.sleep(0.05)
        await asyncio.sleep(SETTLE)
        roots = [service.pid for service in (*self._services, *self._workers)]
        servers = [self._ctx.postgres_pid, self._ctx.rabbit_pid]
        return await cores_used([*roots, *servers], seconds)

    async def close(self) -> None:
        """End every process."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
        for service in (*self._workers, *self._services):
            await asyncio.get_running_loop().run_in_executor(None, service.stop)

    @property
    def client(self) -> Client:
        """The driver's client; `prepare` comes first."""
        if self._client is None:
            raise RuntimeError("prepare() comes first")
        return self._client

    def _start(self, role: str) -> Service:
        self._made += 1
        return Service(role, self._made, self._ctx)

    async def _takeover(self, lose: Callable[[Service], None]) -> float:
        marker = self._ctx.workdir / f"held-{uuid.uuid4().hex}"
        handle = await self.client.start(held, str(marker))
        [first] = await _runs(marker, 1, READY)
        holder = next(each for each in self._workers if each.pid == first["pid"])
        lost = time.monotonic()
        lose(holder)
        try:
            runs = await _runs(marker, 2, self._ctx.takeover_bound)
        except TimeoutError:
            return math.inf
        holder.kill()
        await handle.result(timeout=RUN_TIMEOUT)
        self._workers.remove(holder)
        self._workers.append(self._start("worker"))
        await self._workers[-1].ready()
        return runs[1]["at"] - lost


async def _runs(marker: Path, wanted: int, timeout: float) -> list[dict[str, float]]:
    """What the held step has said, as soon as it has said so much."""
    async with asyncio.timeout(timeout):
        while True:
            lines = marker.read_text().splitlines() if marker.exists() else []
            if len(lines) >= wanted:
                return [json.loads(line) for line in lines]
            await asyncio.sleep(0.002)
