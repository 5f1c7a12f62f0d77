"""What the services send, and how it is packed into messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loom_mq.broker.protocol import Broker, Outgoing
from loom_mq.broker.sender import GroupedSender
from loom_mq.codec import wire
from loom_mq.errors import BrokerError, UnroutableError
from loom_mq.ids import MAX_ID_BYTES
from loom_mq.model.messages import (
    MESSAGE_VERSION,
    ControlItem,
    ControlMessage,
    Hint,
    HintMessage,
    Package,
    PackageMessage,
    ReplyItem,
    ReplyMessage,
    StartItem,
    StartMessage,
)
from loom_mq.observe.metrics import Metrics


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
    single = items[0].correlation if len(items) == 1 else ""
    fits = 0 < len(single.encode()) <= MAX_ID_BYTES  # the protocol's short strings
    return Outgoing(
        queue=queue,
        body=wire.encode(ReplyMessage(items=tuple(items))),
        type="reply",
        correlation_id=single if fits else None,
        persistent=False,
    )


def pack_starts(queue: str, items: Sequence[StartItem]) -> Outgoing:
    """Starts for a dispatcher, of which nobody wants to be told."""
    return Outgoing(queue=queue, body=wire.encode(StartMessage(items=tuple(items))), type="start")


def pack_controls(queue: str, items: Sequence[ControlItem]) -> Outgoing:
    """Requests for a dispatcher, of which nobody wants to be told."""
    body = wire.encode(ControlMessage(items=tuple(items)))
    return Outgoing(queue=queue, body=body, type="control")


def weigh_package(item: Package) -> int:
    """Bytes of a package, nearly."""
    return 512 + len(item.start or b"")


def weigh_reply(item: ReplyItem) -> int:
    """Bytes of a reply, nearly."""
    failure = 0 if item.failure is None else FAILURE_WEIGHT
    return 512 + len(item.result or b"") + failure


def weigh_request(item: StartItem | ControlItem) -> int:
    """Bytes of a start or a request, nearly."""
    return 512 + len(item.payload or b"")


FAILURE_WEIGHT = 64 * 1024
"""The most that a described error takes."""
PACKAGES_PER_MESSAGE = 32
"""Small enough that a message of slow work does not starve the other workers."""
REPLIES_PER_MESSAGE = 100
REQUESTS_PER_MESSAGE = 100


PRIVATE_PREFIXES = ("loom.reply", "loom.direct", "amq.")
"""Queues of single processes; each of them as a label of its own would be too many."""


class Outbox:
    """Everything that a service sends."""

    def __init__(self, broker: Broker, metrics: Metrics) -> None:
        self._metrics = metrics
        self.packages = GroupedSender(
            broker,
            pack_packages,
            weigh_package,
            per_message=PACKAGES_PER_MESSAGE,
            answered=self._count,
        )
        self.hints = GroupedSender(
            broker,
            pack_hints,
            lambda _hint: 512,
            per_message=REPLIES_PER_MESSAGE,
            answered=self._count,
        )
        self.replies = GroupedSender(
            broker,
            pack_replies,
            weigh_reply,
            per_message=REPLIES_PER_MESSAGE,
            answered=self._count,
        )
        self.starts = GroupedSender(
            broker,
            pack_starts,
            weigh_request,
            per_message=REQUESTS_PER_MESSAGE,
            answered=self._count,
        )
        self.controls = GroupedSender(
            broker,
            pack_controls,
            weigh_request,
            per_message=REQUESTS_PER_MESSAGE,
            answered=self._count,
        )

    async def close(self) -> None:
        """Return when everything handed in has its verdict."""
        await asyncio.gather(
            self.packages.close(),
            self.hints.close(),
            self.replies.close(),
            self.starts.close(),
            self.controls.close(),
        )

    def abort(self) -> None:
        """Drop what is not under way."""
        self.packages.abort()
        self.hints.abort()
        self.replies.abort()
        self.starts.abort()
        self.controls.abort()

    def _count(self, queues: Sequence[str], verdicts: Sequence[BrokerError | None]) -> None:
        """Count what became of messages (C21); private queues count as one each kind."""
        for queue, verdict in zip(queues, verdicts, strict=True):
            label = next((kind for kind in PRIVATE_PREFIXES if queue.startswith(kind)), queue)
            self._metrics.published(label, "confirmed" if verdict is None else verdict.code)
            if isinstance(verdict, UnroutableError):
                self._metrics.returned(label)
