"""F2, F6, F10: guards around messages, which a sweep or a limit hides when they are gone.

What came over the broker stays there until the journal holds what came of it: whoever takes a
message dies while the journal is about to write, and the broker must have it still. No dispatcher
sweeps where the others are looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

import loom_mq as loom
from loom_mq.broker import topology
from loom_mq.broker.deadletter import Death, death_of
from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.broker.protocol import Outgoing, Queue
from loom_mq.clock import JournalClock
from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.outbox import pack_controls, pack_packages, pack_starts
from loom_mq.engine.threads import StepThreads
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.flows.registry import Registry
from loom_mq.ids import RandomIds, new_owner
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Journal
from loom_mq.model.events import ExecutionStarted
from loom_mq.model.execution import DEFAULT_QUEUE, ExecutionKey, FlowRecord, WorkerRecord
from loom_mq.model.messages import Cause, ControlItem, ControlOp, Package, StartItem
from loom_mq.observe.metrics import Metrics
from loom_mq.testing.conformance.broker_support import Inbox
from loom_mq.testing.conformance.journal_rig import Rig, Stores
from loom_mq.testing.skipping import Proxy
from tests.support.house import until

START = msgspec.msgpack.encode(ExecutionStarted(flow="idle", version="1", input=b"\x00\xc0"))
WORK = topology.work(DEFAULT_QUEUE)


@loom.flow
async def idle(ctx: loom.Context) -> None:
    await ctx.sleep(1)


class Stuck(Proxy):
    """A journal that never answers one kind of call.

    Args:
        target: the journal.
        method: of these calls.
    """

    def __init__(self, target: MemoryJournal, method: str) -> None:
        super().__init__(target)
        self.reached = asyncio.Event()
        self._method = method

    async def call(
        self, name: str, do: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Make one call, or none."""
        if name == self._method:
            self.reached.set()
            await asyncio.Event().wait()
        return await do()


class Scene:
    """A broker, a journal, and services that will not get far."""

    def __init__(self, journal: MemoryJournal, clock: JournalClock, stack: AsyncExitStack) -> None:
        self.rig = Rig(Stores(journal, journal))
        self._journal = journal
        self._clock = clock
        self._stack = stack
        self._hub = MemoryBroker()
        self._metrics = Metrics()

    async def connect(self) -> MemoryConnection:
        """One more connection."""
        return await self._stack.enter_async_context(self._hub.connection())

    async def dispatcher(self, journal: Journal) -> MemoryConnection:
        """A dispatcher that consumes; its connection."""
        await self._journal.register_flows(
            [FlowRecord(flow=idle.name, version=idle.version, queue=DEFAULT_QUEUE)]
        )
        connection = await self.connect()
        dispatcher = Dispatcher(
            journal,
            connection,
            options=DispatcherOptions(),
            clock=self._clock,
            ids=RandomIds(),
            metrics=self._metrics,
        )
        self._stack.push_async_callback(dispatcher.stop)
        await dispatcher.start()
        return connection

    async def worker(self, journal: Journal) -> MemoryConnection:
        """A worker that consumes; its connection."""
        owner = new_owner("worker", "test")
        record = WorkerRecord(owner=owner, role="worker", host="test", queues=(DEFAULT_QUEUE,))
        threads = StepThreads(1)
        self._stack.callback(threads.close)
        connection = await self.connect()
        worker = Worker(
            owner,
            journal,
            connection,
            LeaseKeeper(
                self._journal,
                record,
                60.0,
                clock=self._clock,
                metrics=self._metrics,
                threaded=False,
            ),
            Registry([idle]),
            options=WorkerOptions(queues=(DEFAULT_QUEUE,)),
            clock=self._clock,
            ids=RandomIds(),
            threads=threads,
            metrics=self._metrics,
        )
        self._stack.push_async_callback(worker.stop)
        await worker.start()
        return connection

    async def left(self, method: str, service: str, message: Outgoing, queue: Queue) -> int:
        """How many messages the broker has once the service that took the only one is dead.

        Args:
            method: the call of the journal in which it dies.
            service: the one.
            message: what it takes.
            queue: from where.
        """
        journal = Stuck(self._journal, method)
        make = self.worker if service == "worker" else self.dispatcher
        connection = await make(journal.as_journal())
        sender = await self.connect()
        await sender.declare([topology.DEAD, queue])
        assert await sender.publish([message]) == [None]
        async with asyncio.timeout(5):
            await journal.reached.wait()
        connection.kill()
        depth = await sender.depth(queue.name)
        return 0 if depth is None else depth.ready

    async def death_of_nonsense(self) -> Death:
        """Why a package lies among the dead letters that no worker can read."""
        connection = await self.worker(self.rig.journal)
        graves = Inbox()
        await connection.consume(topology.DEAD, graves, prefetch=5)
        assert await connection.publish([Outgoing(queue=WORK.name, body=b"nonsense")]) == [None]
        return death_of(await graves.take())

    def package(self, key: ExecutionKey, fence: int, cause: Cause) -> Outgoing:
        """A package for an execution of the flow that is served."""
        start = START if cause is Cause.START else None
        package = Package(
            key.tenant, key.execution_id, idle.name, idle.version, fence, cause, start
        )
        return pack_packages(WORK.name, [package])


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = JournalClock()
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(MemoryJournal(clock))
        yield Scene(journal, clock, stack)


