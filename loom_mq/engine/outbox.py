"""What the services send, and how it is packed into messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loom_mq.broker.protocol import Broker, Outgoing
from loom_mq.broker.sender import GroupedSender
from loom_mq.codec import wire
from loom_mq.model.messages import (
    MESSAGE_VERSION,
    Hint,
    HintMessage,
    Package,
    PackageMessage,
    ReplyItem,
    ReplyMessage,
)


def pack_packages(queue: str, items: Sequence[Package]) -> Outgoing:
    """Packages for the workers of a queue."""
    body = wire.encode(PackageMessage(MESSAGE_VERSION, tuple(items)))
    return Outgoing(queue=queue, body=body, type="packages")


def pack_hints(queue: str, items: Sequence[Hint]) -> Outgoing:
    """Hints to one process; worthless after a restart of the broker."""
    body = wire.encode(HintMessage(MESSAGE_VERSION, tuple(items)))
    return Outgoing(queue=queue, body=body, type="hints", persistent=False)


def pack_replies(queue: str, items: Sequence[ReplyItem]) -> Outgoing:
    """Replies to one address; whoever misses one asks again."""
    single = items[0].correlation if len(items) == 1 else None
    return Outgoing(
        queue=queue,
        body=wire.encode(ReplyMessage(items=tuple(items))),
        type="reply",
        correlation_id=single or None,
        persistent=False,
    )


PACKAGES_PER_MESSAGE = 32
"""Small enough that a message of slow work does not starve the other workers."""
REPLIES_PER_MESSAGE = 100


class Outbox:
    """Everything that a service sends."""

    def __init__(self, broker: Broker) -> None:
        self.packages = GroupedSender(broker, pack_packages, per_message=PACKAGES_PER_MESSAGE)
        self.hints = GroupedSender(broker, pack_hints, per_message=REPLIES_PER_MESSAGE)
        self.replies = GroupedSender(broker, pack_replies, per_message=REPLIES_PER_MESSAGE)

    async def close(self) -> None:
        """Return when everything handed in has its verdict."""
        await asyncio.gather(self.packages.close(), self.hints.close(), self.replies.close())

    def abort(self) -> None:
        """Drop what is not under way."""
        for sender in (self.packages, self.hints, self.replies):
            sender.abort()
