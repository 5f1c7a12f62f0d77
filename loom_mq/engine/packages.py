"""Sending packages: one place that turns an index row into a hint on a work queue."""

from __future__ import annotations

import structlog

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker
from loom_mq.engine.outbox import Outbox
from loom_mq.errors import BrokerError, UnroutableError
from loom_mq.model.execution import ExecutionRow
from loom_mq.model.messages import Cause, Package

_log = structlog.get_logger(__name__)

INLINE_START_LIMIT = 64 * 1024
"""A larger start stays in the journal, and the worker reads it as it claims: a message
of many packages must stay well under the broker's own limit."""


class PackageSender:
    """Sends packages and makes a work queue that is missing."""

    def __init__(self, broker: Broker, outbox: Outbox) -> None:
        self._broker = broker
        self._outbox = outbox

    async def send(self, row: ExecutionRow, cause: Cause, start: bytes | None = None) -> bool:
        """Ask the workers of the row's queue to drive it.

        Returns:
            Whether the broker confirmed. If not, a sweep sends another in time.
        """
        queue = topology.work(row.queue)
        inline = start if start is not None and len(start) <= INLINE_START_LIMIT else None
        package = Package(
            row.tenant, row.execution_id, row.flow, row.version, row.fence, cause, inline
        )
        error = await self._outbox.packages.send(queue.name, package)
        if isinstance(error, UnroutableError):
            try:
                await self._broker.declare([topology.DEAD, queue])
            except BrokerError as problem:
                error = problem
            else:
                error = await self._outbox.packages.send(queue.name, package)
        if error is not None:
            _log.warning(
                "package.not_published",
                tenant=row.tenant,
                execution_id=row.execution_id,
                queue=row.queue,
                code=error.code,
                error=error.message,
            )
        return error is None
