"""Pauses between tries: growing, bounded, and different in every process."""

from __future__ import annotations

import zlib
from typing import Final

_FIRST: Final = 0.05
_MOST: Final = 1.5
"""A refused TCP connection costs next to nothing, while every second of pause is a second
in which a healed broker does no work."""


class Backoff:
    """Growing pauses.

    The spread comes from a checksum of the owner's name, which is random per process:
    a fleet does not knock in step, and nobody needs a source of chance for it.

    Args:
        name: who pauses; part of the spread.
        first: first pause in seconds.
        most: longest pause in seconds.
    """

    def __init__(self, name: str, *, first: float = _FIRST, most: float = _MOST) -> None:
        self._name = name
        self._first = first
        self._most = most
        self._tries = 0

    def next(self) -> float:
        """Seconds to pause now, half to all of a doubling delay."""
        self._tries += 1
        delay = min(self._most, self._first * 2.0 ** min(self._tries - 1, 20))
        spread = zlib.crc32(f"{self._name}/{self._tries}".encode()) / 2**32
        return float(delay * (0.5 + spread / 2))

    def reset(self) -> None:
        """It worked; the next pause is a first one."""
        self._tries = 0
