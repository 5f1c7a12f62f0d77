"""The broker across a network: messages are lost on the way there, confirms on the way back.

The queues themselves are the product's own broker in memory, which behaves as RabbitMQ does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from loom_mq.broker.memory import MemoryBroker, MemoryConnection
from loom_mq.broker.protocol import Consumer, Delivery, Handler, Outgoing, Queue, QueueKind
from loom_mq.clock import Clock
from loom_mq.errors import BrokerError, PublishTimeoutError
from tests.simulation.rig.choices import Choices
from tests.simulation.rig.loop import SimLoop
from tests.simulation.rig.observer import Acked, Happened, Observer

PATIENCE: Final = 5.0
"""Seconds after which a publisher gives up a confirm."""


class BrokerFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker and the way to it misbehave. Times in seconds.

    Attributes:
        latency: longest way there and back.
        lost: share of messages that never arrive.
        unconfirmed: share of messages that arrive, and whose sender hears nothing.
        doubled: share of messages that arrive twice.
        held_up: share of messages that wait in the queue for `held_up_by` at most.
    """

    latency: float = 0.0
    lost: float = 0.0
    unconfirmed: float = 0.0
    doubled: float = 0.0
    held_up: float = 0.0
    held_up_by: float = 0.0


CALM: Final = BrokerFaults()


class Network:
    """What lies between processes and the broker.

    Attributes:
        faults: how it misbehaves at present.
        under_way: messages that wait to be put into their queue.
        moved: messages that were put into a queue.
    """

    def __init__(
        self,
        loop: SimLoop,
        hub: MemoryBroker,
        choices: Choices,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self.loop = loop
        self.hub = hub
        self.choices = choices
        self.faults = CALM
        self.under_way = 0
        self.moved = 0
        self.outside = loop.outside()
        self.observer = observer
        self._clock = clock
        self._operator = MemoryConnection(hub, "operator")

    def now(self) -> int:
        """Journal time, for reports."""
        return self._clock.now()

    def tell(self, what: str, who: str) -> None:
        """Report something."""
        self.observer.happened(Happened(what, who, self.now()))

    def exists(self, name: str) -> bool:
        """Whether there is such a queue, whoever may use it."""
        return name in self.hub._queues

    def purge(self, name: str) -> None:
        """Drop what waits in a queue, as an operator could."""
        queue = self.hub.look(name, self._operator)
        if queue is not None:
            queue.clear()

    def later(self, pause: float, do: Callable[..., object], *args: Any) -> None:
        """Do something outside of all processes."""
        if pause > 0:
            self.loop.call_later(pause, do, *args, context=self.outside)
        else:
            self.loop.call_soon(do, *args, context=self.outside)


class SimConnection(MemoryConnection):
    """One process's connection; see the module's docstring."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__(network.hub, name)
        self._network = network

    async def publish(self, messages: Sequence[Outgoing]) -> list[BrokerError | None]:
        """Publish; see `broker.protocol.Broker.publish`."""
        network = self._network
        answer: asyncio.Future[list[BrokerError | None]] = network.loop.create_future()
        there = network.choices.delay("latency", network.faults.latency) / 2
        network.later(there, self._arrive, messages, there, answer)
        return await answer

    def _arrive(
        self,
        messages: Sequence[Outgoing],
        back: float,
        answer: asyncio.Future[list[BrokerError | None]],
    ) -> None:
        silent = False
        verdicts: list[BrokerError | None] = []
        for message in messages:
            verdict, heard = self._one(message)
            verdicts.append(verdict)
            silent |= not heard
        self._network.later(PATIENCE if silent else back, _set, answer, verdicts)

    def _one(self, message: Outgoing) -> tuple[BrokerError | None, bool]:
        """What becomes of a message: its verdict, and whether it comes at once."""
        network, faults, choices = self._network, self._network.faults, self._network.choices
        unheard = PublishTimeoutError(f"message for queue {message.queue!r}: no confirm came")
        if choices.chance("lost", faults.lost):
            network.tell("publish-lost", self.name)
            return unheard, False
        if network.exists(message.queue) and choices.chance("held-up", faults.held_up):
            network.tell("delayed", self.name)
            network.under_way += 1
            network.later(choices.delay("held-up", faults.held_up_by), self._put, message)
            verdict = None
        else:
            verdict = self._publish(message)
            network.moved += 1
        if verdict is None and choices.chance("doubled", faults.doubled):
            network.tell("duplicated", self.name)
            network.hub.route(message)
        if verdict is None and choices.chance("unconfirmed", faults.unconfirmed):
            network.tell("confirm-lost", self.name)
            return unheard, False
        return verdict, not isinstance(verdict, PublishTimeoutError)

    def _put(self, message: Outgoing) -> None:
        self._network.under_way -= 1
        self._network.moved += 1
        self._network.hub.route(message)

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        """Consume; see `broker.protocol.Broker.consume`."""
        if queue.kind is QueueKind.TOKEN:
            return await super().consume(queue, handler, prefetch=prefetch)

        def handle(delivery: Delivery) -> None:
            handler(_Delivery(delivery, self._network, self.name))

        return await super().consume(queue, handle, prefetch=prefetch)


def _set(
    answer: asyncio.Future[list[BrokerError | None]], verdicts: list[BrokerError | None]
) -> None:
    if not answer.done():
        answer.set_result(verdicts)


class _Delivery:
    """A delivery whose settlement travels to the broker, whatever becomes of its sender."""

    def __init__(self, inner: Delivery, network: Network, by: str) -> None:
        self._inner = inner
        self._network = network
        self._by = by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _settle(self, how: str, do: Callable[..., None], *args: Any) -> None:
        network = self._network
        network.observer.acked(
            Acked(
                by=self._by,
                queue=self._inner.queue,
                type=self._inner.type,
                body=self._inner.body,
                content_type=self._inner.content_type,
                how=how,
                at=network.now(),
            )
        )
        network.later(0, do, *args)

    def ack(self) -> None:
        self._settle("ack", self._inner.ack)

    def requeue(self) -> None:
        self._settle("requeue", self._inner.requeue)

    def dead_letter(self, reason: str) -> None:
        self._settle("dead_letter", self._inner.dead_letter, reason)
