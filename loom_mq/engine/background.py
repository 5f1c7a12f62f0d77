"""Tasks that nobody awaits: kept alive, counted, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from contextvars import Context
from typing import Any

import structlog

from loom_mq.broker.protocol import Consumer
from loom_mq.clock import Clock
from loom_mq.errors import LoomError
from loom_mq.lane import LaneClosedError

_log = structlog.get_logger(__name__)


class Background:
    """The tasks of one part of a service."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; a journal or broker that is away is logged, anything else is a crash."""
        # often called from within a flow, of which this is no part
        task = asyncio.get_running_loop().create_task(_logged(work), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_idle(self, timeout: float) -> None:
        """Return when no task is left, or after `timeout` seconds."""
        deadline = self._clock.monotonic() + timeout
        while self._tasks and (left := deadline - self._clock.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def cancel(self) -> None:
        """End what is left."""
        for task in list(self._tasks):
            task.cancel()


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except LoomError as error:
        _log.warning("background.failed", error=str(error))
    except LaneClosedError:
        return  # the service is stopping


async def bounded(work: Awaitable[None], seconds: float) -> None:
    """Wait for a goodbye, but not for ever (C60)."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except (TimeoutError, LoomError, LaneClosedError) as error:
        _log.warning("service.goodbye_failed", error=repr(error))


async def cancel_all(consumers: Iterable[Consumer], seconds: float = 2.0) -> None:
    """Stop taking messages, from all queues at once; a broker that is away is not awaited."""
    async with asyncio.TaskGroup() as group:
        for consumer in consumers:
            group.create_task(bounded(consumer.cancel(), seconds))
