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
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Final, Protocol

from loom_mq.kernel.fold import CANCEL_PLACE, ExecutionState

QUIET: Final = 8
"""Turns of the event loop without anything to do after which a flow counts as at rest: as
deep as futures may be nested in futures without a task between them."""

PATIENCE: Final = 2.0
"""Seconds in which a flow may still come to a place that its log holds, before its code is
said not to fit: it may wait for something that is not the engine's."""

LOOK: Final = 0.25
"""Seconds between two looks whether a flow without other tasks still comes to what its log
holds."""


class Strands(Protocol):
    """The flow's tasks, as far as this matters."""

    @property
    def alone(self) -> bool:
        """Whether the flow has no task but its own."""

    @property
    def busy(self) -> bool:
        """Whether flow code is about to run."""

    @property
    def unmet(self) -> bool:
        """Whether the log holds places that the flow has not come to."""


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
        self._announced: Callable[[int], None] | None = None
        self._yielding: list[Callable[[int], None]] = []
        self._newest = 0
        self._caught_up = False
        self._resting = True
        self._quiet = 0
        self._complaint: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._nobody = Context()  # what runs between turns is no part of the flow

    def open(self) -> None:
        """Take the script from the log; before the flow's first line runs."""
        self._script.extend(self._state.script())
        self._ahead.update(place for _turn, places in self._script for place in places)
        self._newest = self._state.turn
        if self._script:
            self._watch_if_asked()
            self._look_later()

    def close(self) -> None:
        """Tell nothing more."""
        self._script.clear()
        self._queue.clear()
        self._announced = None
        for timer in (self._complaint, self._looking):
            if timer is not None:
                timer.cancel()

    @property
    def replaying(self) -> bool:
        """Whether the log holds turns or places that this run has not come to yet. What the
        flow has not come to when it rests after the last of the turns, it waits for no more.
        """
        if not (self._caught_up or self._script or self._strands.unmet):
            self._caught_up = True
        return not self._caught_up

    @property
    def at_rest(self) -> bool:
        """Whether the flow is known to have seen all that it was told."""
        return self._resting and not (self._script or self._pending)

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

    def birth(self, *, at_once: bool = False) -> asyncio.Future[None] | None:
        """Ask to begin something new; None when nothing is to be told before, neither by
        the log nor by what has come in: a cancellation that is there keeps it from beginning.

        Args:
            at_once: whatever has come in can wait.
        """
        if not (self.replaying or (self._pending and not at_once)):
            return None
        born: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unborn.append(born)
        self._watch()
        return born

    def bear(self, born: Iterable[asyncio.Future[None]]) -> None:
        """Let these begin when the flow is at rest, and not while it goes on: those that it
        cancels meanwhile are to hear of it in that order.
        """
        self._unborn.extend(born)
        self._watch()

    # ---- new turns ---------------------------------------------------------------

    def announce(self, tell: Callable[[int], None]) -> None:
        """Call `tell` with the number of its turn as soon as the flow is at rest. The turn is
        its own, before whatever else is to be told by then: those that share a turn go on in
        the order in which the log names them, and what is announced is logged first.
        """
        self._announced = tell
        self._watch()

    async def turn(self, *, yielding: bool = False) -> int:
        """The number of the turn in which the caller may go on and tell the flow.

        Args:
            yielding: 0 when the log does not go on unless the flow has been told before: a log
                of a release that did not tell this in a turn.
        """
        if not (self._script or self._pending) and self._resting:
            self._newest += 1
            self._told()
            return self._newest
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def tell(number: int) -> None:
            if not told.done():
                told.set_result(number)

        self._queue.append(tell)
        if yielding:
            self._yielding.append(tell)
        if self._script:
            self._watch()
        return await told

    @property
    def _pending(self) -> bool:
        """Whether something new is to be told."""
        return bool(self._queue) or self._announced is not None

    # ---- coming to rest ------------------------------------------------------------

    def _told(self) -> None:
        if self._complaint is not None:
            self._complaint.cancel()
            self._complaint = None
        if self._strands.alone:
            if self._script:
                self._watch_if_asked()
            else:
                self._release()
        else:
            self._watch()

    def _watch_if_asked(self) -> None:
        """A flow without other tasks is at rest whenever it asks for a turn, and need not be
        watched on its way, except where it has asked already or, as for its cancellation, does
        not ask.
        """
        first = self._script[0][1][0]
        if first == CANCEL_PLACE or first in self._asked:
            self._watch()

    def _look_later(self) -> None:
        """Come back from time to time, should the flow ask for nothing any more."""
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOK, self._look_again, context=self._nobody)

    def _look_again(self) -> None:
        if self._script:
            self._watch()
            self._look_later()

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
            return
        self._caught_up = True
        if self._announced is not None:
            self._newest += 1
            tell, self._announced = self._announced, None
            tell(self._newest)
            self._told()
        elif self._queue:
            self._newest += 1
            queue, self._queue = self._queue, deque()
            self._yielding.clear()
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
            yielding, self._yielding = self._yielding, []
            if yielding:
                for tell in yielding:
                    tell(0)
                self._watch()
            elif self._complaint is None:
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
        if self._pending:
            self._watch()
