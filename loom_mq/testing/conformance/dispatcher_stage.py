"""What the dispatcher kit is played on: two dispatchers over one store, in step by events.

Nothing here looks at a clock. An effect runs until the other dispatcher has done what it
is going to do: it has run the effect again, or its dispatch is over. So two dispatchers
that keep taking an execution from each other go on until their attempts are used up, and
two that settle stop at once, whatever the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from msgspec.structs import replace

from loom_mq.dispatch.errand import Allocation
from loom_mq.dispatch.protocol import ExecutionDispatcher, ExecutionWorker, FoldedState
from loom_mq.dispatch.starting import package_for
from loom_mq.dispatch.worker import LocalOptions, LocalWorker
from loom_mq.flows.context import Context
from loom_mq.flows.definition import flow
from loom_mq.flows.registry import AnyFlow, Registry
from loom_mq.flows.step import step
from loom_mq.journal.protocol import Append, ClaimVerdict, Journal
from loom_mq.model.events import EventKind
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, WorkerRecord
from loom_mq.model.messages import Cause
from loom_mq.model.policies import NO_RETRY
from loom_mq.testing.conformance.journal_rig import name
from loom_mq.testing.skipping import Proxy, Pulse

ATTEMPTS: Final = 3
"""Tries of every dispatcher on the stage."""
PATIENCE: Final = 20.0
"""Seconds after which something that should happen counts as not happening."""
_OPTIONS: Final = LocalOptions(lease=3600.0, journal_patience=1.0, step_threads=1)

Dispatch = Callable[[ExecutionWorker], ExecutionDispatcher]
"""Makes the dispatcher under test over a worker."""
Hook = Callable[[], Awaitable[None]]


class _Seen(Proxy):
    """One side's view of the store: claims are noted, and the first append can be held."""

    def __init__(self, journal: Journal, side: Side) -> None:
        super().__init__(journal)
        self._side = side

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call."""
        if name == "append" and _starts(args[0]):
            self._side.starts += 1
            self._side.beat()
            hook = self._side.before_start.pop(self._side.starts, None)
            if hook is not None:
                await hook()
        answer = await do()
        if name == "claim":
            self._side.note(answer)
        return answer


def _starts(appends: list[Append]) -> bool:
    return any(append.events[0].kind == EventKind.EXECUTION_STARTED for append in appends)


class Side:
    """One dispatcher, its worker, and what they do.

    Attributes:
        starts: appends of sequence 0 that were tried.
        before_start: by number of the try, what happens before it reaches the store.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.starts = 0
        self.before_start: dict[int, Hook] = {}
        self.worker: LocalWorker
        self.dispatcher: ExecutionDispatcher
        self._stage = stage
        self._task: asyncio.Task[FoldedState] | None = None

    def dispatch(self, cause: Cause = Cause.START) -> None:
        """Dispatch the stage's execution."""
        package = replace(self._stage.package, cause=cause)
        self._task = asyncio.ensure_future(self.dispatcher.dispatch(package))
        self._task.add_done_callback(lambda _task: self.beat())

    @property
    def over(self) -> bool:
        """Whether its dispatch is over."""
        return self._task is not None and self._task.done()

    @property
    def outcome(self) -> FoldedState | BaseException:
        """What a dispatch that is over came to."""
        assert self._task is not None
        return self._task.exception() or self._task.result()

    def beat(self) -> None:
        """Something has happened on this side."""
        self._stage.pulse.beat()

    def note(self, verdicts: list[ClaimVerdict]) -> None:
        """Keep the fences that were taken."""
        self._stage.fences += [each.claimed.row.fence for each in verdicts if each.claimed]
        self.beat()


class Stage:
    """See the module's docstring.

    Args:
        journal: the store, open.
        policy: of both workers.

    Attributes:
        runs: the sides that ran the effect, in order.
        fences: the fences that were taken by claims, in order.
        alone: effects wait for nobody.
    """

    a: Side
    b: Side

    def __init__(self, journal: Journal, policy: Allocation) -> None:
        self.journal = journal
        self.pulse = Pulse()
        self.runs: list[str] = []
        self.fences: list[int] = []
        self.alone = False
        self.key = ExecutionKey(DEFAULT_TENANT, name("dispatched"))
        self.policy = policy
        self.package = package_for(self._flow("nobody"), id=self.key.execution_id)

    async def add(self, name: str, dispatch: Dispatch, stack: AsyncExitStack) -> Side:
        """A side with a worker of its own."""
        side = Side(self, name)
        worker = LocalWorker(
            _Seen(self.journal, side).as_journal(),
            Registry([self._flow(name)]),
            policy=self.policy,
            options=_OPTIONS,
        )
        side.worker = await stack.enter_async_context(worker)
        side.dispatcher = dispatch(side.worker)
        return side

    def ran(self, side: Side) -> bool:
        """Whether a side has run the effect."""
        return side.name in self.runs

    async def until(self, reached: Callable[[], bool]) -> None:
        """Return when something has happened.

        Raises:
            AssertionError: it does not.
        """
        while not reached():
            went_on = await self.pulse.wait(PATIENCE)
            assert went_on, f"nothing happens any more; effects {self.runs}, fences {self.fences}"

    def expect(self, runs: list[str], fences: list[int]) -> None:
        """Hold the case to its figures."""
        assert (self.runs, self.fences) == (runs, fences), (
            f"{len(runs)} effects {runs}, fences {fences} expected; there were {len(self.runs)} "
            f"effects {self.runs}, fences {self.fences}"
        )

    async def loses_lease(self, side: Side) -> None:
        """Its process counts as dead from now on, whatever it still does."""
        record = WorkerRecord(owner=side.worker.owner, role="worker", host="local")
        await (await self.journal.lease(record, 0.0)).close()

    async def state(self) -> FoldedState:
        """How the execution durably stands."""
        state = await self.b.worker.load_state(self.key)
        assert state is not None
        return state

    async def kinds(self) -> Counter[str]:
        """How many events of each kind its log holds."""
        return Counter(each.kind for each in await self.journal.read(self.key))

    def _flow(self, side: str) -> AnyFlow:
        @step(name="effect", retry=NO_RETRY)
        async def effect() -> str:
            await self._effect(side)
            return side

        @flow(name="conformance.dispatched")
        async def dispatched(ctx: Context) -> str:
            return await ctx.run(effect)

        return dispatched

    async def _effect(self, side: str) -> None:
        self.runs.append(side)
        mine = len(self.runs)
        other = self.b if side == self.a.name else self.a
        self.pulse.beat()
        await self.until(lambda: self.alone or other.over or other.name in self.runs[mine:])


@asynccontextmanager
async def set_up(journal: Journal, policy: Allocation, dispatch: Dispatch) -> AsyncIterator[Stage]:
    """A stage with both sides on it; what still runs at the end is ended."""
    stage = Stage(journal, policy)
    async with AsyncExitStack() as stack:
        stage.a = await stage.add("a", dispatch, stack)
        stage.b = await stage.add("b", dispatch, stack)
        yield stage
