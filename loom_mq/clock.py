"""Time behind a port, so that tests and the simulator decide what time it is.

Durable time is the journal's: microseconds since the epoch by the database's clock.
A process learns the difference between the two clocks when it renews its lease and
from then on counts with its own monotonic clock, so a wrong wall clock on a host
moves no timer and no lease (F7, F9).
"""

from __future__ import annotations

import time
from typing import Protocol

MICROS = 1_000_000


class Clock(Protocol):
    """What the engine may ask about time."""

    def now(self) -> int:
        """Journal time in microseconds since the epoch, as well as it is known."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""


class JournalClock:
    """Journal time carried forward on this process's monotonic clock."""

    def __init__(self) -> None:
        self._offset = int((time.time() - time.monotonic()) * MICROS)

    def now(self) -> int:
        """Journal time in microseconds since the epoch."""
        return int(time.monotonic() * MICROS) + self._offset

    def monotonic(self) -> float:
        """Seconds on this process's monotonic clock."""
        return time.monotonic()

    def synchronise(self, journal_now: int) -> float:
        """Take over the journal's time.

        Args:
            journal_now: the database's clock, microseconds since the epoch.

        Returns:
            How far this clock was ahead of the journal's, in seconds.
        """
        ahead = self.now() - journal_now
        self._offset -= ahead
        return ahead / MICROS
