"""The writing end of one execution's log.

Events are numbered and folded the moment they are emitted and go out with the next
group commit; nobody waits for an event, only for the barrier before an effect. The
log is sealed the instant its park or end is emitted: nothing ever follows (K11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Protocol

import msgspec
import structlog

from loom_mq.clock import Clock
from loom_mq.errors import LoomError, StorageWriteError
from loom_mq.ids import Ids
from loom_mq.journal.patience import patient
from loom_mq.journal.protocol import (
    Append,
    AppendVerdict,
    ClaimIntent,
    IndexUpdate,
    Journal,
)
from loom_mq.kernel.fold import ExecutionState, apply
from loom_mq.lane import Lane
from loom_mq.model.events import (
    EVENT_SCHEMA,
    Envelope,
    ExecutionCancelled,
    ExecutionCompleted,
    ExecutionFailed,
    ExecutionSuspended,
    kind_of_type,
)
from loom_mq.model.execution import ExecutionKey, Waiter
from loom_mq.observe.metrics import Metrics

_logger = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_SEALING = (ExecutionSuspended, ExecutionCompleted, ExecutionFailed, ExecutionCancelled)


class JournalWriter:
    """The one writer of a process: group commits for all its executions.

    Args:
        journal: where to.
        clock: journal time.
        ids: envelope ids.
        give_up_after: seconds of patience with a journal that is away (J4, K9).
        max_batch: executions per commit.
        max_inflight: commits under way at once.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        ids: Ids,
        metrics: Metrics,
        *,
        give_up_after: float = 30.0,
        max_batch: int = 500,
        max_inflight: int = 1,
    ) -> None:
        self.clock = clock
        self.ids = ids
        self._metrics = metrics
        self._append = patient(
            journal.append,
            lambda error: AppendVerdict(error=error),
            clock=clock,
            give_up_after=give_up_after,
        )
        self._lane: Lane[ExecutionLog, AppendVerdict] = Lane(
            self._flush, max_batch=max_batch, max_inflight=max_inflight, settle_ticks=2
        )

    def submit(self, log: ExecutionLog) -> asyncio.Future[AppendVerdict]:
        """Write what `log` holds when the batch is cut."""
        return self._lane.submit(log)

    async def close(self) -> None:
        """Return when everything emitted so far is answered."""
        await self._lane.close()

    def abort(self) -> None:
        """Drop what is not under way."""
        self._lane.abort()

    async def _flush(self, logs: Sequence[ExecutionLog]) -> Sequence[AppendVerdict]:
        began = self.clock.monotonic()
        verdicts = await self._append([log.take() for log in logs])
        self._metrics.append_batch(len(logs), self.clock.monotonic() - began, verdicts)
        return verdicts


class LogWriter(Protocol):
    """What a log needs of a writer."""

    @property
    def clock(self) -> Clock:
        """Journal time."""

    @property
    def ids(self) -> Ids:
        """Envelope ids."""

    def submit(self, log: ExecutionLog) -> asyncio.Future[AppendVerdict]:
        """Write what `log` holds when the batch is cut."""


