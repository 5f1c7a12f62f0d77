"""Ids: making them, and the one rule that they all obey (J10)."""

from __future__ import annotations

import os
import secrets
from typing import Protocol

import uuid_utils

from loom_mq.errors import InvalidIdError

MAX_ID_BYTES = 255
MAX_QUEUE_BYTES = 200
"""Queue names carry a prefix on the broker, whose own limit is 255 bytes."""


class Ids(Protocol):
    """What the engine may ask for new ids."""

    def envelope(self) -> bytes:
        """A new UUIDv7, 16 bytes."""

    def execution(self) -> str:
        """A new execution id."""

    def token(self) -> str:
        """A short random text, for what need only be unlike others."""

    def fraction(self) -> float:
        """A random number from 0 to 1."""


class RandomIds:
    """UUIDv7 ids: time-ordered, so that an index on them grows at its end."""

    def envelope(self) -> bytes:
        """A new UUIDv7, 16 bytes."""
        return uuid_utils.uuid7().bytes

    def execution(self) -> str:
        """A new execution id."""
        return str(uuid_utils.uuid7())

    def token(self) -> str:
        """A short random text, for what need only be unlike others."""
        return secrets.token_hex(8)

    def fraction(self) -> float:
        """A random number from 0 to 1."""
        return secrets.randbits(53) / (1 << 53)


def new_owner(role: str, host: str) -> str:
    """Name a process: role, host and pid for people, a random part for uniqueness.

    The random part makes a restarted process a stranger, whatever its host and pid
    are, so it can never mistake its predecessor's work for its own (F7).
    """
    return f"{role}/{host[:100]}/{os.getpid()}/{secrets.token_hex(6)}"


def check_id(value: str, what: str, limit: int = MAX_ID_BYTES) -> str:
    """Return `value` if it is a lawful id, else raise.

    Args:
        value: any Unicode text.
        what: what it names, for the message, such as ``execution id``.
        limit: bytes of UTF-8 allowed.

    Raises:
        InvalidIdError: empty, over `limit` bytes, with a NUL, or not encodable (J10).
    """
    if not isinstance(value, str):
        raise InvalidIdError(f"{what} must be text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidIdError(f"{what} {value!r} holds a lone surrogate, not text") from error
    if not 1 <= size <= limit:
        raise InvalidIdError(f"{what} must be 1 to {limit} bytes of UTF-8, not {size}")
    if "\x00" in value:
        raise InvalidIdError(f"{what} {value!r} must not hold a NUL character")
    return value
