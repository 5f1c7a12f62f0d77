"""The worker: claims executions, drives them, and lets go of them (F1, F3, F7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from loom_mq.broker import topology
from loom_mq.broker.presence import REFRESH_SECONDS, PresenceToken
from loom_mq.broker.protocol import Broker, Consumer, Delivery
from loom_mq.clock import Clock
from loom_mq.codec import wire
from loom_mq.engine.background import Background, bounded, cancel_all
from loom_mq.engine.driver import Driver
from loom_mq.engine.giveback import GiveBack
from loom_mq.engine.hands import Hands
from loom_mq.engine.home import Home
from loom_mq.engine.intake import Intake, Settlement
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.outbox import Outbox
from loom_mq.errors import (
    InputError,
    LoomError,
)
from loom_mq.flows.registry import Registry
from loom_mq.flows.scope import install_flow_rules
from loom_mq.flows.stepping import Threads
from loom_mq.flows.surroundings import Surroundings
from loom_mq.ids import Ids
from loom_mq.journal.log import JournalWriter
from loom_mq.journal.protocol import (
    Journal,
    Renewal,
)
from loom_mq.model.execution import ExecutionKey, FlowRecord
from loom_mq.model.messages import HintMessage, Package
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import Metrics

_log = structlog.get_logger(__name__)


GOODBYE = 1.5
"""Seconds for each step of stopping: what is not done by then is done elsewhere."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. Durations in seconds.

    Attributes:
        slots: executions driven at once.
        prefetch: messages in hand per queue.
        unknown_flow_delay: pause before a package for a flow that is not served here is
            sent again.
        mismatch_delay: the same for an execution whose log the code does not fit (K3).
        snapshot_every: events between two snapshots of an execution, at least (J7).
    """

    queues: tuple[str, ...]
    slots: int = 200
    prefetch: int = 4
    park_drain: float = 30.0
    backoff_park: float = 5.0
    payload_limit: int = 1024 * 1024
    journal_patience: float = 30.0
    unknown_flow_delay: float = 2.0
    mismatch_delay: float = 30.0
    snapshot_every: int = 500


class Worker:
    """See the module's docstring.

    Args:
        owner: unique name of this run of the process.
        journal: the truth.
        broker: the hints.
        lease: keeps this process's lease; started and retired here.
        registry: the flows served.
        threads: for plain ``def`` steps.
    """

    def __init__(
        self,
        owner: str,
        journal: Journal,
        broker: Broker,
        lease: LeaseKeeper,
        registry: Registry,
        *,
        options: WorkerOptions,
        clock: Clock,
        ids: Ids,
        threads: Threads,
        metrics: Metrics,
    ) -> None:
        self.owner = owner
        self._journal = journal
        self._broker = broker
        self._lease = lease
        self._registry = registry
        self._options = options
        self._metrics = metrics
        self._outbox = Outbox(broker, metrics)
        self._writer = JournalWriter(
            journal, clock, ids, metrics, give_up_after=options.journal_patience
        )
        self._hands = Hands()
        self._background = Background(clock)
        self._give_back = GiveBack(journal, owner, self._background)
        home = Home(
            owner=owner,
            writer=self._writer,
            around=Surroundings(
                clock=clock,
                threads=threads,
                ids=ids,
                metrics=metrics,
                payload_limit=options.payload_limit,
                backoff_park=options.backoff_park,
            ),
            outbox=self._outbox,
            park_drain=options.park_drain,
            discard=lambda key, item: self._background.spawn(
                journal.discard([(key, item.item_id)])
            ),
            fetch_mail=lambda key: self._fetch_mail([key]),
            keep=lambda key, snapshot: self._background.spawn(
                journal.save_snapshots([(key, snapshot)])
            ),
            snapshot_every=options.snapshot_every,
        )
        self._driver = Driver(
            home,
            journal,
            registry,
            self._hands,
            self._give_back,
            patience=options.journal_patience,
            unknown_flow_delay=options.unknown_flow_delay,
            mismatch_delay=options.mismatch_delay,
        )
        self._intake = Intake(self._begin, options.slots, self._on_malformed)
        self._presence = PresenceToken(broker, owner)
        self._consumers: list[Consumer] = []
        self._keeper: asyncio.Task[None] | None = None

    # ---- life ---------------------------------------------------------------------

    async def start(self) -> None:
        """Take the lease, make the flows known, and consume."""
        install_flow_rules()
        await self._journal.register_flows(
            [FlowRecord(flow=f.name, version=f.version, queue=f.queue) for f in self._registry]
        )
        await self._lease.start(self._on_renewal)
        await self._presence.start()
        self._keeper = asyncio.ensure_future(self._keep_presence())
        hints = topology.direct(self.owner)
        self._consumers.append(await self._broker.consume(hints, self._on_hint, prefetch=100))
        await self._broker.declare([topology.DEAD])
        for name in self._options.queues:
            self._consumers.append(
                await self._broker.consume(
                    topology.work(name), self._on_package, prefetch=self._options.prefetch
                )
            )

    async def drain(self, timeout: float) -> None:
        """Take nothing more, and finish what is in hand within `timeout` seconds."""
        self._driver.draining = True
        self._lease.drain()
        await cancel_all(self._consumers)
        self._intake.close()
        await self._background.until_idle(timeout)

    async def stop(self) -> None:
        """Give back what is still in hand and end the lease. Bounded."""
        self._driver.draining = True
        self._intake.close()
        for drive in self._hands:
            drive.give_back()
        await self._background.until_idle(GOODBYE)
        self._background.cancel()
        self._writer.abort()
        self._driver.abort()
        if self._keeper is not None:
            self._keeper.cancel()
        # the lease's end gives back at once whatever could not be given back one by one
        await asyncio.gather(
            bounded(self._lease.retire(), GOODBYE),
            bounded(self._presence.stop(), GOODBYE),
            bounded(self._outbox.close(), GOODBYE),
        )
        self._outbox.abort()

    @property
    def busy(self) -> int:
        """Executions in hand."""
        return len(self._hands)

    @property
    def consuming(self) -> bool:
        """Whether the broker has confirmed every consumer."""
        return bool(self._consumers) and all(consumer.consuming for consumer in self._consumers)

    def checks(self) -> dict[str, Check]:
        """What must be so for it to do its work; by name."""
        return {
            "consuming": Check(self.consuming, f"{self.busy} executions in hand"),
            "lease": self._lease.check(),
        }

    # ---- packages -------------------------------------------------------------------

    def _on_package(self, delivery: Delivery) -> None:
        self._metrics.received(delivery.queue, delivery.redelivered)
        self._intake.handle(delivery)

    def _on_malformed(self, error: InputError) -> None:
        _log.error("package.rejected", code=error.code, error=error.message)

    def _begin(self, package: Package, settlement: Settlement) -> None:
        self._background.spawn(self._take(package, settlement))

    async def _take(self, package: Package, settlement: Settlement) -> None:
        try:
            await self._driver.take(package, settlement)
        finally:
            self._intake.release()
            busy = len(self._hands)
            self._metrics.slots(busy, max(0, self._options.slots - busy))

    # ---- mail -----------------------------------------------------------------------

    def _on_hint(self, delivery: Delivery) -> None:
        try:
            message = wire.decode(HintMessage, delivery.body, delivery.content_type)
        except InputError as error:
            _log.error("hint.rejected", code=error.code, error=error.message)
        else:
            self._fetch_mail([ExecutionKey(h.tenant, h.execution_id) for h in message.items])
        delivery.ack()

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

    async def _keep_presence(self) -> None:
        """Hold a fresh token, whatever became of the connection meanwhile."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self._presence.refresh()
            except LoomError as error:
                _log.warning("presence.not_refreshed", error=str(error))
