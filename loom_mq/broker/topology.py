"""Every name and argument on the broker, in one place.

All messages go through the default exchange by queue name, so a client in any
language needs one string to publish a start, and there are no bindings to lose.
Shared queues are quorum queues with a delivery limit of their own, because RabbitMQ
3.10 has none by default and 4.x has 20. Nothing has a TTL for work: time lives in the
journal.
"""

from __future__ import annotations

from loom_mq.broker.protocol import Queue, QueueKind
from loom_mq.ids import MAX_QUEUE_BYTES, check_id

DELIVERY_LIMIT = 50
"""Deliveries of one message before the broker dead-letters it. A drain of a worker
gives prefetched packages back, so this must be well above a rolling restart's count."""

DEAD = Queue("loom.dead", QueueKind.SHARED)
START = Queue("loom.start", QueueKind.SHARED, DELIVERY_LIMIT, DEAD.name)
CONTROL = Queue("loom.control", QueueKind.SHARED, DELIVERY_LIMIT, DEAD.name)
PRESENCE = Queue("loom.presence", QueueKind.SHARED, DELIVERY_LIMIT, DEAD.name)
"""Gets the presence tokens of processes whose connection to the broker is gone."""


def work(queue: str) -> Queue:
    """The queue that carries packages for the workers of `queue`."""
    check_id(queue, "queue name", MAX_QUEUE_BYTES)
    return Queue(f"loom.work.{queue}", QueueKind.SHARED, DELIVERY_LIMIT, DEAD.name)


def attempts(queue: str) -> Queue:
    """Packages whose senders await the attempt; see `loom_mq.dispatch.remote`."""
    check_id(queue, "queue name", MAX_QUEUE_BYTES)
    return Queue(f"loom.attempts.{queue}", QueueKind.SHARED, DELIVERY_LIMIT, DEAD.name)


def direct(owner: str) -> Queue:
    """Hints to one process of the fleet."""
    return Queue(f"loom.direct.{owner}", QueueKind.PRIVATE)


def reply(client: str) -> Queue:
    """Replies to one client."""
    return Queue(f"loom.reply.{client}", QueueKind.PRIVATE)


def presence_token(owner: str) -> Queue:
    """The queue in which a process holds its own presence token unacknowledged.

    When the process dies the broker puts the token back; a message here may not wait
    (TTL 0), so it is dead-lettered into `PRESENCE` at once and a dispatcher hears of
    the death within milliseconds. The token is not persistent: a restart of the
    broker is nobody's death.
    """
    return Queue(f"loom.token.{owner}", QueueKind.TOKEN, dead_letter=PRESENCE.name, expires=120.0)
