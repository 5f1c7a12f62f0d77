"""A whole fleet in one event loop over memory, on time that can be skipped.

Dispatcher, worker and timer service are the fleet's own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.sweep import SweepOptions
from loom_mq.engine.threads import StepThreads
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.flows.registry import AnyFlow, Registry
from loom_mq.ids import RandomIds, new_owner
from loom_mq.journal.memory import MemoryJournal
from loom_mq.journal.protocol import CLAIM_PAGE, Journal, ListQuery
from loom_mq.model.events import Envelope
from loom_mq.model.execution import DEFAULT_QUEUE, ExecutionKey, WorkerRecord
from loom_mq.observe.metrics import Metrics
from loom_mq.testing.skipping import Pulse, SkippingClock, Watched

LEASE: Final = 10_000 * 365 * 86_400.0
"""Seconds; no skip makes a living worker's lease lapse."""
STEP_THREADS: Final = 8
SLOTS: Final = 1000
MANY: Final = 1_000_000
SWEEP: Final = SweepOptions(interval=0.1)

View = Callable[[Journal], Journal]
"""How somebody sees the journal."""


class Tally(Metrics):
    """Metrics of one worker that also say by name which effects ran to their end."""

    def __init__(self, pulse: Pulse) -> None:
        super().__init__()
        self._pulse = pulse
        self.completed: Counter[str] = Counter()

    def step_finished(self, flow: str, step: str, outcome: str, seconds: float) -> None:
        """An attempt of a step's effect ended."""
        super().step_finished(flow, step, outcome, seconds)
        self.completed[step] += outcome == "completed"
        self._pulse.beat()

    def slots(self, busy: int, free: int) -> None:
        """The worker is done with a package."""
        super().slots(busy, free)
        self._pulse.beat()


class CountedThreads:
    """Step threads that know how many of them are at work."""

    def __init__(self, pulse: Pulse) -> None:
        self._threads = StepThreads(STEP_THREADS)
        self._pulse = pulse
        self._busy = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread. Cancelling the call does not stop the thread, but
        keeps what has not begun from beginning.
        """
        dropped = False

        def guarded() -> tuple[Any, BaseException | None]:
            if dropped:
                return None, None
            try:
                return function(), None
            except BaseException as error:
                return None, error

        self._busy += 1
        call = asyncio.ensure_future(self._threads.call(guarded))
        call.add_done_callback(self._ended)
        try:
            value, error = await asyncio.shield(call)
        except asyncio.CancelledError:
            dropped = True
            raise
        if error is not None:
            raise error
        return value

    def _ended(self, _call: asyncio.Future[Any]) -> None:
        self._busy -= 1
        self._pulse.beat()

    async def until_idle(self) -> None:
        """Return when no thread is at work."""
        while self._busy:
            await self._pulse.wait(0.1)

    def close(self) -> None:
        """Take no more."""
        self._threads.close()


class Hired:
    """One worker and what belongs to its process."""

    def __init__(
        self,
        worker: Worker,
        record: WorkerRecord,
        connection: MemoryConnection,
        threads: CountedThreads,
        tally: Tally,
    ) -> None:
        self.worker = worker
        self.record = record
        self.connection = connection
        self.threads = threads
        self.tally = tally

    async def stop(self) -> None:
        """End it in good order."""
        await self.worker.stop()
        self.connection.kill()
        self.threads.close()


class Fleet:
    """See the module's docstring.

    Args:
        flows: what every worker serves.
        starts_at: the journal's time at the beginning; the real one by default.
        first_view: how the first worker sees the journal.

    Attributes:
        journal: the journal, past everybody's view of it.
        workers: those that are there.
        tallies: the counts of all that ever were.
    """

    def __init__(
        self,
        flows: Iterable[AnyFlow],
        *,
        starts_at: datetime | None = None,
        first_view: View | None = None,
    ) -> None:
        self.registry = Registry(flows)
        self.clock = SkippingClock(starts_at)
        self.pulse = Pulse()
        self.journal = MemoryJournal(self.clock)
        self.hub = MemoryBroker()
        self.workers: list[Hired] = []
        self.tallies: list[Tally] = []
        self._first_view = first_view
        self._seen = Watched(self.journal, self.pulse).as_journal()
        self._queues = tuple(sorted({flow.queue for flow in self.registry} | {DEFAULT_QUEUE}))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.journal)
            metrics = Metrics()
            dispatcher = Dispatcher(
                self._seen,
                await stack.enter_async_context(self.hub.connection("dispatcher")),
                options=DispatcherOptions(sweep=SWEEP),
                clock=self.clock,
                ids=RandomIds(),
                metrics=metrics,
            )
            self.timers = TimerService(
                self._seen,
                await stack.enter_async_context(self.hub.connection("timer")),
                options=TimerOptions(poll=0.05),
                clock=self.clock,
                metrics=metrics,
            )
            stack.push_async_callback(self._dismiss_all)
            # a worker first: a dispatcher waits until somebody has said what can be started
            await self.hire(self._first_view)
            for part in (dispatcher, self.timers):
                stack.push_async_callback(part.stop)
                await part.start()
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
    def busy(self) -> bool:
        """Whether somebody has an execution in hand, or something else is under way."""
        return self.pulse.held > 0 or any(hired.worker.busy for hired in self.workers)

    async def hire(self, view: View | None = None) -> Hired:
        """Start one more worker.

        Args:
            view: how it sees the journal.
        """
        owner = new_owner("worker", "test")
        record = WorkerRecord(
            owner=owner, role="worker", host="test", queues=self._queues, slots=SLOTS
        )
        journal = self._seen if view is None else view(self._seen)
        connection = self.hub.connection(owner)
        await connection.__aenter__()
        threads = CountedThreads(self.pulse)
        tally = Tally(self.pulse)
        worker = Worker(
            owner,
            journal,
            connection,
            LeaseKeeper(journal, record, LEASE, clock=self.clock, metrics=tally, threaded=False),
            self.registry,
            options=WorkerOptions(
                queues=self._queues, slots=SLOTS, backoff_park=0.0, journal_patience=0.0
            ),
            clock=self.clock,
            ids=RandomIds(),
            threads=threads,
            metrics=tally,
        )
        hired = Hired(worker, record, connection, threads, tally)
        self.workers.append(hired)
        self.tallies.append(tally)
        await worker.start()
        return hired

    async def log(self, key: ExecutionKey) -> list[Envelope]:
        """An execution's whole log, as far as it is kept."""
        log: list[Envelope] = []
        first = 0
        while page := await self.journal.read(key, first=first, limit=CLAIM_PAGE):
            log += page
            first = page[-1].seq + 1
        return log

    async def logs(self) -> dict[str, list[Envelope]]:
        """The logs of all executions, by id."""
        rows = await self.journal.find(ListQuery(limit=MANY))
        return {row.execution_id: await self.log(row.key) for row in rows}

    async def lose(self, hired: Hired) -> None:
        """A worker is gone as with ``kill -9``: lease and connection end at once."""
        self.workers.remove(hired)
        await self.journal.lease(hired.record, 0.0)
        hired.connection.kill()

    async def _dismiss_all(self) -> None:
        while self.workers:
            await self.workers.pop().stop()
