"""How fast a burst of wakes may go to the workers, so that other work is not behind all of it.

Timers often come due by the thousand: at the full hour, or after an outage. A queue is
first in, first out, so whatever is started meanwhile would wait for the whole burst.
Therefore no more wakes are put into a queue than its workers are about to take, or than a
fifth of it where others have filled it. The rest waits here for a moment, and then in the
journal's table, where it comes back behind what is due on other queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from loom_mq.broker.protocol import QueueDepth
from loom_mq.engine.outbox import PACKAGES_PER_MESSAGE
from loom_mq.journal.protocol import DueTimer

MESSAGES_PER_WORKER: Final = 4
"""Messages of wakes that may wait in a queue per worker, besides those that it has in hand."""
SHARE: Final = 4
"""Messages of others per one of wakes, where others have filled the queue."""
REMEMBERED: Final = 10.0
"""Seconds for which a message that was sent is taken to be still in its queue, if that is
not empty."""


class _Line:
    """What waits for one queue, and what has gone there of late.

    Attributes:
        timers: each with the moment from which it is somebody else's.
        sent: moments, and how many messages.
        held_back: not everything could go the last time.
    """

    def __init__(self) -> None:
        self.timers: deque[tuple[DueTimer, float]] = deque()
        self.sent: deque[tuple[float, int]] = deque()
        self.held_back = False

    def room(self, depth: QueueDepth, now: float) -> int:
        """How many messages may go now."""
        while self.sent and self.sent[0][0] + REMEMBERED <= now:
            self.sent.popleft()
        ours = min(sum(messages for _at, messages in self.sent), depth.ready)
        others = depth.ready - ours
        return max(MESSAGES_PER_WORKER * depth.consumers, others // SHARE) - ours


class Pacer:
    """See the module's docstring. Sends nothing itself.

    Args:
        most: timers that wait here at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, _Line] = {}
        self.waiting = 0

    @property
    def room(self) -> int:
        """How many more timers may wait."""
        return max(0, self._most - self.waiting)

    def add(self, timers: Iterable[DueTimer], until: float) -> None:
        """Let timers wait that have just been taken.

        Args:
            timers: in the order of their due times.
            until: when to let go of them, while they are still held; seconds on a
                monotonic clock.
        """
        for timer in timers:
            line = self._lines.setdefault(timer.row.queue, _Line())
            line.timers.append((timer, until))
            self.waiting += 1

    def let_go(self, now: float) -> None:
        """Forget what has waited for too long: it is due again, for whoever looks."""
        for line in self._lines.values():
            while line.timers and line.timers[0][1] <= now:
                line.timers.popleft()
                self.waiting -= 1

    def few(self) -> list[DueTimer]:
        """Take what needs no look at its queue: not enough to be a burst."""
        return [
            timer
            for line in self._lines.values()
            if not line.held_back and len(line.timers) <= PACKAGES_PER_MESSAGE
            for timer in self._take(line, len(line.timers))
        ]

    def queues(self) -> list[str]:
        """The queues that something waits for."""
        return [queue for queue, line in self._lines.items() if line.timers]

    def take(self, queue: str, depth: QueueDepth | None, now: float) -> list[DueTimer]:
        """Take what may go to a queue now.

        Args:
            queue: one of `queues`.
            depth: how full it is; None when that is not known.
            now: seconds on a monotonic clock.
        """
        line = self._lines[queue]
        number = len(line.timers)
        if depth is not None and depth.consumers:  # else nobody is kept from other work
            number = max(0, line.room(depth, now)) * PACKAGES_PER_MESSAGE
        taken = self._take(line, number)
        if taken:
            line.sent.append((now, -(-len(taken) // PACKAGES_PER_MESSAGE)))
        line.held_back = bool(line.timers)
        return taken

    def take_all(self) -> list[DueTimer]:
        """Take everything."""
        return [
            timer for line in self._lines.values() for timer in self._take(line, len(line.timers))
        ]

    def _take(self, line: _Line, number: int) -> list[DueTimer]:
        taken = [line.timers.popleft()[0] for _ in range(min(number, len(line.timers)))]
        self.waiting -= len(taken)
        return taken
