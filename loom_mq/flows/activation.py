"""One run of a flow's code over its log: replay, new effects, waits, and the park.

A run ends in one of four ways: the flow returns or raises; it parks (a wait that is not
over freezes new work, K11); it is refused (a newer holder) or must stop (`halted`); or
it is cancelled. Calls that can lead nowhere any more never return: the engine's signals
are no exceptions that user code could catch (K12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from typing import Any, NoReturn, TypeVar

from loom_mq.codec.plain import FAILED
from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import FlowCodeMismatchError
from loom_mq.flows.desk import Desk
from loom_mq.flows.effects import Effects
from loom_mq.flows.scope import current_strand
from loom_mq.flows.settling import choice_failure, stored_failure
from loom_mq.flows.step import Step
from loom_mq.flows.waits import Waits
from loom_mq.ids import Ids
from loom_mq.journal.log import ExecutionLog
from loom_mq.kernel.fold import OpKind
from loom_mq.model import events as ev
from loom_mq.model.execution import InboxItem

T = TypeVar("T")

ROUND = 0.01
"""Seconds in which flow code unwinds by one block, before it is told again to go on."""

ROUNDS = 30
"""Blocks within blocks that flow code may have to unwind by."""


class Activation:
    """See the module's docstring.

    Args:
        desk: what the run's calls share.

    Attributes:
        result: what the flow returned.
        error: what it raised.
        waits: what it waits for.
    """

    def __init__(self, desk: Desk) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self.waits = Waits(desk)
        self._desk = desk
        self._effects = Effects(desk, self.waits)
        self._cancel_asked = False

    @property
    def log(self) -> ExecutionLog:
        """The log, with the folded state."""
        return self._desk.log

    # ---- life -----------------------------------------------------------------

    def start(self, body: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the flow's coroutine in a task of its own, in a fresh context (C74)."""
        desk = self._desk
        desk.open()
        context = copy_context()
        context.run(current_strand.set, desk.root)
        main = asyncio.Task(self._body(body), loop=asyncio.get_running_loop(), context=context)
        main.add_done_callback(lambda _task: desk.changed())
        desk.begin(main)

    async def _body(self, body: Callable[[], Coroutine[Any, Any, object]]) -> None:
        # SystemExit and the like must not reach the event loop: they end the flow,
        # not the worker (C70)
        try:
            self.result = await body()
        except asyncio.CancelledError as error:
            self.error = error
        except BaseException as error:
            self.error = error
        if not self._desk.over:
            self._desk.halt_if_unreached()

    async def misfit(self, how: str) -> NoReturn:
        """The code does not fit the log in a way that shows before its first line (K3)."""
        self._desk.halt(how)
        await self._desk.limbo.stay()

    @property
    def finished(self) -> bool:
        """Whether the flow's coroutine has ended."""
        return self._desk.main is not None and self._desk.main.done()

    @property
    def halted(self) -> FlowCodeMismatchError | None:
        """How the flow's code does not fit its log (K3)."""
        return self._desk.halted

    @property
    def frozen(self) -> bool:
        """Whether the flow waits for something outside (K11)."""
        return self._desk.frozen

    @property
    def in_flight(self) -> int:
        """Effects that run, or whose end the flow has not been told."""
        return self._desk.in_flight

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, and the flow has seen all that there is to see."""
        return self._desk.in_flight == 0 and self._desk.turns.at_rest

    @property
    def stands_still(self) -> bool:
        """Whether flow code waits, and no turn is ahead."""
        return self._desk.turns.at_rest and not self._desk.busy

    @property
    def standing_at(self) -> list[str]:
        """The places whose calls have not returned."""
        return self._desk.standing_at

    def unreached_operation(self) -> str:
        """What the log holds beyond the point where the flow stands; empty for nothing."""
        return self._desk.unreached_operation()

    @property
    def cancelling(self) -> bool:
        """Whether the flow has been told that it is cancelled (K13)."""
        return self._desk.cancelling

    @property
    def cleaning(self) -> bool:
        """Whether a shielded block is at work."""
        return self._desk.shielded_calls

    @property
    def cleanups(self) -> int:
        """How many shielded calls there have been."""
        return self._desk.cleanups

    def cancel(self, request: InboxItem) -> None:
        """Tell the flow that it is cancelled, in a turn of its own; every durable call from
        then on is interrupted again (K13).
        """
        if self._cancel_asked or self.log.state.cancelling is not None:
            return
        self._cancel_asked = True
        reason = request.payload.decode(errors="replace")

        def tell(turn: int) -> None:
            self.log.emit(ev.CancelRequested(reason, request.actor, turn), consume=request.item_id)
            self._desk.mail.take_cancel()
            self._desk.interrupt_all()

        self._desk.turns.announce(tell)

    async def abandon(self, grace: float) -> bool:
        """Take the flow's tasks apart after the log was sealed, refused or given back.

        Args:
            grace: seconds that tasks get to unwind.

        Returns:
            Whether all of them did. A task that swallows its cancellation is left
            behind: nothing it calls can lead anywhere.
        """
        desk = self._desk
        desk.limbo.closing = True
        desk.turns.close()
        clock = desk.around.clock
        deadline = clock.monotonic() + grace
        told: set[asyncio.Task[Any]] = set()
        rounds = 0
        # anew each time: flow code that unwinds may make tasks, which are to end as well
        while (tasks := desk.running) and (left := deadline - clock.monotonic()) > 0:
            # flow code that cleans up without a shield swallows one cancellation for each
            # block; an effect that cleans up is told once, and left to it
            again = {task for task in tasks if task not in told or not desk.is_working(task)}
            rounds += 1
            if rounds > ROUNDS and again == tasks:
                break  # no effect is at work, and flow code that swallows all will not end
            for task in again:
                task.cancel()
            told |= again
            await asyncio.wait(tasks, timeout=min(ROUND, left))
        for task in tasks:
            if not desk.is_working(task):
                desk.limbo.leave_behind(task)
        return not tasks

    # ---- what the context asks for --------------------------------------------------

    def place(self, kind: OpKind, name: str) -> str:
        """Take the next place of the calling strand (K3)."""
        return self._desk.place(kind, name)

    def run_step(
        self, place: str, step: Step[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, T]:
        """Serve a step from its frame, or run it (K2, K4, K5)."""
        return self._effects.run(place, step, args, kwargs)

    async def decide(
        self, place: str, name: str, codec: ValueCodec, make: Callable[[], object]
    ) -> object:
        """Serve a recorded choice, or make and record it (K2)."""
        recorded = self.log.state.decisions.get(place)
        turn = await self._asked(place, known=recorded is not None)
        if recorded is not None:
            if recorded.startswith(FAILED):
                raise choice_failure(recorded, self.log.key.execution_id)
            return codec.decode(recorded)
        try:
            data, value = codec.roundtrip(
                make(), what=f"decision {name}", limit=self._desk.around.payload_limit
            )
        except Exception as error:  # the flow may catch it, and must meet it again
            data = stored_failure(error)
            self.log.emit(ev.DecisionRecorded(place, name, data, turn))
            raise choice_failure(data, self.log.key.execution_id) from error
        self.log.emit(ev.DecisionRecorded(place, name, data, turn))
        return value

    async def emit(self, place: str, topic: str, codec: ValueCodec, value: object) -> None:
        """Record something for the flow's subscribers, once."""
        known = place in self.log.state.ops
        failed = not known and self._desk.went_on_after(place)
        turn = await (self._passed_by(place) if failed else self._asked(place, known=known))
        if not known:
            data = codec.encode(value, what=f"emit {topic}", limit=self._desk.around.payload_limit)
            if failed:
                await self.misfit(f"at place {place} emit {topic!r} failed, and now it does not")
            self.log.emit(ev.CustomEmitted(place, topic, data, turn))

    async def _asked(self, place: str, *, known: bool) -> int:
        """Return when a call that needs nothing from outside may go on.

        Returns:
            The turn in which the flow goes on, 0 for the present one: the flow sees the
            difference when it had to wait (K3).
        """
        desk = self._desk
        if known and not desk.turns.is_ahead(place) and not desk.over:
            return 0
        call = desk.enter(place)
        try:
            if known:
                await desk.recall(call)
                return 0
            waited = await desk.may_begin(call, though_frozen=True, at_once=True)
            return await desk.turns.turn() if waited else 0
        finally:
            desk.leave(call)

    async def _passed_by(self, place: str) -> int:
        """As `_asked` for a call that left no record though the flow went on after it: it
        failed, or was interrupted.
        """
        call = self._desk.enter(place)
        try:
            await self._desk.heed(call)
        finally:
            self._desk.leave(call)
        return 0

    def patched(self, name: str) -> bool:
        """Whether the flow goes the new way here, as it did the first time (K3)."""
        strand = self._desk.strand()
        marker = strand.marker(name)
        state = self.log.state
        if marker in state.ops:
            self._desk.meet(marker)
            return True
        if strand.went_on_in(state.ops):
            return False
        if self._desk.live and not self._desk.over:
            value = _MARK.encode(True, what=f"patch {name}")
            self.log.emit(ev.DecisionRecorded(marker, name, value))
        return True

    async def has_passed(self, place: str, due: int) -> bool:
        """Whether a sleep until `due` is over before it begins. Once that was found it is
        found on every re-run (K3), and not a moment earlier, though by then it is later: what
        the log still holds, the flow may have done while it slept.
        """
        state = self.log.state
        marker = f"{place}?past"
        known = marker in state.ops
        if known:
            self._desk.meet(marker)
        elif place in state.waits or due > self.now() or self._desk.turns.replaying:
            return False
        turn = await self._asked(marker, known=known)
        if not known:
            self.log.emit(ev.DecisionRecorded(marker, "sleep_until", _PAST, turn))
        return True

    def now(self) -> int:
        """Journal time in microseconds."""
        return self._desk.around.clock.now()

    @property
    def ids(self) -> Ids:
        """Where new ids and chance come from."""
        return self._desk.around.ids


_MARK = codec_for(bool)
_PAST = _MARK.encode(True, what="a mark")
