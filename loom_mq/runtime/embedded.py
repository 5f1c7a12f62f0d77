"""Everything in one process, over SQLite and an in-process broker.

Dispatcher, worker and timer are the fleet's own, so what works here works there.
"""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from loom_mq import __about__
from loom_mq.broker.memory import MemoryBroker
from loom_mq.client.client import Client
from loom_mq.clock import JournalClock
from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.sweep import SweepOptions
from loom_mq.engine.threads import StepThreads
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.flows.registry import Registry
from loom_mq.ids import RandomIds, new_owner
from loom_mq.journal.protocol import Journal
from loom_mq.journal.sqlite import SqliteJournal
from loom_mq.model.execution import DEFAULT_QUEUE, WorkerRecord
from loom_mq.observe.metrics import Metrics

LEASE = 5.0
STEP_THREADS = 16
DRAIN = 10.0


class Embedded:
    """A whole loom-mq in this process.

    Killing the process loses nothing: opening the same file again goes on where every
    execution was.

    Args:
        registry: the flows to serve.
        path: the journal's file; made when it is not there.
        slots: executions driven at once.
        payload_limit: bytes (J10).

    Attributes:
        client: an open client of this very instance.
        journal: the open journal.
    """

    client: Client
    journal: Journal

    def __init__(
        self,
        registry: Registry,
        path: str | Path,
        *,
        slots: int = 200,
        payload_limit: int = 1024 * 1024,
    ) -> None:
        self._registry = registry
        self._path = Path(path)
        self._slots = slots
        self._payload_limit = payload_limit
        self._stack = AsyncExitStack()
        self.metrics = Metrics(version=__about__.VERSION)

    async def __aenter__(self) -> Self:
        """Open the file and start every part.

        Raises:
            ConfigurationError: another process has the file open.
            SchemaVersionError: the file was written by a newer release.
        """
        async with AsyncExitStack() as stack:
            clock = JournalClock()
            ids = RandomIds()
            journal = await stack.enter_async_context(SqliteJournal(self._path))
            hub = MemoryBroker()
            queues = tuple(sorted({flow.queue for flow in self._registry} | {DEFAULT_QUEUE}))
            dispatcher = Dispatcher(
                journal,
                await stack.enter_async_context(hub.connection()),
                options=DispatcherOptions(
                    payload_limit=self._payload_limit, sweep=SweepOptions(interval=0.5)
                ),
                clock=clock,
                ids=ids,
                metrics=self.metrics,
            )
            timers = TimerService(
                journal,
                await stack.enter_async_context(hub.connection()),
                options=TimerOptions(),
                clock=clock,
                metrics=self.metrics,
            )
            threads = StepThreads(STEP_THREADS)
            stack.callback(threads.close)
            owner = new_owner("embedded", socket.gethostname())
            record = WorkerRecord(
                owner=owner,
                role="worker",
                host=socket.gethostname(),
                queues=queues,
                slots=self._slots,
                release=__about__.VERSION,
            )
            worker = Worker(
                owner,
                journal,
                await stack.enter_async_context(hub.connection()),
                LeaseKeeper(journal, record, LEASE, clock=clock, metrics=self.metrics),
                self._registry,
                options=WorkerOptions(
                    queues=queues, slots=self._slots, payload_limit=self._payload_limit
                ),
                clock=clock,
                ids=ids,
                threads=threads,
                metrics=self.metrics,
            )
            # the worker first: a dispatcher waits until somebody has said what can be started
            for part in (worker, dispatcher, timers):
                stack.push_async_callback(part.stop)
                await part.start()
            self.worker = worker
            self.journal = journal
            self.client = await stack.enter_async_context(
                Client(hub.connection(), payload_limit=self._payload_limit)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish what is in hand within a few seconds, and close."""
        await self.worker.drain(DRAIN if kind is None else 0.0)
        await self._stack.__aexit__(kind, error, trace)
