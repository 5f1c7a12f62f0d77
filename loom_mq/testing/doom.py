"""A worker that dies at one write, and the worker that comes after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from loom_mq.errors import JournalUnreachableError, StaleFenceError
from loom_mq.journal.protocol import Append, AppendVerdict, Claim, ClaimVerdict, Journal
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.model.execution import ExecutionKey
from loom_mq.testing.fleet import Fleet, Hired
from loom_mq.testing.skipping import LOOKS, Proxy

_AT_START: Final = frozenset({"lease", "register_flows"})


class CrashPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker died.

    Attributes:
        write: the number of its write to the journal, from 1.
        landed: whether that write was durable; its answer never came in either case.
        call: the journal's method: ``append`` for events, ``claim`` for a takeover.
        events: what an append held, such as ``2 STEP_COMPLETED``.
    """

    write: int
    landed: bool
    call: str = ""
    events: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = self.call + (f" of {', '.join(self.events)}" if self.events else "")
        when = "durable, but unanswered" if self.landed else "lost before it was durable"
        return f"write {self.write} ({what}), {when}"


class Doom(Proxy):
    """The journal as a worker sees it that dies at a point of its own.

    From then on nothing of that worker reaches the journal or the broker: it hears that
    a newer holder has everything, so that its flows and steps end at once. Its lease has
    lapsed and its connection is gone, which a dispatcher notices as in production.

    Args:
        at: where it dies; None for never.

    Attributes:
        writes: its writes so far: the method, and the events of an append.
        before: the folds of what was durable when it died, by execution.
    """

    def __init__(self, at: CrashPoint | None) -> None:
        super().__init__(None)
        self.writes: list[tuple[str, tuple[str, ...]]] = []
        self.before: dict[str, ExecutionState] = {}
        self._at = at
        self._dead = False
        self._fleet: Fleet | None = None
        self._succession: asyncio.Task[None] | None = None

    def over(self, fleet: Fleet) -> None:
        """Say whose first worker it is."""
        self._fleet = fleet

    def view(self, journal: Journal) -> Journal:
        """The journal as that worker sees it."""
        self._target = journal
        return self.as_journal()

    @property
    def point(self) -> CrashPoint | None:
        """Where it died, and in the midst of what; None when it did not."""
        if self._at is None or not self._dead:
            return None
        call, events = self.writes[-1]
        return msgspec.structs.replace(self._at, call=call, events=events)

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call, or die at it."""
        if self._dead:
            return refusal(name, args)
        if name in LOOKS | _AT_START:
            answer = await do()
            return Lifelong(answer, self) if name == "lease" else answer
        self.writes.append((name, _events(name, args)))
        dying = self._at is not None and len(self.writes) == self._at.write
        if dying and self._at is not None and not self._at.landed:
            await self._die()
            return refusal(name, args)
        answer = await do()
        if dying:
            await self._die()
            return refusal(name, args)
        return answer

    async def finish(self) -> None:
        """Return when whoever died is replaced."""
        if self._succession is not None:
            await self._succession

    @property
    def dead(self) -> bool:
        """Whether the worker is."""
        return self._dead

    async def _die(self) -> None:
        if self._fleet is None:
            raise RuntimeError("Doom.over was not called")
        self._dead = True
        self.before = {name: fold(log) for name, log in (await self._fleet.logs()).items()}
        [hired] = self._fleet.workers
        await self._fleet.lose(hired)
        self._succession = asyncio.ensure_future(self._succeed(self._fleet, hired))

    async def _succeed(self, fleet: Fleet, lost: Hired) -> None:
        with fleet.pulse.under_way():
            await lost.stop()
            await lost.threads.until_idle()
            await fleet.hire()


class Lifelong(Proxy):
    """The lease of a doomed worker: after its death it can neither renew nor give back."""

    def __init__(self, lease: object, doom: Doom) -> None:
        super().__init__(lease)
        self._doom = doom

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call while the worker lives."""
        return refusal(name, args) if self._doom.dead else await do()


def refusal(name: str, args: tuple[Any, ...]) -> list[AppendVerdict] | list[ClaimVerdict]:
    """What a dead worker hears: nothing that makes it go on.

    Raises:
        JournalUnreachableError: for all but appends and claims.
    """
    if name == "append":
        appends: Sequence[Append] = args[0]
        return [AppendVerdict(error=_superseded(each.key, each.fence)) for each in appends]
    if name == "claim":
        claims: Sequence[Claim] = args[0]
        return [ClaimVerdict(error=_superseded(each.key, each.expected_fence)) for each in claims]
    raise JournalUnreachableError("this worker was killed by its test")


def _superseded(key: ExecutionKey, fence: int) -> StaleFenceError:
    return StaleFenceError(key.execution_id, held=fence, current=fence + 1)


def _events(name: str, args: tuple[Any, ...]) -> tuple[str, ...]:
    if name != "append":
        return ()
    appends: Sequence[Append] = args[0]
    return tuple(f"{event.seq} {event.kind}" for each in appends for event in each.events)
