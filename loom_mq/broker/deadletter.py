"""How a dead-lettered message tells where it comes from and why (F2)."""

from __future__ import annotations

from typing import Final

import msgspec

from loom_mq.broker.protocol import Delivery

REASON_HEADER: Final = "x-loom-reason"
QUEUE_HEADER: Final = "x-loom-queue"
MAX_REASON_BYTES: Final = 1024

BROKER_REASON_HEADER: Final = "x-first-death-reason"
BROKER_QUEUE_HEADER: Final = "x-first-death-queue"
"""RabbitMQ's own headers, on what the broker itself dead-lettered."""

DELIVERY_LIMIT_REASON: Final = "delivery_limit"
REJECTED_REASON: Final = "rejected"
EXPIRED_REASON: Final = "expired"


class Death(msgspec.Struct, frozen=True):
    """Why a message lies in a dead-letter queue.

    Attributes:
        queue: where it lay before; empty when unknown.
        reason: in words of ours, or RabbitMQ's ``delivery_limit``, ``rejected`` or
            ``expired``; empty when unknown.
    """

    queue: str
    reason: str


def death_of(delivery: Delivery) -> Death:
    """Read why `delivery` was dead-lettered; ours wins over the broker's own word."""
    headers = delivery.headers
    return Death(
        headers.get(QUEUE_HEADER) or headers.get(BROKER_QUEUE_HEADER, ""),
        headers.get(REASON_HEADER) or headers.get(BROKER_REASON_HEADER, ""),
    )


def death_headers(queue: str, reason: str) -> dict[str, str]:
    """The headers that say why a message of `queue` is dead.

    A reason over `MAX_REASON_BYTES` is cut: it is a sentence for people.
    """
    text = reason.encode(errors="replace")
    if len(text) > MAX_REASON_BYTES:
        text = text[: MAX_REASON_BYTES - 3] + b"..."
    return {REASON_HEADER: text.decode(errors="ignore"), QUEUE_HEADER: queue}
