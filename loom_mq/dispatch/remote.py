"""A worker at the other end of the broker: packages go out, outcomes and refusals come back.

A refusal is an outcome with a code and the execution's id. It counts as superseded only
when both match; anything else is an ordinary failure (F5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker, Consumer, Delivery, Outgoing
from loom_mq.codec import wire
from loom_mq.dispatch.protocol import FoldedState
from loom_mq.errors import (
    AttemptFailedError,
    AttemptTimeoutError,
    BrokerUnreachableError,
    ExecutionSupersededError,
    InputError,
    LoomError,
    UnknownExecutionError,
    UnroutableError,
)
from loom_mq.ids import Ids, RandomIds
from loom_mq.model.execution import DEFAULT_QUEUE, ExecutionKey
from loom_mq.model.messages import (
    MESSAGE_VERSION,
    ControlItem,
    ControlMessage,
    ControlOp,
    Package,
    PackageMessage,
    ReplyItem,
    ReplyKind,
    ReplyMessage,
)
from loom_mq.observe.metrics import Metrics

_log = structlog.get_logger(__name__)
_PREFETCH: Final = 100

OnSuperseded = Callable[[ExecutionKey, LoomError], None]
"""Told of each attempt that another holder superseded, for operators."""


class RemoteWorker:
    """Has packages driven by a `WorkerHost` over RabbitMQ or the in-process broker.

    Open it with ``async with``, within the broker's connection. The attempt at the other
    end goes on when the caller's patience is over, or the caller is; a redispatch is then
    safe as ever (F3).

    Args:
        broker: an open connection.
        queue: which hosts.
        timeout: seconds to wait for the end of an attempt; a dispatcher's
            `execute_timeout` may be shorter.
        on_superseded: told of refusals that another holder is the reason of.
        metrics: counts them, as ``remote``.
    """

    def __init__(
        self,
        broker: Broker,
        queue: str = DEFAULT_QUEUE,
        *,
        timeout: float = 600.0,
        on_superseded: OnSuperseded | None = None,
        metrics: Metrics | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.metrics = Metrics() if metrics is None else metrics
        self._broker = broker
        self._queue = topology.attempts(queue)
        self._timeout = timeout
        self._on_superseded = on_superseded
        self._ids: Ids = RandomIds() if ids is None else ids
        self._replies = topology.reply(self._ids.token())
        self._waiting: dict[str, asyncio.Future[ReplyItem]] = {}
        self._consumer: Consumer | None = None

    async def __aenter__(self) -> Self:
        """Open the reply queue."""
        self._consumer = await self._broker.consume(
            self._replies, self._on_reply, prefetch=_PREFETCH
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; whoever still waits gets an error."""
        if self._consumer is not None:
            await self._consumer.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(BrokerUnreachableError("the remote worker was closed"))

    async def execute(self, package: Package) -> FoldedState:
        """See `ExecutionWorker.execute`.

        Raises:
            ExecutionSupersededError: another holder owns the execution (F5).
            AttemptFailedError: the worker's attempt failed; `reason` is its error's code.
            AttemptTimeoutError: no answer came in time.
            BrokerError: the package did not go out.
        """
        key = ExecutionKey(package.tenant, package.execution_id)
        body = wire.encode(PackageMessage(MESSAGE_VERSION, (package,)))
        item = await self._ask(key, "packages", body, self._ids.token())
        if item.kind is ReplyKind.ERROR:
            raise self._failure(key, item)
        return self._told(key, item)

    async def load_state(self, key: ExecutionKey) -> FoldedState | None:
        """See `LoadsState.load_state`.

        Raises:
            AttemptFailedError, AttemptTimeoutError, BrokerError: as for `execute`.
        """
        token = self._ids.token()
        question = ControlItem(
            op=ControlOp.STATE, id=key.execution_id, tenant=key.tenant, correlation=token
        )
        item = await self._ask(
            key, "control", wire.encode(ControlMessage(items=(question,))), token
        )
        if item.kind is ReplyKind.ERROR:
            if item.code == UnknownExecutionError.code:
                return None
            raise self._failure(key, item)
        return self._told(key, item)

    async def _ask(self, key: ExecutionKey, type: str, body: bytes, token: str) -> ReplyItem:
        future: asyncio.Future[ReplyItem] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        message = Outgoing(
            queue=self._queue.name,
            body=body,
            type=type,
            reply_to=self._replies.name,
            correlation_id=token,
        )
        try:
            async with asyncio.timeout(self._timeout):
                [error] = await self._broker.publish([message])
                if isinstance(error, UnroutableError):
                    raise UnroutableError(
                        f"nobody has declared the queue {self._queue.name!r}: no worker host has "
                        "ever run on this broker; start one",
                        execution_id=key.execution_id,
                    )
                if error is not None:
                    raise error
                return await future
        except TimeoutError as error:
            raise AttemptTimeoutError(
                f"no answer about execution {key.execution_id!r} from {self._queue.name!r} within "
                f"{self._timeout:g} s; is a worker host running?",
                execution_id=key.execution_id,
            ) from error
        finally:
            del self._waiting[token]

    def _told(self, key: ExecutionKey, item: ReplyItem) -> FoldedState:
        state = FoldedState.from_reply(item)
        if state.key != key:
            raise AttemptFailedError(
                f"asked for execution {key.execution_id!r}, the worker answered about {item.id!r}",
                execution_id=key.execution_id,
            )
        return state

    def _failure(self, key: ExecutionKey, item: ReplyItem) -> LoomError:
        """What a refusal over the wire means (F5)."""
        named = ExecutionKey(item.tenant, item.id) == key
        if named and item.code == ExecutionSupersededError.code:
            error = ExecutionSupersededError(item.message, execution_id=key.execution_id)
            self.metrics.superseded("remote")
            _log.info("attempt.superseded", execution_id=key.execution_id, why=item.message)
            if self._on_superseded is not None:
                self._on_superseded(key, error)
            return error
        return AttemptFailedError(
            f"the attempt of execution {key.execution_id!r} failed at its worker: {item.message} "
            f"[{item.code}]",
            execution_id=key.execution_id,
            reason=item.code,
        )

    def _on_reply(self, delivery: Delivery) -> None:
        try:
            message = wire.decode(ReplyMessage, delivery.body, delivery.content_type)
        except InputError as error:
            _log.warning("reply.rejected", code=error.code, error=error.message)
        else:
            for item in message.items:
                future = self._waiting.get(item.correlation)
                if future is not None and not future.done():
                    future.set_result(item)
        delivery.ack()
