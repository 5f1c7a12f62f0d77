"""What all durable calls of one run of a flow share: places, turns, and leave to go on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, NoReturn

from loom_mq.errors import FlowCodeMismatchError, LoomError, UnsupportedInFlowError
from loom_mq.flows.limbo import Limbo
from loom_mq.flows.mail import Mail
from loom_mq.flows.scope import Strand, current_strand
from loom_mq.flows.surroundings import Surroundings
from loom_mq.flows.turns import Turns
from loom_mq.journal.log import ExecutionLog
from loom_mq.kernel.fold import OpKind
from loom_mq.kernel.identity import Scope
from loom_mq.model.execution import InboxItem

shielded: ContextVar[bool] = ContextVar("loom_shielded", default=False)
"""Whether flow code runs in a block that a cancellation leaves alone (K13)."""

_PACKAGE: Final = __name__.partition(".")[0] + "."


class Call:
    """One durable call, from its await to its return.

    Attributes:
        shielded: a cancellation of the execution leaves it alone.
        interrupted: the cancellation of the execution has reached it.
        working: its effect runs.
        cancellings: how often its task had been cancelled before.
    """

    __slots__ = ("cancellings", "interrupted", "place", "shielded", "task", "working")

    def __init__(self, place: str, task: asyncio.Task[Any]) -> None:
        self.place = place
        self.task = task
        self.shielded = shielded.get()
        self.interrupted = False
        self.working = False
        self.cancellings = task.cancelling()


class Desk:
    """See the module's docstring.

    Args:
        log: the writing end of the log, with the folded state.
        around: what the process provides.
        mail: inbox items in hand.
        changed: called whenever the engine should look again.
        taken: called when an inbox item that was taken is durable.
        refuse: called with an inbox item that cannot be taken, and why.
        live: whether anything new may begin at all.

    Attributes:
        frozen: the flow waits for something outside; nothing new begins (K11).
        cancelling: the flow has been told that it is cancelled (K13).
        halted: the flow's code does not fit its log (K3).
        in_flight: effects that run, or whose end the flow has not been told.
        cleanups: shielded calls so far.
    """

    def __init__(
        self,
        log: ExecutionLog,
        around: Surroundings,
        mail: Mail,
        *,
        changed: Callable[[], None],
        taken: Callable[[InboxItem], None],
        refuse: Callable[[InboxItem, LoomError], None],
        live: bool = True,
    ) -> None:
        self.log = log
        self.around = around
        self.mail = mail
        self.changed = changed
        self.taken = taken
        self.refuse = refuse
        self.live = live
        self.limbo = Limbo()
        self.frozen = False
        self.cancelling = False
        self.halted: FlowCodeMismatchError | None = None
        self.in_flight = 0
        self.cleanups = 0
        self.root = Strand(self)
        self.main: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.turns = Turns(
            log.state,
            self,
            rested=changed,
            cancelled=self.interrupt_all,
            missing=self._halt_for_missing,
        )
        self._calls: dict[asyncio.Task[Any], Call] = {}
        self._outside: set[asyncio.Task[Any]] = set()
        self._made = 0
        self._unmet: set[str] = set()
        self._frozen_out: list[asyncio.Future[None]] = []

    # ---- the flow's tasks ---------------------------------------------------------

    def count_task(self) -> int:
        """The number of the next task that flow code makes."""
        self._made += 1
        return self._made

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task that flow code made; ended with the activation."""
        self.tasks.add(task)
        self._outside.add(task)
        task.add_done_callback(self._lose)
        self.turns.stir()

    def open(self) -> None:
        """Before the flow's first line runs."""
        self.turns.open()
        self._unmet.update(self.log.state.ops)

    def begin(self, main: asyncio.Task[None]) -> None:
        """The flow's own task."""
        self.main = main
        self._outside.add(main)
        main.add_done_callback(self._outside.discard)

    def _lose(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self._outside.discard(task)
        if self.limbo.closing and not task.cancelled():
            task.exception()  # nobody is there to ask for it, and nothing is amiss

    @property
    def running(self) -> set[asyncio.Task[Any]]:
        """The flow's tasks that have not ended."""
        tasks = self.tasks if self.main is None else {self.main, *self.tasks}
        return {task for task in tasks if not task.done()}

    @property
    def alone(self) -> bool:
        """Whether the flow has no task but its own."""
        return not self.tasks

    @property
    def busy(self) -> bool:
        """Whether flow code is about to run: some task of it waits for nothing, or for
        something that is there. asyncio shows that nowhere but in `_fut_waiter`.
        """
        for task in self._outside:
            waiter = getattr(task, "_fut_waiter", None)
            if not task.done() and (waiter is None or waiter.done()):
                return True
        return False

    # ---- calls ----------------------------------------------------------------------

    def enter(self, place: str) -> Call:
        """A durable call is awaited."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("flow code runs in a task")
        call = self._calls[task] = Call(place, task)
        self.cleanups += call.shielded
        self._outside.discard(task)
        return call

    def leave(self, call: Call) -> None:
        """It returns or raises."""
        self._calls.pop(call.task, None)
        self._outside.add(call.task)
        if call.interrupted:
            call.task.uncancel()  # it was the engine's, and is told by the exception alone

    def is_working(self, task: asyncio.Task[Any]) -> bool:
        """Whether a step's effect runs in this task."""
        call = self._calls.get(task)
        return call is not None and call.working

    @property
    def standing_at(self) -> list[str]:
        """The places whose calls have not returned."""
        return [call.place for call in self._calls.values()]

    @property
    def shielded_calls(self) -> bool:
        """Whether cleanup is under way that a cancellation must leave alone."""
        return any(call.shielded for call in self._calls.values())

    def interrupt_all(self) -> None:
        """The flow is told that it is cancelled (K13): every call that waits or works ends,
        but for shielded ones and for those that the log says ended otherwise.
        """
        self.cancelling = True
        reached = False
        for call in list(self._calls.values()):
            if call.shielded or self.turns.is_ahead(call.place):
                reached = True
            elif not call.interrupted:
                reached = call.interrupted = True
                call.task.cancel()
        if not reached and self.main is not None:
            self.main.cancel()  # it waits for something that is not the engine's
        self.changed()

    # ---- places -----------------------------------------------------------------

    def strand(self) -> Strand:
        """The calling strand of this very flow.

        Raises:
            UnsupportedInFlowError: called from a step or from outside this flow.
        """
        strand = current_strand.get()
        if strand is None or strand.keeper is not self:
            raise UnsupportedInFlowError(
                f"the context of execution {self.log.key.execution_id!r} was used outside its "
                "flow's own code (inside a step, or by another execution); pass values to "
                "steps, not the context",
                execution_id=self.log.key.execution_id,
            )
        return strand

    def place(self, kind: OpKind, name: str) -> str:
        """Take the next place of the calling strand (K3).

        Raises:
            UnsupportedInFlowError: called from a step or from outside this flow.
        """
        place = self.strand().place()
        self.meet(place)
        recorded = self.log.state.ops.get(place)
        if recorded is not None and recorded != (kind, name):
            self.halt(
                f"at place {place} the log holds {_operation(*recorded)}, and the code asks for "
                f"{_operation(kind, name)}{_where(sys._getframe(1))}"
            )
        return place

    def meet(self, place: str) -> None:
        """The flow has come to a place or a mark, which the log may hold."""
        self._unmet.discard(place)

    @property
    def unmet(self) -> bool:
        """Whether the log holds places that the flow has not come to."""
        return bool(self._unmet)

    def _halt_for_missing(self, place: str) -> None:
        kind, name = self.log.state.ops.get(place, (OpKind.STEP, ""))
        self.halt(
            f"at place {place} the log holds {_operation(kind, name)}, and the code does not come "
            "there"
        )

    def went_on_after(self, place: str) -> bool:
        """Whether the log holds later calls of the same strand, though nothing of this one: it
        raised an error then, which leaves no record, and will raise it again.
        """
        path, _hash, number = place.rpartition("#")
        scope = Scope(path)
        scope.calls, scope.tasks = int(number) + 1, sys.maxsize
        return scope.went_on_in(self.log.state.ops)

    def unreached_operation(self) -> str:
        """What the log holds in the flow's own strand beyond the present point; for when it
        goes no further.
        """
        for place, (kind, name) in self.log.state.ops.items():
            number = place.removeprefix("#")
            if number != place and number.isdigit() and int(number) >= self.root.calls:
                return f"at place {place} the log holds {_operation(kind, name)}"
        return ""

    def halt_if_unreached(self) -> None:
        """The flow has ended: whatever its log still holds, its code has no more. What a
        task of it was told after its own end is no part of that.
        """
        for place in self.turns.unreached():
            if place.startswith("#"):
                self._halt_for_missing(place)
        operation = self.unreached_operation()
        if operation:
            self.halt(f"{operation}, and the code does not come there")

    def halt(self, difference: str) -> None:
        """The code does not fit the log, and this is how (K3)."""
        if self.halted is not None:
            return
        state = self.log.state
        self.halted = FlowCodeMismatchError(
            f"execution {self.log.key.execution_id!r} does not fit the code of flow "
            f"{state.flow!r} version {state.version!r}: {difference}. It is left as it is. Deploy "
            "the code that it was started with, or put the change behind ctx.patched() or a new "
            "version of the flow",
            execution_id=self.log.key.execution_id,
        )
        self.changed()

    # ---- leave to go on ----------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether nothing that the flow does can lead anywhere any more."""
        return bool(self.halted or self.limbo.closing or self.log.sealed or self.log.refusal)

    async def recall(self, call: Call) -> None:
        """Return in the turn in which the log says that the flow is told of this call.

        A cancellation by flow code that comes earlier did not end it the first time
        either.
        """
        while self.turns.is_ahead(call.place) and not self.over:
            told = self.turns.recall(call.place)
            if told is None:
                break
            try:
                await told
            except asyncio.CancelledError:
                # one that comes after the telling, in the same turn, is no earlier one: it
                # ends the sleep or the gate whose end this very run is the first to tell
                if not told.cancelled() or self.over:
                    raise
        if self.over:
            await self.limbo.stay()

    async def may_begin(
        self, call: Call, *, though_frozen: bool = False, at_once: bool = False
    ) -> bool:
        """Return when something new may begin (K11, K12, K13).

        Args:
            call: on whose behalf.
            though_frozen: also while the flow is about to park.
            at_once: also while more is to be told: it is a decision of the flow's, which a
                re-run finds on the log and does not wait for either.

        Returns:
            Whether it had to wait for that.
        """
        waited = False
        while True:
            await self.heed(call)
            gate = self.turns.birth(at_once=at_once)
            if gate is None:
                if not self.live:
                    await self.limbo.stay()
                if not self.frozen or though_frozen:
                    return waited
                gate = asyncio.get_running_loop().create_future()
                self._frozen_out.append(gate)
            waited = True
            await gate

    async def heed(self, call: Call) -> None:
        """Go no further when nothing leads anywhere any more (K12), nor when the flow is being
        cancelled (K13).
        """
        if self.over:
            await self.limbo.stay()
        if self.cancelling and not call.shielded:
            await self._interrupt()

    async def _interrupt(self) -> NoReturn:
        """Raise the cancellation again (K13), not without giving others a turn: a flow that
        catches it in a loop must not stop its worker.
        """
        await asyncio.sleep(0)
        if self.over:
            await self.limbo.stay()
        raise asyncio.CancelledError

    def thaw(self) -> None:
        """The flow waits for nothing any more: what is new may begin."""
        self.frozen = False
        self.turns.bear(self._frozen_out)
        self._frozen_out.clear()


def _operation(kind: OpKind, name: str) -> str:
    if kind is OpKind.WAIT:
        return f"a wait at gate {name!r}" if name else "a sleep"
    article = "an" if kind is OpKind.EMIT else "a"
    return f"{article} {kind.value} {name!r}"


def _where(frame: FrameType | None) -> str:
    """The line of the author's own code."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
