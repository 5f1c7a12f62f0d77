"""Whether a flow's code still fits a history: a replay that begins nothing new (K3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import msgspec

from loom_mq.clock import JournalClock
from loom_mq.codec.failures import describe_exception
from loom_mq.errors import FlowError, LoomError
from loom_mq.flows.activation import Activation
from loom_mq.flows.context import Context
from loom_mq.flows.desk import Desk
from loom_mq.flows.mail import Mail
from loom_mq.flows.registry import AnyFlow
from loom_mq.flows.scope import install_flow_rules
from loom_mq.flows.surroundings import Surroundings
from loom_mq.flows.turns import QUIET
from loom_mq.ids import RandomIds
from loom_mq.journal.log import ExecutionLog
from loom_mq.kernel.fold import TOLD, ExecutionState, fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.model.snapshots import Snapshot
from loom_mq.observe.metrics import Metrics

GRACE: Final = 1.0
"""Seconds that flow code gets to unwind at the end."""


class Rehearsal(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        problem: how the code does not fit; empty when it does.
        events: how many events the history has, those behind its snapshot included.
        reached: how far the code came, for people.
    """

    problem: str
    events: int
    reached: str

    @property
    def ok(self) -> bool:
        """Whether the code fits."""
        return not self.problem


async def rehearse(
    flow: AnyFlow,
    events: Sequence[Envelope],
    snapshot: Snapshot | None = None,
    *,
    execution_id: str = "of this history",
) -> Rehearsal:
    """Run a flow's code over a history without running a step, and compare.

    It must run in an event loop whose flow code is told from other code; the rules of a
    worker are installed in the running one.

    Args:
        flow: the code.
        events: the history from its beginning, or what follows `snapshot`.
        snapshot: where the history begins when its first events are gone (J8).
        execution_id: whose history it is, for what is said about it.
    """
    install_flow_rules()
    base = None if snapshot is None else decode_snapshot(snapshot)
    if snapshot is not None and base is None:
        why = "the history begins with a snapshot that a newer release wrote"
        return Rehearsal(why, len(events), "")
    state = fold(events, base)
    if state.started_at is None:
        return Rehearsal("the history does not begin with its EXECUTION_STARTED", len(events), "")
    code = _Code(flow, state, execution_id)
    try:
        await code.run()
        problem = code.problem()
    except LoomError as error:  # its input does not fit any more, for one
        problem = error.message
    finally:
        await code.close()
    return Rehearsal(problem, state.last_seq + 1, code.reached())


class _Code:
    """One run of a flow's code that begins nothing."""

    def __init__(self, flow: AnyFlow, state: ExecutionState, execution_id: str) -> None:
        self._flow = flow
        self._state = state
        log = ExecutionLog(
            ExecutionKey(DEFAULT_TENANT, execution_id),
            state,
            0,
            _NoWriter(),
            on_refused=_ignore,
            on_mail=_ignore,
            on_written=_ignore,
        )
        around = Surroundings(
            clock=JournalClock(),
            threads=_NoThreads(),
            ids=RandomIds(),
            metrics=Metrics(),
            payload_limit=2**31,
            backoff_park=0.0,
        )
        self._activation = Activation(
            Desk(
                log,
                around,
                Mail(),
                changed=lambda: None,
                taken=_ignore,
                refuse=lambda _item, _error: None,
                live=False,
            )
        )

    async def run(self) -> None:
        """Until the code has ended, or comes to what the history does not hold."""
        value = self._flow.input_codec.decode(self._state.input, what="input")
        self._activation.start(lambda: self._flow.body(Context(self._activation), value))
        quiet = 0
        while quiet <= QUIET and not (self._activation.finished or self._activation.halted):
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._activation.stands_still else 0

    async def close(self) -> None:
        await self._activation.abandon(GRACE)

    def reached(self) -> str:
        if self._activation.finished:
            return "its end"
        return ", ".join(sorted(self._activation.standing_at)) or "its beginning"

    def problem(self) -> str:
        """How the code does not fit; empty when it does."""
        if self._activation.halted is not None:
            return self._activation.halted.message
        unreached = self._activation.unreached_operation()
        if unreached:
            return f"{unreached}, and the code does not come there"
        if self._activation.finished:
            return self._compare_end()
        if self._state.status is Status.COMPLETED:
            # a failure may come from a call that leaves no record, such as a decision
            return f"the history ends completed, and the code goes on to {self.reached()}"
        return ""

    def _compare_end(self) -> str:
        state, error = self._state, self._activation.error
        result = b""
        if error is None:
            try:
                result = self._flow.result_codec.encode(self._activation.result, what="result")
            except LoomError as unfit:
                error = unfit
        if isinstance(error, asyncio.CancelledError):
            error = FlowError("the flow cancelled itself")
        if state.status is Status.COMPLETED:
            if error is not None:
                return f"the history ends completed, and the code raises {_headline(error)}"
            if result != state.result:
                return "the history ends completed with another result than the code returns"
        if state.status is Status.FAILED and state.failure is not None:
            if error is None:
                return f"the history ends with {state.failure.headline}, and the code returns"
            if describe_exception(error).type != state.failure.type:
                return (
                    f"the history ends with {state.failure.headline}, and the code raises "
                    f"{_headline(error)}"
                )
        waits = [wait for wait in state.parked_on if wait.kind in TOLD]
        if waits:
            return f"the history waits at {waits[0].id}, and the code ends"
        return ""


def _headline(error: BaseException) -> str:
    return describe_exception(error).headline


def _ignore(_what: object) -> None:
    """Nobody is there to be told."""


class _NoWriter:
    """Nothing is written."""

    clock = JournalClock()
    ids = RandomIds()

    def submit(self, log: ExecutionLog) -> NoReturn:
        raise AssertionError("a rehearsal writes nothing")


class _NoThreads:
    async def call(self, function: Callable[[], Any]) -> NoReturn:
        raise AssertionError("a rehearsal runs no step")
