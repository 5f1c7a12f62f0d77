"""Requests about executions that exist: state, watch, resume, cancel, verdict (K6, K7, K13).
Those about schedules (F9) come the same way and are handed on.

A resume or cancel is an inbox row before anything else; the hint to the holder, or the
package that wakes a parked execution, may be lost and costs only time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
import structlog

from loom_mq.broker import topology
from loom_mq.broker.protocol import Delivery
from loom_mq.clock import Clock
from loom_mq.codec import wire
from loom_mq.engine.admission import stored_input
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.outcome import error_reply, outcome_from_event, state_reply
from loom_mq.engine.packages import PackageSender
from loom_mq.engine.scheduling import ScheduleDesk
from loom_mq.errors import (
    ExecutionEndedError,
    InputError,
    InvalidIdError,
    LoomError,
    MalformedMessageError,
    PayloadTooLargeError,
    ResumeRefusedError,
    UnknownExecutionError,
)
from loom_mq.ids import Ids, check_id
from loom_mq.journal.patience import patient
from loom_mq.journal.protocol import DeliverVerdict, Journal
from loom_mq.lane import Lane
from loom_mq.model.execution import (
    CANCEL_ID,
    ExecutionKey,
    ExecutionRow,
    InboxItem,
    InboxKind,
    Status,
    Waiter,
)
from loom_mq.model.messages import (
    Cause,
    ControlItem,
    ControlMessage,
    ControlOp,
    Hint,
    RefusalReason,
    ReplyItem,
    ReplyKind,
)
from loom_mq.model.verdicts import Verdict, VerdictKind

_log = structlog.get_logger(__name__)

MAX_REASON_BYTES = 2000


class Control:
    """See the module's docstring."""

    def __init__(
        self,
        journal: Journal,
        outbox: Outbox,
        packages: PackageSender,
        ids: Ids,
        schedules: ScheduleDesk,
        *,
        clock: Clock,
        patience: float,
        resend_after: float,
        payload_limit: int,
    ) -> None:
        self._journal = journal
        self._outbox = outbox
        self._packages = packages
        self._ids = ids
        self._schedules = schedules
        self._payload_limit = payload_limit
        self._deliveries: Lane[InboxItem, DeliverVerdict] = Lane(
            patient(
                partial(journal.deliver, resend_after=resend_after),
                lambda error: DeliverVerdict(error=error),
                clock=clock,
                give_up_after=patience,
            ),
            max_batch=200,
        )

    def handle(
        self,
        delivery: Delivery,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        reject: Callable[[Delivery, InputError], None],
    ) -> None:
        """Take a delivery from the control queue."""
        try:
            message = wire.decode(ControlMessage, delivery.body, delivery.content_type)
        except InputError as error:
            reject(delivery, error)
        else:
            spawn(self._answer_all(delivery, message))

    async def _answer_all(self, delivery: Delivery, message: ControlMessage) -> None:
        kind, name = delivery.content_type, delivery.correlation_id or ""
        answers = await asyncio.gather(
            *(self._answer(delivery, item) for item in message.items),
            *(self._schedules.answer(item, kind, name) for item in message.schedules),
            return_exceptions=True,
        )
        failure = next((each for each in answers if isinstance(each, BaseException)), None)
        if failure is not None:
            _log.warning("control.not_answered", error=repr(failure))
            await asyncio.sleep(1.0)
            delivery.requeue()
            return
        for answer in answers:
            if delivery.reply_to is not None and isinstance(answer, ReplyItem):
                self._outbox.replies.send(delivery.reply_to, answer)
        delivery.ack()

    async def _answer(self, delivery: Delivery, item: ControlItem) -> ReplyItem:
        """One reply per request; raises only when the journal is away."""
        key = ExecutionKey(item.tenant, item.id)
        correlation = item.correlation or delivery.correlation_id or ""
        try:
            check_id(item.id, "execution id")
            check_id(item.tenant, "tenant")
            if item.op in (ControlOp.STATE, ControlOp.WATCH):
                return await self._look(delivery, item, key, correlation)
            return await self._deliver(delivery, item, key, correlation)
        except InputError as error:
            return error_reply(key, correlation, error)

    async def _look(
        self, delivery: Delivery, item: ControlItem, key: ExecutionKey, correlation: str
    ) -> ReplyItem:
        watching = item.op is ControlOp.WATCH and delivery.reply_to
        waiter = Waiter(delivery.reply_to, correlation) if watching and delivery.reply_to else None
        verdict = await self._journal.watch(key, waiter)
        if verdict.row is None:
            raise UnknownExecutionError(
                f"there is no execution {key.execution_id!r}", execution_id=key.execution_id
            )
        if item.op is ControlOp.WATCH and verdict.terminal is not None:
            outcome = outcome_from_event(key, correlation, verdict.terminal)
            if outcome is not None:
                return outcome
        return state_reply(verdict.row, correlation)

    async def _deliver(
        self, delivery: Delivery, item: ControlItem, key: ExecutionKey, correlation: str
    ) -> ReplyItem:
        request = self._inbox_item(delivery, item, correlation)
        verdict = await self._deliveries.submit(request)
        row = verdict.row
        if verdict.error is not None:
            raise self._refusal(item, verdict.error)
        if row is None:
            raise LoomError("the journal gave no verdict on an inbox item")
        refusal = None if verdict.duplicate else _unwanted(item, row)
        if refusal is not None:
            await self._journal.discard([(key, request.item_id)])
            raise refusal
        if not verdict.duplicate:
            await self._hint(item, row)
        return state_reply(row, correlation, ReplyKind.STORED)

    def _inbox_item(self, delivery: Delivery, item: ControlItem, correlation: str) -> InboxItem:
        # a request that is delivered twice must not become two answers
        item_id = check_id(item.item_id or correlation or self._ids.execution(), "item id")
        if item.op is ControlOp.CANCEL:
            payload = item.reason.encode(errors="replace")[:MAX_REASON_BYTES]
            kind = InboxKind.CANCEL
            item_id = CANCEL_ID
        else:
            verdict = item.op is ControlOp.VERDICT
            subject = check_id(
                item.step if verdict else item.gate, "step name" if verdict else "gate name"
            )
            payload = self._payload(delivery, item)
            kind = InboxKind.VERDICT if verdict else InboxKind.ANSWER
            if item_id == CANCEL_ID:
                raise InvalidIdError(f"{CANCEL_ID!r} is no id for an answer; choose another")
            if len(payload) > self._payload_limit:
                what = f"verdict on step {subject!r}" if verdict else f"answer to gate {subject!r}"
                raise PayloadTooLargeError(what, len(payload), self._payload_limit)
        return InboxItem(
            tenant=item.tenant,
            execution_id=item.id,
            item_id=item_id,
            kind=kind,
            gate=item.step if kind is InboxKind.VERDICT else item.gate,
            wait_id=item.wait_id or None,
            payload=payload,
            reply_to=delivery.reply_to,
            correlation=correlation,
            actor=item.actor,
        )

    def _payload(self, delivery: Delivery, item: ControlItem) -> bytes:
        if item.op is not ControlOp.VERDICT:
            return stored_input(item.payload, item.input, delivery.content_type)
        if item.verdict is None:
            raise MalformedMessageError(
                "a verdict must say `verdict`: " + ", ".join(kind.value for kind in VerdictKind)
            )
        value = b""
        if item.verdict is VerdictKind.COMPLETED:
            value = stored_input(item.payload, item.input, delivery.content_type)
        reason = item.reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")
        return msgspec.msgpack.encode(Verdict(item.verdict, value, reason))

    def _refusal(self, item: ControlItem, error: LoomError) -> LoomError:
        if item.op not in (ControlOp.RESUME, ControlOp.VERDICT):
            return error
        if isinstance(error, UnknownExecutionError):
            reason = RefusalReason.UNKNOWN_EXECUTION
        elif isinstance(error, ExecutionEndedError):
            reason = RefusalReason.TERMINAL
        else:
            return error
        return ResumeRefusedError(error.message, reason=reason.value, execution_id=item.id)

    async def _hint(self, item: ControlItem, row: ExecutionRow) -> None:
        """Tell whoever can act on it now; the inbox row is what counts."""
        if row.owner is not None:
            self._outbox.hints.send(
                topology.direct(row.owner).name, Hint(row.tenant, row.execution_id)
            )
        elif row.status is Status.SUSPENDED and (
            item.op in (ControlOp.CANCEL, ControlOp.VERDICT) or item.gate in row.gates
        ):
            await self._packages.send(row, Cause.WAKE)


def _unwanted(item: ControlItem, row: ExecutionRow) -> ResumeRefusedError | None:
    """Why nobody would ever take this item (K6, K7)."""
    if item.op is ControlOp.VERDICT and not row.in_doubt:
        return ResumeRefusedError(
            f"execution {item.id!r} waits for no verdict: none of its steps is in doubt",
            reason=RefusalReason.NOT_SUSPENDED.value,
            execution_id=item.id,
        )
    if item.op is ControlOp.RESUME and row.in_doubt and item.gate not in row.gates:
        steps = " and ".join(repr(name) for name in row.in_doubt)
        return ResumeRefusedError(
            f"execution {item.id!r} waits for a verdict on {steps}, not for an answer to gate "
            f"{item.gate!r}; say first how the step ended (`loom verdict`)",
            reason=RefusalReason.IN_DOUBT.value,
            execution_id=item.id,
        )
    return None
