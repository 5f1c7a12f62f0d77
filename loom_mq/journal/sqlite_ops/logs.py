"""Admission and appends, each inside one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Final

from loom_mq.errors import LoomError
from loom_mq.journal import transitions, verdicts
from loom_mq.journal.protocol import Admission, AdmitVerdict, Append, AppendVerdict
from loom_mq.journal.sqlite_ops import events, lifecycle, rows
from loom_mq.journal.statements import load_statements
from loom_mq.journal.verdicts import Grant, Standing
from loom_mq.model.execution import ExecutionRow

_INBOX: Final = load_statements("sqlite", "inbox")
_TIMERS: Final = load_statements("sqlite", "timers")


def admit(db: Connection, now: int, admissions: Sequence[Admission]) -> list[AdmitVerdict]:
    """See `Journal.admit`."""
    return [_admit(db, now, each) for each in admissions]


def _admit(db: Connection, now: int, admission: Admission) -> AdmitVerdict:
    key = admission.key
    found = row = rows.get(db, key)
    if found is None:
        row = transitions.admitted(admission, now)
    elif verdicts.makes_way(found, admission) and lifecycle.retire(db, key, admission.retire_as):
        row = transitions.succeeded(found, admission, now)
    assert row is not None  # found or made
    created = row is not found
    if created:
        rows.insert(db, row, admission.start)
    same = row.input_digest == admission.input_digest
    if admission.waiter is not None and same and not row.status.terminal:
        waiters = () if created else rows.get_waiters(db, key)
        rows.set_waiters(db, key, transitions.with_waiter(waiters, admission.waiter))
    return AdmitVerdict(row, created, same)


def append(db: Connection, now: int, appends: Sequence[Append]) -> list[AppendVerdict]:
    """See `Journal.append`."""
    return [_append(db, now, each) for each in appends]


def _append(db: Connection, now: int, append: Append) -> AppendVerdict:
    standing = rows.get_standing(db, append.key, now)
    grant = verdicts.judge_append(
        standing,
        append,
        recorded=_recorded(db, standing, append),
        first_id_known=False,  # the insert finds out
        now=now,
    )
    if isinstance(grant, LoomError):
        return AppendVerdict(error=grant)
    assert standing is not None  # no leave is given to write to what is not there
    row = standing.row
    if grant is Grant.NEW:
        if not events.insert(db, append.key, append.events):
            return AppendVerdict(error=verdicts.duplicate_id(append))
        row = _write_beside(db, now, row, append)
    terminal = append.index.status.terminal
    waiters = rows.get_waiters(db, append.key) if terminal else ()
    return AppendVerdict(inbox=row.inbox, waiters=waiters)


def _recorded(db: Connection, standing: Standing | None, append: Append) -> tuple[bytes, ...]:
    if standing is None or not verdicts.may_be_recorded(standing.row, append):
        return ()
    span = append.events[0].seq, append.events[-1].seq + 1
    return tuple(event.id for event in events.between(db, append.key, *span))


def _write_beside(db: Connection, now: int, row: ExecutionRow, append: Append) -> ExecutionRow:
    """Everything that the transaction of an append changes beside the log."""
    key = append.key
    if row.last_seq < 0:
        rows.drop_start(db, key)
    unread = row.inbox
    for item_id in append.consume:
        unread -= db.execute(_INBOX["take"], (*key, item_id)).rowcount
    for due in append.timers:
        db.execute(_TIMERS["arm"], (*key, due))
    if append.index.status.terminal:
        unread = 0
        db.execute(_INBOX["clear"], key)
        db.execute(_TIMERS["clear"], key)
    return rows.put(db, row, transitions.appended(row, append, unread, now))
