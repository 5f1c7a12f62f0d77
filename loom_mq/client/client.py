"""The client: starts executions and talks to them, over the broker alone (F1, F2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from loom_mq.broker import topology
from loom_mq.broker.amqp import AmqpBroker
from loom_mq.broker.protocol import Broker
from loom_mq.client.handle import ExecutionState, Handle
from loom_mq.client.schedules import Schedules
from loom_mq.client.switchboard import Reply, Switchboard
from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import ConfigurationError, InputError
from loom_mq.flows.definition import Flow
from loom_mq.ids import RandomIds, check_id
from loom_mq.model.execution import DEFAULT_TENANT
from loom_mq.model.messages import Notify, StartItem
from loom_mq.model.policies import StartPolicy

In = TypeVar("In")
Out = TypeVar("Out")

ANY = codec_for(Any)


class Client:
    """Needs nothing but the broker.

    One client belongs to one event loop; make another for another loop or thread.

    Args:
        broker: an open or unopened connection; the client opens and closes it.
        tenant: whose executions.
        payload_limit: bytes; checked here so that a mistake shows where it is made.

    Attributes:
        schedules: what is started by the calendar (F9).
    """

    def __init__(
        self,
        broker: Broker,
        *,
        tenant: str = DEFAULT_TENANT,
        payload_limit: int = 1024 * 1024,
    ) -> None:
        self._broker = broker
        self._tenant = check_id(tenant, "tenant")
        self._payload_limit = payload_limit
        self._ids = RandomIds()
        self._queue = topology.reply(self._ids.token())
        self._switchboard: Switchboard | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.schedules = Schedules(self._open, self._tenant, payload_limit)

    @classmethod
    def connect(cls, url: str, *, name: str = "client", tenant: str = DEFAULT_TENANT) -> Client:
        """A client of the fleet behind a RabbitMQ address; open it with ``async with``.

        Args:
            url: ``amqp://user:password@host:5672/vhost`` or ``amqps://...``.
            name: how the connection shows on the broker.
            tenant: whose executions.
        """
        return cls(AmqpBroker(url, name=name), tenant=tenant)

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerUnreachableError: the broker does not answer.
        """
        self._loop = asyncio.get_running_loop()
        await self._broker.__aenter__()
        self._switchboard = Switchboard(self._broker, self._queue.name, self._ids)
        await self._broker.consume(self._queue, self._switchboard.on_reply, prefetch=500)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; whoever still waits gets an error."""
        if self._switchboard is not None:
            await self._switchboard.close()
        await self._broker.__aexit__(kind, error, trace)
        self._loop = None

    def _open(self) -> Switchboard:
        """The switchboard, if the client is used as it can be (C108)."""
        if self._switchboard is None or self._loop is None:
            raise ConfigurationError("the client is not open; use `async with Client(...) as c:`")
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "this client belongs to another event loop; make one client per event loop "
                "(and per thread or asyncio.run call)"
            )
        return self._switchboard

    @overload
    async def start(
        self,
        flow: Flow[In, Out],
        input: In,
        *,
        id: str | None = None,
        queue: str = "",
        labels: dict[str, str] | None = None,
        policy: StartPolicy = StartPolicy.EXISTING,
        timeout: float = 30.0,
    ) -> Handle[Out]: ...

    @overload
    async def start(
        self,
        flow: Flow[None, Out],
        *,
        id: str | None = None,
        queue: str = "",
        labels: dict[str, str] | None = None,
        policy: StartPolicy = StartPolicy.EXISTING,
        timeout: float = 30.0,
    ) -> Handle[Out]: ...

    @overload
    async def start(
        self,
        flow: str,
        input: object = None,
        *,
        id: str | None = None,
        queue: str = "",
        labels: dict[str, str] | None = None,
        policy: StartPolicy = StartPolicy.EXISTING,
        timeout: float = 30.0,
    ) -> Handle[Any]: ...

    async def start(
        self,
        flow: Flow[Any, Any] | str,
        input: object = None,
        *,
        id: str | None = None,
        queue: str = "",
        labels: dict[str, str] | None = None,
        policy: StartPolicy = StartPolicy.EXISTING,
        timeout: float = 30.0,
    ) -> Handle[Any]:
        """Start an execution and return when it is admitted: from then on it cannot be lost.

        The same id with the same input again gives the same execution, unless `policy` says
        otherwise.

        Args:
            flow: the flow, or its registered name.
            input: its input.
            id: the execution's id; a new one by default.
            queue: where its workers listen; the flow's own queue by default.
            labels: short texts to find it by.
            policy: what to do when the id is taken (K16).
            timeout: seconds to wait for the admission.

        Raises:
            StartConflictError: the id exists with another flow or input, or `policy` refuses.
            UnknownFlowError: no worker has ever registered the flow.
            InvalidIdError, CodecError, PayloadTooLargeError: see there.
            WaitTimeoutError: not admitted in time; it may be later. Calling again with
                the same id is safe. With another policy than `EXISTING` it is another
                start, so look first at what there is.
            BrokerError: not published.
        """
        switchboard = self._open()
        item = self._item(flow, input, id, queue, labels, Notify.BOTH, policy)
        outcome = switchboard.outcome_of(item)
        await switchboard.start(item, timeout)
        return self._handle(item.id, flow, outcome)

    async def start_many(
        self,
        flow: Flow[In, Out],
        inputs: Iterable[tuple[str, In]],
        *,
        queue: str = "",
        labels: dict[str, str] | None = None,
        timeout: float = 60.0,
    ) -> list[Handle[Out]]:
        """Start many executions of one flow, few messages for all of them.

        Args:
            flow: the flow.
            inputs: pairs of id and input.
            queue: where its workers listen; the flow's own queue by default.
            labels: short texts to find them by.
            timeout: seconds to wait for all admissions.

        Raises:
            ExceptionGroup: some were refused; the others are admitted.
        """
        switchboard = self._open()
        items = [
            self._item(flow, value, name, queue, labels, Notify.BOTH) for name, value in inputs
        ]
        outcomes = [switchboard.outcome_of(item) for item in items]
        results = await asyncio.gather(
            *(switchboard.start(item, timeout) for item in items), return_exceptions=True
        )
        errors = [each for each in results if isinstance(each, Exception)]
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {len(items)} starts were refused", errors)
        return [
            self._handle(item.id, flow, outcome)
            for item, outcome in zip(items, outcomes, strict=True)
        ]

    @overload
    async def execute(
        self,
        flow: Flow[In, Out],
        input: In,
        *,
        id: str | None = None,
        policy: StartPolicy = StartPolicy.EXISTING,
        timeout: float | None = None,
    ) -> Out: ...

    @overload
    async def execute(
        self,
        flow: Flow[None, Out],
        *,
        id: str | None = None,
        policy: StartPolicy = StartPolicy.EXISTING,
        timeout: float | None = None,
    ) -> Out: ...

    async def execute(
        self,
        flow: Flow[Any, Any],
        input: object = None,
        *,
        id: str | None = None,
        policy: StartPolicy = StartPolicy.EXISTING,
        timeout: float | None = None,
    ) -> Any:
        """Start an execution and wait for its result, with one reply less than `start`.

        Args:
            flow: the flow.
            input: its input.
            id: the execution's id; a new one by default.
            policy: what to do when the id is taken (K16).
            timeout: seconds to wait for the end; None waits as long as it takes.

        Raises:
            ExecutionFailedError: it ended failed.
            ExecutionCancelledError: it ended cancelled.
            WaitTimeoutError: it has not ended in time; it goes on.
            InputError, BrokerError: as for `start`.
        """
        switchboard = self._open()
        item = self._item(flow, input, id, "", None, Notify.RESULT, policy)
        outcome = await switchboard.start_unconfirmed(item)
        handle = self._handle(item.id, flow, outcome)
        return await handle.result_of(item, timeout)

    @overload
    def handle(self, id: str, flow: Flow[Any, Out]) -> Handle[Out]: ...

    @overload
    def handle(self, id: str, flow: None = None) -> Handle[Any]: ...

    def handle(self, id: str, flow: Flow[Any, Any] | None = None) -> Handle[Any]:
        """Talk to an execution that exists. With `flow` its result has the flow's type."""
        return self._handle(check_id(id, "execution id"), flow or "")

    async def states(self, ids: Sequence[str]) -> list[ExecutionState]:
        """The states of several executions.

        Raises:
            UnknownExecutionError: one of them does not exist.
        """
        return list(await asyncio.gather(*(self.handle(name).state() for name in ids)))

    def _handle(
        self, id: str, flow: Flow[Any, Any] | str, outcome: Reply | None = None
    ) -> Handle[Any]:
        codec = flow.result_codec if isinstance(flow, Flow) else ANY
        return Handle(self._open, self._tenant, id, codec, self._payload_limit, outcome)

    def _item(
        self,
        flow: Flow[Any, Any] | str,
        value: object,
        id: str | None,
        queue: str,
        labels: dict[str, str] | None,
        notify: Notify,
        policy: StartPolicy = StartPolicy.EXISTING,
    ) -> StartItem:
        name = flow.name if isinstance(flow, Flow) else check_id(flow, "flow name")
        codec: ValueCodec = flow.input_codec if isinstance(flow, Flow) else ANY
        if isinstance(flow, Flow) and not flow.takes_input and value is not None:
            raise InputError(f"flow {name!r} takes no input")
        return StartItem(
            id=self._ids.execution() if id is None else check_id(id, "execution id"),
            flow=name,
            version=flow.version if isinstance(flow, Flow) else "",
            queue=queue,
            tenant=self._tenant,
            payload=codec.encode(value, what=f"input of flow {name}", limit=self._payload_limit),
            labels=labels or {},
            policy=policy,
            notify=notify,
            correlation=self._ids.token(),
        )
