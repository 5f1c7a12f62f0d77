"""A consumer inside the process that stays registered through losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context

from loom_mq.broker.memory_queue import MemoryQueue, MemoryRegistration
from loom_mq.broker.protocol import Handler, Queue


class MemoryConsumer:
    """See `broker.protocol.Consumer`.

    Args:
        queue: consumed.
        handler: called for each delivery.
        prefetch: unacknowledged deliveries at most.
        declare: makes the queue exist and returns it.
    """

    def __init__(
        self, queue: Queue, handler: Handler, prefetch: int, declare: Callable[[], MemoryQueue]
    ) -> None:
        self.queue = queue
        self.cancelled = False
        self._handler = handler
        self._prefetch = prefetch
        self._declare = declare
        self._context = copy_context()
        self._registration: MemoryRegistration | None = None

    @property
    def consuming(self) -> bool:
        """Whether the broker delivers to it."""
        registration = self._registration
        return registration is not None and not registration.over and not self.cancelled

    def register(self) -> None:
        """Declare the queue and consume it.

        Raises:
            TopologyMismatchError: the queue exists with other arguments.
            BrokerUnreachableError: it is private to another connection.
        """
        if self.cancelled or self.consuming:
            return
        queue = self._declare()
        self._registration = MemoryRegistration(queue, self._handler, self._prefetch, self._context)
        queue.attach(self._registration)

    def lose(self) -> None:
        """The connection is gone: what is in hand goes back."""
        if self._registration is not None and not self._registration.over:
            self._registration.end(keep=True)

    async def cancel(self) -> None:
        """Take no more; deliveries in hand may still be settled."""
        if not self.cancelled:
            self.cancelled = True
            if self._registration is not None:
                self._registration.cancelled = True
                self._registration.queue.detach(self._registration)
        await asyncio.sleep(0)