async def test_f2_a_start_is_kept_until_its_row_is_there(scene: Scene) -> None:
    """F2: it is accepted when it is admitted, not when it is read."""
    start = pack_starts(topology.START.name, [StartItem(id="e", flow=idle.name)])
    assert await scene.left("admit", "dispatcher", start, topology.START) == 1


async def test_k7_an_answer_is_kept_until_it_is_in_the_inbox(scene: Scene) -> None:
    """F2, K7: whoever sent it is told nothing before that either."""
    key = await scene.rig.parked()
    answer = ControlItem(op=ControlOp.RESUME, id=key.execution_id, gate="gate")
    message = pack_controls(topology.CONTROL.name, [answer])
    assert await scene.left("deliver", "dispatcher", message, topology.CONTROL) == 1


async def test_f2_a_dead_letter_is_kept_until_it_is_recorded(scene: Scene) -> None:
    """F2: it is the last place where it can be seen."""
    letter = Outgoing(queue=topology.DEAD.name, body=b"dead")
    assert await scene.left("record_dead_letters", "dispatcher", letter, topology.DEAD) == 1


async def test_f10_a_first_package_is_kept_until_its_start_is_written(scene: Scene) -> None:
    """F3, F10: the claim goes with the first append."""
    key = await scene.rig.admitted(flow=idle.name, start=START)
    package = scene.package(key, 0, Cause.START)
    assert await scene.left("append", "worker", package, WORK) == 1


async def test_f10_a_later_package_is_kept_until_its_claim_is_written(scene: Scene) -> None:
    """F3, F10: of what is parked, or was given back."""
    key = await scene.rig.parked()
    package = scene.package(key, 1, Cause.WAKE)
    assert await scene.left("claim", "worker", package, WORK) == 1


# ---- what is not acknowledged before its time ends in another way ---------------------------


async def test_f6_a_start_that_a_silent_holder_kept_out_goes_on(scene: Scene) -> None:
    """F6: at once, by the worker that was kept out; a sweep would send another in seconds."""
    key = await scene.rig.admitted(flow=idle.name, start=START)
    assert await scene.rig.journal.acquire_fence(key, 0) == 1
    connection = await scene.worker(scene.rig.journal)
    assert await connection.publish([scene.package(key, 0, Cause.START)]) == [None]

    async def begun() -> bool:
        return bool(await scene.rig.log(key))

    await until(begun, within=5)
    assert (await scene.rig.log(key))[0].fence == 2


async def test_f2_what_cannot_be_read_dies_at_once_and_says_why(scene: Scene) -> None:
    """F2: it would come back to one worker after the other until the broker has enough."""
    death = await scene.death_of_nonsense()
    assert death.queue == WORK.name
    assert death.reason.startswith("malformed-message: ")


async def test_f2_what_cannot_be_read_dies_in_the_end(scene: Scene) -> None:
    """F2, F10: by the worker's own word, or by the broker's limit if that fails."""
    assert (await scene.death_of_nonsense()).queue == WORK.name
