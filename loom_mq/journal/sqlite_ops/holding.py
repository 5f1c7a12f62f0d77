"""Who drives an execution: claims, fences, giving back; and what is told to it."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Final

from loom_mq.errors import LoomError
from loom_mq.journal import transitions, verdicts
from loom_mq.journal.protocol import (
    CLAIM_PAGE,
    Claim,
    Claimed,
    ClaimVerdict,
    DeliverVerdict,
    WatchVerdict,
)
from loom_mq.journal.sqlite_ops import events, lifecycle, rows
from loom_mq.journal.statements import load_statements
from loom_mq.journal.verdicts import Grant
from loom_mq.model.execution import ExecutionKey, ExecutionRow, InboxItem, InboxKind, Waiter

_INBOX: Final = load_statements("sqlite", "inbox")


def claim(db: Connection, now: int, claims: Sequence[Claim]) -> list[ClaimVerdict]:
    """See `Journal.claim`."""
    return [_claim(db, now, each) for each in claims]


def _claim(db: Connection, now: int, claim: Claim) -> ClaimVerdict:
    standing = rows.get_standing(db, claim.key, now)
    grant = verdicts.judge_claim(standing, claim, now=now)
    if isinstance(grant, LoomError):
        return ClaimVerdict(error=grant)
    assert standing is not None  # nothing is granted on what is not there
    row = standing.row
    if grant is Grant.NEW:
        row = rows.put(db, row, transitions.claimed(row, claim, now))
    snapshot = lifecycle.snapshot(db, claim.key, beyond=claim.known_seq)
    known = claim.known_seq if snapshot is None else snapshot.seq
    page = events.page(db, row, first=known + 1, limit=CLAIM_PAGE)
    newest_sent = page[-1].seq if page else known
    return ClaimVerdict(
        Claimed(
            row=row,
            events=tuple(page),
            more=newest_sent < row.last_seq,
            start=rows.get_start(db, claim.key) if row.last_seq < 0 else None,
            inbox=_unread(db, claim.key) if row.inbox else (),
            now=now,
            snapshot=snapshot,
        )
    )


def acquire_fence(db: Connection, now: int, key: ExecutionKey, expected: int | None) -> int:
    """See `Journal.acquire_fence`."""
    row = rows.get(db, key)
    if row is None:
        raise verdicts.unknown(key)
    verdicts.judge_fence(row, key, expected)
    return rows.put(db, row, transitions.fenced(row, now)).fence


def defer(
    db: Connection,
    now: int,
    keys: Sequence[ExecutionKey],
    owner: str,
    delay: float | None,
    fences: Sequence[int] | None,
    trouble: str | None,
) -> None:
    """See `Journal.defer`."""
    for key, fence in zip(keys, [None] * len(keys) if fences is None else fences, strict=True):
        row = rows.get(db, key)
        if row is None:
            continue
        given_back = transitions.deferred(row, owner, delay, now, fence, trouble)
        if given_back is not None:
            rows.put(db, row, given_back)


def get(db: Connection, keys: Sequence[ExecutionKey]) -> list[ExecutionRow | None]:
    """See `Journal.get`."""
    return [rows.get(db, key) for key in keys]


# ---- inbox ------------------------------------------------------------------------------


def deliver(
    db: Connection, now: int, items: Sequence[InboxItem], resend_after: float
) -> list[DeliverVerdict]:
    """See `Journal.deliver`."""
    return [_deliver(db, now, each, resend_after) for each in items]


def _deliver(db: Connection, now: int, item: InboxItem, resend_after: float) -> DeliverVerdict:
    row = rows.get(db, item.key)
    if row is None:
        return DeliverVerdict(error=verdicts.unknown(item.key))
    if row.status.terminal:
        return DeliverVerdict(error=verdicts.ended(row))
    inserted = db.execute(
        _INBOX["insert"],
        (
            *item.key,
            item.item_id,
            item.kind.value,
            item.gate,
            item.wait_id,
            item.payload,
            item.reply_to,
            item.correlation,
            item.actor,
        ),
    )
    if inserted.rowcount == 0:
        return DeliverVerdict(row, duplicate=True)
    return DeliverVerdict(rows.put(db, row, transitions.delivered(row, resend_after, now)))


def inbox(db: Connection, keys: Sequence[ExecutionKey]) -> list[tuple[InboxItem, ...]]:
    """See `Journal.inbox`."""
    return [_unread(db, key) for key in keys]


def _unread(db: Connection, key: ExecutionKey) -> tuple[InboxItem, ...]:
    return tuple(
        InboxItem(
            tenant=columns[0],
            execution_id=columns[1],
            item_id=columns[2],
            kind=InboxKind(columns[3]),
            gate=columns[4],
            wait_id=columns[5],
            payload=columns[6],
            reply_to=columns[7],
            correlation=columns[8],
            actor=columns[9],
        )
        for columns in db.execute(_INBOX["unread"], key)
    )


def discard(db: Connection, _now: int, items: Sequence[tuple[ExecutionKey, str]]) -> None:
    """See `Journal.discard`."""
    for key, item_id in items:
        if db.execute(_INBOX["discard"], (*key, item_id)).rowcount == 0:
            continue
        row = rows.get(db, key)
        if row is not None:
            rows.put(db, row, transitions.discarded(row, row.inbox - 1))


# ---- waiting for the end ------------------------------------------------------------------


def watch(db: Connection, _now: int, key: ExecutionKey, waiter: Waiter | None) -> WatchVerdict:
    """See `Journal.watch`."""
    row = rows.get(db, key)
    if row is None:
        return WatchVerdict(None)
    if row.status.terminal:
        return WatchVerdict(row, events.newest(db, row))
    if waiter is not None:
        rows.set_waiters(db, key, transitions.with_waiter(rows.get_waiters(db, key), waiter))
    return WatchVerdict(row)
