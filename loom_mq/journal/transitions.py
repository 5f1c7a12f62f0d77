"""What a write makes of an index row: pure, shared by the stores of this process (J6).

Times are microseconds of journal time. Who may write is decided in `verdicts`.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from loom_mq.clock import MICROS
from loom_mq.journal.protocol import Admission, Append, Claim, Rewrite
from loom_mq.model.execution import ExecutionRow, Status, Waiter

MAX_WAITERS: Final = 64
REPAIR_GRACE: Final = 5.0
"""Seconds that whoever took a fence by hand gets before the execution is sent again."""
_MAX_DOUBLINGS: Final = 30


def after(now: int, seconds: float) -> int:
    """The time `seconds` after `now`."""
    return now + int(seconds * MICROS)


def admitted(admission: Admission, now: int) -> ExecutionRow:
    """A new, pending execution (F2)."""
    return ExecutionRow(
        tenant=admission.key.tenant,
        execution_id=admission.key.execution_id,
        flow=admission.flow,
        version=admission.version,
        queue=admission.queue,
        status=Status.PENDING,
        last_seq=-1,
        wake_at=None,
        gates=(),
        error=None,
        recoveries=0,
        parent=admission.parent,
        features=admission.features,
        labels=admission.labels,
        created_at=now,
        updated_at=now,
        started_at=None,
        ended_at=None,
        fence=0,
        owner=None,
        attempt=0,
        deadline=None,
        hint_at=after(now, admission.resend_after),
        hints=0,
        inbox=0,
        input_digest=admission.input_digest,
    )


def succeeded(row: ExecutionRow, admission: Admission, now: int) -> ExecutionRow:
    """A new, pending execution in the place of one that has ended (K16).

    Its fence goes on where the other's ended, as if one had been taken by hand: whatever
    of the other is still on its way (an append sent again, a package that holds its
    start) names a fence that has passed.
    """
    return replace(admitted(admission, now), fence=row.fence + 1)


def appended(row: ExecutionRow, append: Append, unread: int, now: int) -> ExecutionRow:
    """The row after an append.

    Args:
        row: as it stood.
        append: a lawful append.
        unread: inbox items that the append leaves; a terminal one leaves none.
        now: journal time.
    """
    events, index, claim = append.events, append.index, append.claim
    if claim is not None:
        row = _taken(row, claim.owner, append.fence, claim.deadline, now)
    at = events[-1].at
    status = index.status
    gone = append.release or status.terminal
    if status.terminal:
        hint_at = None
    elif status is Status.SUSPENDED:
        hint_at = now if unread else None
    else:
        # whoever lets go of running work leaves it to the sweep
        hint_at = now if append.release else row.hint_at
    return replace(
        row,
        status=status,
        last_seq=events[-1].seq,
        wake_at=index.wake_at,
        gates=index.gates,
        error=index.error,
        recoveries=index.recoveries,
        in_doubt=index.in_doubt,
        trouble=None,
        updated_at=at,
        started_at=events[0].at if row.started_at is None else row.started_at,
        ended_at=at if status.terminal else None,
        owner=None if gone else row.owner,
        deadline=None if gone else row.deadline,
        hint_at=hint_at,
        inbox=unread,
    )


def claimed(row: ExecutionRow, claim: Claim, now: int) -> ExecutionRow:
    """The row after a takeover (J5)."""
    return _taken(row, claim.owner, claim.expected_fence + 1, claim.deadline, now)


def _taken(
    row: ExecutionRow, owner: str, fence: int, deadline: float | None, now: int
) -> ExecutionRow:
    return replace(
        row,
        fence=fence,
        owner=owner,
        attempt=row.attempt + 1,
        deadline=None if deadline is None else after(now, deadline),
        hint_at=None,
        hints=0,
    )


def fenced(row: ExecutionRow, now: int) -> ExecutionRow:
    """The row after a fence was taken by hand.

    A holder that was displaced will go quiet, so the execution is sent again unless the
    taker ends it first: nothing may be left lying.
    """
    displaced = row.owner is not None
    return replace(
        row,
        fence=row.fence + 1,
        owner=None,
        deadline=None,
        hint_at=after(now, REPAIR_GRACE) if displaced else row.hint_at,
    )


def deferred(
    row: ExecutionRow,
    owner: str,
    delay: float | None,
    now: int,
    fence: int | None = None,
    trouble: str | None = None,
) -> ExecutionRow | None:
    """The row after its holder gave it back; None when it is left alone.

    Mail that came after the claim, or a timer that fired, has set a hint, which giving
    back does not take away: the holder may not have seen it.
    """
    if row.status.terminal or row.owner not in (None, owner) or fence not in (None, row.fence):
        return None
    hint_at = row.hint_at if delay is None else after(now, delay)
    return replace(
        row,
        owner=None,
        deadline=None,
        hint_at=hint_at,
        trouble=row.trouble if trouble is None else trouble,
    )


def detached(row: ExecutionRow, resend_after: float, now: int) -> ExecutionRow:
    """The row after it was taken from a dead or wedged holder (F7)."""
    return replace(row, owner=None, deadline=None, hint_at=after(now, resend_after))


def hinted(row: ExecutionRow, resend_after: float, backoff_limit: float, now: int) -> ExecutionRow:
    """The row after a sweep sent a package for it."""
    pause = min(resend_after * (1 << min(row.hints, _MAX_DOUBLINGS)), backoff_limit)
    return replace(row, hints=row.hints + 1, hint_at=after(now, pause))


def delivered(row: ExecutionRow, resend_after: float, now: int) -> ExecutionRow:
    """The row after an item came into its inbox; its next package is never put off."""
    hint_at = row.hint_at
    if row.status is not Status.RUNNING:
        wanted = after(now, resend_after)
        hint_at = wanted if hint_at is None else min(hint_at, wanted)
    return replace(row, inbox=row.inbox + 1, hint_at=hint_at)


def rewritten(row: ExecutionRow, rewrite: Rewrite) -> ExecutionRow:
    """The row of an ended execution that got another log (J8)."""
    digest = rewrite.input_digest
    return replace(
        row,
        error=rewrite.error,
        labels=rewrite.labels,
        input_digest=row.input_digest if digest is None else digest,
    )


def discarded(row: ExecutionRow, unread: int) -> ExecutionRow:
    """The row after refused items were deleted from its inbox."""
    return replace(row, inbox=unread)


def with_waiter(waiters: tuple[Waiter, ...], waiter: Waiter) -> tuple[Waiter, ...]:
    """The newest `MAX_WAITERS` of those who wait; the same one twice is one."""
    return (*(each for each in waiters if each != waiter), waiter)[-MAX_WAITERS:]


def fired(row: ExecutionRow, hold: float, now: int) -> ExecutionRow:
    """A timer's wake is on its way: should it be lost, another is sent (F9)."""
    if row.status is not Status.SUSPENDED:
        return row
    return replace(row, hint_at=after(now, hold))
