"""Executions, events and the rest, as items for programs and as cells for people."""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec
from rich.text import Text

from loom_mq.cli.screen import Cell, Item
from loom_mq.cli.text import moment
from loom_mq.clock import MICROS
from loom_mq.errors import InputError
from loom_mq.kernel.explain import Reason
from loom_mq.kernel.wording import span
from loom_mq.model.execution import ExecutionRow, Status, WorkerRecord

EXECUTION_COLUMNS: Final = (
    "ID",
    "FLOW",
    "STATUS",
    "QUEUE",
    "AGE",
    "STEP",
    "ATTEMPT",
    "WAITING-FOR",
    "OWNER",
)
NOTHING: Final = "-"
_COLOURS: Final = {
    Status.PENDING: "yellow",
    Status.RUNNING: "cyan",
    Status.SUSPENDED: "blue",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "magenta",
}


# ---- executions ----------------------------------------------------------------------------


def execution_item(row: ExecutionRow, now: int, step: str | None) -> Item:
    """One execution for programs; `step` is the newest that has not ended."""
    return {
        "id": row.execution_id,
        "tenant": row.tenant,
        "flow": row.flow,
        "version": row.version,
        "queue": row.queue,
        "status": row.status.value,
        "age_seconds": max(0, now - row.created_at) / MICROS,
        "step": step,
        "attempt": row.attempt,
        "recoveries": row.recoveries,
        "owner": row.owner,
        "gates": list(row.gates),
        "in_doubt": list(row.in_doubt),
        "trouble": row.trouble,
        "wake_at": moment(row.wake_at),
        "waiting_for": waiting_for(row, now),
        "error": row.error,
        "inbox": row.inbox,
        "events": row.last_seq + 1,
        "parent": row.parent,
        "labels": row.labels,
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
        "started_at": moment(row.started_at),
        "ended_at": moment(row.ended_at),
    }


def execution_cells(row: ExecutionRow, now: int, step: str | None) -> tuple[Cell, ...]:
    """One execution for people, in the order of `EXECUTION_COLUMNS`."""
    return (
        row.execution_id,
        row.flow,
        status_cell(row.status),
        row.queue,
        span((now - row.created_at) / MICROS),
        step or NOTHING,
        str(row.attempt),
        waiting_for(row, now) or NOTHING,
        row.owner or NOTHING,
    )


def status_cell(status: Status) -> Text:
    """A status in its colour."""
    return Text(status.value, style=_COLOURS[status])


def waiting_for(row: ExecutionRow, now: int) -> str | None:
    """What an execution waits for, in a word or two."""
    if row.status is Status.PENDING:
        return "a worker"
    if row.status is not Status.SUSPENDED:
        return None
    if row.in_doubt:
        return f"verdict: {', '.join(row.in_doubt)}"
    if row.gates:
        return ", ".join(row.gates)
    if row.wake_at is None:
        return None
    left = (row.wake_at - now) / MICROS
    return f"timer, {span(left)}" if left >= 0 else f"timer, {span(-left)} late"


def reason_item(row: ExecutionRow, reason: Reason, now: int) -> Item:
    """Why an execution is where it is, for programs."""
    return {
        "id": row.execution_id,
        "tenant": row.tenant,
        "flow": row.flow,
        "queue": row.queue,
        "status": row.status.value,
        "code": reason.code.value,
        "stuck": reason.stuck,
        "sentence": reason.sentence,
        "since": moment(reason.since),
        "since_seconds": None if reason.since is None else max(0, now - reason.since) / MICROS,
        "next": reason.next or None,
        "evidence": list(reason.evidence),
    }


def cursor_of(row: ExecutionRow) -> str:
    """Where the page after this row begins."""
    data = msgspec.json.encode([row.created_at, row.execution_id])
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def read_cursor(text: str | None) -> tuple[int, str] | None:
    """What `cursor_of` wrote.

    Raises:
        InputError: it is not from there.
    """
    if text is None:
        return None
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(data, type=tuple[int, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise InputError(f"--cursor {text!r} is not one that `loom list` gave") from error


# ---- the fleet -------------------------------------------------------------------------------


WORKER_COLUMNS: Final = (
    *("WORKER", "ROLE", "STATE", "QUEUES", "SLOTS", "EXECUTIONS", "LEASE-LEFT", "VERSION", "UP"),
)


def worker_item(worker: WorkerRecord, held: int, now: int) -> Item:
    """One process for programs."""
    return {
        "owner": worker.owner,
        "role": worker.role,
        "host": worker.host,
        "queues": list(worker.queues),
        "slots": worker.slots,
        "executions": held,
        "lease_left_seconds": max(0, worker.lease_until - now) / MICROS,
        "release": worker.release,
        "up_seconds": max(0, now - worker.started_at) / MICROS,
        "draining": worker.draining,
    }


def worker_cells(worker: WorkerRecord, held: int, now: int) -> tuple[Cell, ...]:
    """One process for people, in the order of `WORKER_COLUMNS`."""
    works = worker.role == "worker"
    return (
        worker.owner,
        worker.role,
        Text("draining", style="yellow") if worker.draining else Text("alive", style="green"),
        ", ".join(worker.queues) or NOTHING,
        str(worker.slots) if works else NOTHING,
        str(held) if works else NOTHING,
        span((worker.lease_until - now) / MICROS),
        worker.release,
        span((now - worker.started_at) / MICROS),
    )
