"""Steps of one run of a flow: served from the log, or run and recorded (K2, K4, K5, K6)."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from loom_mq.clock import MICROS
from loom_mq.codec.failures import describe_exception
from loom_mq.errors import CodecError, MalformedMessageError, StepInDoubtError
from loom_mq.flows.desk import Call, Desk
from loom_mq.flows.scope import outside_flow
from loom_mq.flows.settling import Attempted, attempted, recorded_failure, thrown_failure
from loom_mq.flows.step import Step
from loom_mq.flows.stepping import StepInfo, call_step, checksum
from loom_mq.flows.waits import Waits
from loom_mq.kernel.fold import Frame, FrameStatus
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import InboxItem
from loom_mq.model.verdicts import Verdict, VerdictKind

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_decode_verdict = msgspec.msgpack.Decoder(Verdict).decode


class _Nothing(enum.Enum):
    YET = enum.auto()


UNSETTLED = (FrameStatus.RUNNING, FrameStatus.CANCELLED, FrameStatus.IN_DOUBT)
"""An effect that began, and of whose end the log says nothing."""


class Effects:
    """See the module's docstring."""

    def __init__(self, desk: Desk, waits: Waits) -> None:
        self._desk = desk
        self._waits = waits

    async def run(
        self, place: str, step: Step[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> T:
        """Serve a step from its frame, or run it."""
        desk = self._desk
        call = desk.enter(place)
        try:
            arguments = checksum(args, kwargs)
            frame = desk.log.state.frames.get(place)
            if frame is not None:
                self._compare(call, step, frame, arguments)
                if desk.turns.is_ahead(place):
                    await desk.recall(call)
                    return self._served(step, frame)  # type: ignore[return-value]  # the codec of T
            while True:
                await desk.may_begin(call)
                if frame is not None and self._untold(place, frame):
                    desk.log.emit(ev.StepTold(place, await desk.turns.turn()))
                    return self._served(step, frame)  # type: ignore[return-value]  # the codec of T
                if frame is not None and frame.status is FrameStatus.RETRYING:
                    await self._back_off(call, step, frame)
                if frame is not None and not step.idempotent and frame.status in UNSETTLED:
                    value = await self._ask(call, step, frame)
                    if value is not _Nothing.YET:
                        return value  # type: ignore[return-value]  # the codec of T
                frame = self._start(call, step, arguments, frame)
                value = await self._attempt(call, step, args, kwargs, frame)
                if value is not _Nothing.YET:
                    return value  # type: ignore[return-value]  # the codec of T
        except asyncio.CancelledError:
            if await self._withdraw(call):
                raise asyncio.CancelledError from None  # as a re-run raises it
            raise
        finally:
            desk.leave(call)

    async def _withdraw(self, call: Call) -> bool:
        """Return when the flow may be told of a cancellation. Where the step has begun, that is
        in a turn of its own (K3): an effect takes its time to end, and the flow may have gone
        on meanwhile. Whoever comes later may find an effect that no longer runs.

        Returns:
            Whether the step had begun.
        """
        desk = self._desk
        state = desk.log.state
        if desk.over or call.place not in state.frames or call.place in state.settled:
            return False
        turn = await self._turn(call, interrupted=True)
        if turn and desk.live:
            desk.log.emit(ev.StepCancelled(call.place, turn))
        return True

    # ---- from the log ---------------------------------------------------------------

    def _untold(self, place: str, frame: Frame) -> bool:
        """Whether the step ended while the flow was taken apart, and could not be told."""
        ended = frame.status in (FrameStatus.COMPLETED, FrameStatus.FAILED)
        return ended and self._desk.log.state.serves(place)

    def _served(self, step: Step[..., Any], frame: Frame) -> object:
        if frame.status is FrameStatus.CANCELLED or frame.withdrawn:
            raise asyncio.CancelledError
        if frame.failure is not None and frame.status is FrameStatus.FAILED:
            raise recorded_failure(step, frame.failure, self._desk.log.key.execution_id)
        return step.result_codec.decode(frame.result or b"")

    def _compare(self, call: Call, step: Step[..., Any], frame: Frame, arguments: int) -> None:
        """A step that a re-run calls with other arguments is served all the same, with a
        word about it: what it returned belongs to the arguments that it had (C19).
        """
        if frame.arguments and arguments and frame.arguments != arguments:
            _log.warning(
                "step.other_arguments",
                tenant=self._desk.log.key.tenant,
                execution_id=self._desk.log.key.execution_id,
                flow=self._desk.log.state.flow,
                step=step.name,
                place=call.place,
            )

    # ---- anew ---------------------------------------------------------------------------

    def _start(
        self, call: Call, step: Step[..., Any], arguments: int, frame: Frame | None
    ) -> Frame:
        log = self._desk.log
        if frame is not None and frame.status is FrameStatus.RUNNING:
            self._desk.around.metrics.effect_reexecuted(log.state.flow, step.name)
        attempt = 1 if frame is None else frame.attempts + 1
        log.emit(ev.StepStarted(call.place, step.name, attempt, arguments, not step.idempotent))
        return log.state.frames[call.place]

    async def _attempt(
        self,
        call: Call,
        step: Step[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        frame: Frame,
    ) -> object:
        """One attempt: what the flow gets, or nothing yet when it is to be tried again.

        Raises:
            BaseException: what the flow gets when the attempt failed for good.
        """
        desk = self._desk
        key = desk.log.key
        info = StepInfo(
            key.tenant,
            key.execution_id,
            step.name,
            frame.attempts,
            "/".join(filter(None, (*key, desk.log.state.run, call.place))),
        )
        desk.in_flight += 1
        began = desk.around.clock.monotonic()
        done = Attempted("cancelled")
        try:
            await desk.log.barrier()  # the write barrier stands before the effect
            began = desk.around.clock.monotonic()
            call.working = True
            try:
                raw = await call_step(step, args, kwargs, info, desk.around.threads)
                data, value = step.result_codec.roundtrip(
                    raw, what=f"step {step.name}", limit=desk.around.payload_limit
                )
            except asyncio.CancelledError as error:
                if not self._from_outside(call):
                    done = attempted(desk.around, step, frame, call.place, error)
            except BaseException as error:
                if isinstance(error, GeneratorExit) and desk.limbo.closing:
                    raise
                done = attempted(desk.around, step, frame, call.place, error)
                if done.retrying is not None and self._from_outside(call):
                    # an effect may answer its cancellation with an error of its own; to try
                    # again would make nothing of the cancellation
                    done = Attempted("cancelled")
            else:
                done = Attempted("completed", ev.StepCompleted(call.place, data), value=value)
            call.working = False
            return await self._tell(call, step, done)
        finally:
            call.working = False
            desk.in_flight -= 1
            if desk.frozen:
                desk.changed()
            desk.around.metrics.step_finished(
                desk.log.state.flow,
                step.name,
                done.outcome,
                desk.around.clock.monotonic() - began,
            )

    def _from_outside(self, call: Call) -> bool:
        """Whether an effect that ended cancelled was cancelled, and not by itself."""
        closing = self._desk.limbo.closing
        return closing or call.interrupted or call.task.cancelling() > call.cancellings

    async def _tell(self, call: Call, step: Step[..., Any], done: Attempted) -> object:
        """Record how an attempt ended, in the turn in which the flow is told."""
        desk = self._desk
        if done.retrying is not None:
            desk.log.emit(done.retrying)
            desk.around.metrics.step_retried(desk.log.state.flow, step.name, done.error_type)
            await desk.log.barrier()
            return _Nothing.YET
        event = done.event or ev.StepCancelled(call.place)
        try:
            turn = await self._turn(call, interrupted=done.event is None)
        except asyncio.CancelledError:
            # when it ended before the cancellation came, both come on the log
            desk.log.emit(msgspec.structs.replace(event, turn=ev.UNTOLD))
            raise
        desk.log.emit(msgspec.structs.replace(event, turn=turn))
        if done.event is None:
            raise asyncio.CancelledError
        if isinstance(event, ev.StepFailed) and done.error is not None:
            raise thrown_failure(step, event.failure, desk.log.key.execution_id, done.error)
        return done.value

    async def _turn(self, call: Call, *, interrupted: bool) -> int:
        """The turn in which to tell; an interrupted call has had its cancellation."""
        desk = self._desk
        while True:
            if desk.limbo.closing:
                raise asyncio.CancelledError
            try:
                turn = await desk.turns.turn(yielding=interrupted)
                if turn and not (desk.live or desk.unmet):
                    await desk.limbo.stay()
                return turn
            except asyncio.CancelledError:
                if not interrupted:
                    raise

    async def _back_off(self, call: Call, step: Step[..., Any], frame: Frame) -> None:
        """Wait for a step's next attempt: in memory when short, else parked (K4)."""
        around = self._desk.around
        pause = (frame.due - around.clock.now()) / MICROS
        if pause <= 0:
            return
        wait = Wait(f"{call.place}!{frame.failures}", WaitKind.BACKOFF, step.name, frame.due)
        if pause > around.backoff_park:
            await self._waits.park_on(wait)
        self._waits.back_off(call.place, wait)
        try:
            with outside_flow():
                await asyncio.sleep(pause)
            await self._desk.may_begin(call)
        finally:
            self._waits.backed_off(call.place)

    # ---- in doubt --------------------------------------------------------------------

    async def _ask(self, call: Call, step: Step[..., Any], frame: Frame) -> object:
        """An effect that must not run twice began, and nobody knows how it ended: wait for
        an operator's verdict (K6).

        Returns:
            What the step returned, by the verdict; nothing yet when it is to run again.

        Raises:
            StepInDoubtError: it failed, by the verdict.
        """
        desk = self._desk
        if frame.status is not FrameStatus.IN_DOUBT:
            desk.log.emit(ev.EffectInDoubt(call.place, step.name, frame.attempts))
        while True:
            item = desk.mail.take_verdict(step.name, call.place)
            if item is None:
                wait_id = f"{call.place}?{frame.attempts}"
                await self._waits.park_on(Wait(wait_id, WaitKind.VERDICT, step.name))
            try:
                verdict = _decode_verdict(item.payload)
                value = (
                    step.result_codec.decode(verdict.value, what=f"verdict on step {step.name}")
                    if verdict.kind is VerdictKind.COMPLETED
                    else None
                )
            except CodecError as error:
                desk.refuse(item, error)
            except msgspec.MsgspecError as error:
                desk.refuse(item, MalformedMessageError(f"this is no verdict: {error}"))
            else:
                return await self._judge(call, step, item, verdict, value)

    async def _judge(
        self, call: Call, step: Step[..., Any], item: InboxItem, verdict: Verdict, value: object
    ) -> object:
        desk = self._desk
        again = verdict.kind is VerdictKind.RUN_AGAIN
        try:
            turn = 0 if again else await desk.turns.turn()
        except BaseException:
            desk.mail.put_back(item)
            raise
        desk.log.emit(
            ev.VerdictTaken(call.place, verdict.kind, verdict.message, item.item_id, item.actor),
            consume=item.item_id,
            on_durable=partial(desk.taken, item),
        )
        if again:
            return _Nothing.YET
        if verdict.kind is VerdictKind.COMPLETED:
            desk.log.emit(ev.StepCompleted(call.place, verdict.value, turn))
            return value
        error = StepInDoubtError(
            verdict.message or f"step {step.name!r} failed, by an operator's verdict",
            execution_id=desk.log.key.execution_id,
        )
        desk.log.emit(ev.StepFailed(call.place, describe_exception(error), turn))
        raise error
