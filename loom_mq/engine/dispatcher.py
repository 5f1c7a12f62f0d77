"""The dispatcher: admits starts, answers requests, and sweeps (F1, F2, F7).

It holds no state that matters: what it has promised is a row before it says so.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from loom_mq.broker import topology
from loom_mq.broker.deadletter import death_of
from loom_mq.broker.protocol import Broker, Consumer, Delivery
from loom_mq.clock import Clock
from loom_mq.codec import wire
from loom_mq.engine.admission import Admitter, KnownFlows, correlations
from loom_mq.engine.background import Background, bounded, cancel_all
from loom_mq.engine.control import Control
from loom_mq.engine.outbox import Outbox
from loom_mq.engine.outcome import error_reply, outcome_from_event, state_reply
from loom_mq.engine.packages import PackageSender
from loom_mq.engine.scheduling import ScheduleDesk
from loom_mq.engine.succession import Succession, made_by
from loom_mq.engine.sweep import Sweeper, SweepOptions
from loom_mq.errors import InputError, LoomError, StartConflictError
from loom_mq.ids import Ids
from loom_mq.journal.patience import patient, raise_refusal
from loom_mq.journal.protocol import Admission, AdmitVerdict, DeadLetter, Journal
from loom_mq.lane import Lane
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.model.messages import (
    Cause,
    ReplyItem,
    ReplyKind,
    StartItem,
    StartMessage,
    TokenMessage,
)
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import Metrics

_log = structlog.get_logger(__name__)

PROBES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between looks at a process whose token came back: its database session may
close a moment after its broker connection."""


PATIENCE = 600.0
"""Seconds that a message waits in hand for a journal that is away. Giving it back sooner
would only wear out its delivery limit."""


class DispatcherOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a dispatcher works.

    Attributes:
        prefetch: messages in hand per queue.
        payload_limit: bytes (J10).
    """

    prefetch: int = 200
    payload_limit: int = 1024 * 1024
    sweep: SweepOptions = SweepOptions()


class Dispatcher:
    """See the module's docstring."""

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        *,
        options: DispatcherOptions,
        clock: Clock,
        ids: Ids,
        metrics: Metrics,
    ) -> None:
        self._journal = journal
        self._broker = broker
        self._options = options
        self._ids = ids
        self._metrics = metrics
        self._outbox = Outbox(broker, metrics)
        self._packages = PackageSender(broker, self._outbox)
        self._flows = KnownFlows(journal, clock)
        self._admitter = Admitter(
            self._flows,
            payload_limit=options.payload_limit,
            resend_after=options.sweep.resend_after,
        )
        self._admissions: Lane[Admission, AdmitVerdict] = Lane(
            patient(journal.admit, raise_refusal, clock=clock, give_up_after=PATIENCE),
            max_batch=500,
        )
        self._looks: Lane[ExecutionKey, ExecutionRow | None] = Lane(
            patient(journal.get, raise_refusal, clock=clock, give_up_after=PATIENCE),
            max_batch=500,
        )
        self._succession = Succession(self._looks.submit, self._admissions.submit)
        self._control = Control(
            journal,
            self._outbox,
            self._packages,
            ids,
            ScheduleDesk(journal, self._admitter, clock=clock, patience=PATIENCE),
            clock=clock,
            patience=PATIENCE,
            resend_after=options.sweep.resend_after,
            payload_limit=options.payload_limit,
        )
        self._sweeper = Sweeper(journal, broker, self._packages, self._flows, options.sweep, clock)
        self._consumers: list[Consumer] = []
        self._background = Background(clock)
        self._sweeping: asyncio.Task[None] | None = None

    # ---- life ---------------------------------------------------------------------

    async def start(self) -> None:
        """Declare the topology, sweep, and consume."""
        await self._broker.declare(
            [topology.DEAD, topology.START, topology.CONTROL, topology.PRESENCE]
        )
        self._sweeping = asyncio.ensure_future(self._sweeper.run())
        self._background.spawn(self._consume_starts())
        for queue, handler in (
            (topology.CONTROL, self._on_control),
            (topology.PRESENCE, self._on_presence),
            (topology.DEAD, self._on_dead),
        ):
            self._consumers.append(
                await self._broker.consume(queue, handler, prefetch=self._options.prefetch)
            )

    async def _consume_starts(self) -> None:
        """Leave starts on their queue until a first worker has said what it serves."""
        while True:
            try:
                await self._flows.refresh()
                if self._flows.any:
                    self._consumers.append(
                        await self._broker.consume(
                            topology.START, self._on_start, prefetch=self._options.prefetch
                        )
                    )
                    return
            except LoomError as error:
                _log.warning("dispatcher.starts_not_consumed", error=str(error))
            await asyncio.sleep(0.2)

    async def drain(self, timeout: float) -> None:
        """Take nothing more and answer what is in hand."""
        self._stop_sweeping()
        await cancel_all(self._consumers)
        await self._background.until_idle(timeout)

    async def stop(self) -> None:
        """Let go of everything. Bounded."""
        self._stop_sweeping()
        self._background.cancel()
        self._admissions.abort()
        self._looks.abort()
        await bounded(self._outbox.close(), 3.0)
        self._outbox.abort()

    def _stop_sweeping(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    @property
    def consuming(self) -> bool:
        """Whether the broker has confirmed every consumer."""
        return bool(self._consumers) and all(consumer.consuming for consumer in self._consumers)

    def checks(self) -> dict[str, Check]:
        """What must be so for it to do its work; by name."""
        return {
            "consuming": Check(self.consuming),
            "sweeping": Check(self._sweeping is not None and not self._sweeping.done()),
        }

    # ---- starts ---------------------------------------------------------------------

    def _on_start(self, delivery: Delivery) -> None:
        try:
            message = wire.decode(StartMessage, delivery.body, delivery.content_type)
        except InputError as error:
            self._reject(delivery, error)
        else:
            self._background.spawn(self._admit(delivery, message))

    async def _admit(self, delivery: Delivery, message: StartMessage) -> None:
        names = correlations(message.items, delivery.correlation_id)
        outcomes = await asyncio.gather(
            *(
                self._admit_item(delivery, item, name)
                for item, name in zip(message.items, names, strict=True)
            ),
            return_exceptions=True,
        )
        failure = next((each for each in outcomes if isinstance(each, BaseException)), None)
        if failure is None:
            delivery.ack()
            return
        # the journal is away: the message goes back and is taken again, here or elsewhere
        _log.warning("start.not_admitted", error=repr(failure))
        await asyncio.sleep(1.0)
        delivery.requeue()

    async def _admit_item(self, delivery: Delivery, item: StartItem, correlation: str) -> None:
        key = ExecutionKey(item.tenant, item.id)
        try:
            admission = await self._admitter.admission(
                item, delivery.content_type, delivery.reply_to, correlation
            )
            verdict = await self._succession.admit(admission)
        except InputError as error:
            await self._refuse_start(delivery, item, correlation, error)
            return
        if verdict.created:
            # not awaited: the row is durable, and a sweep sends what this may lose
            self._background.spawn(self._send_first(verdict, admission.start))
        if delivery.reply_to is None:
            return
        if item.notify.of_admission:
            # under the id that was asked for, wherever it is kept by now
            row = msgspec.structs.replace(verdict.row, execution_id=key.execution_id)
            created = verdict.created or made_by(row, admission)
            self._reply(
                delivery, state_reply(row, correlation, ReplyKind.ADMITTED, created=created)
            )
        if verdict.row.status.terminal and item.notify.of_result:
            newest = await self._journal.read(verdict.row.key, newest=True, limit=1)
            outcome = outcome_from_event(key, correlation, newest[0]) if newest else None
            if outcome is not None:
                self._reply(delivery, outcome)

    async def _send_first(self, verdict: AdmitVerdict, start: bytes) -> None:
        await self._packages.send(verdict.row, Cause.START, start)

    async def _refuse_start(
        self, delivery: Delivery, item: StartItem, correlation: str, error: InputError
    ) -> None:
        """Answer where there is an address, and keep what nobody else will see (F2)."""
        _log.info("start.refused", execution_id=item.id, flow=item.flow, code=error.code)
        if delivery.reply_to is not None:
            self._reply(
                delivery, error_reply(ExecutionKey(item.tenant, item.id), correlation, error)
            )
            if isinstance(error, StartConflictError):
                return
        await self._keep(delivery, f"{error.code}: {error.message}", item)

    def _reply(self, delivery: Delivery, reply: ReplyItem) -> None:
        if delivery.reply_to is not None:
            self._outbox.replies.send(delivery.reply_to, reply)

    def _reject(self, delivery: Delivery, error: InputError) -> None:
        """A message that cannot be read at all."""
        _log.error("message.rejected", queue=delivery.queue, code=error.code, error=error.message)
        self._reply(
            delivery, error_reply(ExecutionKey("", ""), delivery.correlation_id or "", error)
        )
        delivery.dead_letter(f"{error.code}: {error.message}")

    async def _keep(self, delivery: Delivery, reason: str, item: StartItem) -> None:
        self._metrics.dead_lettered(delivery.queue, reason.partition(":")[0])
        if wire.is_json(delivery.content_type):
            body = msgspec.json.encode(StartMessage(items=(item,)))
        else:
            body = wire.encode(StartMessage(items=(item,)))
        letter = DeadLetter(
            id=self._ids.execution(),
            queue=delivery.queue,
            reason=reason,
            body=body,
            headers={"content_type": delivery.content_type},
        )
        await self._journal.record_dead_letters([letter])

    # ---- everything else ----------------------------------------------------------------

    def _on_control(self, delivery: Delivery) -> None:
        self._control.handle(delivery, self._background.spawn, self._reject)

    def _on_presence(self, delivery: Delivery) -> None:
        try:
            token = wire.decode(TokenMessage, delivery.body, delivery.content_type)
        except InputError as error:
            self._reject(delivery, error)
            return
        delivery.ack()
        self._background.spawn(self._probe(token.owner))

    async def _probe(self, owner: str) -> None:
        """A process may have died: the journal decides (F7)."""
        for pause in PROBES:
            await asyncio.sleep(pause)
            try:
                if await self._journal.lapse_if_gone(owner):
                    _log.info("worker.lost", owner=owner)
                    await self._sweeper.abandoned()
                    return
            except LoomError as error:
                _log.warning("worker.probe_failed", owner=owner, error=str(error))

    def _on_dead(self, delivery: Delivery) -> None:
        self._background.spawn(self._record_dead(delivery))

    async def _record_dead(self, delivery: Delivery) -> None:
        death = death_of(delivery)
        queue, reason = death.queue, death.reason
        self._metrics.dead_lettered(queue, reason.partition(":")[0])
        letter = DeadLetter(
            id=self._ids.execution(),
            queue=queue,
            reason=reason,
            body=delivery.body,
            headers={**delivery.headers, "content_type": delivery.content_type},
        )
        try:
            await self._journal.record_dead_letters([letter])
        except LoomError as error:
            _log.warning("dead_letter.not_recorded", error=str(error))
            await asyncio.sleep(1.0)
            delivery.requeue()
        else:
            _log.error("package.dead_lettered", queue=queue, reason=reason)
            delivery.ack()
