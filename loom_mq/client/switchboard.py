"""Matches replies to requests, and asks again for what was lost.

Replies are hints like every message: one that does not come is asked for again, from
the journal by way of a dispatcher, so a waiter always gets its answer (C31).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, repeat
from weakref import WeakValueDictionary

import msgspec
import structlog

from loom_mq.broker import topology
from loom_mq.broker.protocol import Broker, Delivery, Outgoing
from loom_mq.broker.sender import GroupedSender
from loom_mq.codec import wire
from loom_mq.codec.refusals import error_from_code
from loom_mq.errors import (
    BrokerUnreachableError,
    InputError,
    LoomError,
    UnroutableError,
    WaitTimeoutError,
)
from loom_mq.ids import Ids
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import (
    SCHEDULES_VERSION,
    ControlItem,
    ControlMessage,
    ControlOp,
    Notify,
    ReplyItem,
    ReplyKind,
    ReplyMessage,
    StartItem,
    StartMessage,
)
from loom_mq.model.schedules import ScheduleItem

_log = structlog.get_logger(__name__)

ASK_AGAIN = (2.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between two requests for the same answer; the last one repeats."""

Reply = asyncio.Future[ReplyItem]


class Switchboard:
    """See the module's docstring.

    Args:
        broker: an open connection.
        reply_queue: where this client's replies arrive.
        ids: names for requests.
    """

    def __init__(self, broker: Broker, reply_queue: str, ids: Ids) -> None:
        self._reply_queue = reply_queue
        self.ids = ids
        self._starts: GroupedSender[StartItem] = GroupedSender(
            broker, self._pack_starts, _weigh, per_message=100
        )
        self._controls: GroupedSender[ControlItem] = GroupedSender(
            broker,
            self._pack_controls,
            _weigh,
            per_message=100,
        )
        # a message that an older dispatcher refuses must not take others with it
        self._schedules: GroupedSender[ScheduleItem] = GroupedSender(
            broker, self._pack_schedules, _weigh_schedule, per_message=100
        )
        self._requests: dict[str, Reply] = {}
        self._taken: dict[str, Reply] = {}
        # whoever holds a handle holds its future; when nobody does, it is gone from here
        self._outcomes: WeakValueDictionary[ExecutionKey, Reply] = WeakValueDictionary()
        # by the name of the request that asked for it
        self._errands: WeakValueDictionary[str, Reply] = WeakValueDictionary()

    async def close(self) -> None:
        """Everybody who still waits is told."""
        self._starts.abort()
        self._controls.abort()
        self._schedules.abort()
        error = BrokerUnreachableError("the client was closed before the answer came")
        for futures in (self._requests, self._taken, self._outcomes, self._errands):
            for future in list(futures.values()):
                if not future.done():
                    future.set_exception(error)
                    future.exception()

    # ---- requests -------------------------------------------------------------------

    async def start(self, item: StartItem, timeout: float) -> ReplyItem:
        """Publish a start and return with its admission."""
        return await self._ask(
            item.correlation,
            lambda: self._publish_start(item),
            timeout,
            f"execution {item.id!r} was not admitted within {timeout:g} s; is a dispatcher "
            "running? Starting again with the same id is safe",
            item.id,
        )

    async def start_unconfirmed(self, item: StartItem) -> Reply:
        """Publish a start whose refusal, if any, arrives where its outcome would."""
        future = self.outcome_of(item)
        await self._publish_start(item)
        return future

    async def request(self, item: ControlItem, timeout: float) -> ReplyItem:
        """Publish a request and return with its first answer."""
        return await self._ask(
            item.correlation,
            lambda: self._publish_control(item),
            timeout,
            f"no answer about execution {item.id!r} within {timeout:g} s; is a dispatcher running?",
            item.id,
        )

    async def schedule(self, item: ScheduleItem, timeout: float) -> ReplyItem:
        """Publish a request about schedules and return with its answer."""
        item = msgspec.structs.replace(item, correlation=self.ids.token())
        what = f"about schedule {item.id!r}" if item.id else "about the schedules"
        return await self._ask(
            item.correlation,
            lambda: self._publish_schedule(item),
            timeout,
            f"no answer {what} within {timeout:g} s; is a dispatcher running?",
            None,
        )

    def outcome(self, key: ExecutionKey) -> Reply:
        """The future outcome of an execution, shared by all who wait for it."""
        future = self._outcomes.get(key)
        if future is None or future.done():  # by now another may have taken its place (K16)
            future = asyncio.get_running_loop().create_future()
            self._outcomes[key] = future
        return future

    def outcome_of(self, item: StartItem) -> Reply:
        """The future outcome of what a start makes or finds. It is shared with nobody: a start
        may be refused where another of the same id was not, and one that takes an execution's
        place (K16) has another outcome.
        """
        future: Reply = asyncio.get_running_loop().create_future()
        self._errands[item.correlation] = future
        return future

    async def await_outcome(
        self,
        key: ExecutionKey,
        future: Reply,
        timeout: float | None,
        *,
        ask_first: bool,
        start: StartItem | None = None,
    ) -> ReplyItem:
        """Wait for an execution's end, asking again now and then.

        Args:
            key: the execution.
            future: from `outcome`.
            timeout: seconds; None waits as long as it takes.
            ask_first: nobody has told the fleet yet that we want to know.
            start: the start that nobody has confirmed: sent again instead of asking, for
                whoever asks may be answered before the start is.

        Raises:
            WaitTimeoutError: not within `timeout` seconds.
            UnknownExecutionError: there is no such execution.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        turn = 0
        errand = self.ids.token()
        if ask_first and not future.done():
            await self._watch(key, errand, future)
        while not future.done():
            pause = ASK_AGAIN[min(turn, len(ASK_AGAIN) - 1)]
            left = math.inf if deadline is None else deadline - loop.time()
            await asyncio.wait([future], timeout=max(min(pause, left), 0.0))
            if future.done():
                break
            if left <= pause:  # by then it was the last wait: a clock may be a hair early after it
                self._errands.pop(errand, None)
                raise WaitTimeoutError(
                    f"execution {key.execution_id!r} has not ended within {timeout:g} s; it goes "
                    "on, wait again or look at its state",
                    execution_id=key.execution_id,
                )
            turn += 1
            if start is None:
                await self._watch(key, errand, future)
            else:
                await self._start_again(start, future)
        self._errands.pop(errand, None)
        return future.result()

    def taken(self, correlation: str) -> Reply:
        """The later word of the worker on an answer that is stored."""
        return self._taken.setdefault(correlation, asyncio.get_running_loop().create_future())

    def forget_taken(self, correlation: str) -> None:
        """Nobody waits any more."""
        self._taken.pop(correlation, None)

    # ---- replies ----------------------------------------------------------------------

    def on_reply(self, delivery: Delivery) -> None:
        """Take a delivery from the reply queue."""
        try:
            message = wire.decode(ReplyMessage, delivery.body, delivery.content_type)
        except InputError as error:
            _log.warning("reply.rejected", code=error.code, error=error.message)
        else:
            for item in message.items:
                self._take(item)
        delivery.ack()

    def _take(self, item: ReplyItem) -> None:
        match item.kind:
            case ReplyKind.OUTCOME:
                _resolve(self._errands.get(item.correlation), item)
                _resolve(self._requests.get(item.correlation), item)
            case ReplyKind.TAKEN:
                _resolve(self._taken.get(item.correlation), item)
            case ReplyKind.ERROR:
                self._take_error(item)
            case _:
                _resolve(self._requests.get(item.correlation), item)

    def _take_error(self, item: ReplyItem) -> None:
        error = error_from_code(
            item.code, item.message, execution_id=item.id or None, reason=item.reason
        )
        future = self._requests.get(item.correlation)
        if future is None or future.done():
            future = self._errands.get(item.correlation) or self._taken.get(item.correlation)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # it may be that nobody looks; that is their choice

    # ---- publishing -------------------------------------------------------------------

    async def _ask(
        self,
        correlation: str,
        publish: Callable[[], Awaitable[None]],
        timeout: float,
        too_late: str,
        execution_id: str | None,
    ) -> ReplyItem:
        future: Reply = asyncio.get_running_loop().create_future()
        self._requests[correlation] = future
        try:
            async with asyncio.timeout(timeout):
                for pause in chain(ASK_AGAIN, repeat(ASK_AGAIN[-1])):
                    await publish()
                    await asyncio.wait([future], timeout=pause)
                    if future.done():
                        break
            return future.result()
        except TimeoutError as error:
            raise WaitTimeoutError(too_late, execution_id=execution_id) from error
        finally:
            del self._requests[correlation]

    async def _start_again(self, item: StartItem, future: Reply) -> None:
        self._errands[item.correlation] = future
        try:
            await self._publish_start(item)
        except LoomError as error:
            _log.info("client.start_failed", execution_id=item.id, error=str(error))

    async def _watch(self, key: ExecutionKey, errand: str, future: Reply) -> None:
        item = ControlItem(
            op=ControlOp.WATCH,
            id=key.execution_id,
            tenant=key.tenant,
            correlation=errand,
        )
        self._errands[errand] = future
        try:
            await self._publish_control(item)
        except LoomError as error:
            _log.info("client.watch_failed", execution_id=key.execution_id, error=str(error))

    async def _publish_start(self, item: StartItem) -> None:
        error = await self._starts.send(topology.START.name, item)
        if isinstance(error, UnroutableError):
            raise UnroutableError(
                f"nobody has declared the queue {topology.START.name!r}: no dispatcher has ever "
                "run on this broker; start one",
                execution_id=item.id,
            )
        if error is not None:
            raise error

    async def _publish_control(self, item: ControlItem) -> None:
        error = await self._controls.send(topology.CONTROL.name, item)
        if error is not None:
            raise error

    async def _publish_schedule(self, item: ScheduleItem) -> None:
        error = await self._schedules.send(topology.CONTROL.name, item)
        if error is not None:
            raise error

    def _pack_starts(self, queue: str, items: Sequence[StartItem]) -> Outgoing:
        # a start that nobody waits for needs no address, and no reply is made for it
        silent = all(item.notify is Notify.NOTHING for item in items)
        return Outgoing(
            queue=queue,
            body=wire.encode(StartMessage(items=tuple(items))),
            type="start",
            reply_to=None if silent else self._reply_queue,
        )

    def _pack_controls(self, queue: str, items: Sequence[ControlItem]) -> Outgoing:
        return Outgoing(
            queue=queue,
            body=wire.encode(ControlMessage(items=tuple(items))),
            type="control",
            reply_to=self._reply_queue,
        )

    def _pack_schedules(self, queue: str, items: Sequence[ScheduleItem]) -> Outgoing:
        message = ControlMessage(items=(), schedules=tuple(items), v=SCHEDULES_VERSION)
        return Outgoing(
            queue=queue, body=wire.encode(message), type="control", reply_to=self._reply_queue
        )


def _resolve(future: Reply | None, item: ReplyItem) -> None:
    if future is not None and not future.done():
        future.set_result(item)


def _weigh(item: StartItem | ControlItem) -> int:
    return 512 + len(item.payload or b"")


def _weigh_schedule(item: ScheduleItem) -> int:
    payload = item.fields.payload
    return 1024 + (len(payload) if isinstance(payload, bytes) else 0)
