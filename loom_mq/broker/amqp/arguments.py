"""Queue arguments as RabbitMQ 3.10 to 4.x take them (F10, C71, C81)."""

from __future__ import annotations

from pamqp.common import FieldTable

from loom_mq.broker.protocol import Queue, QueueKind


def arguments_of(queue: Queue) -> FieldTable:
    """The queue's optional arguments; nothing that matters is left to a broker's default."""
    arguments: FieldTable = {}
    if queue.kind is QueueKind.SHARED:
        arguments["x-queue-type"] = "quorum"
        if queue.delivery_limit is not None:
            arguments["x-delivery-limit"] = queue.delivery_limit
    if queue.kind is QueueKind.TOKEN:
        arguments["x-message-ttl"] = 0
    if queue.dead_letter is not None:
        arguments["x-dead-letter-exchange"] = ""
        arguments["x-dead-letter-routing-key"] = queue.dead_letter
    if queue.expires is not None:
        arguments["x-expires"] = max(1, int(queue.expires * 1000))
    return arguments
