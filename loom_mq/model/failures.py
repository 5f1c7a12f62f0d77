"""Failures as they stand in the log and travel in replies: text, never objects."""

from __future__ import annotations

import msgspec


class CauseLine(msgspec.Struct, frozen=True, array_like=True):
    """One error further down a chain of causes."""

    type: str
    message: str


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error described for people and programs; bounded in every part.

    Attributes:
        type: name of the error's class.
        module: where that class is defined.
        message: what it says.
        traceback: where it was raised, as text.
        causes: what led to it, nearest first.
        channel: set for a typed failure (K5).
        payload: a typed failure's payload in stored form.
    """

    type: str
    module: str
    message: str
    traceback: str = ""
    causes: tuple[CauseLine, ...] = ()
    channel: str | None = None
    payload: bytes | None = None

    @property
    def headline(self) -> str:
        """One line: class and message, without what a text column cannot hold."""
        first = self.message.replace("\x00", "\\x00").split("\n", 1)[0][:500]
        return f"{self.type}: {first}" if first else self.type
