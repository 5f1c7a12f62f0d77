"""An execution worker in this process: durable state first, then at most one drive (F3, F6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context
from types import TracebackType
from typing import Final, Self

import msgspec

from loom_mq.broker.memory import MemoryBroker
from loom_mq.broker.protocol import Broker
from loom_mq.clock import JournalClock
from loom_mq.dispatch.errand import Allocation, Errand, Means
from loom_mq.dispatch.protocol import FoldedState
from loom_mq.dispatch.starting import admission_of
from loom_mq.engine.attempts import Attempts
from loom_mq.engine.background import Background, bounded
from loom_mq.engine.giveback import GiveBack
from loom_mq.engine.hands import Hands
from loom_mq.engine.home import Home
from loom_mq.engine.lease import LeaseKeeper, SynchronisedClock
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.succession import conflict, same_start
from loom_mq.engine.threads import StepThreads
from loom_mq.errors import HeldByLiveOwnerError, UnknownExecutionError, UnknownFlowError
from loom_mq.flows.registry import AnyFlow, Registry
from loom_mq.flows.scope import install_flow_rules
from loom_mq.flows.surroundings import Surroundings
from loom_mq.ids import Ids, RandomIds, new_owner
from loom_mq.journal.log import JournalWriter
from loom_mq.journal.patience import patient
from loom_mq.journal.protocol import ClaimVerdict, Journal, Renewal
from loom_mq.lifecycle.reading import fetch, state_of
from loom_mq.model.execution import ExecutionKey, ExecutionRow, FlowRecord, Status, WorkerRecord
from loom_mq.model.messages import Cause, Package
from loom_mq.observe.metrics import Metrics

_GOODBYE: Final = 2.0


class LocalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker of this process works. Durations in seconds.

    Attributes:
        lease: length of its lease.
        lease_thread: renew from a thread of its own, for a journal on a server: user code
            may then block the event loop (F7).
        journal_patience: with a journal that is away.
        snapshot_every: events between two snapshots of an execution, at least (J7).
        step_threads: plain ``def`` steps at once.
    """

    lease: float = 30.0
    lease_thread: bool = False
    journal_patience: float = 30.0
    park_drain: float = 30.0
    backoff_park: float = 5.0
    payload_limit: int = 1024 * 1024
    mismatch_delay: float = 30.0
    snapshot_every: int = 500
    step_threads: int = 8


