"""The queues that this process wants, made again on every new connection (C21, C32)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from loom_mq.broker.amqp.backoff import Backoff
from loom_mq.broker.amqp.calls import LockedQueueError, end, first_of
from loom_mq.broker.amqp.link import Link
from loom_mq.broker.amqp.probe import Probe
from loom_mq.broker.amqp.session import Session
from loom_mq.broker.protocol import Queue
from loom_mq.errors import BrokerError, BrokerUnreachableError, TopologyMismatchError
from loom_mq.observe.limiter import OncePer

_LOG_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class Topology:
    """Declares queues and remembers them.

    Args:
        link: the consuming connection, which owns private queues.
        probe: asks on that connection.
        seconds: for one call of `declare`.
    """

    def __init__(self, link: Link, probe: Probe, *, seconds: float) -> None:
        self._link = link
        self._seconds = seconds
        self._probe = probe
        self._wanted: dict[str, Queue] = {}
        self._again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said = OncePer(_LOG_SECONDS)

    def start(self) -> None:
        """Begin to watch for new connections."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Stop."""
        await end(self._task)

    async def declare(self, queues: Iterable[Queue]) -> None:
        """Make queues exist now and remember them.

        Raises:
            TopologyMismatchError: one exists with other arguments.
            BrokerUnreachableError: not within the time for it.
            BrokerError: refused otherwise.
        """
        for queue in queues:
            await self._declare_patiently(queue)
            self._wanted[queue.name] = queue

    def missing(self, name: str) -> None:
        """A message found no queue of this name: if it is a wanted one, make it again (C21)."""
        if name in self._wanted:
            self._again.set()

    async def _declare_patiently(self, queue: Queue) -> None:
        """Declare; try again after a lost connection and while another one owns the queue."""
        backoff = Backoff(queue.name)
        last: Exception | None = None
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    try:
                        return await self._probe.declare(queue)
                    except (LockedQueueError, BrokerUnreachableError) as error:
                        last = error
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            raise BrokerUnreachableError(
                f"queue {queue.name!r} could not be declared within {self._seconds:g} s "
                f"({last or self._link.reason})"
            ) from None

    async def _keep(self) -> None:
        backoff = Backoff("topology")
        session: Session | None = None
        while True:
            session = await self._link.session()
            self._again.clear()
            if await self._declare_all():
                backoff.reset()
                await self._until_needed(session)
            await asyncio.sleep(backoff.next())

    async def _until_needed(self, session: Session) -> None:
        again = asyncio.ensure_future(self._again.wait())
        try:
            await first_of(again, session.lost)
        finally:
            again.cancel()

    async def _declare_all(self) -> bool:
        """Declare all; False when it should be tried again soon."""
        done = True
        for queue in list(self._wanted.values()):
            try:
                await self._probe.declare(queue)
            except TopologyMismatchError as error:
                self._say(queue, str(error))  # only people can mend it
            except (LockedQueueError, BrokerError) as error:
                self._say(queue, str(error))
                done = False
        return done

    def _say(self, queue: Queue, reason: str) -> None:
        held_back = self._said.admit((queue.name, reason))
        if held_back is not None:
            _log.warning("queue.not_declared", queue=queue.name, reason=reason, held_back=held_back)
