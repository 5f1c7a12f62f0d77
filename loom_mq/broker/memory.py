"""A broker inside the process, for the embedded mode, tests and simulation.

It behaves as RabbitMQ does wherever a user could notice (C104) and asks nobody for the
time: everything happens in the event loop's next turn, in the same order every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import Self, TypeVarTuple

import structlog

from loom_mq.broker.limits import check_queue, mismatch, refusal
from loom_mq.broker.memory_consumer import MemoryConsumer
from loom_mq.broker.memory_queue import MemoryQueue
from loom_mq.broker.protocol import (
    BrokerHealth,
    Consumer,
    Handler,
    Outgoing,
    Queue,
    QueueDepth,
    QueueKind,
)
from loom_mq.errors import (
    BrokerError,
    BrokerUnreachableError,
    PublishTimeoutError,
    SettingsError,
    UnroutableError,
)
from loom_mq.ids import check_id

Arguments = TypeVarTuple("Arguments")
_log = structlog.get_logger(__name__)


class MemoryBroker:
    """The queues; `connection` gives access to them."""

    def __init__(self) -> None:
        self._queues: dict[str, MemoryQueue] = {}
        self._owners: dict[str, MemoryConnection] = {}
        self._connections: list[MemoryConnection] = []
        self.running = True
        self.blocked = False
        """Whether publishers are held off, as RabbitMQ's memory and disk alarms do."""

    def connection(self, name: str = "") -> MemoryConnection:
        """A new connection, to be entered.

        Args:
            name: who connects, for messages.
        """
        return MemoryConnection(self, name)

    def restart(self) -> None:
        """Lose what a killed and restarted RabbitMQ loses, and every connection once."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Go away as if killed: connections are lost, shared queues keep their messages."""
        self.running = False
        for queue in list(self._queues.values()):
            if queue.spec.kind is QueueKind.TOKEN:  # tokens are not persistent
                for registration in queue.registrations:
                    registration.end(keep=False)
                queue.clear()
        for connection in self._connections:
            connection.lose()

    def start(self) -> None:
        """Come back; connections come back by themselves."""
        self.running = True
        for connection in self._connections:
            connection.come_back()

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages, as an operator could."""
        queue = self._queues.get(name)
        if queue is not None:
            self._remove(queue)

    def enter(self, connection: MemoryConnection) -> None:
        """Know a connection from now on."""
        self._connections.append(connection)

    def leave(self, connection: MemoryConnection) -> None:
        """Forget a connection."""
        if connection in self._connections:
            self._connections.remove(connection)

    def declare(self, spec: Queue, connection: MemoryConnection) -> MemoryQueue:
        """Make a queue exist.

        Raises:
            TopologyMismatchError: it exists with other arguments.
            BrokerUnreachableError: it is private to another connection.
        """
        queue = self._queues.get(spec.name)
        if queue is None:
            queue = MemoryQueue(spec, self._forward, self._unused)
            self._queues[spec.name] = queue
            if spec.kind is QueueKind.PRIVATE:
                self._owners[spec.name] = connection
            return queue
        self._check_owner(spec.name, connection, BrokerUnreachableError)
        _check_same(queue.spec, spec)
        return queue

    def look(self, name: str, connection: MemoryConnection) -> MemoryQueue | None:
        """A queue as `connection` may see it.

        Raises:
            BrokerError: it is private to another connection.
        """
        self._check_owner(name, connection, BrokerError)
        return self._queues.get(name)

    def route(self, message: Outgoing) -> BrokerError | None:
        """Put a message into its queue."""
        queue = self._queues.get(message.queue)
        if queue is None:
            return UnroutableError(f"no queue {message.queue!r} took the message (NO_ROUTE)")
        queue.put(message)
        return None

    def drop_private(self, connection: MemoryConnection) -> None:
        """Delete the private queues of a connection that is gone."""
        for name in [name for name, owner in self._owners.items() if owner is connection]:
            self._remove(self._queues[name])

    def _check_owner(
        self, name: str, connection: MemoryConnection, error: type[BrokerError]
    ) -> None:
        owner = self._owners.get(name)
        if owner is not None and owner is not connection:
            raise error(f"queue {name!r} is exclusive to another connection ({owner.name})")

    def _remove(self, queue: MemoryQueue) -> None:
        self._queues.pop(queue.spec.name, None)
        self._owners.pop(queue.spec.name, None)
        queue.clear()
        for registration in queue.registrations:
            registration.end(keep=False)
        for connection in self._connections:
            connection.missed(queue.spec.name)

    def _forward(self, message: Outgoing) -> None:
        queue = self._queues.get(message.queue)
        if queue is not None:
            queue.put(message)

    def _unused(self, queue: MemoryQueue) -> None:
        """A token's queue is there for its owner only; RabbitMQ waits for `expires`."""
        if queue.spec.kind is QueueKind.TOKEN and not queue.depth.ready:
            self._queues.pop(queue.spec.name, None)


