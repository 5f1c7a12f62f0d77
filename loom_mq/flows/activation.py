"""One run of a flow's code over its log: replay, new effects, waits, and the park.

A run ends in one of four ways: the flow returns or raises; it parks (a wait that has
no answer freezes new work, K11); it is refused (a newer holder) or must stop
(`halt`); or it is cancelled. Calls that can lead nowhere any more never return: the
engine's signals are no exceptions that user code could catch (K12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, NoReturn, TypeVar

from loom_mq.clock import MICROS
from loom_mq.codec.values import ValueCodec
from loom_mq.errors import (
    CodecError,
    FlowCodeMismatchError,
    GateTimeoutError,
    StepFailedError,
    UnsupportedInFlowError,
)
from loom_mq.flows.limbo import Limbo
from loom_mq.flows.mail import Mail
from loom_mq.flows.scope import Strand, current_strand
from loom_mq.flows.settling import recorded_failure, settle_failure
from loom_mq.flows.step import Step
from loom_mq.flows.stepping import StepInfo, call_step
from loom_mq.flows.surroundings import Surroundings
from loom_mq.ids import Ids
from loom_mq.journal.log import ExecutionLog
from loom_mq.kernel.fold import Frame, FrameStatus, OpKind
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import InboxItem

T = TypeVar("T")


class Activation:
    """See the module's docstring.

    Args:
        log: the writing end of the log, with the folded state.
        around: what the process provides.
        mail: inbox items in hand.
        changed: called whenever the engine should look again.
        taken: called when an answer that a gate took is durable.
        refuse: called with an answer that its gate cannot take, and why.
    """

    def __init__(
        self,
        log: ExecutionLog,
        around: Surroundings,
        mail: Mail,
        *,
        changed: Callable[[], None],
        taken: Callable[[InboxItem], None],
        refuse: Callable[[InboxItem, CodecError], None],
    ) -> None:
        self.log = log
        self.mail = mail
        self.frozen = False
        self.cancelling = False
        self._limbo = Limbo()
        self._frozen_out: list[asyncio.Future[None]] = []
        self.in_flight = 0
        self.halted: FlowCodeMismatchError | None = None
        self.result: object = None
        self.error: BaseException | None = None
        self._around = around
        self._changed = changed
        self._taken = taken
        self._refuse = refuse
        self._root = Strand(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open: dict[str, Wait] = {}
        self._backing_off: dict[str, Wait] = {}
        self.main: asyncio.Task[None] | None = None

    # ---- life -----------------------------------------------------------------

    def start(self, body: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the flow's coroutine in a task of its own, in a fresh context (C74)."""
        context = copy_context()
        context.run(current_strand.set, self._root)
        self.main = asyncio.Task(self._body(body), loop=asyncio.get_running_loop(), context=context)
        self.main.add_done_callback(lambda _task: self._changed())

    async def _body(self, body: Callable[[], Coroutine[Any, Any, object]]) -> None:
        # SystemExit and the like must not reach the event loop: they end the flow,
        # not the worker (C70)
        try:
            self.result = await body()
        except asyncio.CancelledError as error:
            self.error = error
        except BaseException as error:
            self.error = error

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task that flow code made; ended with the activation."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def finished(self) -> bool:
        """Whether the flow's coroutine has ended."""
        return self.main is not None and self.main.done()

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What a park now would wait for, in the order of the flow's places."""
        return (*self._open.values(), *self._backing_off.values())

    def cancel(self) -> None:
        """Interrupt the flow; every durable call from now on is interrupted again (K13)."""
        self.cancelling = True
        if self.main is not None:
            self.main.cancel()

    async def abandon(self, grace: float) -> bool:
        """Take the flow's tasks apart after the log was sealed, refused or given back.

        Args:
            grace: seconds that tasks get to unwind.

        Returns:
            Whether all of them did. A task that swallows its cancellation is left
            behind: nothing it calls can lead anywhere.
        """
        self._limbo.closing = True
        tasks = {task for task in (self.main, *self._tasks) if task is not None and not task.done()}
        deadline = self._around.clock.monotonic() + grace
        # a bare except around a context call swallows one cancellation, a loop more
        for _ in range(4):
            if not tasks:
                return True
            for task in tasks:
                task.cancel()
            _done, tasks = await asyncio.wait(
                tasks, timeout=max(0.0, min(0.05, deadline - self._around.clock.monotonic()))
            )
        if tasks:
            _done, tasks = await asyncio.wait(
                tasks, timeout=max(0.0, deadline - self._around.clock.monotonic())
            )
        return not tasks

    # ---- places -----------------------------------------------------------------

    def place(self, kind: OpKind, name: str) -> str:
        """Take the next place of the calling strand (K3).

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
        place = strand.place()
        recorded = self.log.state.ops.get(place)
        if recorded is not None and recorded != (kind, name) and self.halted is None:
            self.halted = FlowCodeMismatchError(
                f"execution {self.log.key.execution_id!r}: at place {place} the log holds "
                f"{recorded[0]} {recorded[1]!r}, the code of flow {self.log.state.flow!r} asks "
                f"for {kind} {name!r}. Deploy the code that the execution was started with, or "
                "give the changed flow a new version",
                execution_id=self.log.key.execution_id,
            )
            self._changed()
        return place

    async def _may_go_on(self) -> None:
        """Pass only while new work may start (K11, K12, K13)."""
        while self.frozen and not self._over:
            thawed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._frozen_out.append(thawed)
            await thawed
        if self._over:
            await self._limbo.stay()
        if self.cancelling:
            await self._interrupt()

    @property
    def _over(self) -> bool:
        """Whether nothing that the flow does can lead anywhere any more."""
        return bool(self.halted or self._limbo.closing or self.log.sealed or self.log.refusal)

    async def _interrupt(self) -> NoReturn:
        """Raise the cancellation again (K13), not without giving others a turn: a flow that
        catches it in a loop must not stop its worker.
        """
        await asyncio.sleep(0)
        if self._over:
            await self._limbo.stay()
        raise asyncio.CancelledError

    # ---- steps ------------------------------------------------------------------

    async def run_step(
        self, place: str, step: Step[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> T:
        """Serve a step from its frame, or run it (K2, K4, K5)."""
        frame = self.log.state.frames.get(place)
        if frame is not None and self.halted is None:
            if frame.status is FrameStatus.COMPLETED:
                return step.result_codec.decode(frame.result or b"")  # type: ignore[return-value]  # the codec of T
            if (
                frame.status is FrameStatus.FAILED
                and frame.failure is not None
                and (frame.failure.channel or self.log.state.went_past(place, frame))
            ):
                raise recorded_failure(step, frame.failure, self.log.key.execution_id)
        while True:
            await self._may_go_on()
            if frame is not None and frame.status is FrameStatus.RETRYING:
                await self._back_off(place, step, frame)
                await self._may_go_on()
            if frame is not None and frame.status is FrameStatus.RUNNING:
                self._around.metrics.effect_reexecuted(self.log.state.flow, step.name)
            self.log.emit(
                ev.StepStarted(place, step.name, 1 if frame is None else frame.attempts + 1)
            )
            frame = self.log.state.frames[place]
            self.in_flight += 1
            try:
                done, value = await self._attempt(place, step, args, kwargs, frame)
            finally:
                self.in_flight -= 1
                if self.frozen:
                    self._changed()
            if done:
                return value  # type: ignore[return-value]  # the codec of T

    async def _attempt(
        self,
        place: str,
        step: Step[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        frame: Frame,
    ) -> tuple[bool, object]:
        """One attempt: (True, value) when completed, (False, None) when to be tried again."""
        key = self.log.key
        info = StepInfo(
            key.tenant,
            key.execution_id,
            step.name,
            frame.attempts,
            f"{key.tenant}/{key.execution_id}/{place}",
        )
        await self.log.barrier()  # the write barrier stands before the effect
        began = self._around.clock.monotonic()
        outcome = "completed"
        try:
            raw = await call_step(step, args, kwargs, info, self._around.threads)
            data, value = step.result_codec.roundtrip(
                raw, what=f"step {step.name}", limit=self._around.payload_limit
            )
            self.log.emit(ev.StepCompleted(place, data))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._limbo.closing or self.cancelling or (task is not None and task.cancelling()):
                outcome = "cancelled"
                self.log.emit(ev.StepCancelled(place))
                raise
            outcome = settle_failure(self.log, self._around, place, step, frame, error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and self._limbo.closing:
                raise
            outcome = settle_failure(self.log, self._around, place, step, frame, error)
            if outcome == "failed":
                if isinstance(error, Exception):
                    raise
                raise StepFailedError(
                    f"step {step.name!r} raised {type(error).__name__}: {error}",
                    execution_id=key.execution_id,
                ) from error
        finally:
            self._around.metrics.step_finished(
                self.log.state.flow, step.name, outcome, self._around.clock.monotonic() - began
            )
        if outcome == "completed":
            return True, value
        if outcome == "failed":
            raise StepFailedError(
                f"step {step.name!r} cancelled itself", execution_id=key.execution_id
            )
        await self.log.barrier()
        return False, None

    async def _back_off(self, place: str, step: Step[..., Any], frame: Frame) -> None:
        """Wait for a step's next attempt: in memory when short, else parked (K4)."""
        pause = (frame.due - self._around.clock.now()) / MICROS
        if pause <= 0:
            return
        wait = Wait(f"{place}!{frame.failures}", WaitKind.BACKOFF, step.name, frame.due)
        if pause > self._around.backoff_park:
            await self._park_on(wait)
        self._backing_off[place] = wait  # a park decided meanwhile must wake for it
        try:
            await asyncio.sleep(pause)
        finally:
            if not self.frozen:
                self._backing_off.pop(place, None)

    # ---- waits --------------------------------------------------------------------

    async def _park_on(self, wait: Wait) -> NoReturn:
        self._open[wait.id] = wait
        self.frozen = True
        self._changed()
        try:
            await self._limbo.stay()
        finally:
            if not self._over:
                self._stop_waiting(wait)

    def _stop_waiting(self, wait: Wait) -> None:
        """A branch that was cancelled waits for nothing any more; the last one thaws the rest."""
        self._open.pop(wait.id, None)
        if self._open:
            return
        self.frozen = False
        for thawed in self._frozen_out:
            if not thawed.done():
                thawed.set_result(None)
        self._frozen_out.clear()

    async def sleep_until(self, place: str, due: int) -> None:
        """A durable sleep; `due` counts only the first time (F9)."""
        if place not in self.log.state.answers:
            if self.cancelling:
                await self._interrupt()
            known = self.log.state.waits.get(place)
            await self._park_on(known or Wait(place, WaitKind.TIMER, "", due))

    async def gate(
        self, place: str, name: str, codec: ValueCodec, type_name: str, due: int | None
    ) -> object:
        """Wait for an answer (K7).

        Raises:
            GateTimeoutError: `due` passed without one.
        """
        state = self.log.state
        while (answer := state.answers.get(place)) is None:
            if self.cancelling:
                await self._interrupt()
            # taken also while frozen: an answer left lying would wake the execution again
            item = None if self._over else self.mail.find(name, place)
            if item is None:
                known = state.waits.get(place)
                await self._park_on(known or Wait(place, WaitKind.GATE, name, due, type_name))
            self.mail.drop(item)
            try:
                codec.decode(item.payload, what="answer")
            except CodecError as error:
                self._refuse(item, error)
                continue
            self.log.emit(
                ev.AnswerTaken(place, name, item.payload, item.item_id),
                consume=item.item_id,
                on_durable=partial(self._taken, item),
            )
        if answer.payload is None:
            raise GateTimeoutError(
                f"execution {self.log.key.execution_id!r}: no answer came to gate {name!r} in time",
                execution_id=self.log.key.execution_id,
            )
        return codec.decode(answer.payload)

    # ---- decisions ------------------------------------------------------------------

    async def decide(
        self, place: str, name: str, codec: ValueCodec, make: Callable[[], object]
    ) -> object:
        """Serve a recorded choice, or make and record it (K2)."""
        recorded = self.log.state.decisions.get(place)
        if recorded is not None and self.halted is None:
            return codec.decode(recorded)
        await self._may_go_on()
        data, value = codec.roundtrip(
            make(), what=f"decision {name}", limit=self._around.payload_limit
        )
        self.log.emit(ev.DecisionRecorded(place, name, data))
        return value

    async def emit(self, place: str, topic: str, codec: ValueCodec, value: object) -> None:
        """Record something for the flow's subscribers, once."""
        if place in self.log.state.ops and self.halted is None:
            return
        await self._may_go_on()
        data = codec.encode(value, what=f"emit {topic}", limit=self._around.payload_limit)
        self.log.emit(ev.CustomEmitted(place, topic, data))

    def now(self) -> int:
        """Journal time in microseconds."""
        return self._around.clock.now()

    @property
    def ids(self) -> Ids:
        """Where new ids and chance come from."""
        return self._around.ids
