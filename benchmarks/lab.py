"""The servers that a run measures on: private, durable, with a fresh corner for each system."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import asyncpg

from benchmarks.measure import median
from benchmarks.report import Json
from benchmarks.system import Context
from loom_mq.testing.servers import PostgresServer, RabbitServer

CORNER: Final = "bench"
COMMITS: Final = 200
DURABILITY: Final = ("fsync", "full_page_writes", "synchronous_commit")


class NotDurableError(Exception):
    """The server would answer before the disk has the data: no figure would mean anything."""


class Lab:
    """One PostgreSQL and one RabbitMQ for the whole run."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._servers = AsyncExitStack()
        self._postgres = PostgresServer()
        self._rabbit = RabbitServer()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as servers:
            await servers.enter_async_context(self._postgres)
            await servers.enter_async_context(self._rabbit)
            self._servers = servers.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._servers.aclose()

    async def conditions(self) -> dict[str, Json]:
        """Versions and durability settings; `NotDurableError` if one of these is not ``on``."""
        settings = {name: await self._postgres.psql(f"SHOW {name}") for name in DURABILITY}
        if off := [name for name, value in settings.items() if value != "on"]:
            raise NotDurableError(f"PostgreSQL runs with {', '.join(off)} off")
        return {
            "postgresql": await self._postgres.psql("SHOW server_version"),
            "rabbitmq": (await self._rabbit.evaluate("rabbit_misc:version()")).strip('"'),
            **settings,
            "commit_ms": round(await self._commit_seconds() * 1000, 2),
        }

    async def _commit_seconds(self) -> float:
        """The median time of one durable commit of one row: how fast this machine is today."""
        connection = await asyncpg.connect(self._postgres.dsn)
        try:
            await connection.execute("CREATE TABLE commits (at timestamptz)")
            seconds: list[float] = []
            for _ in range(COMMITS):
                began = time.perf_counter()
                await connection.execute("INSERT INTO commits VALUES (now())")
                seconds.append(time.perf_counter() - began)
            await connection.execute("DROP TABLE commits")
            return median(seconds)
        finally:
            await connection.close()

    @asynccontextmanager
    async def corner(self, takeover_bound: float) -> AsyncIterator[Context]:
        """An empty database and an empty virtual host, gone at the end."""
        dsn = await self._postgres.create_database(CORNER)
        amqp_url = await self._rabbit.create_vhost(CORNER)
        try:
            yield Context(
                dsn=dsn,
                amqp_url=amqp_url,
                postgres_pid=self._postgres.pid,
                rabbit_pid=self._rabbit.pid,
                workdir=self._workdir,
                python=sys.executable,
                takeover_bound=takeover_bound,
            )
        finally:
            await self._rabbit.delete_vhost(CORNER)
            await self._postgres.drop_database(CORNER)
            await self._postgres.psql("CHECKPOINT")
