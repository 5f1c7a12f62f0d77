"""A fleet on virtual time whose workers die and are drained at writes of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.client.client import Client
from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.sweep import SweepOptions
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.errors import LoomError
from loom_mq.flows.registry import Registry
from loom_mq.ids import RandomIds
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import DEFAULT_QUEUE, DEFAULT_TENANT, ExecutionKey, WorkerRecord
from loom_mq.observe.metrics import Metrics
from loom_mq.testing.doom import refusal
from loom_mq.testing.skipping import LOOKS, Proxy
from tests.simulation.player import generated
from tests.simulation.random_programs import GATES, ONCE
from tests.simulation.virtual_time import VirtualClock

ID: Final = "generated"
KEY: Final = ExecutionKey(DEFAULT_TENANT, ID)
LEASE: Final = 5.0
_FREE: Final = LOOKS | {"lease", "register_flows", "save_snapshots"}


class Fate(msgspec.Struct, frozen=True):
    """What becomes of a worker.

    Attributes:
        write: the number of its write at which it happens, from 1.
        how: ``before`` or ``after`` for a death before or after that write is durable,
            ``drain`` for an end in good order.
    """

    write: int
    how: str


class Mishaps(msgspec.Struct, frozen=True):
    """What happens to one execution.

    Attributes:
        fates: of the workers, one after the other; those that follow live on.
        cancel: the number of the write after which it is cancelled, 0 for never.
        lag: turns of the loop between the two.
        early: answers that come before anybody asks.
        patience: seconds between two looks of whoever answers.
        wrong: share of answers that do not fit.
        latency: seconds that a write may take.
        park_drain, backoff_park, snapshot_every: of the workers.
    """

    fates: tuple[Fate, ...] = ()
    cancel: int = 0
    lag: int = 0
    early: int = 0
    patience: float = 0.01
    wrong: float = 0.0
    latency: tuple[float, ...] = (0.0,)
    park_drain: float = 5.0
    backoff_park: float = 0.5
    snapshot_every: int = 500


def make_mishaps(luck: random.Random) -> Mishaps:
    """Random ones."""
    fates = tuple(
        Fate(luck.randint(1, 12), luck.choice(("before", "after", "drain")))
        for _ in range(luck.choice((0, 1, 1, 2, 3, 5)))
    )
    return Mishaps(
        fates=fates,
        cancel=luck.randint(1, 20) if luck.random() < 0.3 else 0,
        lag=luck.randrange(12),
        early=luck.choice((0, 0, 1, 3)),
        patience=luck.choice((0.003, 0.01, 0.05)),
        wrong=luck.choice((0.0, 0.0, 0.3)),
        latency=luck.choice(((0.0,), (0.0,), (0.0, 0.001), (0.0, 0.001, 0.01))),
        park_drain=luck.choice((0.002, 0.02, 5.0, 5.0)),
        backoff_park=luck.choice((0.0, 0.02, 0.5)),
        snapshot_every=luck.choice((3, 10, 500)),
    )


class InLine:
    """Plain steps, without threads."""

    def __init__(self, luck: random.Random) -> None:
        self._luck = luck

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call it, by and by."""
        for _ in range(self._luck.randrange(4)):
            await asyncio.sleep(0)
        return function()


class Actor(Proxy):
    """One worker, and the journal as it sees it."""

    def __init__(self, fleet: Fleet, fate: Fate | None) -> None:
        super().__init__(fleet.journal)
        self.dead = False
        self._fleet = fleet
        self._fate = fate
        self._writes = 0
        self.record: WorkerRecord
        self.connection: MemoryConnection
        self.worker: Worker

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call, or meet its fate."""
        if self.dead:
            return refusal(name, args)
        if name in _FREE:
            answer = await do()
            return _Lease(answer, self) if name == "lease" else answer
        self._writes += 1
        how = self._fate.how if self._fate is not None and self._fate.write == self._writes else ""
        await self._fleet.delay()
        if how == "before" or not self.alive():
            await self._die()
            return refusal(name, args)
        answer = await do()
        if name == "append":
            self._fleet.appended()
        if how == "drain":
            self._fleet.spawn(self._retire())
        if how == "after":
            await self._die()
        await self._fleet.delay()
        return answer if self.alive() else refusal(name, args)

    def alive(self) -> bool:
        """Whether it has not died; it may have, whenever somebody else had a turn."""
        return not self.dead

    async def _die(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._fleet.deaths += 1
        await self._fleet.journal.lease(self.record, 0.0)
        self.connection.kill()
        self._fleet.spawn(self._fleet.hire())
        self._fleet.spawn(self.worker.stop())

    async def _retire(self) -> None:
        self._fleet.drains += 1
        luck = self._fleet.luck
        if luck.random() < 0.5:
            await self._fleet.hire()
        await self.worker.drain(luck.choice((0.0, 0.0, 0.005, 0.1)))
        await self.worker.stop()
        if self._fleet.last is self:
            await self._fleet.hire()


class _Lease(Proxy):
    """A dead worker can neither renew its lease nor give it back."""

    def __init__(self, lease: object, actor: Actor) -> None:
        super().__init__(lease)
        self._actor = actor

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call while the worker lives."""
        return refusal(name, args) if self._actor.dead else await do()


