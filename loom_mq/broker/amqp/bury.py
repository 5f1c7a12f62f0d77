"""Dead-lettering with a reason (F2): the copy is safe before the original is let go."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from pamqp.commands import Basic

from loom_mq.broker.amqp.calls import end
from loom_mq.broker.amqp.confirms import Letter
from loom_mq.broker.amqp.delivery import AmqpDelivery
from loom_mq.broker.amqp.publisher import Publisher
from loom_mq.broker.deadletter import death_headers
from loom_mq.errors import BrokerError

_CLOSE_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class Undertaker:
    """Publishes dead messages to their queue's dead-letter queue.

    Args:
        publisher: publishes the copies.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._tasks: set[asyncio.Task[None]] = set()

    def bury(self, delivery: AmqpDelivery, reason: str, grave: str | None) -> None:
        """Move a delivery to `grave`; without one it is dropped, as the broker would do."""
        if grave is None:
            _log.warning("delivery.dropped", queue=delivery.queue, reason=reason)
            delivery.ledger.reject(delivery.tag, requeue=False)
            return
        task = asyncio.get_running_loop().create_task(self._move(delivery, reason, grave))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give what is under way a moment; the rest is delivered again to somebody."""
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        await end(*tasks)

    async def _move(self, delivery: AmqpDelivery, reason: str, grave: str) -> None:
        letter = Letter(grave, _copied(delivery, reason), delivery.body)
        verdict: BrokerError | None
        try:
            [verdict] = await self._publisher.publish([letter])
        except (TypeError, ValueError) as error:  # foreign headers that cannot be written back
            verdict = BrokerError(str(error))
        if verdict is None:
            delivery.ledger.ack(delivery.tag)
            return
        # the queue's own dead-lettering keeps the message, only without the reason
        _log.warning(
            "delivery.buried_without_reason",
            queue=delivery.queue,
            reason=reason,
            error=str(verdict),
        )
        delivery.ledger.reject(delivery.tag, requeue=False)


def _copied(delivery: AmqpDelivery, reason: str) -> Basic.Properties:
    """The original's properties, less those that the broker would refuse or act upon."""
    old = delivery.properties
    return Basic.Properties(
        content_type=old.content_type,
        content_encoding=old.content_encoding,
        headers={**(old.headers or {}), **death_headers(delivery.queue, reason)},
        delivery_mode=2,
        priority=old.priority,
        correlation_id=old.correlation_id,
        reply_to=old.reply_to,
        timestamp=old.timestamp,
        message_type=old.message_type,
        app_id=old.app_id,
    )
