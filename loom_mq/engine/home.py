"""What the attempts of a worker share, and how they end."""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from loom_mq.engine.outbox import Outbox
from loom_mq.flows.surroundings import Surroundings
from loom_mq.journal.log import JournalWriter
from loom_mq.model.execution import ExecutionKey, InboxItem
from loom_mq.model.snapshots import Snapshot


class DriveEnd(enum.StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PARKED = "parked"
    PARKED_WITH_MAIL = "parked-with-mail"
    """Parked, and something came in meanwhile: drive again at once."""
    IDLE = "idle"
    """A parked execution with nothing to do: left as it was."""
    GIVEN_BACK = "given-back"
    """This process is stopping; another takes over."""
    MISMATCH = "mismatch"
    """The flow's code does not fit its log (K3)."""
    REFUSED = "refused"
    """The journal refused a write; `Drive.refusal` says why."""


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of a worker share.

    Attributes:
        owner: this process.
        park_drain: seconds that work in flight gets before a park or a cancel (K11).
        discard: deletes refused inbox items, in the background.
        fetch_mail: reads an execution's inbox and delivers it, in the background.
        keep: stores a snapshot, in the background.
        snapshot_every: events between two snapshots, at least (J7).
    """

    owner: str
    writer: JournalWriter
    around: Surroundings
    outbox: Outbox
    park_drain: float
    discard: Callable[[ExecutionKey, InboxItem], None]
    fetch_mail: Callable[[ExecutionKey], None]
    keep: Callable[[ExecutionKey, Snapshot], None]
    snapshot_every: int
