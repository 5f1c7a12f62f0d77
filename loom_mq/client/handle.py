"""A handle: everything one can ask of one execution."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar, cast, overload

import msgspec

from loom_mq.client.switchboard import Reply, Switchboard
from loom_mq.clock import MICROS
from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import ExecutionCancelledError, ExecutionFailedError, InputError
from loom_mq.ids import check_id
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.messages import ControlItem, ControlOp, ReplyItem, StartItem
from loom_mq.model.verdicts import VerdictKind

T_co = TypeVar("T_co", covariant=True)


class ExecutionState(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution stands.

    Attributes:
        gates: the gates that it waits at.
        in_doubt: the steps that it waits for a verdict on (K6).
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
    in_doubt: tuple[str, ...]
    wake_at: datetime | None
    owner: str | None
    attempt: int
    created_at: datetime
    updated_at: datetime


class Answered(enum.StrEnum):
    """What became of an answer or a verdict so far."""

    TAKEN = "taken"
    """Its gate or its step took it."""
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
        wait_id: str | None = None,
        timeout: float = 10.0,
    ) -> Answered:
        """Answer a gate (K7). Durable when this returns.

        An answer to a gate that has not opened yet is kept for it.

        Args:
            gate: the gate's name.
            answer: must fit the gate's type.
            type: how to encode it; the answer's own type by default.
            answer_id: the same id twice counts once; a new one by default.
            wait_id: the very wait to answer, as `loom history` shows it, and no later one of
                that gate; whichever is open, or opens next, by default.
            timeout: seconds to wait, first for the answer to be stored, then for the
                gate to take it.

        Raises:
            ResumeRefusedError: `reason` says why: unknown-execution, terminal, wrong-type,
                in-doubt, null-answer-after-parked-failure.
            WaitTimeoutError: not stored in time; sending the same `answer_id` again is safe.
        """
        return await self.resume_as(
            "", gate, answer, type=type, answer_id=answer_id, wait_id=wait_id, timeout=timeout
        )

    async def resume_as(
        self,
        actor: str,
        gate: str,
        answer: object,
        *,
        type: object = None,
        answer_id: str | None = None,
        wait_id: str | None = None,
        timeout: float = 10.0,
    ) -> Answered:
        """Answer a gate in somebody's name (K7): as `resume`, with the name on the log.

        Args:
            actor: who answers, as the caller knows them; nobody checks it.
            gate: see `resume`, as are the others.
            answer: see `resume`.
            type: see `resume`.
            answer_id: see `resume`.
            wait_id: see `resume`.
            timeout: see `resume`.

        Raises:
            ResumeRefusedError, WaitTimeoutError: as for `resume`.
        """
        check_id(gate, "gate name")
        payload = encode_value(answer, type, f"answer to gate {gate}", self._payload_limit)
        return await self._tell(
            ControlItem(
                op=ControlOp.RESUME,
                id=self.id,
                gate=gate,
                payload=payload,
                item_id=answer_id or "",
                wait_id=wait_id or "",
                actor=check_actor(actor),
            ),
            lambda stored: gate in stored.gates,
            timeout,
        )

    @overload
    async def verdict(
        self,
        step: str,
        *,
        completed: object,
        type: object = None,
        message: str = "",
        actor: str = "",
        timeout: float = 10.0,
    ) -> Answered: ...

    @overload
    async def verdict(
        self, step: str, *, failed: str, actor: str = "", timeout: float = 10.0
    ) -> Answered: ...

    @overload
    async def verdict(
        self,
        step: str,
        *,
        run_again: Literal[True],
        message: str = "",
        actor: str = "",
        timeout: float = 10.0,
    ) -> Answered: ...

    async def verdict(
        self,
        step: str,
        *,
        completed: object = msgspec.UNSET,
        type: object = None,
        failed: str | None = None,
        run_again: bool = False,
        message: str = "",
        actor: str = "",
        timeout: float = 10.0,
    ) -> Answered:
        """Say how a step in doubt ended (K6). Durable when this returns.

        A step that must not run twice is in doubt when its worker was lost while it ran:
        see `ExecutionState.in_doubt`. Say exactly one of `completed`, `failed` and
        `run_again`.

        Args:
            step: the step's name; its place where two of that name are in doubt.
            completed: it was done, and this is what it returned; None counts. Must fit the
                step's result type.
            type: how to encode `completed`; its own type by default.
            failed: it was not done and is not to be tried again; why. The flow meets a
                `StepInDoubtError` with this text.
            run_again: it was not done; start it again.
            message: why, for the log; with `failed` that is the reason already.
            actor: who says so, as the caller knows them, for the log; nobody checks it.
            timeout: seconds to wait, first for the verdict to be stored, then for a worker
                to take it.

        Raises:
            InputError: not exactly one verdict is given.
            ResumeRefusedError: `reason` says why: unknown-execution, terminal, wrong-type,
                not-suspended (the step is not in doubt).
            WaitTimeoutError: not stored in time; saying it again is safe, since a verdict
                counts for the doubt that it meets and for no later one.
        """
        check_id(step, "step")
        given = [completed is not msgspec.UNSET, failed is not None, run_again]
        if sum(given) != 1:
            raise InputError(
                f"a verdict on step {step!r} needs exactly one of completed=, failed= and "
                "run_again=True",
                execution_id=self.id,
            )
        if run_again:
            kind = VerdictKind.RUN_AGAIN
        else:
            kind = VerdictKind.COMPLETED if failed is None else VerdictKind.FAILED
        payload = None
        if kind is VerdictKind.COMPLETED:
            payload = encode_value(completed, type, f"result of step {step}", self._payload_limit)
        return await self._tell(
            ControlItem(
                op=ControlOp.VERDICT,
                id=self.id,
                step=step,
                verdict=kind,
                payload=payload,
                reason=message if failed is None else failed,
                actor=check_actor(actor),
            ),
            lambda stored: bool(stored.in_doubt),
            timeout,
        )

    async def cancel(self, reason: str = "", *, timeout: float = 10.0) -> None:
        """Ask it to stop (K13). Durable when this returns; `result` tells when it has.

        Cancelling twice is one cancel.

        Raises:
            ExecutionEndedError: it has ended already.
            UnknownExecutionError: there is no such execution.
            WaitTimeoutError: not stored in time; calling again is safe.
        """
        await self._request(ControlOp.CANCEL, timeout, reason=reason)

    async def _tell(
        self, item: ControlItem, awaited: Callable[[ReplyItem], bool], timeout: float
    ) -> Answered:
        """Lay something into its inbox, and wait until a worker takes it if one is about to.

        Args:
            item: what.
            awaited: whether the execution, as it stood then, waits for it.
            timeout: seconds for each of the two.
        """
        switchboard = self._switchboard()
        correlation = switchboard.ids.token()
        taken = switchboard.taken(correlation)
        item = msgspec.structs.replace(
            item,
            tenant=self._key.tenant,
            correlation=correlation,
            item_id=item.item_id or switchboard.ids.token(),
        )
        try:
            stored = await switchboard.request(item, timeout)
            waits = awaited(stored)
            if not waits and stored.status is not Status.RUNNING:
                return Answered.STORED
            await asyncio.wait([taken], timeout=timeout if waits else 0.0)
            if not taken.done():
                return Answered.STORED
            taken.result()
            return Answered.TAKEN
        finally:
            switchboard.forget_taken(correlation)

    async def _request(self, op: ControlOp, timeout: float, *, reason: str = "") -> ReplyItem:
        switchboard = self._switchboard()
        item = ControlItem(
            op=op,
            id=self._key.execution_id,
            tenant=self._key.tenant,
            reason=reason,
            correlation=switchboard.ids.token(),
        )
        return await switchboard.request(item, timeout)


def encode_value(value: object, type_: object, what: str, limit: int) -> bytes:
    """The stored form of a value: by `type_`, or by what it is."""
    if type_ is None:
        plain = value is None or isinstance(
            value, bool | int | float | str | bytes | list | tuple | dict | set | frozenset
        )
        type_ = Any if plain else type(value)
    return codec_for(type_).encode(value, what=what, limit=limit)


def check_actor(actor: str) -> str:
    """A name for the log: text like an id, or empty for nobody in particular (J10).

    Raises:
        InvalidIdError: it is too long or holds what no id may hold.
    """
    return actor and check_id(actor, "actor")


def _state(reply: ReplyItem) -> ExecutionState:
    return ExecutionState(
        id=reply.id,
        tenant=reply.tenant,
        flow=reply.flow,
        version=reply.version,
        queue=reply.queue,
        status=reply.status or Status.PENDING,
        gates=reply.gates,
        in_doubt=reply.in_doubt,
        wake_at=None if reply.wake_at is None else _moment(reply.wake_at),
        owner=reply.owner,
        attempt=reply.attempt,
        created_at=_moment(reply.created_at),
        updated_at=_moment(reply.updated_at),
    )


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / MICROS, UTC)
