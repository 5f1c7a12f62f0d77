"""A fleet whose processes can be killed, paused, blocked, drained and started anew."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from loom_mq.broker.memory import MemoryBroker
from loom_mq.broker.memory_queue import MemoryQueue
from loom_mq.client.client import Client
from loom_mq.clock import MICROS
from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.sweep import SweepOptions
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.flows.registry import Registry
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import DEFAULT_QUEUE, WorkerRecord
from loom_mq.observe.metrics import Metrics
from tests.simulation.rig.broker import Network, SimConnection
from tests.simulation.rig.choices import Choices, Tape
from tests.simulation.rig.journal import JournalServer, SessionJournal
from tests.simulation.rig.loop import LANE, Process, SimLoop
from tests.simulation.rig.observer import Observer

EPOCH: Final = 1_700_000_000 * MICROS
HEARTBEAT: Final = 20.0
"""Seconds after which the broker takes a silent connection for dead."""
METRICS: Final = Metrics()
"""Nobody looks at them here, and they are costly to make."""

Part = Dispatcher | Worker | TimerService


class SimClock:
    """A process's clock: the wall clock of its host may be wrong, seconds are seconds.

    Args:
        loop: virtual time.
        skew: seconds by which the host is ahead.
    """

    def __init__(self, loop: SimLoop, skew: float = 0.0) -> None:
        self._loop = loop
        self._offset = EPOCH + int(skew * MICROS)

    def now(self) -> int:
        """Journal time in microseconds, as well as it is known."""
        return self._offset + int(self._loop.time() * MICROS)

    def monotonic(self) -> float:
        """Seconds."""
        return self._loop.time()

    def synchronise(self, journal_now: int) -> float:
        """Take over the journal's time; returns how far ahead this clock was."""
        ahead = self.now() - journal_now
        self._offset -= ahead
        return ahead / MICROS


class SimIds:
    """Ids in order, unlike each other, the same in every run of a seed."""

    def __init__(self, name: str, choices: Choices) -> None:
        self._name = name
        self._choices = choices
        self._made = 0

    def envelope(self) -> bytes:
        """16 bytes."""
        self._made += 1
        return f"{zlib.crc32(self._name.encode()):08x}{self._made:08x}".encode()

    def execution(self) -> str:
        """A new execution id."""
        self._made += 1
        return f"{self._name}-{self._made}"

    def token(self) -> str:
        """A short text."""
        return self.execution()

    def fraction(self) -> float:
        """From 0 to 1."""
        return self._choices.pick("fraction", 1000) / 1000


class SimThreads:
    """The threads of plain steps: they take their time before or after the effect."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call it in the midst of a pause."""
        await asyncio.sleep(self._choices.delay("before", 0.01))
        answer = function()
        await asyncio.sleep(self._choices.delay("after", 0.01))
        return answer


