"""Who may write what: the journal's decisions, pure (J2, J4, J5, F7).

The stores that run in this process share them. PostgreSQL decides the same in SQL,
and the conformance kit holds all of them to the same answers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from loom_mq.errors import (
    DuplicateEnvelopeIdError,
    DuplicateSequenceError,
    ExecutionAlreadyExistsError,
    ExecutionEndedError,
    ExecutionNotEndedError,
    HeldByLiveOwnerError,
    LoomError,
    StaleFenceError,
    StartFencedOutError,
    UnknownExecutionError,
)
from loom_mq.journal.protocol import Admission, Append, Claim, Rewrite
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from loom_mq.model.policies import StartPolicy
from loom_mq.model.snapshots import Snapshot


class Standing(msgspec.Struct, frozen=True):
    """An execution as a decision sees it.

    Attributes:
        row: the index row.
        alive: whether the lease of the row's owner runs.
    """

    row: ExecutionRow
    alive: bool

    def holder(self, now: int) -> str | None:
        """The owner that is to be left alone: alive, and its attempt not wedged (F7)."""
        row = self.row
        wedged = row.deadline is not None and row.deadline <= now
        return row.owner if self.alive and not wedged else None


class Grant(enum.Enum):
    """A write that may go on."""

    NEW = enum.auto()
    """Nothing of it is there yet."""
    REPEATED = enum.auto()
    """All of it is there already: its answer was lost (J4)."""


def unknown(key: ExecutionKey) -> UnknownExecutionError:
    """The refusal of a request for an execution that does not exist."""
    return UnknownExecutionError(
        f"there is no execution {key.execution_id!r}", execution_id=key.execution_id
    )


def ended(row: ExecutionRow) -> ExecutionEndedError:
    """The refusal of a request that came after the end."""
    return ExecutionEndedError(
        f"execution {row.execution_id!r} has ended {row.status.value}",
        execution_id=row.execution_id,
    )


def not_ended(row: ExecutionRow) -> ExecutionNotEndedError:
    """The refusal to cut, erase or delete what is still going on (J8)."""
    return ExecutionNotEndedError(
        f"execution {row.execution_id!r} is {row.status.value}; wait until it has ended, "
        "or cancel it first",
        execution_id=row.execution_id,
    )


def makes_way(row: ExecutionRow, admission: Admission) -> bool:
    """Whether what is there is kept under `retire_as`, so that a start can have its id
    (K16). If that name is taken, this very start has been made before and is found.
    """
    match admission.policy:
        case StartPolicy.AFTER_CLOSE:
            return row.status.terminal
        case StartPolicy.AFTER_FAILURE:
            return row.status in (Status.FAILED, Status.CANCELLED)
        case _:
            return False


def may_be_recorded(row: ExecutionRow, append: Append) -> bool:
    """Whether the log is long enough to hold the append already."""
    return append.events[-1].seq <= row.last_seq


def judge_append(
    standing: Standing | None,
    append: Append,
    *,
    recorded: tuple[bytes, ...],
    first_id_known: bool,
    now: int,
) -> Grant | LoomError:
    """Decide one append (J2, J4).

    Args:
        standing: the execution, None when there is none.
        append: what is to be written.
        recorded: the ids that stand at the append's sequences; need only be looked up
            when `may_be_recorded`.
        first_id_known: the append's first id was the first id of an earlier append. A
            store whose unique index finds that out may pass False.
        now: journal time.

    Returns:
        Leave to write, or the refusal.
    """
    if standing is None:
        return unknown(append.key)
    row = standing.row
    if may_be_recorded(row, append) and recorded == tuple(each.id for each in append.events):
        return Grant.REPEATED
    seq = append.events[0].seq
    if seq == 0 and row.last_seq >= 0:
        return ExecutionAlreadyExistsError(row.execution_id)
    refusal = _judge_fence(standing, append, now)
    if refusal is not None:
        return refusal
    if seq != row.last_seq + 1:
        return DuplicateSequenceError(row.execution_id, seq=seq, next_seq=row.last_seq + 1)
    if first_id_known:
        return duplicate_id(append)
    return Grant.NEW


def duplicate_id(append: Append) -> DuplicateEnvelopeIdError:
    """The refusal of an append whose first id stands at another sequence."""
    return DuplicateEnvelopeIdError(append.key.execution_id, envelope_id=append.events[0].id.hex())


def _judge_fence(standing: Standing, append: Append, now: int) -> LoomError | None:
    row = standing.row
    claim = append.claim
    expected = append.fence if claim is None else claim.expected_fence
    if row.fence != expected or (claim is not None and append.fence != expected + 1):
        if claim is not None and row.last_seq < 0 and row.fence > expected:
            return StartFencedOutError(row.execution_id, current=row.fence)
        return StaleFenceError(row.execution_id, held=append.fence, current=row.fence)
    if claim is None:
        return None
    holder = standing.holder(now)
    if holder is not None and holder != claim.owner:
        return HeldByLiveOwnerError(row.execution_id, owner=holder)
    return None


def judge_claim(standing: Standing | None, claim: Claim, *, now: int) -> Grant | LoomError:
    """Decide one takeover (J5, F7).

    Args:
        standing: the execution, None when there is none.
        claim: what is asked.
        now: journal time.

    Returns:
        Leave to take it, or the refusal.
    """
    if standing is None:
        return unknown(claim.key)
    row = standing.row
    if row.status.terminal:
        return ended(row)
    if row.owner == claim.owner and row.fence == claim.expected_fence + 1:
        return Grant.REPEATED
    if row.fence != claim.expected_fence:
        return StaleFenceError(row.execution_id, held=claim.expected_fence, current=row.fence)
    holder = standing.holder(now)
    if holder is not None and holder != claim.owner and not claim.preempt:
        return HeldByLiveOwnerError(row.execution_id, owner=holder)
    return Grant.NEW


def judge_fence(row: ExecutionRow | None, key: ExecutionKey, expected: int | None) -> None:
    """Decide `acquire_fence` (J5).

    Raises:
        UnknownExecutionError: no such execution.
        StaleFenceError: another moved the fence first.
    """
    if row is None:
        raise unknown(key)
    if expected is not None and expected != row.fence:
        raise StaleFenceError(key.execution_id, held=expected, current=row.fence)


def worth_sending(snapshot: Snapshot | None, claim: Claim) -> Snapshot | None:
    """The snapshot, if it tells the claimant more than it knows (J7)."""
    return snapshot if snapshot is not None and snapshot.seq > claim.known_seq else None


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether every label that is wanted is there with that very value."""
    return all(labels.get(name) == value for name, value in wanted.items())