class MemoryConnection:
    """See `broker.protocol.Broker`.

    Args:
        hub: the broker.
        name: who this is.
    """

    def __init__(self, hub: MemoryBroker, name: str) -> None:
        self.name = name
        self._hub = hub
        self._wanted: dict[str, Queue] = {}
        self._consumers: list[MemoryConsumer] = []
        self._context = copy_context()
        self._entered = False
        self._up = False

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerUnreachableError: the broker is stopped.
        """
        if not self._hub.running:
            raise BrokerUnreachableError("the broker does not run")
        self._context = copy_context()
        self._hub.enter(self)
        self._entered = self._up = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect; what is in hand goes back to its queues."""
        self.kill()

    def kill(self) -> None:
        """Be gone for good at once, as with a killed process."""
        self._hub.leave(self)
        self._entered = False
        self.lose()

    def drop(self) -> None:
        """Lose the connection and come back, as when the broker closes all of them."""
        self.lose()
        self._soon(self.come_back)

    def lose(self) -> None:
        """The connection is gone: see what the broker does then."""
        self._up = False
        for consumer in self._consumers:
            consumer.lose()
        self._hub.drop_private(self)

    def come_back(self) -> None:
        """Set everything up anew on a new connection."""
        if self._up or not self._entered or not self._hub.running:
            return
        self._up = True
        self._consumers = [consumer for consumer in self._consumers if not consumer.cancelled]
        consumed = [consumer.queue.name for consumer in self._consumers]
        for name in dict.fromkeys([*self._wanted, *consumed]):
            self._heal(name)

    def missed(self, queue: str) -> None:
        """A queue was deleted under us: make it again if it is wanted (C32)."""
        self._soon(self._heal, queue)

    async def declare(self, queues: Sequence[Queue]) -> None:
        """Make queues exist; remembered and made again after a loss.

        Raises:
            TopologyMismatchError: one exists with other arguments.
            BrokerUnreachableError: the broker is stopped, or the queue is another's.
            InvalidIdError: a name is not lawful.
        """
        for queue in queues:
            check_queue(queue)
        for queue in queues:
            self._reachable().declare(queue, self)
            self._wanted[queue.name] = queue

    async def publish(self, messages: Sequence[Outgoing]) -> list[BrokerError | None]:
        """Publish; see `broker.protocol.Broker.publish`."""
        verdicts = [self._publish(message) for message in messages]
        await asyncio.sleep(0)
        return verdicts

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int) -> Consumer:
        """Declare `queue` and consume it, `prefetch` unacknowledged messages at most.

        Raises:
            TopologyMismatchError: the queue exists with other arguments.
            BrokerUnreachableError: the broker is stopped, or the queue is another's.
            InvalidIdError: the queue's name is not lawful.
            SettingsError: `prefetch` is below 1 or above 65535 (C71).
        """
        check_queue(queue)
        if not 1 <= prefetch <= 65_535:
            raise SettingsError(f"prefetch must be 1 to 65535, not {prefetch}")
        hub = self._reachable()
        consumer = MemoryConsumer(queue, handler, prefetch, lambda: hub.declare(queue, self))
        consumer.register()
        self._consumers.append(consumer)
        return consumer

    async def depth(self, queue: str) -> QueueDepth | None:
        """Look at a queue without changing it; None when it does not exist.

        Raises:
            BrokerError: it is private to another connection.
            BrokerUnreachableError: the broker is stopped.
        """
        found = self._reachable().look(check_id(queue, "queue name"), self)
        return None if found is None else found.depth

    async def purge(self, queue: str) -> None:
        """Drop every ready message of a queue; a missing queue has none.

        Raises:
            BrokerError: it is private to another connection.
            BrokerUnreachableError: the broker is stopped.
        """
        found = self._reachable().look(check_id(queue, "queue name"), self)
        if found is not None:
            found.clear()

    def health(self) -> BrokerHealth:
        """The present state."""
        idle = [
            consumer
            for consumer in self._consumers
            if not (consumer.consuming or consumer.cancelled)
        ]
        reason = ""
        if not self._up:
            reason = "the broker does not run" if self._entered else "closed"
        elif self._hub.blocked:
            reason = "the broker has blocked publishers (memory or disk alarm)"
        elif idle:
            reason = f"queue {idle[0].queue.name!r} is not consumed"
        return BrokerHealth(self._up, self._hub.blocked, not idle, reason)

    def _publish(self, message: Outgoing) -> BrokerError | None:
        refused = refusal(message)
        if refused is not None:
            return refused
        if not self._up:
            return BrokerUnreachableError(
                f"message for queue {message.queue!r}: not sent, because the broker is not "
                "reachable"
            )
        if self._hub.blocked:
            return PublishTimeoutError(
                f"message for queue {message.queue!r}: not sent, because the broker has blocked "
                "publishers (memory or disk alarm)"
            )
        verdict = self._hub.route(message)
        if verdict is not None and message.queue in self._wanted:
            self.missed(message.queue)
        return verdict

    def _reachable(self) -> MemoryBroker:
        if not self._up:
            raise BrokerUnreachableError("the broker is not reachable")
        return self._hub

    def _soon(self, work: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Do something in the loop's next turn, in this connection's context."""
        asyncio.get_running_loop().call_soon(work, *arguments, context=self._context)

    def _heal(self, name: str) -> None:
        if not self._up:
            return
        try:
            if name in self._wanted:
                self._hub.declare(self._wanted[name], self)
            for consumer in self._consumers:
                if consumer.queue.name == name:
                    consumer.register()
        except BrokerError as error:
            _log.warning("queue.not_declared", queue=name, reason=str(error))


def _check_same(found: Queue, wanted: Queue) -> None:
    for argument, one, other in (
        ("x-queue-type", found.kind, wanted.kind),
        ("x-delivery-limit", found.delivery_limit, wanted.delivery_limit),
        ("x-dead-letter-routing-key", found.dead_letter, wanted.dead_letter),
        ("x-expires", found.expires, wanted.expires),
    ):
        if one != other:
            raise mismatch(found.name, argument, found=_shown(one), wanted=_shown(other))


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
