"""An event loop that plays several processes at once, in virtual time.

Each process is an event loop of its own to its code: what it asked to be called is called in
the order in which it asked. Which process goes next is drawn. A process can be killed between
any two of its steps: nothing of it runs any more, no ``finally`` and no ``except``. It can be
paused, and goes on later without knowing; and its loop can be blocked while the thread that
renews its lease goes on.

Time passes only when nobody has anything to do.
"""

from __future__ import annotations

import asyncio
import heapq
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar, TypeVarTuple

from tests.simulation.rig.choices import Choices

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CHOICE: Final = 6
"""Among how many processes a draw chooses."""


class DeadlockError(Exception):
    """Nothing will ever happen any more."""


class LivelockError(BaseException):
    """It goes on and on; no `Exception`, so that nothing under test takes it for its own."""


class Lane:
    """Steps that run one after the other: a process's event loop, or the thread beside it.

    Args:
        process: whose; None for what belongs to no process.
    """

    __slots__ = ("listed", "process", "steps")

    def __init__(self, process: Process | None) -> None:
        self.process = process
        self.steps: deque[asyncio.Handle] = deque()
        self.listed = False


LANE: ContextVar[Lane | None] = ContextVar("lane", default=None)
"""Whose code runs; None outside of all processes."""


class Process:
    """One run of one service.

    Args:
        loop: where it runs.
        name: its name, for reports.
        role: what it is.
        kill_at: the number of the step before which it is killed; 0 for never.
        killed: called then.

    Attributes:
        dead: nothing of it runs any more.
        steps: taken so far.
    """

    def __init__(
        self,
        loop: SimLoop,
        name: str,
        role: str,
        *,
        kill_at: int = 0,
        killed: Callable[[Process], None] | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.dead = False
        self.paused = False
        self.blocked = False
        self.steps = 0
        self.kill_at = kill_at
        self.main = Lane(self)
        self.beside = Lane(self)
        self._loop = loop
        self._killed = killed
        self._kept: list[Any] = []

    def context(self, lane: Lane | None = None) -> Context:
        """A context in which everything belongs to this process."""
        context = Context()
        context.run(LANE.set, lane or self.main)
        return context

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let it do something."""
        context = self.context()
        return context.run(asyncio.Task, work, loop=self._loop, context=context)

    def runs(self, lane: Lane) -> bool:
        """Whether the steps of a lane are taken at present."""
        if self.dead or self.paused:
            return False
        return not (self.blocked and lane is self.main)

    def kill(self) -> None:
        """End it, at once."""
        if not self.dead:
            self.leave()
            if self._killed is not None:
                self._killed(self)

    def leave(self) -> None:
        """It has ended by itself."""
        self.dead = True
        # a coroutine that nobody refers to is closed, which would run its `finally` blocks
        self._kept.extend(asyncio.all_tasks(self._loop))
        self._kept.extend(self.main.steps)
        self._kept.extend(self.beside.steps)
        self.main.steps.clear()
        self.beside.steps.clear()
        self._loop.buried.append(self)

    def pause(self) -> None:
        """Stop it, as SIGSTOP does."""
        self.paused = True

    def wake(self) -> None:
        """Let it go on, unaware."""
        self.paused = False
        self._loop.list_again(self)

    def block(self) -> None:
        """Keep its event loop busy; the thread beside it goes on."""
        self.blocked = True

    def unblock(self) -> None:
        """Its event loop goes on."""
        self.blocked = False
        self._loop.list_again(self)


class SimLoop(asyncio.BaseEventLoop):
    """See the module's docstring.

    Args:
        choices: which process goes next.
        disorder: how often it is not the one that waited longest.
        max_steps: after so many, it goes on and on.
        max_time: seconds, as well.
    """

    _scheduled: list[Any]

    def __init__(
        self,
        choices: Choices,
        *,
        disorder: float = 0.0,
        max_steps: int = 2_000_000,
        max_time: float = 1e9,
    ) -> None:
        super().__init__()
        self._choices = choices
        self._disorder = disorder
        self._virtual = 1000.0
        self._max_steps = max_steps
        self._max_time = 1000.0 + max_time
        self._order: list[Lane] = []
        self._outside = Lane(None)
        self._lane = self._outside
        self.servers: tuple[type, ...] = ()
        """Classes whose work belongs to no process, whoever causes it."""
        self.steps = 0
        self.buried: list[Process] = []
        """Processes that are dead, with all that they left."""
        self.closed: dict[asyncio.Task[Any], None] = {}
        self.on_step: Callable[[Lane], None] | None = None

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def outside(self) -> Context:
        """A context in which everything belongs to the world outside of the processes."""
        context = Context()
        context.run(LANE.set, self._outside)
        return context

    def list_again(self, process: Process) -> None:
        """Steps that have waited for a process may be taken."""
        for lane in (process.main, process.beside):
            self._list(lane)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's; what says of nothing to whom it belongs belongs to whoever asks."""
        if context is not None:
            self._adopt(context, callback)
        handle = asyncio.Handle(callback, args, self, context)
        lane = LANE.get() if context is None else context.get(LANE)
        self._give(lane or self._outside, handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio's; see `call_soon`."""
        if context is not None:
            self._adopt(context, callback)
        return super().call_at(when, callback, *args, context=context)

    def _adopt(self, context: Context, callback: object) -> None:
        if context.get(LANE) is None:
            servers = isinstance(getattr(callback, "__self__", None), self.servers)
            context.run(LANE.set, self._outside if servers else self._lane)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """From the thread beside a process's loop, call something in that loop."""
        lane = LANE.get()
        if context is None and lane is not None and lane.process is not None:
            context = lane.process.context()
        return self.call_soon(callback, *args, context=context)

    def _list(self, lane: Lane) -> None:
        if lane.steps and not lane.listed and (lane.process is None or lane.process.runs(lane)):
            lane.listed = True
            self._order.append(lane)

    def _give(self, lane: Lane, handle: asyncio.Handle) -> None:
        """Let a handle wait for its turn in its lane."""
        process = lane.process
        if process is None:
            lane.steps.append(handle)
            if not lane.listed:
                lane.listed = True
                self._order.append(lane)
        elif process.dead:
            process._kept.append(handle)
        else:
            lane.steps.append(handle)
            if not lane.listed and process.runs(lane):
                lane.listed = True
                self._order.append(lane)

    def _wake_sleepers(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not self._order:
            if not scheduled:
                raise DeadlockError("nothing will ever happen any more")
            self._virtual = max(self._virtual, scheduled[0]._when)
            if self._virtual > self._max_time:
                raise LivelockError(f"{self._virtual - 1000:.0f} virtual seconds have passed")
        while scheduled and scheduled[0]._when <= self._virtual:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._give(handle._context.get(LANE) or self._outside, handle)

    def _run_once(self) -> None:
        """Take one step."""
        if not self._order:
            self._wake_sleepers()
            if not self._order:
                return
        lane = self._next_lane()
        process = lane.process
        if process is not None and not process.runs(lane):
            lane.listed = False
            return
        while lane.steps:
            handle = lane.steps.popleft()
            if not handle._cancelled:
                break
        else:
            lane.listed = False
            return
        if process is not None and lane is process.main:
            process.steps += 1
            if process.steps == process.kill_at:
                process._kept.append(handle)
                lane.listed = False
                process.kill()
                return
        self.steps += 1
        if self.steps > self._max_steps:
            raise LivelockError(f"{self._max_steps} steps of the event loop")
        if lane.steps:
            self._order.append(lane)
        else:
            lane.listed = False
        if self.on_step is not None:
            self.on_step(lane)
        self._lane = lane
        handle._run()
        self._lane = self._outside

    def _next_lane(self) -> Lane:
        order = self._order
        count = len(order)
        if count == 1:
            return order.pop()
        if self._disorder and self._choices.chance("disorder", self._disorder):
            return order.pop(self._choices.pick("lane", min(count, _CHOICE)))
        return order.pop(0)

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""


def run_to_end(loop: SimLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in the loop, and close it whatever comes of it."""
    try:
        return loop.run_until_complete(main)
    finally:
        put_away(loop)
        asyncio.set_event_loop(None)


def put_away(loop: SimLoop) -> None:
    """Close what never ended: what it would do now comes too late for everybody."""
    loop.set_exception_handler(lambda _loop, _context: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        while tasks := [task for task in asyncio.all_tasks(loop) if task not in loop.closed]:
            loop._scheduled.clear()
            for task in tasks:
                loop.closed[task] = None
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is known
                try:
                    task.get_coro().close()
                except BaseException:  # it belongs to a process that is gone
                    continue
        loop.close()
