"""One warning per cause and minute, with a count of those held back."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

_MOST_CAUSES: Final = 1000
"""Causes remembered; the one unheard of for longest is forgotten first."""


class OncePer:
    """Lets one message per cause through in each period; usable from any thread.

    Args:
        seconds: the period.
        monotonic: a clock in seconds.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._causes: OrderedDict[Hashable, _Cause] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, cause: Hashable) -> int | None:
        """Ask whether to speak now.

        Returns:
            None when it was said within the period; else how many were held back since
            it was said last, to be told along.
        """
        now = self._monotonic()
        with self._lock:
            known = self._causes.get(cause)
            if known is None:
                self._causes[cause] = _Cause(now)
                if len(self._causes) > _MOST_CAUSES:
                    self._causes.popitem(last=False)
                return 0
            self._causes.move_to_end(cause)
            if now - known.said_at < self._seconds:
                known.held_back += 1
                return None
            held_back, known.held_back, known.said_at = known.held_back, 0, now
            return held_back

    def forget(self, cause: Hashable) -> int:
        """The cause is gone: the next occurrence is news.

        Returns:
            How many were held back since it was said last.
        """
        with self._lock:
            known = self._causes.pop(cause, None)
        return 0 if known is None else known.held_back


class _Cause:
    __slots__ = ("held_back", "said_at")

    def __init__(self, said_at: float) -> None:
        self.said_at = said_at
        self.held_back = 0


def once_per(seconds: float) -> OncePer:
    """A limiter with one message per cause in `seconds`."""
    return OncePer(seconds)
