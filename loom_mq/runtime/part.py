"""What a service runs, and how a process may end."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from loom_mq.broker.protocol import Broker
from loom_mq.clock import JournalClock
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.ids import Ids
from loom_mq.journal.protocol import Journal
from loom_mq.observe.checks import Check
from loom_mq.observe.metrics import Metrics


class ExitCode(enum.IntEnum):
    """How a process ended; the same numbers as the command line's."""

    CLEAN = 0
    """Everything in hand was finished."""
    CRASHED = 1
    """An error that nobody expected; its traceback is in the log."""
    SETTINGS = 2
    """Something is set up in a way that cannot work; one line says what."""
    UNREACHABLE = 5
    """The journal or the broker did not answer within the start-up time."""
    GAVE_UP = 6
    """The time to drain was over; what was in hand goes on elsewhere."""
    INTERRUPTED = 130
    """A second signal asked for an end at once."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """What a process gives to the part that does its work; all of it is open.

    Attributes:
        owner: unique name of this run of the process.
        lease: not yet started. The part may start it to hear of renewals; else the
            process does once the part has started. It is retired after the part.
        fail: tells that the part cannot go on; the process stops with `CRASHED`.
    """

    owner: str
    journal: Journal
    broker: Broker
    lease: LeaseKeeper
    clock: JournalClock
    ids: Ids
    metrics: Metrics
    fail: Callable[[BaseException], None]


class Part(Protocol):
    """The work of a service, between its connections and its signals."""

    async def start(self) -> None:
        """Begin to work; returns when it does."""

    async def drain(self, timeout: float) -> None:
        """Take no more work, and finish what is in hand within `timeout` seconds."""

    async def stop(self) -> None:
        """Let go of everything. Bounded: it never waits for a peer that is away."""

    def checks(self) -> dict[str, Check]:
        """What else must be right for this process to be ready; does not block."""


Build = Callable[[Ports], Awaitable[Part]]
"""Puts a part together; what it raises stops the process before it is ready."""
