"""The worker: claims executions, drives them, and lets go of them (F1, F3, F7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from loom_mq.broker import topology
from loom_mq.broker.presence import PresenceToken
from loom_mq.broker.protocol import Broker, Consumer, Delivery
from loom_mq.clock import Clock
from loom_mq.codec import wire
from loom_mq.engine.background import Background, bounded
from loom_mq.engine.drive import Drive, DriveEnd, Home
from loom_mq.engine.giveback import GiveBack
from loom_mq.engine.hands import Hand, Hands
from loom_mq.engine.intake import Intake, Settlement
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.outbox import Outbox
from loom_mq.errors import (
    ExecutionAlreadyExistsError,
    InputError,
    JournalError,
    JournalUnreachableError,
    LoomError,
    StartFencedOutError,
    StorageWriteError,
    is_superseded_refusal,
)
from loom_mq.flows.registry import AnyFlow, Registry
from loom_mq.flows.scope import install_task_factory
from loom_mq.flows.stepping import Threads
from loom_mq.flows.surroundings import Surroundings
from loom_mq.ids import Ids
from loom_mq.journal.log import JournalWriter
from loom_mq.journal.patience import patient
from loom_mq.journal.protocol import (
    Claim,
    Claimed,
    ClaimIntent,
    ClaimVerdict,
    Journal,
    Renewal,
)
from loom_mq.kernel.fold import fold
from loom_mq.lane import Lane, LaneClosedError
from loom_mq.model import events as ev
from loom_mq.model.execution import ExecutionKey, FlowRecord
from loom_mq.model.messages import Cause, HintMessage, Package
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import Metrics

_log = structlog.get_logger(__name__)
_decode_start = msgspec.msgpack.Decoder(ev.ExecutionStarted).decode


PRESENCE_REFRESH = 10.0
"""Seconds between two presence tokens; the longest time without one after a reconnect."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. Durations in seconds.

    Attributes:
        slots: executions driven at once.
        prefetch: messages in hand per queue.
        unknown_flow_delay: pause before a package for a flow that is not served here is
            sent again.
        mismatch_delay: the same for an execution whose log the code does not fit (K3).
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
        self._clock = clock
        self._ids = ids
        self._metrics = metrics
        self._outbox = Outbox(broker)
        self._writer = JournalWriter(
            journal, clock, ids, metrics, give_up_after=options.journal_patience
        )
        self._claims: Lane[Claim, ClaimVerdict] = Lane(
            patient(
                journal.claim,
                lambda error: ClaimVerdict(error=error),
                clock=clock,
                give_up_after=options.journal_patience,
            ),
            max_batch=200,
        )
        self._home = Home(
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
        )
        self._intake = Intake(self._begin, options.slots, self._on_malformed)
        self._presence = PresenceToken(broker, owner)
        self._hands = Hands()
        self._background = Background(clock)
        self._give_back = GiveBack(journal, owner, self._background, self._hands.__contains__)
        self._consumers: list[Consumer] = []
        self._keeper: asyncio.Task[None] | None = None
        self._draining = False

    # ---- life ---------------------------------------------------------------------

    async def start(self) -> None:
        """Take the lease, make the flows known, and consume."""
        install_task_factory()
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
        self._draining = True
        for consumer in self._consumers:
            await consumer.cancel()
        self._intake.close()
        await self._background.until_idle(timeout)

    async def stop(self) -> None:
        """Give back what is still in hand and end the lease. Bounded."""
        self._draining = True
        self._intake.close()
        for drive in self._hands:
            drive.give_back()
        await self._background.until_idle(5.0)
        self._background.cancel()
        self._writer.abort()
        self._claims.abort()
        await bounded(self._outbox.close(), 3.0)
        self._outbox.abort()
        if self._keeper is not None:
            self._keeper.cancel()
        await bounded(self._presence.stop(), 2.0)
        await bounded(self._lease.retire(), 3.0)

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
        settled = _Once(settlement)
        try:
            await self._drive_package(package, settled)
        except LaneClosedError:
            settled.done(requeue=True)
        except Exception:  # one package must never take the worker down
            _log.exception("package.crashed", **_names(package))
            settled.done(requeue=True)
        finally:
            settled.done()
            self._intake.release()
            self._metrics.slots(len(self._hands), max(0, self._options.slots - len(self._hands)))

    async def _drive_package(self, package: Package, settled: _Once) -> None:
        key = ExecutionKey(package.tenant, package.execution_id)
        flow = self._registry.get(package.flow, package.version)
        if flow is None:
            _log.warning("package.flow_not_served", **_names(package), owner=self.owner)
            await self._journal.defer(
                [key], self.owner, self._options.unknown_flow_delay * (1 + self._ids.fraction())
            )
            return
        hand = await self._hands.take(key)
        if hand is None:
            return  # a duplicate of what is in hand
        try:
            await self._drive_in_hand(key, flow, package, hand, settled)
        finally:
            self._hands.drop(key)

    async def _drive_in_hand(
        self, key: ExecutionKey, flow: AnyFlow, package: Package, hand: Hand, settled: _Once
    ) -> None:
        fence = package.fence
        if package.start is not None and fence == 0:
            end, refusal = await self._drive_fresh(key, flow, package.start, hand, settled)
            if isinstance(refusal, StartFencedOutError):
                fence = refusal.current  # by a holder that wrote nothing (F6)
            elif end is DriveEnd.PARKED_WITH_MAIL and not self._draining:
                fence = 1
            else:
                return
        await self._drive_claimed(key, flow, fence, package.cause, hand, settled)

    async def _drive_fresh(
        self, key: ExecutionKey, flow: AnyFlow, start: bytes, hand: Hand, settled: _Once
    ) -> tuple[DriveEnd, LoomError | None]:
        """Start with the claim inside the first append: nothing is read before."""
        self._metrics.execution_started(flow.name)
        drive = Drive(
            self._home,
            key,
            flow,
            fold(()),
            fence=1,
            start=_decode_start(start),
            claim=ClaimIntent(owner=self.owner, expected_fence=0, deadline=flow.attempt_timeout),
            claimed=settled.done,
        )
        return await self._run(drive, flow, hand)

    async def _drive_claimed(
        self,
        key: ExecutionKey,
        flow: AnyFlow,
        fence: int,
        cause: Cause,
        hand: Hand,
        settled: _Once,
    ) -> None:
        """Take over by compare-and-set, and again while mail comes in during the park."""
        while True:
            verdict = await self._claims.submit(
                Claim(
                    key=key,
                    owner=self.owner,
                    expected_fence=fence,
                    deadline=flow.attempt_timeout,
                )
            )
            if verdict.claimed is None:
                self._note_refusal(key, verdict.error, settled)
                return
            settled.done()
            claimed = verdict.claimed
            if claimed.row.flow != flow.name or claimed.row.version != flow.version:
                self._give_back.add(key, self._options.unknown_flow_delay)
                return
            drive = await self._drive_of(key, flow, claimed)
            if cause is Cause.RECOVER:
                self._metrics.recovered("claimed")
            end, _refusal = await self._run(drive, flow, hand)
            if end is not DriveEnd.PARKED_WITH_MAIL or self._draining:
                return
            fence = claimed.row.fence

    async def _drive_of(self, key: ExecutionKey, flow: AnyFlow, claimed: Claimed) -> Drive:
        state = fold(claimed.events)
        more = claimed.more
        while more:
            page = await self._journal.read(key, first=state.last_seq + 1)
            fold(page, state)
            more = bool(page) and state.last_seq < claimed.row.last_seq
        return Drive(
            self._home,
            key,
            flow,
            state,
            fence=claimed.row.fence,
            attempt=claimed.row.attempt,
            start=None if claimed.start is None else _decode_start(claimed.start),
            mail=claimed.inbox,
            now=claimed.now,
        )

    async def _run(
        self, drive: Drive, flow: AnyFlow, hand: Hand
    ) -> tuple[DriveEnd, LoomError | None]:
        hand.driving(drive)
        if self._draining:
            drive.give_back()
        try:
            end = await drive.run()
        finally:
            hand.driving(None)
        if end in (DriveEnd.COMPLETED, DriveEnd.FAILED, DriveEnd.CANCELLED):
            self._metrics.execution_finished(flow.name, end.value, drive.age)
        match end:
            case DriveEnd.IDLE:
                self._give_back.add(drive.key, None)
            case DriveEnd.GIVEN_BACK:
                self._give_back.add(drive.key, 0.0)
            case DriveEnd.MISMATCH:
                self._give_back.add(drive.key, self._options.mismatch_delay)
            case DriveEnd.REFUSED:
                self._note_loss(drive.key, drive.refusal)
            case _:
                pass
        return end, drive.refusal

    # ---- refusals -------------------------------------------------------------------

    def _note_refusal(self, key: ExecutionKey, error: LoomError | None, settled: _Once) -> None:
        """A claim was refused: whoever holds the execution goes on with it (F5)."""
        if isinstance(error, StorageWriteError | JournalUnreachableError):
            _log.warning("execution.claim_failed", execution_id=key.execution_id, error=str(error))
            settled.done(requeue=True)
        else:
            self._metrics.superseded("claim")
            _log.debug("attempt.superseded", execution_id=key.execution_id, why=str(error))

    def _note_loss(self, key: ExecutionKey, error: LoomError | None) -> None:
        """An append was refused in the middle of an attempt."""
        if isinstance(error, ExecutionAlreadyExistsError | StartFencedOutError):
            self._metrics.superseded("start")  # a package that came twice, most likely
            _log.debug("attempt.superseded", execution_id=key.execution_id, why=str(error))
            return
        if is_superseded_refusal(error, key.execution_id):
            self._metrics.superseded("append")
            _log.info("attempt.superseded", execution_id=key.execution_id, why=str(error))
            return
        _log.error("execution.write_failed", execution_id=key.execution_id, error=str(error))
        if isinstance(error, JournalError | JournalUnreachableError):
            self._give_back.add(key, 1.0)

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
            await asyncio.sleep(PRESENCE_REFRESH)
            try:
                await self._presence.refresh()
            except LoomError as error:
                _log.warning("presence.not_refreshed", error=str(error))


class _Once:
    """Settles one package of a delivery once, however often it is asked to."""

    __slots__ = ("_settlement",)

    def __init__(self, settlement: Settlement) -> None:
        self._settlement: Settlement | None = settlement

    def done(self, *, requeue: bool = False) -> None:
        settlement, self._settlement = self._settlement, None
        if settlement is not None:
            settlement.done(requeue=requeue)


def _names(package: Package) -> dict[str, str]:
    return {
        "tenant": package.tenant,
        "execution_id": package.execution_id,
        "flow": package.flow,
        "version": package.version,
    }
