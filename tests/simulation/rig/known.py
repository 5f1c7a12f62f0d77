"""One execution, as the shadow knows it: by what was carried out, and by nothing else."""

from __future__ import annotations

import enum
from typing import Final

from loom_mq.kernel.fold import ExecutionState
from loom_mq.model.events import Envelope, EventKind, Wait
from loom_mq.model.execution import ExecutionKey, InboxItem, Status

ENDS: Final = {
    EventKind.EXECUTION_COMPLETED: Status.COMPLETED,
    EventKind.EXECUTION_FAILED: Status.FAILED,
    EventKind.EXECUTION_CANCELLED: Status.CANCELLED,
}
"""Which event says that an execution has ended how; there is no other way to end (K1)."""

MOVES: Final[dict[str, tuple[Status, Status]]] = {
    EventKind.EXECUTION_STARTED: (Status.PENDING, Status.RUNNING),
    EventKind.EXECUTION_RECOVERED: (Status.RUNNING, Status.RUNNING),
    EventKind.EXECUTION_SUSPENDED: (Status.RUNNING, Status.SUSPENDED),
    EventKind.EXECUTION_RESUMED: (Status.SUSPENDED, Status.RUNNING),
    **{kind: (Status.RUNNING, status) for kind, status in ENDS.items()},
}
"""From which status an event leads to which; what is not here leads nowhere."""


class Parting(enum.StrEnum):
    """How somebody came to hold an execution no longer."""

    PARKED = "parked"
    ENDED = "ended"
    LEFT = "left"
    LOST = "lost"


class Known:
    """See the module's docstring.

    Attributes:
        name: tenant and id, for reports.
        fence: the newest.
        owner: who holds it; empty for nobody.
        deadline: journal time after which its owner counts as wedged.
        log: its events.
        places: of events in the log, by their ids.
        openers: ids of the first events of appends.
        state: the fold of the log.
        status: as the log's events move it, whatever the fold says.
        holders: who took each fence.
        tenures: the newest fence that each process took.
        partings: how each fence's holder came to hold it no longer.
        waits: what its newest park waits for, by their ids.
        timers: due times that are armed, and until when each is held (0: was never taken).
        mail: unread items, oldest first.
        taken: ids of items that its events have taken.
        received: ids of all items that ever came.
        over: waits that have ended.
        cancelled_at: journal time at which a cancel came while somebody held it; 0 for never.
        calls: how often somebody was given reason to take it.
        claims: how often somebody took it.
    """

    def __init__(self, key: ExecutionKey) -> None:
        self.key = key
        self.name = f"{key.tenant}/{key.execution_id}"
        self.fence = 0
        self.owner = ""
        self.deadline: int | None = None
        self.log: list[Envelope] = []
        self.places: dict[bytes, int] = {}
        self.openers: dict[bytes, None] = {}
        self.state = ExecutionState()
        self.status = Status.PENDING
        self.holders: dict[int, str] = {}
        self.tenures: dict[str, int] = {}
        self.partings: dict[int, Parting] = {}
        self.waits: dict[str, Wait] = {}
        self.timers: dict[int, int] = {}
        self.mail: dict[str, InboxItem] = {}
        self.taken: dict[str, None] = {}
        self.received: dict[str, None] = {}
        self.over: dict[str, None] = {}
        self.cancelled_at = 0
        self.calls = 0
        self.claims = 0

    @property
    def ended(self) -> bool:
        """Whether its log has come to its end."""
        return self.status.terminal

    @property
    def holder(self) -> str:
        """Who took the newest fence, whether he still holds it or not."""
        return self.holders.get(self.fence, "")

    def let_go(self, how: Parting) -> None:
        """Nobody holds it any more."""
        if self.owner:
            self.partings[self.fence] = how
        self.owner, self.deadline = "", None
