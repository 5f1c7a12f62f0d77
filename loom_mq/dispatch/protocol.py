"""What a dispatcher and an execution worker are, and what they tell of an execution."""

from __future__ import annotations

from typing import Protocol, Self

import msgspec

from loom_mq.engine.outcome import outcome_reply
from loom_mq.errors import AttemptFailedError
from loom_mq.kernel.fold import ExecutionState
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.failures import Failure
from loom_mq.model.messages import Package, ReplyItem, ReplyKind


class FoldedState(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution durably stands: its folded log, as far as a dispatcher needs it.

    Attributes:
        result: a completed flow's return value in stored form.
        failure: what ended a failed one.
        reason: why it was cancelled.
        gates: the gates that a parked one waits at.
        in_doubt: the steps that it waits for a verdict on (K6).
        wake_at: when a parked one goes on by itself, microseconds of journal time.
    """

    key: ExecutionKey
    status: Status
    result: bytes | None = None
    failure: Failure | None = None
    reason: str = ""
    gates: tuple[str, ...] = ()
    in_doubt: tuple[str, ...] = ()
    wake_at: int | None = None

    @property
    def settled(self) -> bool:
        """Whether nobody need drive it now: parked, or ended."""
        return self.status.terminal or self.status is Status.SUSPENDED

    @classmethod
    def of(cls, key: ExecutionKey, state: ExecutionState) -> Self:
        """What a fold says."""
        return cls(
            key=key,
            status=state.status,
            result=state.result,
            failure=state.failure,
            reason=state.reason,
            gates=state.gates,
            in_doubt=state.in_doubt,
            wake_at=state.wake_at,
        )

    def as_reply(self, correlation: str) -> ReplyItem:
        """The same as an item of a reply message."""
        if self.status.terminal:
            return outcome_reply(
                self.key,
                correlation,
                self.status,
                result=self.result,
                failure=self.failure,
                reason=self.reason,
            )
        return ReplyItem(
            kind=ReplyKind.STATE,
            id=self.key.execution_id,
            tenant=self.key.tenant,
            correlation=correlation,
            status=self.status,
            gates=self.gates,
            in_doubt=self.in_doubt,
            wake_at=self.wake_at,
        )

    @classmethod
    def from_reply(cls, item: ReplyItem) -> Self:
        """What a reply tells.

        Raises:
            AttemptFailedError: it tells no status.
        """
        if item.status is None:
            raise AttemptFailedError(
                f"the worker's answer about execution {item.id!r} tells no status",
                execution_id=item.id,
            )
        return cls(
            key=ExecutionKey(item.tenant, item.id),
            status=item.status,
            result=item.result,
            failure=item.failure,
            reason=item.reason,
            gates=item.gates,
            in_doubt=item.in_doubt,
            wake_at=item.wake_at,
        )


class LoadsState(Protocol):
    """Whatever can say how an execution stands."""

    async def load_state(self, key: ExecutionKey) -> FoldedState | None:
        """Fold what is durable without running anything; None for no such execution."""


class ExecutionWorker(LoadsState, Protocol):
    """Drives one package per call: an attempt (F3).

    `execute` is idempotent under redispatch. It looks at the durable state first:
    nothing there → start; running or pending → recover and resume; parked or ended →
    answer with the folded state, nothing appended.
    """

    async def execute(self, package: Package) -> FoldedState:
        """Drive until the execution parks or ends.

        A flow that ended failed is an outcome and is returned. Cancelling the call
        gives the attempt up.

        Raises:
            LoomError: the attempt failed, or another holder owns the execution
                (`loom_mq.errors.is_superseded_refusal` says so, F5).
        """


class ExecutionDispatcher(Protocol):
    """Hands packages to workers and awaits the attempts (F4, F5)."""

    async def dispatch(self, package: Package) -> FoldedState:
        """Have a package driven, again if an attempt fails and attempts are left.

        Raises:
            LoomError: no attempt is left; it is the last one's error. Or the execution
                is another's: the refusal as it came, at once and never retried. It does
                not say how the execution ends, nor that its holder lives: whoever needs
                the outcome waits for it by id (`loom_mq.dispatch.await_by_id`), and a
                deployment runs a recovery pass for dead holders (F8). Callers that run
                several executions, in order or as a plan, get it as this same error.
        """
