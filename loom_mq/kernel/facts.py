"""What is known of the fleet around an execution while its reason is sought. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loom_mq.clock import MICROS
from loom_mq.kernel.wording import span
from loom_mq.model.execution import FlowRecord, WorkerRecord


class Depth(msgspec.Struct, frozen=True):
    """Messages ready and consumers of a queue, as the broker counts them."""

    ready: int
    consumers: int


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the broker.

    Attributes:
        unreachable: why it could not be asked; empty when it answered.
        alarm: why it takes no messages; empty when it does.
        depths: by the fleet's name of the queue; None for one that does not exist. What was
            not looked at is not there.
    """

    unreachable: str = ""
    alarm: str = ""
    depths: Mapping[str, Depth | None] = {}


class DeadPackage(msgspec.Struct, frozen=True):
    """A dead letter that would have driven the execution.

    Attributes:
        id: the letter's.
        reason: why nobody could use it.
        at: journal time.
    """

    id: str
    reason: str
    at: int


class Fleet:
    """Who is there, and when that was.

    Args:
        workers: processes whose lease runs.
        flows: flows that any worker has ever registered.
        now: journal time.
        embedded: one process is dispatcher, worker and timer at once.
        broker: what was seen of it; None when nobody looked.
    """

    def __init__(
        self,
        workers: Sequence[WorkerRecord],
        flows: Sequence[FlowRecord],
        now: int,
        *,
        embedded: bool,
        broker: BrokerFacts | None = None,
    ) -> None:
        self.now = now
        self.embedded = embedded
        self.broker = broker
        self._workers = workers
        self._flows = flows

    def worker(self, owner: str) -> WorkerRecord | None:
        """A process that is alive."""
        return next((worker for worker in self._workers if worker.owner == owner), None)

    def lives(self, owner: str) -> bool:
        """Whether a process is alive."""
        return self.worker(owner) is not None

    def has(self, role: str) -> bool:
        """Whether any process of a role is alive and does not drain."""
        return self.count(role) > 0

    def count(self, role: str) -> int:
        """Processes of a role that are alive and do not drain."""
        return sum(
            not worker.draining and (self.embedded or worker.role == role)
            for worker in self._workers
        )

    def servers(self, queue: str) -> list[WorkerRecord]:
        """The workers that take from a queue."""
        return [
            worker
            for worker in self._workers
            if worker.role == "worker" and queue in worker.queues and not worker.draining
        ]

    def serving(self, queue: str) -> int:
        """How many workers take from a queue."""
        return len(self.servers(queue))

    def depth(self, queue: str) -> Depth | None:
        """What the broker says of a queue; None when it was not asked or has no such queue."""
        return None if self.broker is None else self.broker.depths.get(queue)

    def versions(self, flow: str) -> list[str]:
        """The versions of a flow that any worker has registered."""
        return sorted(record.version for record in self._flows if record.flow == flow)

    def ago(self, at: int) -> str:
        """How long a time lies back."""
        return span((self.now - at) / MICROS)

    def ahead(self, at: int) -> str:
        """How far a time lies ahead."""
        return span((at - self.now) / MICROS)

    def start(self, role: str) -> str:
        """How to bring back what is missing."""
        return "loom dev FILE" if self.embedded else f"python -m services.{role}"
