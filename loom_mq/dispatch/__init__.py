"""Dispatchers that await an attempt: the systems of the original Loom's failure recovery.

A fleet needs none of them: there nobody awaits an attempt, and leases find dead workers.
These are for a program that hands executions to a worker itself and wants to be told how
each attempt ended; `docs/explanation/dispatch.md` says when to take which.
"""

from __future__ import annotations

from loom_mq.dispatch.awaiting import await_by_id
from loom_mq.dispatch.errand import Allocation
from loom_mq.dispatch.hosting import WorkerHost
from loom_mq.dispatch.local import GivenUp, LocalDispatcher
from loom_mq.dispatch.protocol import (
    ExecutionDispatcher,
    ExecutionWorker,
    FoldedState,
    LoadsState,
)
from loom_mq.dispatch.remote import RemoteWorker
from loom_mq.dispatch.starting import package_for
from loom_mq.dispatch.supervising import Circuit, CircuitState, SupervisingDispatcher
from loom_mq.dispatch.worker import LocalOptions, LocalWorker
from loom_mq.engine.policy import (
    Action,
    AttemptEnd,
    AttemptOutcome,
    is_left_to_another,
    next_action,
)

__all__ = [
    "Action",
    "Allocation",
    "AttemptEnd",
    "AttemptOutcome",
    "Circuit",
    "CircuitState",
    "ExecutionDispatcher",
    "ExecutionWorker",
    "FoldedState",
    "GivenUp",
    "LoadsState",
    "LocalDispatcher",
    "LocalOptions",
    "LocalWorker",
    "RemoteWorker",
    "SupervisingDispatcher",
    "WorkerHost",
    "await_by_id",
    "is_left_to_another",
    "next_action",
    "package_for",
]
