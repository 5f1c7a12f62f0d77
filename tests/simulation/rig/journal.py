"""The journal as a server: it takes its time, and sometimes nobody hears what it did.

A call travels to the server, is carried out there at one instant, and its answer travels back.
On the way there it may be lost, and on the way back; and a commit may land later than the word
that it has failed. Until then its rows are locked: who wants to change them waits, who only
reads sees what was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

import msgspec

from loom_mq.clock import Clock
from loom_mq.errors import JournalUnreachableError
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.memory_fleet import MemoryLease
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import ExecutionKey
from tests.simulation.rig.choices import Choices
from tests.simulation.rig.loop import Process, SimLoop
from tests.simulation.rig.observer import Applied, Happened, Observer

_READS: Final = frozenset(
    {"get", "read", "find", "count", "inbox", "workers", "flows", "exhausted", "next_timer",
     "dead_letters", "snapshot", "now", "schedule", "schedules", "lapse_if_gone"}
)  # fmt: skip
_ALL_ROWS: Final = frozenset(
    {"take_abandoned", "take_unsent", "due_timers", "due_schedules", "retire"}
)
"""Calls that may change any row; here they wait for every lock, which is one of the orders in
which a server may take things."""


class SimDeadError(BaseException):
    """Code of a killed process was run after all."""


class JournalFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How a journal misbehaves. Times in seconds.

    Attributes:
        latency: longest way there and back.
        refused: share of calls that do not arrive.
        unknown: share of calls that are carried out, and whose answer is lost.
        late: share of the lost answers whose call is carried out later.
        late_by: how much later at most.
    """

    latency: float = 0.0
    refused: float = 0.0
    unknown: float = 0.0
    late: float = 0.0
    late_by: float = 0.0


CALM: Final = JournalFaults()


