"""Executions, events and the rest, as items for programs and as cells for people."""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec
from rich.text import Text

from loom_mq.cli.screen import Cell, Item
from loom_mq.cli.text import clock_time, moment
from loom_mq.clock import MICROS
from loom_mq.codec.values import to_display
from loom_mq.errors import InputError
from loom_mq.journal.protocol import DeadLetter
from loom_mq.kernel.explain import Reason
from loom_mq.kernel.fold import decode_payload
from loom_mq.kernel.wording import span
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionRow, Status, WorkerRecord

EXECUTION_COLUMNS: Final = (
    "ID",
    "FLOW",
    "STATUS",
    "QUEUE",
    "AGE",
    "ATTEMPT",
    "WAITING-FOR",
    "OWNER",
)
HISTORY_COLUMNS: Final = ("SEQ", "AT", "Δ", "KIND", "STEP/GATE", "FENCE", "DETAIL")
NOTHING: Final = "-"
_DETAIL: Final = 120
_COLOURS: Final = {
    Status.PENDING: "yellow",
    Status.RUNNING: "cyan",
    Status.SUSPENDED: "blue",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "magenta",
}


# ---- executions ----------------------------------------------------------------------------


def execution_item(row: ExecutionRow, now: int) -> Item:
    """One execution for programs."""
    return {
        "id": row.execution_id,
        "tenant": row.tenant,
        "flow": row.flow,
        "version": row.version,
        "queue": row.queue,
        "status": row.status.value,
        "age_seconds": max(0, now - row.created_at) / MICROS,
        "attempt": row.attempt,
        "recoveries": row.recoveries,
        "owner": row.owner,
        "gates": list(row.gates),
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


def execution_cells(row: ExecutionRow, now: int) -> tuple[Cell, ...]:
    """One execution for people, in the order of `EXECUTION_COLUMNS`."""
    return (
        row.execution_id,
        row.flow,
        status_cell(row.status),
        row.queue,
        span((now - row.created_at) / MICROS),
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


# ---- events --------------------------------------------------------------------------------


class History:
    """Turns the events of one log, in their order, into lines.

    Args:
        payloads: show values as well.
    """

    def __init__(self, *, payloads: bool) -> None:
        self._payloads = payloads
        self._steps: dict[str, str] = {}
        self._before: int | None = None

    def line(self, envelope: Envelope) -> tuple[Item, tuple[Cell, ...]]:
        """One event, for programs and for people."""
        event = decode_payload(envelope)
        if isinstance(event, ev.StepStarted):
            self._steps[event.step_id] = event.name
        place, name = _place(event)
        name = name or self._steps.get(place, "")
        detail = _detail(event)
        value = _value(event) if self._payloads else None
        after = 0 if self._before is None else envelope.at - self._before
        self._before = envelope.at
        item: Item = {
            "seq": envelope.seq,
            "at": moment(envelope.at),
            "after_seconds": after / MICROS,
            "kind": envelope.kind,
            "place": place or None,
            "name": name or None,
            "fence": envelope.fence,
            "detail": detail or None,
            "payload": value,
        }
        shown = detail if value is None else f"{detail} {value!r}".strip()
        cells: tuple[Cell, ...] = (
            str(envelope.seq),
            clock_time(envelope.at),
            f"+{after / MICROS:.3f}",
            envelope.kind,
            name or place or NOTHING,
            str(envelope.fence),
            shown if self._payloads else _short(shown),
        )
        return item, cells


def _short(text: str) -> str:
    return text if len(text) <= _DETAIL else text[: _DETAIL - 1] + "…"


def _place(event: msgspec.Struct | None) -> tuple[str, str]:
    match event:
        case ev.StepStarted(step_id=place, name=name):
            return place, name
        case (
            ev.StepCompleted(step_id=place)
            | ev.StepFailed(step_id=place)
            | ev.StepCancelled(step_id=place)
            | ev.StepRetrying(step_id=place)
        ):
            return place, ""
        case ev.DecisionRecorded(op_id=place, name=name):
            return place, name
        case ev.CustomEmitted(op_id=place, topic=name):
            return place, name
        case ev.AnswerTaken(wait_id=place, gate=name):
            return place, name
        case ev.ExecutionSuspended(waits=waits):
            return "", ", ".join(wait.name for wait in waits if wait.name)
    return "", ""


def _detail(event: msgspec.Struct | None) -> str:
    match event:
        case ev.ExecutionStarted(flow=flow, version=version):
            return f"{flow} version {version}"
        case ev.ExecutionRecovered(owner=owner, attempt=attempt):
            return f"attempt {attempt} on {owner}"
        case ev.ExecutionSuspended(waits=waits):
            return "; ".join(
                wait.kind.value + ("" if wait.due is None else f" until {moment(wait.due)}")
                for wait in waits
            )
        case ev.StepStarted(attempt=attempt):
            return "" if attempt == 1 else f"attempt {attempt}"
        case ev.StepFailed(failure=failure) | ev.ExecutionFailed(failure=failure):
            return failure.headline
        case ev.StepRetrying(failure=failure, due=due):
            return f"again at {clock_time(due)}: {failure.headline}"
        case ev.ExecutionCancelled(reason=reason):
            return reason
    return ""


def _value(event: msgspec.Struct | None) -> object:
    match event:
        case ev.ExecutionStarted(input=data):
            return to_display(data)
        case ev.StepCompleted(result=data) | ev.ExecutionCompleted(result=data):
            return to_display(data)
        case ev.DecisionRecorded(value=data) | ev.CustomEmitted(value=data):
            return to_display(data)
        case ev.AnswerTaken(answer=data):
            return to_display(data)
    return None


# ---- the fleet -------------------------------------------------------------------------------


def worker_item(worker: WorkerRecord, now: int) -> Item:
    """One process for programs."""
    return {
        "owner": worker.owner,
        "role": worker.role,
        "host": worker.host,
        "queues": list(worker.queues),
        "slots": worker.slots,
        "lease_left_seconds": max(0, worker.lease_until - now) / MICROS,
        "release": worker.release,
        "up_seconds": max(0, now - worker.started_at) / MICROS,
        "draining": worker.draining,
    }


def worker_cells(worker: WorkerRecord, now: int) -> tuple[Cell, ...]:
    """One process for people: WORKER ROLE QUEUES SLOTS LEASE-LEFT VERSION UP."""
    return (
        worker.owner,
        worker.role + (" (draining)" if worker.draining else ""),
        ", ".join(worker.queues) or NOTHING,
        str(worker.slots),
        span((worker.lease_until - now) / MICROS),
        worker.release,
        span((now - worker.started_at) / MICROS),
    )


def letter_item(letter: DeadLetter) -> Item:
    """One dead letter for programs."""
    return {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "at": moment(letter.at),
        "headers": letter.headers,
        "body": letter.body,
    }
