"""Snapshots, and whole executions planted, rewritten, renamed and deleted (J7, J8, K16)."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Final

from loom_mq.errors import ExecutionAlreadyExistsError, LoomError
from loom_mq.journal import transitions, verdicts
from loom_mq.journal.protocol import Planting, Rewrite
from loom_mq.journal.sqlite_ops import events, rows
from loom_mq.journal.statements import load_statements
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.snapshots import Snapshot

_SNAPSHOTS: Final = load_statements("sqlite", "snapshots")
_TIMERS: Final = load_statements("sqlite", "timers")
_NOTHING: Final = -2
"""Less far than any snapshot reaches."""


# ---- snapshots ----------------------------------------------------------------------------


def save_snapshots(
    db: Connection, _now: int, snapshots: Sequence[tuple[ExecutionKey, Snapshot]]
) -> None:
    """See `Journal.save_snapshots`."""
    for key, snapshot in snapshots:
        row = rows.get(db, key)
        if row is None:
            continue
        columns = db.execute(_SNAPSHOTS["reach"], key).fetchone()
        kept = None if columns is None else columns[0]
        if verdicts.is_newer(snapshot, row=row, kept=kept):
            _put_snapshot(db, key, snapshot)


def snapshot(db: Connection, key: ExecutionKey, beyond: int = _NOTHING) -> Snapshot | None:
    """The newest snapshot, if it reaches further than the sequence `beyond`."""
    columns = db.execute(_SNAPSHOTS["newer"], (*key, beyond)).fetchone()
    return None if columns is None else Snapshot(*columns)


def _put_snapshot(db: Connection, key: ExecutionKey, snapshot: Snapshot) -> None:
    db.execute(_SNAPSHOTS["put"], (*key, snapshot.seq, snapshot.fold, snapshot.state))


# ---- whole executions ---------------------------------------------------------------------


def plant(db: Connection, _now: int, plantings: Sequence[Planting]) -> list[LoomError | None]:
    """See `Journal.plant`."""
    return [_plant(db, each) for each in plantings]


def _plant(db: Connection, planting: Planting) -> LoomError | None:
    row = planting.row
    if rows.exists(db, row.key):
        return ExecutionAlreadyExistsError(row.execution_id)
    rows.insert(db, row, planting.start)
    events.write_log(db, row.key, planting.events)
    if planting.snapshot is not None:
        _put_snapshot(db, row.key, planting.snapshot)
    for due in planting.timers:
        db.execute(_TIMERS["arm"], (*row.key, due))
    return None


def rewrite(db: Connection, _now: int, rewrites: Sequence[Rewrite]) -> list[LoomError | None]:
    """See `Journal.rewrite`."""
    return [_rewrite(db, each) for each in rewrites]


def _rewrite(db: Connection, rewrite: Rewrite) -> LoomError | None:
    key = rewrite.key
    row = rows.get(db, key)
    newest = None if row is None else events.newest(db, row)
    last_id = None if newest is None else newest.id
    refusal = verdicts.judge_rewrite(row, rewrite, last_id=last_id)
    if row is None or refusal is not None:
        return refusal
    events.write_log(db, key, rewrite.events)
    db.execute(_SNAPSHOTS["clear"], key)
    if rewrite.snapshot is not None:
        _put_snapshot(db, key, rewrite.snapshot)
    rows.put_lasting(db, transitions.rewritten(row, rewrite))
    return None


def delete(db: Connection, _now: int, keys: Sequence[ExecutionKey]) -> list[LoomError | None]:
    """See `Journal.delete`."""
    return [_delete(db, key) for key in keys]


def _delete(db: Connection, key: ExecutionKey) -> LoomError | None:
    # the end has emptied its inbox
    refusal = verdicts.judge_delete(rows.get(db, key), key)
    if refusal is None:
        rows.delete(db, key)
        events.clear(db, key)
        db.execute(_SNAPSHOTS["clear"], key)
        db.execute(_TIMERS["clear"], key)
    return refusal


def retire(db: Connection, key: ExecutionKey, execution_id: str) -> bool:
    """Keep an execution that has ended, and so has neither mail nor timers, under another
    id; whether that was free (K16).
    """
    if rows.exists(db, ExecutionKey(key.tenant, execution_id)):
        return False
    rows.rename(db, key, execution_id)
    events.rename(db, key, execution_id)
    db.execute(_SNAPSHOTS["rename"], (execution_id, *key))
    return True