class LocalWorker:
    """See the module's docstring. Open it with ``async with``, within the journal.

    It drives with the fleet's own engine and may serve the same journal beside a fleet.

    Args:
        journal: the truth, open.
        registry: the flows served.
        policy: how it comes by executions.
        owner: unique name of this run of the worker.
        broker: carries replies to whoever waits for outcomes; by default nobody does.
        options: see there.
    """

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        *,
        policy: Allocation = Allocation.LEASED,
        owner: str | None = None,
        broker: Broker | None = None,
        options: LocalOptions | None = None,
        clock: SynchronisedClock | None = None,
        ids: Ids | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        options = LocalOptions() if options is None else options
        clock = JournalClock() if clock is None else clock
        ids = RandomIds() if ids is None else ids
        self.owner = new_owner("worker", "local") if owner is None else owner
        self.policy = policy
        self.metrics = Metrics() if metrics is None else metrics
        self._journal = journal
        self._registry = registry
        self._options = options
        self._threads = StepThreads(options.step_threads)
        self._outbox = Outbox(broker or MemoryBroker().connection(), self.metrics)
        self._writer = JournalWriter(
            journal, clock, ids, self.metrics, give_up_after=options.journal_patience
        )
        self._hands = Hands()
        self._background = Background(clock)
        self._give_back = GiveBack(journal, self.owner, self._background)
        home = Home(
            owner=self.owner,
            writer=self._writer,
            around=Surroundings(
                clock=clock,
                threads=self._threads,
                ids=ids,
                metrics=self.metrics,
                payload_limit=options.payload_limit,
                backoff_park=options.backoff_park,
            ),
            outbox=self._outbox,
            park_drain=options.park_drain,
            discard=lambda key, item: self._background.spawn(
                journal.discard([(key, item.item_id)])
            ),
            fetch_mail=lambda key: self._fetch_mail([key]),
            keep=lambda key, shot: self._background.spawn(journal.save_snapshots([(key, shot)])),
            snapshot_every=options.snapshot_every,
        )
        self._attempts = Attempts(
            home, journal, self._give_back, mismatch_delay=options.mismatch_delay
        )
        self._means = Means(
            owner=self.owner,
            policy=policy,
            journal=journal,
            claim=patient(
                journal.claim,
                lambda error: ClaimVerdict(error=error),
                clock=clock,
                give_up_after=options.journal_patience,
            ),
            attempts=self._attempts,
            give_back=self._give_back,
            metrics=self.metrics,
        )
        self._errands: dict[asyncio.Task[FoldedState], Errand] = {}
        record = WorkerRecord(owner=self.owner, role="worker", host="local")
        self._lease = LeaseKeeper(
            journal,
            record,
            options.lease,
            clock=clock,
            metrics=self.metrics,
            threaded=options.lease_thread,
        )

    # ---- life -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take the lease and make the flows known."""
        install_flow_rules()
        await self._journal.register_flows(
            [FlowRecord(flow=f.name, version=f.version, queue=f.queue) for f in self._registry]
        )
        await self._lease.start(self._on_renewal)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give back what is in hand and end the lease. Bounded."""
        self._attempts.draining = True
        for errand in list(self._errands.values()):
            errand.give_up()
        if self._errands:
            await asyncio.wait(list(self._errands), timeout=_GOODBYE)
        await self._background.until_idle(_GOODBYE)
        for task in list(self._errands):
            task.cancel()
        self._background.cancel()
        self._writer.abort()
        await bounded(self._lease.retire(), 2 * _GOODBYE)
        self._outbox.abort()
        self._threads.close()

    # ---- the worker -------------------------------------------------------------------

    async def load_state(self, key: ExecutionKey) -> FoldedState | None:
        """See `ExecutionWorker.load_state`."""
        [row] = await self._journal.get([key])
        if row is None:
            return None
        if row.last_seq < 0:
            return FoldedState(key=key, status=row.status)
        return FoldedState.of(key, state_of(await fetch(self._journal, key)))

    async def execute(self, package: Package) -> FoldedState:
        """See `ExecutionWorker.execute` (F3, F5, F6).

        Raises:
            StaleFenceError, ExecutionAlreadyExistsError: a newer holder owns it.
            HeldByLiveOwnerError: its holder is alive and the policy leaves it alone (F7).
            StorageWriteError: a write did not become durable; caused by
                `StartFencedOutError`, a holder that never wrote kept the start out twice.
            UnknownFlowError: the flow is not served here.
            FlowCodeMismatchError: the code does not fit the log, which is left as it was.
            StartConflictError, UnknownExecutionError: see there.
            AttemptFailedError: the worker is stopping.
        """
        key = ExecutionKey(package.tenant, package.execution_id)
        flow = self._registry.get(package.flow, package.version)
        if flow is None:
            raise UnknownFlowError(
                f"flow {package.flow!r} version {package.version!r} is not served by "
                f"{self.owner}; send the package to a worker that does",
                execution_id=key.execution_id,
            )
        await self._until_given_up(key)
        errand = Errand(self._means, key, flow)
        # never in the caller's task: a caller that leaves must not tear a write apart
        work = self._take(errand, flow, package)
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._errands[task] = errand
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            errand.give_up()
            raise

    async def _take(self, errand: Errand, flow: AnyFlow, package: Package) -> FoldedState:
        key = errand.key
        row = await self._row(key, flow, package)
        if self._at_rest(row, package):
            return await self._told(key)
        # a package for what is in hand here is a duplicate, or takes it from that attempt
        preempting = self.policy is Allocation.PREEMPTING
        hand = await self._hands.take(key, row.fence if preempting else -1)
        if hand is None:
            raise HeldByLiveOwnerError(key.execution_id, owner=self.owner)
        try:
            # an attempt here may have moved it meanwhile
            row = await self._row(key, flow, package)
            if not self._at_rest(row, package):
                bereaved = package.cause is Cause.RECOVER or row.owner is not None
                await errand.run(row, hand, bereaved=bereaved)
        finally:
            self._hands.drop(key)
        return await self._told(key)

    async def _row(self, key: ExecutionKey, flow: AnyFlow, package: Package) -> ExecutionRow:
        """The execution as it stands; admitted first if nobody has (F2)."""
        start = package.start
        admission = None if start is None else admission_of(package, flow, self._options.lease)
        [row] = await self._journal.get([key])
        if row is None:
            if admission is None:
                raise UnknownExecutionError(
                    f"there is no execution {key.execution_id!r}, and its package holds no start",
                    execution_id=key.execution_id,
                )
            [verdict] = await self._journal.admit([admission])
            row = verdict.row
        if admission is not None and not same_start(row, admission):
            raise conflict(key, row)
        return row

    @staticmethod
    def _at_rest(row: ExecutionRow, package: Package) -> bool:
        """Whether the state is the answer (F3); a wake is what drives a parked one on."""
        parked = row.status is Status.SUSPENDED and package.cause is not Cause.WAKE
        return parked or row.status.terminal

    async def _told(self, key: ExecutionKey) -> FoldedState:
        state = await self.load_state(key)
        if state is None:
            raise UnknownExecutionError(
                f"execution {key.execution_id!r} was deleted meanwhile",
                execution_id=key.execution_id,
            )
        return state

    # ---- what goes on beside ------------------------------------------------------------

    async def _until_given_up(self, key: ExecutionKey) -> None:
        """Let attempts that nobody wants any more end, so that the next finds it free."""
        leaving = [
            task for task, errand in self._errands.items() if errand.key == key and errand.unwanted
        ]
        if leaving:
            await asyncio.wait(leaving, timeout=_GOODBYE)

    def _forget(self, task: asyncio.Task[FoldedState]) -> None:
        self._errands.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever waited has seen it

    def _on_renewal(self, renewal: Renewal) -> None:
        self._fetch_mail(renewal.mail)
        self._give_back.again()

    def _fetch_mail(self, keys: Sequence[ExecutionKey]) -> None:
        held = [key for key in keys if key in self._hands]
        if held:
            self._background.spawn(self._deliver_mail(held))

    async def _deliver_mail(self, keys: Sequence[ExecutionKey]) -> None:
        for key, items in zip(keys, await self._journal.inbox(keys), strict=True):
            drive = self._hands.drive_of(key)
            if drive is not None:
                drive.deliver(items)