class Fleet:
    """Dispatcher, timer service, a client, and workers one after the other.

    Args:
        clock: everybody's.
        mishaps: what becomes of it.
        luck: for whatever else is random.

    Attributes:
        deaths: workers that died.
        drains: workers that were drained.
        last: the newest worker.
    """

    client: Client
    last: Actor

    def __init__(self, clock: VirtualClock, mishaps: Mishaps, luck: random.Random) -> None:
        self.clock = clock
        self.luck = luck
        self.journal = MemoryJournal(clock)
        self.hub = MemoryBroker()
        self.metrics = Metrics()
        self.deaths = self.drains = 0
        self._mishaps = mishaps
        self._fates = list(mishaps.fates)
        self._writes = 0
        self._actors: list[Actor] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.journal)
        dispatcher = Dispatcher(
            self.journal,
            await self._stack.enter_async_context(self.hub.connection("dispatcher")),
            options=DispatcherOptions(sweep=SweepOptions(interval=0.1, max_recoveries=100)),
            clock=self.clock,
            ids=RandomIds(),
            metrics=self.metrics,
        )
        timers = TimerService(
            self.journal,
            await self._stack.enter_async_context(self.hub.connection("timer")),
            options=TimerOptions(poll=0.02),
            clock=self.clock,
            metrics=self.metrics,
        )
        await self.hire()
        for part in (dispatcher, timers):
            self._stack.push_async_callback(part.stop)
            await part.start()
        self.client = await self._stack.enter_async_context(Client(self.hub.connection("client")))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for actor in self._actors:
            await actor.worker.stop()
            actor.connection.kill()
        await self._stack.__aexit__(kind, error, trace)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something go on beside."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

    @property
    def faults(self) -> list[BaseException]:
        """What went wrong beside."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]

    async def delay(self) -> None:
        """What a write takes."""
        await asyncio.sleep(self.luck.choice(self._mishaps.latency))

    async def hire(self) -> None:
        """One more worker, with a fate of its own."""
        self.last = actor = Actor(self, self._fates.pop(0) if self._fates else None)
        owner = f"worker/{len(self._actors)}"
        self._actors.append(actor)
        actor.record = WorkerRecord(
            owner=owner, role="worker", host="test", queues=(DEFAULT_QUEUE,), slots=10
        )
        actor.connection = self.hub.connection(owner)
        await actor.connection.__aenter__()
        journal: Journal = actor.as_journal()
        actor.worker = Worker(
            owner,
            journal,
            actor.connection,
            LeaseKeeper(
                journal,
                actor.record,
                LEASE,
                clock=self.clock,
                metrics=self.metrics,
                threaded=False,
            ),
            Registry([generated]),
            options=WorkerOptions(
                queues=(DEFAULT_QUEUE,),
                slots=10,
                park_drain=self._mishaps.park_drain,
                backoff_park=self._mishaps.backoff_park,
                snapshot_every=self._mishaps.snapshot_every,
                journal_patience=0.0,
                mismatch_delay=0.1,
                unknown_flow_delay=0.1,
            ),
            clock=self.clock,
            ids=RandomIds(),
            threads=InLine(self.luck),
            metrics=self.metrics,
        )
        await actor.worker.start()

    # ---- the world outside --------------------------------------------------------------

    def appended(self) -> None:
        """A worker's append is durable."""
        self._writes += 1
        if self._writes == self._mishaps.cancel:
            self.spawn(self._cancel())

    async def _cancel(self) -> None:
        for _ in range(self._mishaps.lag):
            await asyncio.sleep(0)
        with suppress(LoomError):
            await self.client.handle(ID).cancel("why not")

    async def attend(self) -> None:
        """Answer gates and give verdicts, until cancelled."""
        asked: dict[str, float] = {}
        for _ in range(self._mishaps.early):
            self.spawn(self._answer(self.luck.choice(GATES)))
        while True:
            await asyncio.sleep(self._mishaps.patience * (0.5 + self.luck.random()))
            [row] = await self.journal.get([KEY])
            if row is None:
                continue
            now = self.clock.monotonic()
            for what in (*row.gates, *row.in_doubt):
                if asked.get(what, 0.0) > now or self.luck.random() < 0.3:
                    continue
                asked[what] = now + 0.05
                self.spawn(self._answer(what) if what in GATES else self._judge(what))

    async def _answer(self, gate: str) -> None:
        answer: object = self.luck.randrange(3)
        if self.luck.random() < self._mishaps.wrong:
            answer = "not a number"
        with suppress(LoomError):
            await self.client.handle(ID).resume(gate, answer, timeout=2.0)

    async def _judge(self, step: str) -> None:
        assert step.startswith(ONCE)
        handle = self.client.handle(ID)
        with suppress(LoomError):
            match self.luck.randrange(3):
                case 0:
                    await handle.verdict(step, completed=self.luck.randrange(9), timeout=2.0)
                case 1:
                    await handle.verdict(step, failed="by verdict", timeout=2.0)
                case _:
                    await handle.verdict(step, run_again=True, timeout=2.0)
