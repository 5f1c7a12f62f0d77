"""The order in which a flow is told what happened: turns (K3).

What flow code can observe (a step's outcome, an answer, the end of a sleep, a
cancellation) it is told in turns. A turn begins only when the flow has come to rest after
the one before, and it is numbered on the log. A re-run is told the same turns in the same
order before anything new begins, so whatever timing decided the first time is decided for
good: which of two steps was first, in which order `asyncio.as_completed` saw them, what a
branch had done when it was cancelled.

A flow without tasks of its own is always at rest between two turns, and pays nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol

from loom_mq.kernel.fold import CANCEL_PLACE, ExecutionState

QUIET: Final = 8
"""Turns of the event loop without anything to do after which a flow counts as at rest: as
deep as futures may be nested in futures without a task between them."""

PATIENCE: Final = 2.0
"""Seconds in which a flow may still come to a place that its log holds, before its code is
said not to fit: it may wait for something that is not the engine's."""


class Strands(Protocol):
    """The flow's tasks, as far as this matters."""

    @property
    def alone(self) -> bool:
        """Whether the flow has no task but its own."""

    @property
    def busy(self) -> bool:
        """Whether flow code is about to run."""


class Turns:
    """See the module's docstring.

    Args:
        state: the folded log; read when the flow starts.
        strands: the flow's tasks.
        rested: called when the flow has come to rest and nothing is left to tell.
        cancelled: called in a turn of the log that tells a cancellation.
        missing: called with a place that the log holds and the flow does not come to.
    """

    def __init__(
        self,
        state: ExecutionState,
        strands: Strands,
        *,
        rested: Callable[[], None],
        cancelled: Callable[[], None],
        missing: Callable[[str], None],
    ) -> None:
        self._state = state
        self._strands = strands
        self._rested = rested
        self._cancelled = cancelled
        self._missing = missing
        self._script: deque[tuple[int, list[str]]] = deque()
        self._ahead: set[str] = set()
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._unborn: list[asyncio.Future[None]] = []
        self._queue: deque[Callable[[int], None]] = deque()
        self._newest = 0
        self._resting = True
        self._quiet = 0
        self._complaint: asyncio.TimerHandle | None = None
        self._nobody = Context()  # what runs between turns is no part of the flow

    def open(self) -> None:
        """Take the script from the log; before the flow's first line runs."""
        self._script.extend(self._state.script())
        self._ahead.update(place for _turn, places in self._script for place in places)
        self._newest = self._state.turn
        if self._script:
            self._watch()  # whatever the flow does or does not do first

    def close(self) -> None:
        """Tell nothing more."""
        self._script.clear()
        self._queue.clear()
        if self._complaint is not None:
            self._complaint.cancel()

    @property
    def replaying(self) -> bool:
        """Whether the log holds turns that this run has not come to yet."""
        return bool(self._script)

    @property
    def at_rest(self) -> bool:
        """Whether the flow is known to have seen all that it was told."""
        return self._resting and not self._script and not self._queue

    def unreached(self) -> list[str]:
        """The places of the log that the flow has not come to, in the order of telling."""
        return [
            each
            for _turn, places in self._script
            for each in places
            if each != CANCEL_PLACE and each not in self._asked
        ]

    def stir(self) -> None:
        """The flow has begun something by itself: it is not at rest until it is seen to be."""
        self._watch()

    # ---- the log's turns ---------------------------------------------------------

    def is_ahead(self, place: str) -> bool:
        """Whether the log says in which turn the flow is told of this place, and it has
        not been told yet.
        """
        return place in self._ahead

    def recall(self, place: str) -> asyncio.Future[None] | None:
        """Ask for the turn of a place that is ahead; None when it is here and now."""
        if self._resting and self._script[0][1] == [place]:
            self._script.popleft()
            self._ahead.discard(place)
            self._told()
            return None
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[place] = told
        self._watch()
        return told

    def birth(self) -> asyncio.Future[None] | None:
        """Ask to begin something new; None when nothing is to be told before, neither by
        the log nor by what has come in: a cancellation that is there keeps it from beginning.
        """
        if not (self._script or self._queue):
            return None
        born: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unborn.append(born)
        self._watch()
        return born

    # ---- new turns ---------------------------------------------------------------

    def announce(self, tell: Callable[[int], None]) -> None:
        """Call `tell` with the number of its turn: now if the flow is at rest, else as
        soon as it is, together with whatever else is to be told by then.
        """
        if self._script or self._queue or not self._resting:
            self._queue.append(tell)
            if self._script:
                self._watch()
            return
        self._newest += 1
        tell(self._newest)
        self._told()

    async def turn(self) -> int:
        """The number of the turn in which the caller may go on and tell the flow."""
        if not (self._script or self._queue) and self._resting:
            self._newest += 1
            self._told()
            return self._newest
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def tell(number: int) -> None:
            if not told.done():
                told.set_result(number)

        self._queue.append(tell)
        return await told

    # ---- coming to rest ------------------------------------------------------------

    def _told(self) -> None:
        if self._complaint is not None:
            self._complaint.cancel()
            self._complaint = None
        if self._strands.alone:
            if not self._script:
                self._release()
        else:
            self._watch()

    def _watch(self) -> None:
        """Wait until the flow is at rest, and go on from there."""
        self._quiet = 0
        if self._resting:
            self._resting = False
            asyncio.get_running_loop().call_soon(self._tick, context=self._nobody)

    def _tick(self) -> None:
        self._quiet = 0 if self._strands.busy else self._quiet + 1
        if self._quiet < QUIET:
            asyncio.get_running_loop().call_soon(self._tick, context=self._nobody)
            return
        self._resting = True
        self._go_on()

    def _go_on(self) -> None:
        if self._script:
            self._next_of_log()
        elif self._queue:
            self._newest += 1
            queue, self._queue = self._queue, deque()
            for tell in queue:
                tell(self._newest)
            self._told()
        elif self._unborn:
            self._release()
            self._watch()
        else:
            self._rested()

    def _next_of_log(self) -> None:
        _turn, places = self._script[0]
        missing = next(
            (each for each in places if each != CANCEL_PLACE and each not in self._asked), None
        )
        if missing is not None:
            if self._complaint is None:
                self._complaint = asyncio.get_running_loop().call_later(
                    PATIENCE, self._complain, context=self._nobody
                )
            return
        self._script.popleft()
        for place in places:
            self._ahead.discard(place)
            if place == CANCEL_PLACE:
                self._cancelled()
                continue
            told = self._asked.pop(place)
            if not told.done():
                told.set_result(None)
        self._told()
        if self._resting and self._script:
            self._watch()

    def _complain(self) -> None:
        self._complaint = None
        places = self.unreached()
        if places and self._resting:
            self._missing(places[0])

    def _release(self) -> None:
        unborn, self._unborn = self._unborn, []
        for born in unborn:
            if not born.done():
                born.set_result(None)
        if self._queue:
            self._watch()