class SessionJournal(MemoryJournal):
    """Knows which processes are gone, as a server does whose session with them has ended."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.gone: dict[str, None] = {}

    async def lapse_if_gone(self, owner: str) -> bool:
        """Whether the lease has lapsed, or does now because nobody holds it any more."""
        if owner in self.gone and self._store.alive(owner, self._clock.now()):
            MemoryLease(self._store, self._clock, owner)._set(0)
        return await super().lapse_if_gone(owner)


class JournalServer:
    """See the module's docstring.

    Args:
        loop: where it runs.
        store: what it keeps.
        choices: what goes wrong.
        observer: sees each call at the instant at which it is carried out.
        clock: the server's own.

    Attributes:
        faults: how it misbehaves at present.
        up: whether it answers at all.
    """

    def __init__(
        self,
        loop: SimLoop,
        store: SessionJournal,
        choices: Choices,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self.store = store
        self.faults = CALM
        self.up = True
        self._loop = loop
        self._choices = choices
        self._observer = observer
        self._clock = clock
        self._outside = loop.outside()
        self._locks: dict[ExecutionKey, list[Callable[[], None]]] = {}

    def view(self, process: Process | None, by: str) -> Journal:
        """The journal as one process sees it."""
        return cast("Journal", _View(self, self.store, process, by))

    async def serve(
        self, by: str, target: object, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Carry one call out for somebody, as luck has it."""
        faults, choices = self.faults, self._choices
        if faults is CALM and self.up and not self._locks:
            return await self._at_once(_Call(by, target, method, args, kwargs, None))
        answer: asyncio.Future[Any] = self._loop.create_future()
        call = _Call(by, target, method, args, kwargs, answer)
        there = choices.delay("latency", faults.latency) / 2
        if not self.up or choices.chance("refused", faults.refused):
            self._later(there, self._fail, call, "was not sent")
        elif method not in _READS and choices.chance("unknown", faults.unknown):
            if choices.chance("late", faults.late):
                self._later(there, self._postpone, call, choices.delay("late", faults.late_by))
            else:
                self._later(there, self._apply, call, 0.0, True)
        else:
            self._later(there, self._apply, call, there, False)
        return await answer

    def at_once(self, by: str, method: str, key: ExecutionKey, *args: Any) -> bool:
        """Carry out somebody's call from outside of all processes; whether it could be."""
        call = _Call(by, self.store, method, (key, *args), {}, None)
        if not self.up or self._in_the_way(call) is not None:
            return False
        return not isinstance(self._carry_out(call), Exception)

    async def _at_once(self, call: _Call) -> Any:
        """Carry out a call that nothing can happen to but the death of whoever made it, which
        may come before its answer.
        """
        outcome = self._carry_out(call)
        if call.method not in _READS:
            await asyncio.sleep(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    # ---- at the server ------------------------------------------------------------------

    def _later(self, pause: float, do: Callable[..., None], *args: Any) -> None:
        if pause > 0:
            self._loop.call_later(pause, do, *args, context=self._outside)
        else:
            self._loop.call_soon(do, *args, context=self._outside)

    def _apply(self, call: _Call, back: float, lost: bool) -> None:
        if not self.up:
            self._fail(call, "found the server gone")
            return
        locked = self._in_the_way(call)
        if locked is not None:
            self._locks[locked].append(lambda: self._apply(call, back, lost))
            return
        outcome = self._carry_out(call)
        if lost:
            self._observer.happened(Happened("unknown-commit-landed", call.by, self._clock.now()))
            self._fail(call, "was cut off; whether it was carried out is not known")
        elif back > 0:
            self._loop.call_later(back, _answer, call.answer, outcome, context=self._outside)
        else:
            _answer(call.answer, outcome)

    def _postpone(self, call: _Call, pause: float) -> None:
        """Say that it failed, and carry it out later."""
        keys = [key for key in _keys(call) if key not in self._locks]
        self._fail(call, "was cut off; whether it was carried out is not known")
        if not keys or len(keys) < len(_keys(call)) or call.method in _ALL_ROWS:
            self._observer.happened(Happened("unknown-commit-lost", call.by, self._clock.now()))
            return
        for key in keys:
            self._locks[key] = []
        self._later(pause, self._land, call, keys)

    def _land(self, call: _Call, keys: list[ExecutionKey]) -> None:
        waiting = [each for key in keys for each in self._locks.pop(key)]
        if self.up:
            self._carry_out(call)
            self._observer.happened(Happened("late-commit", call.by, self._clock.now()))
        for go_on in waiting:
            go_on()

    def _in_the_way(self, call: _Call) -> ExecutionKey | None:
        if not self._locks or call.method in _READS:
            return None
        if call.method in _ALL_ROWS:
            return next(iter(self._locks))
        return next((key for key in _keys(call) if key in self._locks), None)

    def _carry_out(self, call: _Call) -> Any:
        before = self._observer.before(call.method, call.args, call.kwargs)
        try:
            outcome = run_now(getattr(call.target, call.method)(*call.args, **call.kwargs))
        except Exception as error:
            outcome = error
        self._observer.applied(
            Applied(
                by=call.by,
                method=call.method,
                args=call.args,
                kwargs=call.kwargs,
                answer=outcome,
                at=self._clock.now(),
                before=before,
            )
        )
        return outcome

    def _fail(self, call: _Call, how: str) -> None:
        _answer(call.answer, JournalUnreachableError(f"journal: {call.method} {how}"))


class _Call(msgspec.Struct, frozen=True):
    by: str
    target: object
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any


class _View:
    """The journal, or a lease of it, for one process."""

    def __init__(
        self, server: JournalServer, target: object, process: Process | None, by: str
    ) -> None:
        self._server = server
        self._target = target
        self._process = process
        self._by = by

    async def __aenter__(self) -> _View:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def called(*args: Any, **kwargs: Any) -> Any:
            if self._process is not None and self._process.dead:
                raise SimDeadError(f"{self._by} is dead and calls {method}")
            answer = await self._server.serve(self._by, self._target, method, args, kwargs)
            if method == "lease":
                return _View(self._server, answer, self._process, self._by)
            return answer

        return called


def _keys(call: _Call) -> list[ExecutionKey]:
    """The rows that a call may change."""
    if not call.args:
        return []
    first = call.args[0]
    if isinstance(first, ExecutionKey):
        return [first]
    if not isinstance(first, Sequence):
        return []
    keys: dict[ExecutionKey, None] = {}
    for each in first:
        key = each if isinstance(each, ExecutionKey) else getattr(each, "key", None)
        if key is None and isinstance(each, tuple):
            key = each[0]
        if isinstance(key, ExecutionKey):
            keys[key] = None
    return list(keys)


def _answer(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def run_now(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing.

    Raises:
        RuntimeError: it waits.
    """
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError(f"{work!r} waited, so it is not carried out at one instant")
