"""An event loop in which nobody waits: when nothing is about to run, it is later.

So a run over memory is a function of its seed: no thread takes part, and no clock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from loom_mq.clock import MICROS

T = TypeVar("T")

MAX_TURNS: Final = 400_000
"""Turns of the loop that one run may take, real waits included."""
EPOCH: Final = 1_700_000_000 * MICROS


class SpinError(BaseException):
    """Something runs on and on; no `Exception`, so that nothing under test takes it."""


class _Selector(selectors.SelectSelector):
    """Waits for nothing, and says how long it should have."""

    def __init__(self, waited: Callable[[float | None], None]) -> None:
        super().__init__()
        self._waited = waited

    def select(self, timeout: float | None = None) -> Any:
        """Return at once."""
        self._waited(timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._virtual = 1000.0
        self.turns = 0
        super().__init__(_Selector(self._wait))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def _wait(self, timeout: float | None) -> None:
        self.turns += 1
        if self.turns > MAX_TURNS:
            raise SpinError(f"{MAX_TURNS} turns of the event loop")
        if timeout is None:
            raise SpinError("nothing will ever happen any more")
        if timeout > 0:
            self._virtual += timeout


class VirtualClock:
    """The journal's clock and everybody's own."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        """Journal time in microseconds since the epoch."""
        return EPOCH + int(self._loop.time() * MICROS)

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def synchronise(self, journal_now: int) -> float:
        """This is the journal's own clock."""
        return 0.0


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a loop of its own."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
