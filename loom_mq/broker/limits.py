"""What a message may be, checked before anything is sent, alike on every adapter (C30, C104).

A client library or a broker that meets an unlawful message closes the channel or the
connection under everybody else's messages, so unlawful ones never leave the process.
"""

from __future__ import annotations

from typing import Final

from loom_mq.broker.protocol import Outgoing, Queue
from loom_mq.errors import PublishRefusedError, TopologyMismatchError
from loom_mq.ids import check_id

MAX_SHORT_BYTES: Final = 255
"""AMQP's own limit for queue names and short properties."""

MAX_HEADER_NAME_BYTES: Final = 128
"""AMQP's limit for field names; client libraries cut longer ones without a word."""

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Body limit: RabbitMQ's default from 4.0 on (older brokers take 128 MiB) (C86)."""

MAX_HEADERS_BYTES: Final = 64 * 1024
"""All headers of a message; they must fit one frame of 128 KiB with room to spare."""


def check_queue(queue: Queue) -> None:
    """Refuse a queue whose name or dead-letter queue no broker takes.

    Raises:
        InvalidIdError: a name is empty, over 255 bytes, or not encodable.
    """
    check_id(queue.name, "queue name", MAX_SHORT_BYTES)
    if queue.dead_letter is not None:
        check_id(queue.dead_letter, "dead-letter queue name", MAX_SHORT_BYTES)


def mismatch(queue: str, argument: str, *, found: str, wanted: str) -> TopologyMismatchError:
    """The error for a queue that exists with another argument than wanted."""
    return TopologyMismatchError(
        f"queue {queue!r} exists with other arguments: {argument!r} is {found}, wanted is "
        f"{wanted}; it was made by another release or by hand: drain and delete it, and it is "
        "made anew"
    )


def refusal(message: Outgoing) -> PublishRefusedError | None:
    """Why `message` must not be sent; None when it may (C30, C86)."""
    if len(message.body) > MAX_MESSAGE_BYTES:
        return PublishRefusedError(
            f"message for queue {_shown(message.queue)} has {len(message.body)} bytes, the limit "
            f"is {MAX_MESSAGE_BYTES}; store the payload elsewhere and send a reference"
        )
    if not message.queue:
        return PublishRefusedError("message names no queue")
    return _short_refusal(message) or _headers_refusal(message)


def _short_refusal(message: Outgoing) -> PublishRefusedError | None:
    for what, value in (
        ("queue name", message.queue),
        ("content type", message.content_type),
        ("type", message.type),
        ("reply address", message.reply_to or ""),
        ("correlation id", message.correlation_id or ""),
    ):
        size = _size(value)
        if size is None:
            return PublishRefusedError(f"{what} {_shown(value)} cannot be written as UTF-8")
        if size > MAX_SHORT_BYTES:
            return PublishRefusedError(
                f"{what} {_shown(value)} has {size} bytes, the limit is {MAX_SHORT_BYTES}"
            )
    return None


def _headers_refusal(message: Outgoing) -> PublishRefusedError | None:
    total = 0
    for name, value in message.headers.items():
        name_size, value_size = _size(name), _size(value)
        if name_size is None or value_size is None:
            return PublishRefusedError(f"header {_shown(name)} cannot be written as UTF-8")
        if not 1 <= name_size <= MAX_HEADER_NAME_BYTES:
            return PublishRefusedError(
                f"header name {_shown(name)} has {name_size} bytes, allowed are 1 to "
                f"{MAX_HEADER_NAME_BYTES}"
            )
        total += name_size + value_size
    if total > MAX_HEADERS_BYTES:
        return PublishRefusedError(
            f"the headers have {total} bytes together, the limit is {MAX_HEADERS_BYTES}"
        )
    return None


def _size(text: str) -> int | None:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
