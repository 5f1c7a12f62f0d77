"""A whole fleet in one event loop, over any journal and an in-process broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from loom_mq.broker.memory import MemoryBroker
from loom_mq.client.client import Client
from loom_mq.clock import JournalClock
from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.sweep import SweepOptions
from loom_mq.engine.threads import StepThreads
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.flows.registry import AnyFlow, Registry
from loom_mq.ids import RandomIds, new_owner
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import Journal
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, WorkerRecord
from loom_mq.observe.metrics import Metrics

SWEEP = SweepOptions(interval=0.05, resend_after=1.0, resend_limit=1.0, backlog_resend=5.0)


class House:
    """Dispatcher, timer, client, and as many workers as a test wants.

    Args:
        flows: what every worker serves.
        journal: an open journal; a fresh one in memory by default.
        workers: started at once.
        lease: seconds; short, so that a test of a lapse takes no time.
    """

    client: Client

    def __init__(
        self,
        flows: Iterable[AnyFlow],
        *,
        journal: Journal | None = None,
        lease: float = 2.0,
        workers: int = 1,
    ) -> None:
        self.clock = JournalClock()
        self.journal = journal or MemoryJournal(self.clock)
        self.hub = MemoryBroker()
        self.metrics = Metrics()
        self.flows = tuple(flows)
        self.lease = lease
        self._first_workers = workers
        self.workers: list[Worker] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.journal)
        self.dispatcher = Dispatcher(
            self.journal,
            await self._stack.enter_async_context(self.hub.connection()),
            options=DispatcherOptions(sweep=SWEEP),
            clock=self.clock,
            ids=RandomIds(),
            metrics=self.metrics,
        )
        self.timers = TimerService(
            self.journal,
            await self._stack.enter_async_context(self.hub.connection()),
            options=TimerOptions(poll=0.02),
            clock=self.clock,
            metrics=self.metrics,
        )
        for part in (self.dispatcher, self.timers):
            self._stack.push_async_callback(part.stop)
            await part.start()
        for _ in range(self._first_workers):
            await self.worker()
        self.client = await self._stack.enter_async_context(Client(self.hub.connection()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def worker(
        self,
        flows: Iterable[AnyFlow] | None = None,
        *,
        slots: int = 50,
        park_drain: float = 5.0,
        snapshot_every: int = 500,
        unknown_flow_delay: float = 0.1,
    ) -> Worker:
        """Start one more worker."""
        owner = new_owner("worker", "test")
        queues = ("default",)
        threads = StepThreads(4)
        self._stack.callback(threads.close)
        record = WorkerRecord(owner=owner, role="worker", host="test", queues=queues)
        worker = Worker(
            owner,
            self.journal,
            await self._stack.enter_async_context(self.hub.connection()),
            LeaseKeeper(
                self.journal,
                record,
                self.lease,
                clock=self.clock,
                metrics=self.metrics,
                threaded=False,
            ),
            Registry(self.flows if flows is None else flows),
            options=WorkerOptions(
                queues=queues,
                slots=slots,
                park_drain=park_drain,
                backoff_park=0.5,
                snapshot_every=snapshot_every,
                unknown_flow_delay=unknown_flow_delay,
                mismatch_delay=0.1,
            ),
            clock=self.clock,
            ids=RandomIds(),
            threads=threads,
            metrics=self.metrics,
        )
        self._stack.push_async_callback(worker.stop)
        await worker.start()
        self.workers.append(worker)
        return worker

    async def log(self, execution_id: str) -> list[Envelope]:
        """The whole log of an execution."""
        return await self.journal.read(ExecutionKey(DEFAULT_TENANT, execution_id))

    async def kinds(self, execution_id: str) -> list[str]:
        """The kinds of an execution's events, in order."""
        return [envelope.kind for envelope in await self.log(execution_id)]

    async def row(self, execution_id: str) -> ExecutionRow:
        """The index row of an execution that exists."""
        [row] = await self.journal.get([ExecutionKey(DEFAULT_TENANT, execution_id)])
        assert row is not None
        return row


async def until(
    condition: Callable[[], Awaitable[bool]], *, within: float = 10.0, every: float = 0.01
) -> None:
    """Return when a condition holds; it is asked, not guessed.

    Raises:
        TimeoutError: not within so many seconds.
    """
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(every)
