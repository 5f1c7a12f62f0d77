"""What a system under measurement offers to the driver.

Add a system by writing a class of this shape and naming it in ``benchmarks/run.py``. The driver
gives each system a database and a virtual host of its own, and never runs two at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Workload(StrEnum):
    """The four workloads of ``benchmarks/README.md``."""

    THROUGHPUT = "w1"
    LATENCY = "w2"
    TAKEOVER = "w3"
    IDLE = "w4"


class Role(StrEnum):
    """Which side of a ratio a system stands on."""

    LOOM = "loom"
    PEER = "peer"
    FLOOR = "floor"


class WorkloadNotOfferedError(Exception):
    """The system was asked for a workload that is not in its ``workloads``."""


@dataclass(frozen=True)
class Context:
    """Where a system runs, and the limits it keeps.

    ``dsn`` and ``amqp_url`` name a database and a virtual host that nobody else uses.
    ``postgres_pid`` and ``rabbit_pid`` are the roots of the servers' process trees, for W4.
    ``python`` is the interpreter for the system's processes, ``workdir`` takes their logs.
    ``takeover_bound`` is the longest wait, in seconds, for one round of W3.
    """

    dsn: str
    amqp_url: str
    postgres_pid: int
    rabbit_pid: int
    workdir: Path
    python: str
    takeover_bound: float


class System(Protocol):
    """One thing to measure.

    The driver calls ``prepare`` once, then the workloads named in ``workloads`` in order, each as
    often as it likes, then ``close`` whatever happened before. W1 and W2 must leave the system as
    idle as they found it. A workload that is not offered raises `WorkloadNotOfferedError`.
    """

    @property
    def name(self) -> str:
        """The row's title: short, and unique in a run."""

    @property
    def role(self) -> Role:
        """Loom, a peer, or the floor."""

    @property
    def workloads(self) -> frozenset[Workload]:
        """What may be asked of it."""

    async def prepare(self, ctx: Context) -> None:
        """Lay the schema and the topology, start every process, wait until all are ready."""

    async def w1(self, executions: int) -> float:
        """Executions per second: from the first start to the last result in the client's hands."""

    async def w2(self, executions: int) -> list[float]:
        """Seconds from start to result, one execution after the other on an idle system."""

    async def w3(self, rounds: int) -> list[float]:
        """Seconds from ``kill -9`` of the worker in step 2 to step 2 running again elsewhere.

        ``math.inf`` stands for a round that ended at ``ctx.takeover_bound``. Rounds after such a
        one may be left out.
        """

    async def w4(self, seconds: float, sleepers: int) -> float:
        """Mean cores used over ``seconds`` by every process and server that the system needs,
        with nothing to do but ``sleepers`` executions asleep for longer than the measurement.
        """

    async def close(self) -> None:
        """End every process. Called once, also after a failure."""
