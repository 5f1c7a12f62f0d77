"""One attempt: drives an execution from its claim to its park, its end, or its loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog

from loom_mq.clock import MICROS
from loom_mq.codec.failures import describe_exception
from loom_mq.engine.home import DriveEnd, Home
from loom_mq.engine.outcome import error_reply, outcome_reply
from loom_mq.engine.shots import Shots
from loom_mq.errors import CodecError, FlowError, LoomError, ResumeRefusedError
from loom_mq.flows.activation import Activation
from loom_mq.flows.context import Context
from loom_mq.flows.desk import Desk
from loom_mq.flows.mail import Mail
from loom_mq.flows.registry import AnyFlow
from loom_mq.journal.log import ExecutionLog
from loom_mq.journal.protocol import ClaimIntent
from loom_mq.kernel.fold import ExecutionState
from loom_mq.kernel.refusals import refusal_of, verdict_place
from loom_mq.model import events as ev
from loom_mq.model.execution import ExecutionKey, InboxItem, InboxKind, Status
from loom_mq.model.messages import RefusalReason, ReplyItem, ReplyKind

_log = structlog.get_logger(__name__)

GRACE = 1.0
"""Seconds that interrupted work gets to unwind (K10)."""


SETTLING_TURNS = 8
"""Turns of the event loop that a flow's tasks get to pass on what has just happened."""


_PARK: Final = -1
"""The matter of a deadline that is no piece of cleanup."""


