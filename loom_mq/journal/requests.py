"""What is asked of a journal and what it answers; see `protocol`.

A verdict holds its refusal as an exception object, unraised.
"""

from __future__ import annotations

import msgspec

from loom_mq.errors import LoomError
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow, InboxItem, Status, Waiter
from loom_mq.model.policies import StartPolicy
from loom_mq.model.snapshots import Snapshot


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A start to be admitted: the row is written, the log stays empty (F2).

    Attributes:
        start: the payload of the EXECUTION_STARTED that the first claim will write.
        input_digest: digest of flow and input, and of the start itself where its policy is
            not to take what is there.
        waiter: who wants to hear of the end; only where what is there is the same.
        resend_after: seconds after which the sweep sends another package.
        policy: what to do when the id is taken (K16). `REJECT` is the caller's affair:
            for the journal it is `EXISTING`.
        retire_as: the id under which an ended execution is kept when `policy` lets a new
            one take its place; must be free. An execution that has such a successor keeps
            its log, fence and times.
    """

    key: ExecutionKey
    flow: str
    version: str
    queue: str
    start: bytes
    input_digest: bytes
    parent: str | None = None
    features: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    waiter: Waiter | None = None
    resend_after: float = 5.0
    policy: StartPolicy = StartPolicy.EXISTING
    retire_as: str = ""


class AdmitVerdict(msgspec.Struct, frozen=True):
    """What became of a start.

    Attributes:
        row: the execution as it now stands, newly made or found.
        created: whether this very call made it.
        same: found, with the same flow and input (`input_digest` equal).
    """

    row: ExecutionRow
    created: bool
    same: bool


class ClaimIntent(msgspec.Struct, frozen=True, kw_only=True):
    """Ownership taken in the append that starts an execution, so that a package can be
    acknowledged after one commit.

    The append's own `fence` is then the new one and must be `expected_fence` + 1.

    Attributes:
        owner: the claimant.
        deadline: seconds until this attempt counts as wedged, None for never.
    """

    owner: str
    expected_fence: int
    deadline: float | None = None


class IndexUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The derived half of the index row after the append (J6). Times in microseconds."""

    status: Status
    wake_at: int | None = None
    gates: tuple[str, ...] = ()
    error: str | None = None
    recoveries: int = 0
    in_doubt: tuple[str, ...] = ()


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Events for one execution, all or nothing (J2).

    Attributes:
        key: whose log.
        fence: the fence held; must be the current one (or the claimed one).
        events: at least one; sequences dense; the first must be the next of the log.
        index: what the index row says afterwards.
        claim: take ownership in the same transaction.
        release: give up ownership (set at a park and at the end).
        timers: due times to arm in the same transaction (F9); idempotent per
            (execution, due time).
        consume: inbox item ids taken by these events, deleted in the same transaction.
    """

    key: ExecutionKey
    fence: int
    events: tuple[Envelope, ...]
    index: IndexUpdate
    claim: ClaimIntent | None = None
    release: bool = False
    timers: tuple[int, ...] = ()
    consume: tuple[str, ...] = ()


class AppendVerdict(msgspec.Struct, frozen=True):
    """What became of an append.

    Refusals: `StaleFenceError`, `DuplicateSequenceError`, `DuplicateEnvelopeIdError`,
    `ExecutionAlreadyExistsError` (a claim or append of sequence 0 found the log begun
    by another), `StartFencedOutError` (a claim found a newer fence over an empty log),
    `UnknownExecutionError`, and `HeldByLiveOwnerError`. An append whose envelope ids
    already stand at the same sequences is a success (J4). The guard against an
    envelope id at another sequence looks at the append's first id.

    Attributes:
        inbox: unread inbox items when the append committed; a parked execution with
            unread items must be driven again (no hint may be lost between the two).
        waiters: who wants to hear of the end; filled for a terminal status only, and
            for it also when the append was found already written.
    """

    error: LoomError | None = None
    inbox: int = 0
    waiters: tuple[Waiter, ...] = ()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A takeover, by compare-and-set (J5).

    Attributes:
        expected_fence: the fence that the claimant means to supersede.
        preempt: take it even from a live owner (the original Loom's policy; the fleet
            never does).
        known_seq: newest sequence that the claimant already has in memory; events up
            to it are not sent again. -1 for all, or for the newest snapshot and what
            follows it.
    """

    key: ExecutionKey
    owner: str
    expected_fence: int
    deadline: float | None = None
    preempt: bool = False
    known_seq: int = -1


