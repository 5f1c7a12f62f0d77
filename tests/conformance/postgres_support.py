"""For tests on a real PostgreSQL: held transactions, waits for locks, and a line to cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from loom_mq.journal.postgres import PostgresJournal
from loom_mq.journal.postgres.arguments import append_arguments
from loom_mq.journal.postgres.endpoint import Connection
from loom_mq.journal.postgres.sql import Sql
from loom_mq.journal.protocol import Append, LeaseSession
from loom_mq.model.execution import WorkerRecord

PATIENCE = 15.0
"""Seconds that a test waits for something that must happen."""
NEWEST = len(Sql("loom").migrations())
"""The newest version of the schema."""


class Journal(PostgresJournal):
    """Closes the connections of leases that a test leaves open."""

    async def lease(self, worker: WorkerRecord, ttl: float) -> LeaseSession:
        session = await super().lease(worker, ttl)
        self._sessions.append(session)
        return session

    async def __aenter__(self) -> Self:
        self._sessions: list[LeaseSession] = []
        return await super().__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for session in self._sessions:
            await session.close()
        await super().__aexit__(kind, error, trace)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """A plain connection of the test's own."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "test"})
    try:
        yield connection
    finally:
        connection.terminate()


class Held:
    """A transaction that does something and is then kept open: a writer stopped in the middle.

    Args:
        dsn: of the database.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stack = connected(dsn)
        self.connection: Connection

    async def __aenter__(self) -> Self:
        self.connection = await self._stack.__aenter__()
        await self.connection.execute("BEGIN")
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._stack.__aexit__(None, None, None)

    async def append(self, *appends: Append) -> list[int] | None:
        """Append without committing; the places of those written."""
        places = ", ".join(f"${at}" for at in range(1, 24))
        written: list[int] | None = await self.connection.fetchval(
            f"SELECT written FROM loom.append_v2({places})", *append_arguments(appends)
        )
        return written

    async def lock(self, execution_id: str) -> None:
        """Lock an execution's row and change nothing."""
        await self.connection.execute(
            "SELECT FROM loom.executions WHERE execution_id = $1 FOR UPDATE", execution_id
        )

    async def commit(self) -> None:
        """Let it become true."""
        await self.connection.execute("COMMIT")

    async def roll_back(self) -> None:
        """Let it never have been."""
        await self.connection.execute("ROLLBACK")


class Watcher:
    """Looks at what the server's sessions do.

    Args:
        connection: to look with.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def until(self, question: str, wanted: object, *arguments: object) -> None:
        """Return when a query's first value is `wanted`."""
        async with asyncio.timeout(PATIENCE):
            while await self.connection.fetchval(question, *arguments) != wanted:
                await asyncio.sleep(0.002)

    async def until_waiting(self, number: int = 1) -> None:
        """Return when so many of the journal's sessions wait for a lock."""
        await self.until(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database() AND application_name <> 'test'",
            number,
        )

    async def busy(self) -> Sequence[asyncpg.Record]:
        """The journal's sessions that are not idle, and what they do."""
        return await self.connection.fetch(
            "SELECT state, query FROM pg_stat_activity WHERE state <> 'idle'"
            " AND datname = current_database() AND application_name <> 'test'"
        )

    async def deadlocks(self) -> int:
        """How many deadlocks the server has broken in this database."""
        await self.connection.execute("SELECT pg_stat_clear_snapshot()")
        number: int = await self.connection.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        return number


@asynccontextmanager
async def watching(dsn: str) -> AsyncIterator[Watcher]:
    """A watcher on a connection of its own."""
    async with connected(dsn) as connection:
        yield Watcher(connection)


class Line:
    """A TCP line to the server that a test can cut, or hold answers back on.

    Args:
        dsn: of the server.
    """

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.on_answer: Callable[[bytes], Awaitable[None]] | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *details: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def dsn(self) -> str:
        """The server's URL through this line."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def hold_answers(self) -> None:
        """Keep back whatever the server says from now on."""
        self._flowing.clear()

    def let_go(self) -> None:
        """Deliver what was kept back."""
        self._flowing.set()

    def lose_present(self) -> None:
        """Let nothing more through on what is connected now, without a word; new ones work."""
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._writers |= {writer, back}
        for source, target, answers in ((reader, back, False), (there, writer, True)):
            task = asyncio.ensure_future(self._carry(source, target, answers))
            self._tasks.add(task)

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool
    ) -> None:
        flowing = self._flowing
        try:
            while data := await source.read(65536):
                if answers:
                    if self.on_answer is not None:
                        await self.on_answer(data)
                    await flowing.wait()
                target.write(data)
                await target.drain()
        except OSError:
            return
        finally:
            target.transport.abort()