class Drive:
    """See the module's docstring.

    Args:
        home: what the worker provides.
        key: the execution.
        flow: its code.
        state: its folded log; empty for a fresh start.
        fence: the fence held, or about to be claimed by the first append.
        attempt: the number of this claim.
        start: the start payload while the log is empty.
        claim: ownership to take with the first append.
        mail: inbox items read with the claim.
        now: journal time of the claim, by which waits are due.
        bereaved: the holder before died, or may have died, rather than gave it back.
        snapshot_seq: how far the newest snapshot reaches, -1 without one.
        claimed: called once the first append is answered, when it carries the claim.
    """

    def __init__(
        self,
        home: Home,
        key: ExecutionKey,
        flow: AnyFlow,
        state: ExecutionState,
        *,
        fence: int,
        attempt: int = 1,
        start: ev.ExecutionStarted | None = None,
        claim: ClaimIntent | None = None,
        mail: tuple[InboxItem, ...] = (),
        now: int = 0,
        bereaved: bool = False,
        snapshot_seq: int = -1,
        claimed: Callable[[], None] | None = None,
    ) -> None:
        self.key = key
        self.refusal: LoomError | None = None
        self._home = home
        self._flow = flow
        self._attempt = attempt
        self._start = start
        self._claimed = claimed
        self._now_at_claim = now
        self._bereaved = bereaved
        self._changed = asyncio.Event()
        self._stopping = False
        self._shots = Shots(
            state, snapshot_seq, home.snapshot_every, lambda shot: home.keep(key, shot)
        )
        self._deadline: tuple[int, float] | None = None
        self._mail = Mail()
        self._log = ExecutionLog(
            key,
            state,
            fence,
            home.writer,
            claim=claim,
            on_refused=self._on_refused,
            on_mail=self._on_mail,
            on_written=self._shots.written,
        )
        self._activation = Activation(
            Desk(
                self._log,
                home.around,
                self._mail,
                changed=self._changed.set,
                taken=self._on_taken,
                refuse=self._on_refused_item,
            )
        )
        self._mail.add(mail)

    @property
    def age(self) -> float:
        """Seconds from the execution's first event to its newest."""
        state = self._log.state
        return 0.0 if state.started_at is None else (state.updated_at - state.started_at) / MICROS

    @property
    def fence(self) -> int:
        """The fence that this attempt holds."""
        return self._log.fence

    @property
    def mismatch(self) -> str | None:
        """How the flow's code does not fit the log, when that ended the attempt (K3)."""
        halted = self._activation.halted
        return None if halted is None else halted.message

    @property
    def closing(self) -> bool:
        """Whether the attempt is over but for its goodbyes: others may claim by now."""
        return self._log.sealed or self.refusal is not None

    # ---- told from outside ------------------------------------------------------

    def deliver(self, items: tuple[InboxItem, ...]) -> None:
        """Inbox items that were read while the attempt runs.

        A verdict among them is on a doubt that is settled: only a parked execution asks.
        """
        if self._mail.add(items):
            self._refuse(verdict for verdict in self._mail if verdict.kind is InboxKind.VERDICT)
            self._changed.set()

    def give_back(self) -> None:
        """Stop as soon as possible and let another worker go on."""
        self._stopping = True
        self._changed.set()

    # ---- the attempt --------------------------------------------------------------

    async def run(self) -> DriveEnd:
        """Drive until the attempt ends. Raises nothing but cancellation."""
        if not self._open():
            return DriveEnd.IDLE
        # code that kills its worker at once must be seen to have begun (F8)
        if self._bereaved and await self._log.flushed() is not None:
            return DriveEnd.REFUSED
        self._activation.start(self._body)
        if self._mail.cancel is not None:
            self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            end = await self._look()
            if end is not None:
                return end

    def _open(self) -> bool:
        """Emit what begins this attempt; False when there is nothing to do (F3).

        A wake, or a takeover from a holder that gave the execution back, is on hold
        until the flow has replayed what is there and does something new: code that does
        not fit the log leaves it untouched (K3).
        """
        state = self._log.state
        self._refuse(self._mail)
        if self._start is not None:
            self._log.emit(self._start, on_durable=self._claimed)
        elif state.status is Status.RUNNING:
            # after a death it goes out at once: code that kills its worker during the
            # replay must use up its recoveries (F8)
            self._log.emit(
                ev.ExecutionRecovered(self._home.owner, self._attempt), hold=not self._bereaved
            )
        elif state.status is Status.SUSPENDED:
            answered = {wait.id for wait in state.parked_on if self._has_answer(wait)}
            ended = tuple(
                wait.id
                for wait in state.parked_on
                if wait.due is not None
                and wait.due <= self._now_at_claim
                and wait.id not in answered
            )
            if not (ended or answered or self._mail.cancel):
                return False
            self._log.emit(ev.ExecutionResumed(ended, state.turn + 1), hold=not self._bereaved)
        return True

    def _refuse(self, items: Iterable[InboxItem]) -> None:
        """Refuse what cannot be taken as things stand, before anything is appended (K6, K8)."""
        for item in tuple(items):
            refusal = refusal_of(self._log.state, item)
            if refusal is not None:
                self._mail.drop(item)
                self._on_refused_item(item, refusal)

    def _has_answer(self, wait: ev.Wait) -> bool:
        if wait.kind is ev.WaitKind.GATE:
            return self._mail.find(wait.name, wait.id) is not None
        return wait.kind is ev.WaitKind.VERDICT and self._mail.has_verdict(
            wait.name, verdict_place(wait.id)
        )

    async def _body(self) -> object:
        try:
            value = self._flow.input_codec.decode(
                self._log.state.input, what=f"input of flow {self._flow.name}"
            )
        except CodecError as error:
            if self._start is not None:
                raise
            await self._activation.misfit(f"its input does not decode: {error.message}")
        return await self._flow.body(Context(self._activation), value)

    async def _look(self) -> DriveEnd | None:
        """Decide what the present situation calls for; None to wait on."""
        activation = self._activation
        if self.refusal is not None:
            await activation.abandon(GRACE)
            return DriveEnd.REFUSED
        if self._stopping:
            return await self._leave(DriveEnd.GIVEN_BACK)
        if activation.halted is not None:
            _log.error("execution.code_mismatch", **self._names(), error=str(activation.halted))
            return await self._leave(DriveEnd.MISMATCH)
        if activation.finished:
            return await self._finish()
        if self._mail.cancel is not None and not activation.cancelling:
            activation.cancel(self._mail.cancel)  # told once the flow is at rest: before a park
        elif activation.cancelling and not activation.cleaning:
            # what is left unshielded gets this long, anew after each piece of cleanup
            if self._late(activation.cleanups):
                return await self._finish()
        elif activation.frozen:
            if await self._settled() or (self._late(_PARK) and activation.stands_still):
                return await self._park()
        else:
            self._deadline = None
        return None

    def _late(self, matter: int) -> bool:
        """Whether a matter has had its time; whoever asks first sets the deadline."""
        if self._deadline is None or self._deadline[0] != matter:
            self._deadline = (matter, self._now() + self._home.park_drain)
            loop = asyncio.get_running_loop()
            loop.call_later(self._home.park_drain + 0.001, self._changed.set)
        return self._now() >= self._deadline[1]

    async def _settled(self) -> bool:
        """Whether nothing is in flight, and stays so once the flow's tasks had their turns.

        The end of the last step may cancel the very wait that asked for the park, or let
        another branch reach its own.
        """
        for _ in range(SETTLING_TURNS):
            if not self._activation.at_rest:
                return False
            await asyncio.sleep(0)
        return self._activation.frozen and self._activation.at_rest

    async def _park(self) -> DriveEnd:
        waits = self._activation.waits.all
        if self._activation.in_flight:
            await self._activation.abandon(min(GRACE, self._home.park_drain))
        self._log.emit(ev.ExecutionSuspended(waits))
        await self._activation.abandon(GRACE)
        if await self._log.flushed() is not None:
            return DriveEnd.REFUSED
        self._shots.parked()
        unseen = self._log.inbox_left > len(self._mail)
        cancelled = self._mail.cancel is not None and self._log.state.cancelling is None
        if unseen or cancelled or any(self._has_answer(wait) for wait in waits):
            return DriveEnd.PARKED_WITH_MAIL
        return DriveEnd.PARKED

    async def _finish(self) -> DriveEnd:
        activation = self._activation
        state = self._log.state
        if state.cancelling is not None:
            self._log.emit(ev.ExecutionCancelled(state.cancelling))
        else:
            self._log.emit(self._verdict())
        await activation.abandon(GRACE)
        if await self._log.flushed() is not None:
            # the outcome is not durable, so nobody is told one (K9)
            return DriveEnd.REFUSED
        for waiter in self._log.waiters:
            reply = outcome_reply(
                self.key,
                waiter.correlation,
                state.status,
                result=state.result,
                failure=state.failure,
                reason=state.reason,
            )
            self._home.outbox.replies.send(waiter.reply_to, reply)
        return DriveEnd(state.status.value)

    def _verdict(self) -> ev.ExecutionCompleted | ev.ExecutionFailed:
        error = self._activation.error
        if error is None:
            try:
                data = self._flow.result_codec.encode(
                    self._activation.result,
                    what=f"flow {self._flow.name}",
                    limit=self._home.around.payload_limit,
                )
                return ev.ExecutionCompleted(data)
            except LoomError as unfit:
                error = unfit
        if isinstance(error, asyncio.CancelledError):
            error = FlowError("the flow cancelled itself")
        return ev.ExecutionFailed(describe_exception(error))

    async def _leave(self, end: DriveEnd) -> DriveEnd:
        """Write what is settled, nothing more, and take the flow apart."""
        self._log.seal()
        await self._activation.abandon(GRACE)
        if await self._log.flushed() is not None:
            return DriveEnd.REFUSED
        return end

    # ---- told from inside ------------------------------------------------------------

    def _on_refused(self, error: LoomError) -> None:
        self.refusal = error
        self._changed.set()

    def _on_mail(self, unread: int) -> None:
        if unread > len(self._mail):
            self._home.fetch_mail(self.key)

    def _on_taken(self, item: InboxItem) -> None:
        self._reply(item, ReplyItem(kind=ReplyKind.TAKEN, id=self.key.execution_id))

    def _on_refused_item(self, item: InboxItem, error: LoomError) -> None:
        if not isinstance(error, ResumeRefusedError):
            what = "answer" if item.kind is InboxKind.ANSWER else "verdict"
            where = "gate" if item.kind is InboxKind.ANSWER else "step"
            error = ResumeRefusedError(
                f"execution {self.key.execution_id!r}: the {what} does not fit {where} "
                f"{item.gate!r}: {error.message}; the {where} goes on waiting",
                reason=RefusalReason.WRONG_TYPE.value,
                execution_id=self.key.execution_id,
            )
        _log.warning("answer.refused", **self._names(), gate=item.gate, why=error.reason)
        self._home.discard(self.key, item)
        self._reply(item, error_reply(self.key, item.correlation, error))

    def _reply(self, item: InboxItem, reply: ReplyItem) -> None:
        if item.reply_to is not None:
            named = msgspec.structs.replace(
                reply, tenant=self.key.tenant, correlation=item.correlation
            )
            self._home.outbox.replies.send(item.reply_to, named)

    def _now(self) -> float:
        return self._home.around.clock.monotonic()

    def _names(self) -> dict[str, object]:
        return {
            "tenant": self.key.tenant,
            "execution_id": self.key.execution_id,
            "flow": self._flow.name,
            "fence": self._log.fence,
            "attempt": self._attempt,
        }