class ExecutionLog:
    """Emits events for one execution under one fence.

    Args:
        key: whose log.
        state: the fold of what is durable; kept folded with every event emitted.
        fence: the fence held (or about to be claimed).
        writer: the process's writer.
        claim: ownership to take with the first append, for a fresh start.
        on_refused: called once when an append is refused; nothing is written after.
        on_mail: called with the number of unread inbox items that an append found.
        on_written: called with the newest durable sequence after each append.
    """

    def __init__(
        self,
        key: ExecutionKey,
        state: ExecutionState,
        fence: int,
        writer: LogWriter,
        *,
        claim: ClaimIntent | None = None,
        on_refused: Callable[[LoomError], None],
        on_mail: Callable[[int], None],
        on_written: Callable[[int], None],
    ) -> None:
        self.key = key
        self.state = state
        self.fence = fence
        self.sealed = False
        self._released = False
        self.refusal: LoomError | None = None
        self.waiters: tuple[Waiter, ...] = ()
        self.inbox_left = 0
        self._writer = writer
        self._claim = claim
        self._on_refused = on_refused
        self._on_mail = on_mail
        self._on_written = on_written
        self._pending: list[Envelope] = []
        self._consume: list[str] = []
        self._pending_hooks: list[Callable[[], None]] = []
        self._inflight_hooks: list[Callable[[], None]] = []
        self._inflight = False
        self._durable_seq = state.last_seq
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._flushed: list[asyncio.Future[None]] = []
        self._warned = False

    def seal(self) -> None:
        """Write nothing more, without a word: the execution is given back."""
        self.sealed = True
        self._warned = True
        if not self._inflight:
            # only events on hold can wait here, and now nothing will follow them
            self._pending.clear()
            self._durable_seq = self.state.last_seq

    def emit(
        self,
        payload: msgspec.Struct,
        *,
        consume: str | None = None,
        on_durable: Callable[[], None] | None = None,
        hold: bool = False,
    ) -> None:
        """Append an event, to go out with the next group commit.

        Args:
            payload: one of the payload structs of `model.events`.
            consume: inbox item that this event takes, deleted in the same commit.
            on_durable: called when the event is durable.
            hold: send it with the next event only; if none follows, it never was.
        """
        if self.sealed or self.refusal is not None:
            if not self._warned:
                self._warned = True
                _logger.warning(
                    "journal.append.dropped",
                    execution_id=self.key.execution_id,
                    kind=kind_of_type[type(payload)].value,
                    reason="the log is sealed" if self.sealed else "superseded",
                )
            return
        state = self.state
        seq = state.last_seq + 1
        at = max(self._writer.clock.now(), state.updated_at)
        apply(state, payload, seq, at)
        self._pending.append(
            Envelope(
                self._writer.ids.envelope(),
                seq,
                kind_of_type[type(payload)].value,
                at,
                self.fence,
                True,
                EVENT_SCHEMA,
                _encode(payload),
            )
        )
        if consume is not None:
            self._consume.append(consume)
        if on_durable is not None:
            self._pending_hooks.append(on_durable)
        if isinstance(payload, _SEALING):
            self.sealed = self._released = True
        if not (self._inflight or hold):
            self._send()

    async def barrier(self) -> None:
        """Return when everything emitted so far is durable.

        Never returns after a refusal: `on_refused` has been called and whoever drives
        this execution ends it.
        """
        target = self.state.last_seq
        if target <= self._durable_seq and self.refusal is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._barriers.append((target, future))
        await future

    async def flushed(self) -> LoomError | None:
        """Return when everything emitted is durable, or with the refusal."""
        while self.refusal is None and self._durable_seq < self.state.last_seq:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushed.append(future)
            await future
        return self.refusal

    def take(self) -> Append:
        """The append of everything pending; called by the writer as it cuts a batch."""
        state = self.state
        events = tuple(self._pending)
        consume = tuple(self._consume)
        self._pending.clear()
        self._consume.clear()
        self._inflight_hooks, self._pending_hooks = self._pending_hooks, []
        parked = state.parked_on if self._released else ()
        return Append(
            key=self.key,
            fence=self.fence,
            events=events,
            index=IndexUpdate(
                status=state.status,
                wake_at=state.wake_at,
                gates=state.gates,
                error=None if state.failure is None else state.failure.headline,
                recoveries=state.recoveries,
                in_doubt=state.in_doubt,
            ),
            claim=self._claim,
            release=self._released,
            timers=tuple({wait.due for wait in parked if wait.due is not None}),
            consume=consume,
        )

    def _send(self) -> None:
        self._inflight = True
        # the answer is the engine's affair, whoever's event it was that sent it
        self._writer.submit(self).add_done_callback(self._answered, context=Context())

    def _answered(self, future: asyncio.Future[AppendVerdict]) -> None:
        self._inflight = False
        if future.cancelled():
            return
        self._wake_flushers()
        error = future.exception()
        verdict = future.result() if error is None else AppendVerdict(error=_wrapped(error))
        if verdict.error is not None:
            self.refusal = verdict.error
            self._on_refused(verdict.error)
            return
        self._claim = None
        self.waiters = verdict.waiters
        self.inbox_left = verdict.inbox
        self._durable_seq = self.state.last_seq - len(self._pending)
        if self._pending:
            self._send()
        if verdict.inbox and not self.sealed:
            self._on_mail(verdict.inbox)
        self._on_written(self._durable_seq)
        for hook in self._inflight_hooks:
            hook()
        still: list[tuple[int, asyncio.Future[None]]] = []
        for seq, barrier in self._barriers:
            if seq > self._durable_seq:
                still.append((seq, barrier))
            elif not barrier.done():
                barrier.set_result(None)
        self._barriers = still

    def _wake_flushers(self) -> None:
        # they look for themselves, on their own turn, after this answer is taken in
        for future in self._flushed:
            if not future.done():
                future.set_result(None)
        self._flushed.clear()


def _wrapped(error: BaseException) -> LoomError:
    if isinstance(error, LoomError):
        return error
    wrapped = StorageWriteError(f"the write did not go out: {error}")
    wrapped.__cause__ = error
    return wrapped
