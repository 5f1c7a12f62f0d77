"""Time that can be skipped, and how to tell that nothing is under way.

Nothing is under way when no worker has an execution in hand and nobody has written to
the journal for a number of turns of the event loop. In one process over memory
everything that follows from something follows within a few turns of it, so that is no
guess about seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from loom_mq.clock import MICROS
from loom_mq.errors import ConfigurationError
from loom_mq.journal.protocol import Journal

QUIET_TURNS: Final = 40
"""Turns of the event loop without a beat after which nothing is under way. The longest
way from one write to the next, by lanes and queues, takes about ten."""
LOOKS: Final = frozenset(
    {
        "count",
        "due_schedules",
        "due_timers",
        "exhausted",
        "find",
        "flows",
        "get",
        "inbox",
        "lapse_if_gone",
        "next_timer",
        "now",
        "read",
        "schedule",
        "schedules",
        "snapshot",
        "take_abandoned",
        "take_unsent",
        "workers",
    }
)
"""What the services ask of the journal again and again, or without changing anything."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def micros_of(moment: datetime) -> int:
    """Journal time of a moment that says its time zone.

    Raises:
        ConfigurationError: it says none (C56).
    """
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ConfigurationError(f"{moment!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    """A journal time as a moment in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


class SkippingClock:
    """Journal time that goes on like real time, and can be moved forward.

    Args:
        starts_at: the journal's time now; the real one by default.
    """

    def __init__(self, starts_at: datetime | None = None) -> None:
        begin = int(time.time() * MICROS) if starts_at is None else micros_of(starts_at)
        self._offset = begin - int(time.monotonic() * MICROS)

    def now(self) -> int:
        """Journal time in microseconds since the epoch."""
        return int(time.monotonic() * MICROS) + self._offset

    def monotonic(self) -> float:
        """Real seconds: nothing that the engine measures takes longer for a skip."""
        return time.monotonic()

    def synchronise(self, journal_now: int) -> float:
        """There is nothing to take over: this is the journal's own clock."""
        return 0.0

    def move_to(self, micros: int) -> None:
        """Make it that late, unless it is later already."""
        self._offset += max(0, micros - self.now())


class Pulse:
    """What happens in an environment, counted, so that nobody has to wait by the clock.

    Attributes:
        beats: grows with everything that happens.
        held: how many things are under way that do not show anywhere else.
    """

    def __init__(self) -> None:
        self.beats = 0
        self.held = 0
        self._waiting: list[asyncio.Future[None]] = []

    def beat(self) -> None:
        """Something has happened."""
        self.beats += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout: float) -> bool:
        """Return with the next beat, or False after `timeout` real seconds without one."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await asyncio.wait([future], timeout=timeout)
        return future.done()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Inside, something is under way, whatever else can be seen."""
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1
            self.beat()


class Proxy:
    """Stands between somebody and an object of asynchronous methods.

    It knows no method by name, so those that a later release adds go through it too.

    Args:
        target: whose methods are called.
    """

    def __init__(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._target, name)

        async def called(*args: Any, **kwargs: Any) -> Any:
            return await self.call(name, lambda: method(*args, **kwargs), args)

        return called

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call.

        Args:
            name: the method.
            do: calls it.
            args: what it is called with.
        """
        return await do()

    def as_journal(self) -> Journal:
        """This proxy of a journal, as the journal that it is for whoever calls it."""
        return cast("Journal", self)


class Watched(Proxy):
    """Beats with every call that is more than a look."""

    def __init__(self, target: object, pulse: Pulse) -> None:
        super().__init__(target)
        self._pulse = pulse

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call, and beat."""
        answer = await do()
        if name not in LOOKS:
            self._pulse.beat()
        return answer