def is_newer(snapshot: Snapshot, *, row: ExecutionRow, kept: int | None) -> bool:
    """Whether a snapshot is to be kept (J7).

    Args:
        snapshot: of the execution of `row`.
        row: says how far the log goes; more than that nobody can have folded.
        kept: how far the snapshot reaches that is there already, None when none is.
    """
    return snapshot.seq <= row.last_seq and (kept is None or kept <= snapshot.seq)


def judge_rewrite(
    row: ExecutionRow | None, rewrite: Rewrite, *, last_id: bytes | None
) -> LoomError | None:
    """Decide whether an ended execution may get another log (J8).

    Args:
        row: the execution, None when there is none.
        rewrite: what is asked.
        last_id: the id of its newest event, None when no event is kept.

    Returns:
        The refusal, None for leave.
    """
    refusal = judge_delete(row, rewrite.key)
    if row is None or refusal is not None:
        return refusal
    events, snapshot = rewrite.events, rewrite.snapshot
    last = events[-1].seq if events else -1
    if not events or last != row.last_seq or events[-1].id != last_id:
        return DuplicateSequenceError(row.execution_id, seq=last, next_seq=row.last_seq + 1)
    follows = 0 if snapshot is None else snapshot.seq + 1
    if events[0].seq > follows:
        return DuplicateSequenceError(row.execution_id, seq=events[0].seq, next_seq=follows)
    return None


def judge_delete(row: ExecutionRow | None, key: ExecutionKey) -> LoomError | None:
    """Decide whether an execution may be deleted (J8).

    Returns:
        The refusal, None for leave.
    """
    if row is None:
        return unknown(key)
    return None if row.status.terminal else not_ended(row)