class SimLease(LeaseKeeper):
    """A lease that is renewed from a thread beside the process's event loop."""

    process: Process

    async def _keep(self) -> None:
        context = self.process.context(self.process.beside)
        loop = asyncio.get_running_loop()
        await context.run(asyncio.Task, super()._keep(), loop=loop, context=context)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet is made of. Times in seconds.

    Attributes:
        skew: by how much hosts' clocks are wrong at most.
        restart: how long until a process that ended is started again, at most.
    """

    dispatchers: int = 2
    workers: int = 3
    timers: int = 2
    slots: int = 200
    lease: float = 5.0
    sweep: SweepOptions = SweepOptions()
    timer: TimerOptions = TimerOptions()
    park_drain: float = 30.0
    backoff_park: float = 5.0
    snapshot_every: int = 500
    skew: float = 0.0
    restart: float = 2.0


class Node:
    """A place in the fleet, and who fills it at present.

    Attributes:
        role: of the process.
        index: which of them.
        runs: how many there were.
        process: the present one; None while there is none.
        first: the one that came first.
    """

    def __init__(self, role: str, index: int) -> None:
        self.role = role
        self.index = index
        self.runs = 0
        self.process: Process | None = None
        self.first: Process | None = None
        self.connection: SimConnection | None = None
        self.part: Part | None = None
        self.lease: SimLease | None = None
        self.leaving = False

    @property
    def name(self) -> str:
        """Role and index."""
        return f"{self.role}-{self.index}"

    @property
    def alive(self) -> bool:
        """Whether somebody is there."""
        return self.process is not None and not self.process.dead


class SimFleet:
    """See the module's docstring.

    Args:
        kill_at: by place, the step before which its first process is killed.
    """

    def __init__(
        self,
        loop: SimLoop,
        tape: Tape,
        shape: Shape,
        registry: Registry,
        observer: Observer,
        store: SessionJournal,
        *,
        kill_at: dict[str, int] | None = None,
    ) -> None:
        self.loop = loop
        self.shape = shape
        self.store = store
        self.clock = SimClock(loop)
        self.hub = MemoryBroker()
        loop.servers = (MemoryQueue,)
        self.network = Network(loop, self.hub, tape.stream("broker"), observer, self.clock)
        self.server = JournalServer(loop, store, tape.stream("journal"), observer, self.clock)
        self.nodes = [
            Node(role, index)
            for role, count in (
                ("worker", shape.workers),
                ("dispatcher", shape.dispatchers),
                ("timer", shape.timers),
            )
            for index in range(count)
        ]
        self.problems: list[str] = []
        self.calm = False
        self._ghosts: dict[str, SimConnection | None] = {}
        self._tape = tape
        self._registry = registry
        self._choices = tape.stream("process")
        self._clocks = tape.stream("clock")
        self._kill_at = kill_at or {}
        self.client_process = Process(loop, "client", "client")

    # ---- life -------------------------------------------------------------------------

    def start(self) -> None:
        """Start every process."""
        for node in self.nodes:
            self._boot(node)

    async def client(self, tenant: str) -> Client:
        """A tenant's client in a process of its own, which nothing happens to."""
        connection = SimConnection(self.network, f"client of {tenant}")

        async def enter() -> Client:
            client = Client(connection, tenant=tenant)
            await client.__aenter__()
            return client

        return await self.client_process.spawn(enter())

    def _boot(self, node: Node) -> None:
        if node.alive:
            return
        node.runs += 1
        node.leaving = False
        name = f"{node.name}.{node.runs}"
        process = Process(
            self.loop,
            name,
            node.role,
            kill_at=self._kill_at.get(node.name, 0) if node.runs == 1 else 0,
            killed=lambda process: self._on_killed(node, process),
        )
        node.process = process
        node.first = node.first or process
        node.connection = connection = SimConnection(self.network, name)
        node.part = None
        task = process.spawn(self._run(node, process, connection))
        task.add_done_callback(partial(self._ended, node, process), context=self.network.outside)
        self.network.tell("started", name)

    async def _run(self, node: Node, process: Process, connection: SimConnection) -> None:
        """What a service's process does until it is told to stop."""
        await connection.__aenter__()
        journal = self.server.view(process, process.name)
        skew = self._skew()
        clock = SimClock(self.loop, skew)
        lease = self._lease(node, process, journal, clock)
        node.part = part = self._build(node, process, journal, connection, lease, clock)
        await part.start()
        if not lease.started:
            await lease.start()

    def _skew(self) -> float:
        share = (self._clocks.pick("skew", 201) - 100) / 100 if self.shape.skew else 0.0
        return self.shape.skew * share

    def _lease(self, node: Node, process: Process, journal: Journal, clock: SimClock) -> SimLease:
        record = WorkerRecord(
            owner=process.name,
            role=node.role,
            host="host",
            queues=(DEFAULT_QUEUE,) if node.role == "worker" else (),
            slots=self.shape.slots,
        )
        lease = SimLease(
            journal, record, self.shape.lease, clock=clock, metrics=METRICS, threaded=False
        )
        lease.process = process
        node.lease = lease
        return lease

    def _build(
        self,
        node: Node,
        process: Process,
        journal: Journal,
        connection: SimConnection,
        lease: SimLease,
        clock: SimClock,
    ) -> Part:
        shape = self.shape
        ids = SimIds(process.name, self._tape.stream("ids"))
        if node.role == "dispatcher":
            return Dispatcher(
                journal,
                connection,
                options=DispatcherOptions(sweep=shape.sweep),
                clock=clock,
                ids=ids,
                metrics=METRICS,
            )
        if node.role == "timer":
            return TimerService(
                journal, connection, options=shape.timer, clock=clock, metrics=METRICS
            )
        return Worker(
            process.name,
            journal,
            connection,
            lease,
            self._registry,
            options=WorkerOptions(
                queues=(DEFAULT_QUEUE,),
                slots=shape.slots,
                park_drain=shape.park_drain,
                backoff_park=shape.backoff_park,
                snapshot_every=shape.snapshot_every,
            ),
            clock=clock,
            ids=ids,
            threads=SimThreads(self._tape.stream("threads")),
            metrics=METRICS,
        )

    def _ended(self, node: Node, process: Process, task: asyncio.Task[None]) -> None:
        """A process's start has come to its end."""
        if task.cancelled() or task.exception() is None or process.dead:
            return
        self.network.tell("not-started", process.name)
        process.kill()  # a service that cannot start ends, and is started again

    # ---- what happens to processes ------------------------------------------------------

    def kill(self, node: Node) -> None:
        """As ``kill -9``, or as when its host loses power."""
        if node.process is not None:
            node.process.kill()

    def _on_killed(self, node: Node, process: Process) -> None:
        self.network.tell("killed", process.name)
        cut = 0.0
        if not self.calm and self._choices.chance("power-cut", 0.2):
            cut = self._choices.delay("power-cut", 2 * HEARTBEAT)
        self._ghosts[process.name] = node.connection
        self.network.later(cut, self._sever, process.name)
        pause = 0.05 + self._choices.delay("restart", self.shape.restart)
        self.network.later(pause, self._boot, node)

    def _sever(self, name: str) -> None:
        """Both servers see that a process is gone."""
        connection = self._ghosts.pop(name, None)
        if connection is not None:
            connection.kill()
            self.store.gone[name] = None

    def pause(self, node: Node, seconds: float) -> None:
        """As SIGSTOP and, later, SIGCONT."""
        process, connection = node.process, node.connection
        if process is None or connection is None or not node.alive or process.paused:
            return
        self.network.tell("paused", process.name)
        process.pause()
        if seconds > HEARTBEAT:
            self.network.later(HEARTBEAT, self._give_up, process, connection)
        self.network.later(seconds, self._wake, process, connection)

    def _give_up(self, process: Process, connection: SimConnection) -> None:
        """The broker has not heard of a process for too long."""
        if process.paused and not process.dead:
            connection.lose()

    def _wake(self, process: Process, connection: SimConnection) -> None:
        if process.dead or not process.paused:
            return
        self.network.tell("woken", process.name)
        process.wake()
        connection.come_back()

    def block(self, node: Node, seconds: float) -> None:
        """As a step that does not let the event loop go on."""
        process = node.process
        if process is None or process.dead or process.blocked:
            return
        self.network.tell("blocked", process.name)
        process.block()
        self.network.later(seconds, self._unblock, process)

    def _unblock(self, process: Process) -> None:
        if process.blocked:
            self.network.tell("unblocked", process.name)
            process.unblock()

    def drain(self, node: Node, timeout: float) -> None:
        """As SIGTERM."""
        process, part = node.process, node.part
        if process is None or part is None or not node.alive or node.leaving:
            return
        node.leaving = True
        self.network.tell("drained", process.name)
        process.spawn(self._leave(node, process, part, timeout))

    async def _leave(self, node: Node, process: Process, part: Part, timeout: float) -> None:
        await part.drain(timeout)
        await part.stop()
        if node.lease is not None:
            await node.lease.retire()
        context = self.network.outside
        self.loop.call_soon(self._gone, node, process, context=context)

    def _gone(self, node: Node, process: Process) -> None:
        """A process has ended by itself."""
        if process.dead:
            return
        process.leave()
        self._ghosts[process.name] = node.connection
        self._sever(process.name)
        pause = 0.05 + self._choices.delay("restart", self.shape.restart)
        self.network.later(pause, self._boot, node)

    def lose_connection(self, node: Node) -> None:
        """As when the broker closes a connection."""
        if node.connection is not None and node.alive:
            self.network.tell("connection-lost", node.connection.name)
            node.connection.drop()

    def settle(self) -> None:
        """Let everything that was held up go on; nothing happens to anybody any more."""
        self.calm = True
        for name in list(self._ghosts):
            self._sever(name)
        for node in self.nodes:
            if node.process is not None and node.alive:
                node.process.blocked = False
                if node.connection is not None:
                    self._wake(node.process, node.connection)
                node.process.wake()


def present() -> str:
    """The name of the process whose code runs now."""
    lane = LANE.get()
    return lane.process.name if lane is not None and lane.process is not None else ""
