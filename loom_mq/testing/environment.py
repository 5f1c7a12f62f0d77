"""An environment for tests of flows, in which months pass in milliseconds.

A whole fleet runs in the test's own event loop over memory: no server, no file. Time
goes on like real time, but whenever somebody waits for an execution and nothing is under
way, it jumps to the next thing that is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from loom_mq.client.client import Client
from loom_mq.client.handle import Answered, ExecutionState, Handle
from loom_mq.errors import WaitTimeoutError
from loom_mq.flows.definition import Flow
from loom_mq.flows.registry import AnyFlow
from loom_mq.ids import RandomIds
from loom_mq.kernel.fold import decode_payload
from loom_mq.model.events import AnswerTaken, Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.testing.fleet import Fleet, View
from loom_mq.testing.history import Happening, happenings
from loom_mq.testing.skipping import moment_of
from loom_mq.testing.watching import Watcher

In = TypeVar("In")
Out = TypeVar("Out")
T_co = TypeVar("T_co", covariant=True)

PATIENCE: Final = 30.0
_LOOK: Final = 0.02


class TestEnvironment:
    """See the module's docstring. Use it with ``async with``.

    Code runs in real time and nothing is skipped while it does: a step that really waits
    for a minute takes a minute. Steps are called as they are; replace in the test what
    they call.

    Args:
        flows: the flows that it serves.
        starts_at: what time it is at first, with a time zone; the real time by default.
        patience: real seconds that code may run without any event before whoever waits
            is told.
        first_view: how the first worker sees the journal, for `crash_everywhere`.

    Attributes:
        client: an open client, for code under test that wants one. Nothing is skipped
            while it waits.
        fleet: what runs in here.
        watcher: what waits and skips.
    """

    __test__ = False
    client: Client

    def __init__(
        self,
        flows: Iterable[AnyFlow],
        *,
        starts_at: datetime | None = None,
        patience: float = PATIENCE,
        first_view: View | None = None,
    ) -> None:
        self.fleet = Fleet(flows, starts_at=starts_at, first_view=first_view)
        self.watcher = Watcher(self.fleet, patience)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.fleet)
            connection = self.fleet.hub.connection("client")
            self.client = await stack.enter_async_context(Client(connection))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @property
    def now(self) -> datetime:
        """What time it is in here, in UTC."""
        return moment_of(self.fleet.clock.now())

    @overload
    async def start(
        self,
        flow: Flow[In, Out],
        input: In,
        *,
        id: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> Run[Out]: ...

    @overload
    async def start(
        self, flow: Flow[None, Out], *, id: str | None = None, labels: dict[str, str] | None = None
    ) -> Run[Out]: ...

    async def start(
        self,
        flow: Flow[Any, Any],
        input: object = None,
        *,
        id: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> Run[Any]:
        """Start an execution; as `Client.start`.

        Args:
            flow: the flow.
            input: its input.
            id: the execution's id; a new one by default.
            labels: short texts to find it by.

        Raises:
            StartConflictError: the id exists with another flow or input.
            UnknownFlowError: the environment was not given this flow.
            InputError: see `Client.start`.
        """
        handle = await self.client.start(flow, input, id=id, labels=labels)
        return Run(self, handle, flow)

    @overload
    async def execute(self, flow: Flow[In, Out], input: In, *, id: str | None = None) -> Out: ...

    @overload
    async def execute(self, flow: Flow[None, Out], *, id: str | None = None) -> Out: ...

    async def execute(
        self, flow: Flow[Any, Any], input: object = None, *, id: str | None = None
    ) -> Any:
        """Start an execution and skip time until it has ended; returns its result.

        Raises:
            StuckError: it waits for something that nobody does.
            ExecutionFailedError, ExecutionCancelledError, InputError: as for `start`
                and `Run.result`.
        """
        return await (await self.start(flow, input, id=id)).result()

    def run(self, id: str, flow: Flow[Any, Out]) -> Run[Out]:
        """An execution that exists, such as one that another one has started."""
        return Run(self, self.client.handle(id, flow), flow)

    async def skip(self, duration: timedelta | float) -> None:
        """Make it so much later. Everything that is due meanwhile happens in its order,
        each at its own time, and has come to rest before the next.

        Args:
            duration: timedelta or seconds.

        Raises:
            StuckError: code runs on and on, or too much happens meanwhile.
        """
        if not isinstance(duration, timedelta):
            duration = timedelta(seconds=duration)
        micros = duration // timedelta(microseconds=1)
        await self.watcher.skip_to(self.fleet.clock.now() + max(0, micros))

    async def skip_until(self, moment: datetime) -> None:
        """As `skip`, to a moment; one that has passed changes nothing.

        Raises:
            StuckError: as for `skip`.
        """
        await self.skip(max(timedelta(0), moment - self.now))

    async def settle(self) -> None:
        """Return when nothing is under way: every execution is parked or has ended.

        Raises:
            StuckError: code runs on and on.
        """
        await self.watcher.settle()

    async def history(self, id: str) -> list[Happening]:
        """What has happened to an execution so far; empty when there is none."""
        return happenings(await self.events(id))

    async def events(self, id: str) -> list[Envelope]:
        """The log of an execution as it is stored, for `rehearse` and for archives."""
        return await self.fleet.log(ExecutionKey(DEFAULT_TENANT, id))


class Run(Generic[T_co]):
    """One execution in a `TestEnvironment`. Made by `TestEnvironment.start`.

    Attributes:
        handle: the plain handle, for all that is not here. Nothing is skipped while it
            waits.
    """

    def __init__(
        self, environment: TestEnvironment, handle: Handle[T_co], flow: Flow[Any, T_co]
    ) -> None:
        self.handle = handle
        self._environment = environment
        self._flow = flow
        self._key = ExecutionKey(DEFAULT_TENANT, handle.id)

    def __repr__(self) -> str:
        return f"<run of execution {self.id!r}>"

    @property
    def id(self) -> str:
        """The execution's id."""
        return self.handle.id

    async def result(self, *, timeout: float | None = None) -> T_co:
        """Skip time until the execution has ended, and return what its flow returned.

        Args:
            timeout: real seconds; None waits as long as something happens.

        Raises:
            StuckError: it waits for something that nobody does; the message says what.
            ExecutionFailedError: it ended failed.
            ExecutionCancelledError: it ended cancelled.
            WaitTimeoutError: not within `timeout`.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._environment.watcher.until(
                    self._key, lambda row: row.status.terminal, "end"
                )
        except TimeoutError as error:
            raise WaitTimeoutError(
                f"execution {self.id!r} has not ended within {timeout:g} s of real time",
                execution_id=self.id,
            ) from error
        # a handle of its own asks the journal: a reply may have died with its worker
        return await self._environment.client.handle(self.id, self._flow).result()

    async def reach(self, gate: str) -> None:
        """Skip time until the execution waits at a gate.

        Raises:
            StuckError: it will not get there, or has ended.
        """
        await self._environment.watcher.until(
            self._key, lambda row: gate in row.gates, f"come to gate {gate!r}"
        )

    async def resume(
        self, gate: str, answer: object, *, type: object = None, answer_id: str | None = None
    ) -> Answered:
        """Answer a gate; as `Handle.resume`. One that is not open yet gets it later.

        Raises:
            ResumeRefusedError: see `Handle.resume`.
        """
        answer_id = answer_id or RandomIds().token()
        answering = asyncio.ensure_future(
            self.handle.resume(gate, answer, type=type, answer_id=answer_id)
        )
        try:
            while not answering.done():
                await asyncio.wait([answering], timeout=_LOOK)
                # the worker that took it may be gone before it could say so
                if not answering.done() and await self._taken(answer_id):
                    return Answered.TAKEN
            return answering.result()
        finally:
            answering.cancel()

    async def cancel(self, reason: str = "") -> None:
        """Ask it to stop; as `Handle.cancel`.

        Raises:
            ExecutionEndedError: it has ended already.
        """
        await self.handle.cancel(reason)

    async def state(self) -> ExecutionState:
        """How it stands now; as `Handle.state`."""
        return await self.handle.state()

    async def history(self) -> list[Happening]:
        """What has happened to it so far."""
        return await self._environment.history(self.id)

    async def _taken(self, answer_id: str) -> bool:
        events = map(decode_payload, await self._environment.fleet.log(self._key))
        return any(isinstance(e, AnswerTaken) and e.answer_id == answer_id for e in events)
