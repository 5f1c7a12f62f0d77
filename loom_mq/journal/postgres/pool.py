"""A few connections, opened when they are needed, each used by one call at a time (C24, C89).

A connection goes back only when it is certainly clean: after an answer, or after a plain
refusal by the server. A call that was cancelled, timed out or cut off ends its connection
instead, so that nothing of it can leak into the next call (C29).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import asyncpg
import structlog

from loom_mq.errors import JournalUnreachableError, LoomError
from loom_mq.journal.postgres.endpoint import Connection, Endpoint
from loom_mq.journal.postgres.faults import (
    CONFLICTS,
    connection_lost,
    refused_by_server,
    translate,
    unreachable,
)

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]

MAX_TRIES: Final = 5
"""Tries of a call that conflicts with others."""
_FIRST_PAUSE: Final = 0.005
_GOODBYE: Final = 1.0

_log = structlog.get_logger(__name__)


class Pool:
    """See the module's docstring. Belongs to one event loop.

    Args:
        endpoint: how to connect.
        size: connections at most.
    """

    def __init__(self, endpoint: Endpoint, size: int) -> None:
        self._endpoint = endpoint
        self._size = size
        self._idle: list[Connection] = []
        self._open = 0
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        self._closed = False

    async def read(self, work: Work[T]) -> T:
        """Do what only reads; once more when its connection turns out to be dead.

        Raises:
            JournalUnreachableError: no connection, or no answer.
            JournalError: the server refused it.
        """
        return await self._call(work, writing=False)

    async def write(self, work: Work[T]) -> T:
        """Do what writes, in one statement.

        Raises:
            JournalUnreachableError: no connection; nothing was written.
            CommitOutcomeUnknownError: the connection died, or gave no answer (J4).
            StorageWriteError: the server refused it; nothing was written.
        """
        return await self._call(work, writing=True)

    async def close(self) -> None:
        """Close all connections; those in use end with their calls."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(_leave(connection) for connection in idle))
        self._open -= len(idle)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _call(self, work: Work[T], *, writing: bool) -> T:
        tries = 0
        while True:
            tries += 1
            connection = await self._acquire()
            try:
                async with asyncio.timeout(self._endpoint.timeout):
                    answer = await work(connection)
            except LoomError:
                self._give_back(connection, clean=True)
                raise
            except BaseException as error:
                self._give_back(connection, clean=refused_by_server(error))
                if not isinstance(error, Exception):
                    raise
                if not await self._worth_another_try(error, tries, writing):
                    raise translate(error, str(self._endpoint), writing=writing) from error
            else:
                self._give_back(connection, clean=True)
                return answer

    async def _worth_another_try(self, error: Exception, tries: int, writing: bool) -> bool:
        if connection_lost(error):
            # where one connection died the others may be dead as well, without knowing
            self._drop_idle()
            return not writing and tries == 1 and not isinstance(error, TimeoutError)
        if isinstance(error, CONFLICTS) and tries < MAX_TRIES:
            _log.info("journal.conflict", tries=tries, error=str(error))
            await asyncio.sleep(_FIRST_PAUSE * 2 ** (tries - 1))
            return True
        return False

    # ---- connections -------------------------------------------------------------------

    async def _acquire(self) -> Connection:
        deadline = asyncio.get_running_loop().time() + self._endpoint.timeout
        while True:
            if self._closed:
                raise JournalUnreachableError("this journal is closed")
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._open -= 1
            if self._open < self._size:
                fresh = await self._connect()
                if fresh is not None:
                    return fresh
            handed = await self._wait(deadline)
            if handed is not None:
                return handed

    async def _connect(self) -> Connection | None:
        """A new connection; None when the server has none left but we have some (C89)."""
        self._open += 1
        try:
            return await self._endpoint.connect()
        except asyncpg.TooManyConnectionsError as error:
            self._open -= 1
            if self._open == 0:
                raise unreachable(error, str(self._endpoint)) from error
            return None
        except BaseException:
            self._open -= 1
            self._hand_over(None)
            raise

    async def _wait(self, deadline: float) -> Connection | None:
        """A connection that came free; None when there is room for a new one."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except TimeoutError:
            self._decline(waiter)
            raise JournalUnreachableError(
                f"the connection pool is exhausted: none of its {self._size} connections to the "
                f"journal at {self._endpoint} came free within {self._endpoint.timeout:g} s, and "
                f"{len(self._waiters)} more calls wait; raise LOOM_POOL_SIZE, or look for what "
                "keeps the database busy"
            ) from None
        except asyncio.CancelledError:
            self._decline(waiter)
            raise

    def _decline(self, waiter: asyncio.Future[Connection | None]) -> None:
        """Whoever waited has gone: what it was handed in that very moment is the next one's."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.done() and not waiter.cancelled():
            connection = waiter.result()
            if connection is None:
                self._hand_over(None)
            else:
                self._give_back(connection, clean=True)

    def _give_back(self, connection: Connection, *, clean: bool) -> None:
        if not clean or self._closed or connection.is_closed():
            connection.terminate()
            self._open -= 1
            self._hand_over(None)
        elif not self._hand_over(connection):
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.terminate()
            self._open -= 1
            self._hand_over(None)
        self._idle.clear()

    def _hand_over(self, connection: Connection | None) -> bool:
        """Give the longest waiting call a connection, or (None) room for a new one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False


async def _leave(connection: Connection) -> None:
    try:
        await connection.close(timeout=_GOODBYE)
    except Exception as error:  # a goodbye must not fail
        _log.debug("journal.goodbye_failed", error=error)
        connection.terminate()
