"""What the journal keeps beside the log of each execution, for listing and sweeping (J6)."""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"


class ExecutionKey(NamedTuple):
    """The whole name of an execution; a pair, never a joined string (J10)."""

    tenant: str
    execution_id: str


class Status(enum.StrEnum):
    """Where an execution is in its life. Only `EXECUTION_*` events move it (K1)."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether nothing can follow."""
        return self in _TERMINAL


_TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class ExecutionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The index row of one execution. Times are microseconds of journal time.

    The first group is derived from the log and must equal its fold (J6); the second
    belongs to ownership and dispatch and has no event of its own.

    Attributes:
        status: the folded status.
        last_seq: newest sequence, -1 before the first event.
        wake_at: earliest due time among the waits of a park.
        gates: names of the gates that a parked execution waits at.
        in_doubt: names of the steps for which it waits for a verdict (K6).
        error: first line of the error of a failed execution.
        recoveries: recoveries since the last progress (F8).
        started_at: time of the first event.
        ended_at: time of the terminal event.

        fence: newest fence handed out, 0 before the first claim.
        owner: who holds the newest fence, None when nobody is driving.
        attempt: claims made so far.
        deadline: when a wedged attempt may be taken over, None for never.
        hint_at: when a dispatcher sends another package if nobody has claimed.
        hints: packages sent by the sweep since the last claim.
        inbox: messages waiting in the inbox.
        trouble: why the last attempt could do nothing with it, None once anything is
            appended (K3).
        input_digest: digest of flow and input, to tell a repeated start from a conflict,
            and of the start itself where that matters (K16).
    """

    tenant: str
    execution_id: str
    flow: str
    version: str
    queue: str
    status: Status
    last_seq: int
    wake_at: int | None
    gates: tuple[str, ...]
    error: str | None
    recoveries: int
    parent: str | None
    features: tuple[str, ...]
    labels: dict[str, str]
    created_at: int
    updated_at: int
    started_at: int | None
    ended_at: int | None

    fence: int
    owner: str | None
    attempt: int
    deadline: int | None
    hint_at: int | None
    hints: int
    inbox: int
    input_digest: bytes

    in_doubt: tuple[str, ...] = ()
    trouble: str | None = None

    @property
    def key(self) -> ExecutionKey:
        """Tenant and id."""
        return ExecutionKey(self.tenant, self.execution_id)


class InboxKind(enum.StrEnum):
    """What may lie in an execution's inbox."""

    ANSWER = "answer"
    CANCEL = "cancel"
    VERDICT = "verdict"


CANCEL_ID = "cancel"
"""The item id of every cancel: cancelling twice is one cancel. No answer may take it."""


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something told to an execution from outside; a row before anything else (K7, K13).

    Attributes:
        item_id: the sender's id; the same id twice is one item.
        gate: the gate that an answer is for, or the step that a verdict is on; empty for
            a cancel.
        wait_id: the very wait that an answer is for; None for whichever opens first.
        payload: the answer's stored form, the cancel's reason as UTF-8, or a verdict
            (`model.verdicts.Verdict`) as msgpack.
        actor: who says so, as told by the sender; for the log.
        reply_to: where the one who takes or refuses the item says so.
        correlation: the sender's own name for its request.
    """

    tenant: str
    execution_id: str
    item_id: str
    kind: InboxKind
    gate: str = ""
    wait_id: str | None = None
    payload: bytes = b""
    reply_to: str | None = None
    correlation: str = ""
    actor: str = ""

    @property
    def key(self) -> ExecutionKey:
        """Tenant and id of the execution."""
        return ExecutionKey(self.tenant, self.execution_id)


class Waiter(msgspec.Struct, frozen=True, array_like=True):
    """Somebody who wants to be told how an execution ended."""

    reply_to: str
    correlation: str


class FlowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that some worker has registered, so that a start of it is known (F2)."""

    flow: str
    version: str
    queue: str


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the fleet and its lease (F7).

    Attributes:
        owner: unique name of this run of the process.
        role: worker, dispatcher or timer.
        host: where it runs, for people.
        queues: queues that a worker serves.
        slots: executions that a worker drives at once.
        release: version of loom-mq that it runs.
        lease_until: end of the lease in journal time; 0 when unknown.
        started_at: journal time of its registration; 0 when unknown.
        draining: it takes no new work.
    """

    owner: str
    role: str
    host: str
    queues: tuple[str, ...] = ()
    slots: int = 0
    release: str = ""
    lease_until: int = 0
    started_at: int = 0
    draining: bool = False
