"""Leases, flows and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Final

from loom_mq.journal import transitions
from loom_mq.journal.protocol import DeadLetter, Renewal
from loom_mq.journal.sqlite_ops import rows
from loom_mq.journal.statements import load_statements
from loom_mq.model.execution import ExecutionKey, FlowRecord, WorkerRecord

_SQL: Final = load_statements("sqlite", "fleet")


# ---- leases -------------------------------------------------------------------------------


def register_worker(db: Connection, now: int, worker: WorkerRecord, ttl: float) -> None:
    """Register a process and begin its lease; see `Journal.lease`."""
    db.execute(_SQL["forget_workers"], (now,))
    db.execute(
        _SQL["register_worker"],
        (
            worker.owner,
            worker.role,
            worker.host,
            rows.pack_texts(worker.queues),
            worker.slots,
            worker.release,
            transitions.after(now, ttl),
            now,
            int(worker.draining),
        ),
    )


def renew(db: Connection, now: int, owner: str, ttl: float) -> Renewal:
    """See `LeaseSession.renew`. A lease that has lapsed is lost, whoever noticed (F7)."""
    renewed = db.execute(_SQL["renew"], (transitions.after(now, ttl), owner, now)).rowcount
    if not renewed:
        return Renewal(held=False, now=now)
    mail = tuple(ExecutionKey(*columns) for columns in db.execute(_SQL["mail"], (owner,)))
    return Renewal(held=True, now=now, mail=mail)


def drain(db: Connection, _now: int, owner: str) -> None:
    """See `LeaseSession.drain`."""
    db.execute(_SQL["drain"], (owner,))


def retire(db: Connection, now: int, owner: str) -> None:
    """See `LeaseSession.retire`."""
    db.execute(_SQL["end_lease"], (owner,))
    for columns in db.execute(_SQL["held"], (owner,)).fetchall():
        row = rows.to_row(columns)
        released = transitions.deferred(row, owner, 0.0, now)
        if released is not None:
            rows.put(db, row, released)
    db.execute(_SQL["forget_workers"], (now,))


def begin_alone(db: Connection, now: int) -> None:
    """Whatever another process held, sent or was about to fire died with it."""
    db.execute(_SQL["end_all_leases"])
    db.execute(_SQL["release_all_timers"])
    db.execute(_SQL["hasten_all_hints"], (now, now))


def has_lapsed(db: Connection, now: int, owner: str) -> bool:
    """See `Journal.lapse_if_gone`."""
    columns = db.execute(_SQL["lease_of"], (owner,)).fetchone()
    return columns is None or columns[0] <= now


def workers(db: Connection, now: int) -> list[WorkerRecord]:
    """See `Journal.workers`."""
    return [
        WorkerRecord(
            owner=columns[0],
            role=columns[1],
            host=columns[2],
            queues=rows.unpack_texts(columns[3]),
            slots=columns[4],
            release=columns[5],
            lease_until=columns[6],
            started_at=columns[7],
            draining=bool(columns[8]),
        )
        for columns in db.execute(_SQL["live_workers"], (now,))
    ]


# ---- flows --------------------------------------------------------------------------------


def register_flows(db: Connection, _now: int, flows: Sequence[FlowRecord]) -> None:
    """See `Journal.register_flows`."""
    db.executemany(_SQL["register_flow"], [(each.flow, each.version, each.queue) for each in flows])


def flows(db: Connection) -> list[FlowRecord]:
    """See `Journal.flows`."""
    found = db.execute(_SQL["flows"])
    return [FlowRecord(flow=flow, version=version, queue=queue) for flow, version, queue in found]


# ---- dead letters -------------------------------------------------------------------------


def record_dead_letters(db: Connection, now: int, letters: Sequence[DeadLetter]) -> None:
    """See `Journal.record_dead_letters`."""
    db.executemany(
        _SQL["record_letter"],
        [
            (
                each.id,
                each.queue,
                each.reason,
                each.body,
                rows.pack_labels(each.headers),
                each.at or now,
            )
            for each in letters
        ],
    )


def dead_letters(db: Connection, limit: int) -> list[DeadLetter]:
    """See `Journal.dead_letters`."""
    return [
        DeadLetter(
            id=columns[0],
            queue=columns[1],
            reason=columns[2],
            body=columns[3],
            headers=rows.unpack_labels(columns[4]),
            at=columns[5],
        )
        for columns in db.execute(_SQL["letters"], (limit,))
    ]


def drop_dead_letters(db: Connection, _now: int, ids: Sequence[str]) -> list[bool]:
    """See `Journal.drop_dead_letters`."""
    return [db.execute(_SQL["drop_letter"], (each,)).rowcount > 0 for each in ids]
