"""A connection to the broker that comes back (C04, C59, C60).

aio-pika's robust connection is not used: it restores what it remembers of consumers by
weak reference, cannot be asked whether they are alive, and does not come back after a
queue was deleted and made again under its consumer. Here every loss ends a `Session`,
a new one is made with bounded pauses, and those who live on it set themselves up anew.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

import structlog
from yarl import URL

from loom_mq.broker.amqp.backoff import Backoff
from loom_mq.broker.amqp.calls import end
from loom_mq.broker.amqp.session import Session
from loom_mq.errors import BrokerUnreachableError
from loom_mq.observe.limiter import OncePer

_LOG_SECONDS: Final = 60.0
_GOODBYE_SECONDS: Final = 2.0
_END_SECONDS: Final = 2.0
"""For a try to connect that is under way; it drops its socket within a second."""
_STEADY_SECONDS: Final = 5.0
"""A connection that lived this long shows that the next try may come quickly."""
_log = structlog.get_logger(__name__)


class Link:
    """Keeps one connection up.

    Args:
        url: the broker, with credentials.
        role: what the connection is for, in logs.
        connect_timeout: seconds for one try.
    """

    def __init__(self, url: URL, *, role: str, connect_timeout: float) -> None:
        self._url = url
        self._role = role
        self._seconds = connect_timeout
        name = f"{url.query.get('name', '')}/{role}"
        self._mark = f"{zlib.crc32(name.encode()):08x}"
        self._backoff = Backoff(name)
        self._up = asyncio.Event()
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._said = OncePer(_LOG_SECONDS)
        self.reason = "not connected yet"
        self.losses = 0

    @property
    def current(self) -> Session | None:
        """The live session, if there is one."""
        session = self._session
        return session if session is not None and session.alive else None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._keep_up())

    async def session(self) -> Session:
        """Wait for a live session, however long that takes."""
        while (session := self.current) is None:
            if self._task is None:
                raise BrokerUnreachableError("the connection to the broker was closed")
            self._up.clear()
            await self._up.wait()
        return session

    async def session_within(self, seconds: float, what: str) -> Session:
        """Wait for a live session.

        Raises:
            BrokerUnreachableError: there is none within `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.session()
        except TimeoutError:
            raise BrokerUnreachableError(
                f"{what}: no connection to the broker at {self._where()} within {seconds:g} s "
                f"({self.reason})"
            ) from None

    async def close(self) -> None:
        """Stop and disconnect, in bounded time whatever the broker does (C60)."""
        task, session = self._task, self._session
        self._task = None
        self._up.set()  # who waits for a connection learns that there will be none
        await end(task, seconds=_END_SECONDS)
        if session is not None:
            await session.close(seconds=_GOODBYE_SECONDS)
        self._session, self.reason = None, "closed"

    async def abort(self) -> None:
        """Stop and drop the connection with no goodbye."""
        if self._session is not None:
            self._session.condemn("aborted")
        await self.close()

    async def _keep_up(self) -> None:
        while True:
            try:
                session = await Session.connect(
                    self._url, seconds=self._seconds, mark=f"{self._mark}.{self.losses}"
                )
            except Exception as error:  # a client library's surprise must not end supervision
                await self._failed(error)
                continue
            await self._live_through(session)
            await asyncio.sleep(self._backoff.next())

    async def _live_through(self, session: Session) -> None:
        began = asyncio.get_running_loop().time()
        self._session, self.reason = session, ""
        self._up.set()
        _log.info("broker.connected", role=self._role, broker=self._where())
        self.reason = await asyncio.shield(session.lost)
        self._session = None
        self.losses += 1
        if asyncio.get_running_loop().time() - began > _STEADY_SECONDS:
            self._backoff.reset()
        self._say("broker.connection_lost", self.reason, self.reason)
        await session.close(seconds=0)

    async def _failed(self, error: Exception) -> None:
        self.reason = str(error) or type(error).__name__
        self._say("broker.unreachable", type(error.__cause__ or error).__name__, self.reason)
        await asyncio.sleep(self._backoff.next())

    def _say(self, event: str, cause: str, reason: str) -> None:
        held_back = self._said.admit((event, cause))
        if held_back is not None:
            _log.warning(
                event, role=self._role, broker=self._where(), reason=reason, held_back=held_back
            )

    def _where(self) -> str:
        return f"{self._url.host}:{self._url.port or self._url.scheme}{self._url.path}"