class Claimed(msgspec.Struct, frozen=True):
    """What a claimant needs to go on; read in the claiming transaction.

    Attributes:
        row: the index row after the claim; `row.fence` is the new fence.
        snapshot: the newest snapshot, when it is newer than `known_seq` (J7).
        events: the log after `known_seq` or the snapshot, at most `CLAIM_PAGE` of them.
        more: there are more events to be read with `read`.
        start: the stored start payload while the log is empty, else None.
        inbox: unread inbox items, oldest first.
        now: journal time.
    """

    row: ExecutionRow
    events: tuple[Envelope, ...]
    more: bool
    start: bytes | None
    inbox: tuple[InboxItem, ...]
    now: int
    snapshot: Snapshot | None = None


CLAIM_PAGE = 1000


class ClaimVerdict(msgspec.Struct, frozen=True):
    """A claim, or its refusal.

    Refusals: `StaleFenceError` (the fence has moved), `HeldByLiveOwnerError`,
    `ExecutionEndedError` (terminal), `UnknownExecutionError`.
    """

    claimed: Claimed | None = None
    error: LoomError | None = None


class DeliverVerdict(msgspec.Struct, frozen=True):
    """What became of an inbox item.

    Refusals: `UnknownExecutionError`, `ExecutionEndedError`.

    Attributes:
        row: the execution as it stood, for routing the hint.
        duplicate: this item id was delivered before; nothing changed.
    """

    row: ExecutionRow | None = None
    duplicate: bool = False
    error: LoomError | None = None


class WatchVerdict(msgspec.Struct, frozen=True):
    """What a would-be waiter learns.

    Attributes:
        row: the execution as it stands.
        terminal: the newest event when the execution has ended, else None (and the
            waiter is registered).
    """

    row: ExecutionRow | None
    terminal: Envelope | None = None


class Renewal(msgspec.Struct, frozen=True):
    """A lease after its renewal.

    Attributes:
        held: False when the lease had been taken away or never was.
        now: journal time.
        mail: executions of this owner with unread inbox items: the truth behind
            every hint that may have been lost.
    """

    held: bool
    now: int
    mail: tuple[ExecutionKey, ...] = ()


class Runnable(msgspec.Struct, frozen=True):
    """An execution that a sweep wants driven.

    Attributes:
        row: the execution as it now stands; a package for it expects `row.fence`.
        start: the stored start payload while its log is empty, else None.
        lost_owner: the dead or wedged holder it was taken from, if any.
    """

    row: ExecutionRow
    start: bytes | None = None
    lost_owner: str | None = None


class DueTimer(msgspec.Struct, frozen=True):
    """A timer that has come due, held for a while by the one who asked."""

    row: ExecutionRow
    due: int


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter for listing executions, newest first; what is None or empty filters nothing.

    Attributes:
        labels: every one of these must be there with this value.
        ended_before: only those that ended before this journal time.
        in_doubt: only those that wait for a verdict (K6).
        troubled: only those that the last attempt could do nothing with (K3).
    """

    tenant: str | None = None
    status: Status | None = None
    flow: str | None = None
    version: str | None = None
    queue: str | None = None
    labels: dict[str, str] = {}
    ended_before: int | None = None
    in_doubt: bool = False
    troubled: bool = False
    limit: int = 50
    before: tuple[int, str] | None = None
    """Continue after the row with this (created_at, execution_id)."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that nobody could use, kept with its reason (F2)."""

    id: str
    queue: str
    reason: str
    body: bytes
    headers: dict[str, str] = {}
    at: int = 0


class Planting(msgspec.Struct, frozen=True, kw_only=True):
    """An execution to be created with a log that is there already: a fork, a restored
    state, an archived execution (J8).

    Attributes:
        row: the whole index row; its owner must be None. `inbox` must be 0.
        events: its log from the first event that is kept; may be empty when `snapshot`
            or `start` holds what is known. The last one's sequence is `row.last_seq`.
        snapshot: a stored fold to begin with; the events follow it without a gap.
        timers: due times to arm.
        start: the start payload while the log is empty.
    """

    row: ExecutionRow
    events: tuple[Envelope, ...] = ()
    snapshot: Snapshot | None = None
    timers: tuple[int, ...] = ()
    start: bytes | None = None


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """Another log for an execution that has ended: shorter, or without payloads (J8).

    Attributes:
        events: the whole new log. Its last event must have the id and sequence of the
            present log's last one, and its first one must be at most one further than
            `snapshot` reaches (0 without a snapshot).
        snapshot: the snapshot from now on; None removes the one that is there.
        error: the index row's error line from now on.
        labels: the index row's labels from now on.
        input_digest: the index row's digest from now on; None keeps it.
    """

    key: ExecutionKey
    events: tuple[Envelope, ...]
    snapshot: Snapshot | None = None
    error: str | None = None
    labels: dict[str, str] = {}
    input_digest: bytes | None = None
