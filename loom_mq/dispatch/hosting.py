"""Serves an execution worker to dispatchers at the other end of the broker (F5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker, Consumer, Delivery
from loom_mq.clock import Clock, JournalClock
from loom_mq.codec import wire
from loom_mq.dispatch.protocol import ExecutionWorker
from loom_mq.dispatch.remote import OnSuperseded
from loom_mq.engine.background import Background, bounded
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.outcome import error_reply
from loom_mq.errors import (
    AttemptFailedError,
    ExecutionSupersededError,
    HeldByLiveOwnerError,
    InputError,
    LoomError,
    UnknownExecutionError,
    is_superseded_refusal,
)
from loom_mq.model.execution import DEFAULT_QUEUE, ExecutionKey
from loom_mq.model.messages import (
    ControlItem,
    ControlMessage,
    ControlOp,
    Package,
    PackageMessage,
    ReplyItem,
)
from loom_mq.observe.metrics import Metrics

_log = structlog.get_logger(__name__)
_GOODBYE = 2.0


class WorkerHost:
    """Takes packages from a queue, has them driven, and tells the sender what came of it.

    A package is acknowledged as its attempt begins, not after: its sender awaits the
    attempt, and sends another if this process dies. That another holder owns the
    execution is told as code ``superseded`` with its id and to `on_superseded`, never as
    an error.

    Args:
        broker: an open connection.
        worker: drives the packages, open.
        queue: where `RemoteWorker` sends them.
        slots: attempts at once.
        on_superseded: told of each attempt that another holder superseded.
        on_error: told of each attempt that failed.
        metrics: counts superseded attempts, as ``hosted``.
    """

    def __init__(
        self,
        broker: Broker,
        worker: ExecutionWorker,
        queue: str = DEFAULT_QUEUE,
        *,
        slots: int = 50,
        on_superseded: OnSuperseded | None = None,
        on_error: Callable[[ExecutionKey, Exception], None] | None = None,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.metrics = Metrics() if metrics is None else metrics
        self._broker = broker
        self._worker = worker
        self._queue = topology.attempts(queue)
        self._slots = slots
        self._free = asyncio.Semaphore(slots)
        self._on_superseded = on_superseded
        self._on_error = on_error
        self._outbox = Outbox(broker, self.metrics)
        self._background = Background(JournalClock() if clock is None else clock)
        self._consumer: Consumer | None = None

    async def __aenter__(self) -> Self:
        """Declare the queue and consume it."""
        await self._broker.declare([topology.DEAD])
        self._consumer = await self._broker.consume(
            self._queue, self._on_delivery, prefetch=self._slots
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take nothing more, and give up what is in hand. Bounded."""
        if self._consumer is not None:
            await bounded(self._consumer.cancel(), _GOODBYE)
        self._background.cancel()
        await self._background.until_idle(_GOODBYE)
        await bounded(self._outbox.close(), _GOODBYE)
        self._outbox.abort()

    def _on_delivery(self, delivery: Delivery) -> None:
        try:
            if delivery.type == "control":
                questions = wire.decode(ControlMessage, delivery.body, delivery.content_type)
                self._background.spawn(self._answer(delivery, questions.items))
            else:
                message = wire.decode(PackageMessage, delivery.body, delivery.content_type)
                self._background.spawn(self._drive(delivery, message.items))
        except InputError as error:
            _log.error("package.rejected", code=error.code, error=error.message)
            self._reply(
                delivery,
                error_reply(ExecutionKey("", ""), delivery.correlation_id or "", error),
            )
            delivery.dead_letter(f"{error.code}: {error.message}")

    async def _drive(self, delivery: Delivery, packages: tuple[Package, ...]) -> None:
        correlation = delivery.correlation_id or ""
        async with self._free:
            delivery.ack()
            for package in packages:
                self._reply(delivery, await self._attempt(package, correlation))

    async def _attempt(self, package: Package, correlation: str) -> ReplyItem:
        key = ExecutionKey(package.tenant, package.execution_id)
        try:
            state = await self._worker.execute(package)
        except Exception as error:  # whatever it is belongs to the sender
            return error_reply(key, correlation, self._told(key, error))
        return state.as_reply(correlation)

    def _told(self, key: ExecutionKey, error: Exception) -> LoomError:
        """What the sender of an attempt is told of its error (F5)."""
        name = key.execution_id
        held = isinstance(error, HeldByLiveOwnerError) and error.execution_id == name
        if held or is_superseded_refusal(error, name):
            self.metrics.superseded("hosted")
            refusal = ExecutionSupersededError(str(error), execution_id=name)
            _log.info("attempt.superseded", execution_id=name, why=str(error))
            if self._on_superseded is not None:
                self._on_superseded(key, refusal)
            return refusal
        _log.warning("attempt.failed", execution_id=name, error=repr(error))
        if self._on_error is not None:
            self._on_error(key, error)
        return _as_loom_error(name, error)

    async def _answer(self, delivery: Delivery, questions: tuple[ControlItem, ...]) -> None:
        delivery.ack()
        for item in questions:
            key = ExecutionKey(item.tenant, item.id)
            self._reply(delivery, await self._stands(key, item))

    async def _stands(self, key: ExecutionKey, item: ControlItem) -> ReplyItem:
        name, state = key.execution_id, None
        try:
            if item.op is not ControlOp.STATE:
                raise AttemptFailedError(
                    f"a worker host is asked for states only, not for {item.op.value!r}",
                    execution_id=name,
                )
            state = await self._worker.load_state(key)
            if state is None:
                raise UnknownExecutionError(f"there is no execution {name!r}", execution_id=name)
        except Exception as error:  # whatever it is belongs to who asked
            return error_reply(key, item.correlation, _as_loom_error(name, error))
        return state.as_reply(item.correlation)

    def _reply(self, delivery: Delivery, item: ReplyItem) -> None:
        if delivery.reply_to is not None:
            self._outbox.replies.send(delivery.reply_to, item)


def _as_loom_error(name: str, error: Exception) -> LoomError:
    """An error with a code that does not read as superseded."""
    if isinstance(error, LoomError) and not isinstance(error, ExecutionSupersededError):
        return error
    return AttemptFailedError(f"{type(error).__name__}: {error}", execution_id=name)
