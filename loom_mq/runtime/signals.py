"""From the first signal to the exit, in bounded time, whatever the main thread does.

The first SIGTERM or SIGINT asks for a drain, a second one for an end at once, and when
the time is up the process leaves. All of that is decided in a thread that sleeps on a
socket: Python writes a signal's number there from the C handler, so neither a blocked
event loop nor a main thread that is stuck in foreign code can delay it (C60).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import structlog

WATCHED: Final = (signal.SIGTERM, signal.SIGINT)
OVERTIME: Final = 1.8
"""Seconds past the drain after which the process leaves by force."""
_LAST_WORDS: Final = 0.2
_POKE: Final = b"\0"

_log = structlog.get_logger(__name__)


class SignalWatch:
    """See the module's docstring. Made, installed and removed in the main thread.

    Args:
        drain: seconds between the first signal and the end that it asks for.
        on_first: called in the watching thread at the first signal.
        on_second: called in the watching thread at the second signal.
        forced_code: exit code when the time is up.
        leave: ends the process; a parameter for tests.
    """

    def __init__(
        self,
        *,
        drain: float,
        on_first: Callable[[], None],
        on_second: Callable[[], None],
        forced_code: int,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self._drain = drain
        self._on_first = on_first
        self._on_second = on_second
        self._forced_code = forced_code
        self._leave = leave
        self._deadline: float | None = None
        self._from_c = 0
        self._from_python = 0
        self._told = 0
        self._closed = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._old_fd = -1
        self._old_handlers: dict[signal.Signals, object] = {}
        self._thread = threading.Thread(target=self._watch, name="loom-signals", daemon=True)

    @property
    def seconds_left(self) -> float | None:
        """Until the process leaves by force; None when nobody has asked it to end."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def install(self) -> None:
        """Take the signals over."""
        for number in WATCHED:
            self._old_handlers[number] = signal.signal(number, self._in_main_thread)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def remove(self) -> None:
        """Give the signals back. The deadline, once set, stands."""
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # it came from there
        signal.set_wakeup_fd(self._old_fd)

    def close(self) -> None:
        """End the watch, deadline included; for tests."""
        self._closed = True
        self._poke()
        self._thread.join(timeout=2.0)
        self._reader.close()
        self._writer.close()

    def limit(self, seconds: float) -> None:
        """Leave by force after `seconds` at the latest; an earlier deadline stands."""
        deadline = time.monotonic() + seconds
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            self._poke()

    def _in_main_thread(self, _number: int, _frame: FrameType | None) -> None:
        # an event loop may have taken the wakeup descriptor over (uvloop does); then
        # this is the only one who hears of the signal
        self._from_python += 1
        self._poke()

    def _poke(self) -> None:
        try:
            self._writer.send(_POKE)
        except OSError:
            return  # full: the watcher is awake anyway

    def _watch(self) -> None:
        while not self._closed:
            left = self.seconds_left
            if left is not None and left <= 0:
                self._leave_by_force()
                return
            readable, _, _ = select.select([self._reader], [], [], left)
            if readable:
                self._count(self._reader.recv(256))

    def _count(self, numbers: bytes) -> None:
        self._from_c += sum(number in WATCHED for number in numbers)
        signals = max(self._from_c, self._from_python)
        if self._told == 0 and signals >= 1:
            self._told = 1
            self.limit(self._drain + OVERTIME)
            self._on_first()
        if self._told == 1 and signals >= 2:
            self._told = 2
            self.limit(OVERTIME)
            self._on_second()

    def _leave_by_force(self) -> None:
        # the main thread may hold the log's lock for ever, so the words have a time limit too
        words = threading.Thread(target=_say_forced, name="loom-last-words", daemon=True)
        words.start()
        words.join(_LAST_WORDS)
        self._leave(self._forced_code)


def _say_forced() -> None:
    _log.error(
        "service.given_up",
        reason="the time to stop is over; what was in hand is taken up elsewhere",
    )
    sys.stderr.flush()
