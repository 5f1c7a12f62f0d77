"""A handle: everything one can ask of one execution."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

import msgspec

from loom_mq.client.switchboard import Reply, Switchboard
from loom_mq.clock import MICROS
from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import ExecutionCancelledError, ExecutionFailedError
from loom_mq.ids import check_id
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.messages import ControlItem, ControlOp, ReplyItem, StartItem

T_co = TypeVar("T_co", covariant=True)


class ExecutionState(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution stands.

    Attributes:
        gates: the gates that it waits at.
        wake_at: when it goes on by itself.
        owner: the process that drives it now.
    """

    id: str
    tenant: str
    flow: str
    version: str
    queue: str
    status: Status
    gates: tuple[str, ...]
    wake_at: datetime | None
    owner: str | None
    attempt: int
    created_at: datetime
    updated_at: datetime


class Answered(enum.StrEnum):
    """What became of an answer so far."""

    TAKEN = "taken"
    """Its gate took it."""
    STORED = "stored"
    """It is durable and waits for its gate to open, or for a worker to take it."""


class Handle(Generic[T_co]):
    """One execution, seen from outside. Made by `Client`."""

    def __init__(
        self,
        switchboard: Callable[[], Switchboard],
        tenant: str,
        id: str,
        codec: ValueCodec,
        payload_limit: int,
        outcome: Reply | None = None,
    ) -> None:
        self.id = id
        self._switchboard = switchboard
        self._key = ExecutionKey(tenant, id)
        self._codec = codec
        self._payload_limit = payload_limit
        self._outcome = outcome

    def __repr__(self) -> str:
        return f"<handle of execution {self.id!r}>"

    async def result(self, *, timeout: float | None = None) -> T_co:
        """Wait for the end and return what the flow returned.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            ExecutionFailedError: it ended failed.
            ExecutionCancelledError: it ended cancelled.
            WaitTimeoutError: it has not ended in time; it goes on.
            UnknownExecutionError: there is no such execution.
        """
        return await self.result_of(None, timeout)

    async def result_of(self, start: StartItem | None, timeout: float | None) -> T_co:
        """As `result`, for a start that may still be under way; for `Client.execute`."""
        switchboard = self._switchboard()
        ask_first = self._outcome is None
        if self._outcome is None:
            self._outcome = switchboard.outcome(self._key)
        outcome = await switchboard.await_outcome(
            self._key, self._outcome, timeout, ask_first=ask_first, start=start
        )
        if outcome.status is Status.COMPLETED:
            return cast("T_co", self._codec.decode(outcome.result or b""))
        if outcome.status is Status.CANCELLED:
            raise ExecutionCancelledError(
                f"execution {self.id!r} was cancelled: {outcome.reason or 'no reason given'}",
                execution_id=self.id,
            )
        failure = outcome.failure
        raise ExecutionFailedError(
            f"execution {self.id!r} failed: "
            + ("no error was recorded" if failure is None else failure.headline),
            execution_id=self.id,
            error_type="" if failure is None else failure.type,
            traceback_text="" if failure is None else failure.traceback,
        )

    async def state(self, *, timeout: float = 10.0) -> ExecutionState:
        """How it stands now.

        Raises:
            UnknownExecutionError: there is no such execution.
            WaitTimeoutError: no dispatcher answered.
        """
        return _state(await self._request(ControlOp.STATE, timeout))

    async def resume(
        self,
        gate: str,
        answer: object,
        *,
        type: object = None,
        answer_id: str | None = None,
        timeout: float = 10.0,
    ) -> Answered:
        """Answer a gate (K7). Durable when this returns.

        An answer to a gate that has not opened yet is kept for it.

        Args:
            gate: the gate's name.
            answer: must fit the gate's type.
            type: how to encode it; the answer's own type by default.
            answer_id: the same id twice counts once; a new one by default.
            timeout: seconds to wait, first for the answer to be stored, then for the
                gate to take it.

        Raises:
            ResumeRefusedError: `reason` says why: unknown-execution, terminal,
                wrong-type.
            WaitTimeoutError: not stored in time; sending the same `answer_id` again is safe.
        """
        check_id(gate, "gate name")
        switchboard = self._switchboard()
        correlation = switchboard.ids.token()
        taken = switchboard.taken(correlation)
        try:
            stored = await self._request(
                ControlOp.RESUME,
                timeout,
                correlation=correlation,
                gate=gate,
                payload=encode_answer(answer, type, gate, self._payload_limit),
                item_id=answer_id or switchboard.ids.token(),
            )
            if gate not in stored.gates and stored.status is not Status.RUNNING:
                return Answered.STORED
            await asyncio.wait([taken], timeout=timeout if gate in stored.gates else 0.0)
            if not taken.done():
                return Answered.STORED
            taken.result()
            return Answered.TAKEN
        finally:
            switchboard.forget_taken(correlation)

    async def cancel(self, reason: str = "", *, timeout: float = 10.0) -> None:
        """Ask it to stop (K13). Durable when this returns; `result` tells when it has.

        Cancelling twice is one cancel.

        Raises:
            ExecutionEndedError: it has ended already.
            UnknownExecutionError: there is no such execution.
            WaitTimeoutError: not stored in time; calling again is safe.
        """
        await self._request(ControlOp.CANCEL, timeout, reason=reason)

    async def _request(
        self,
        op: ControlOp,
        timeout: float,
        *,
        correlation: str = "",
        gate: str = "",
        payload: bytes | None = None,
        item_id: str = "",
        reason: str = "",
    ) -> ReplyItem:
        switchboard = self._switchboard()
        item = ControlItem(
            op=op,
            id=self._key.execution_id,
            tenant=self._key.tenant,
            gate=gate,
            payload=payload,
            item_id=item_id,
            reason=reason,
            correlation=correlation or switchboard.ids.token(),
        )
        return await switchboard.request(item, timeout)


def encode_answer(answer: object, type_: object, gate: str, limit: int) -> bytes:
    """The stored form of an answer: by `type_`, or by what it is."""
    if type_ is None:
        plain = answer is None or isinstance(
            answer, bool | int | float | str | bytes | list | tuple | dict | set | frozenset
        )
        type_ = Any if plain else type(answer)
    return codec_for(type_).encode(answer, what=f"answer to gate {gate}", limit=limit)


def _state(reply: ReplyItem) -> ExecutionState:
    return ExecutionState(
        id=reply.id,
        tenant=reply.tenant,
        flow=reply.flow,
        version=reply.version,
        queue=reply.queue,
        status=reply.status or Status.PENDING,
        gates=reply.gates,
        wake_at=None if reply.wake_at is None else _moment(reply.wake_at),
        owner=reply.owner,
        attempt=reply.attempt,
        created_at=_moment(reply.created_at),
        updated_at=_moment(reply.updated_at),
    )


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / MICROS, UTC)
