"""Rows to Structs and back. Everything that is no key and no number may be any text (C16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import asyncpg
import msgspec

from loom_mq.journal.requests import DeadLetter
from loom_mq.model.execution import (
    ExecutionKey,
    ExecutionRow,
    FlowRecord,
    InboxItem,
    InboxKind,
    Status,
    Waiter,
    WorkerRecord,
)
from loom_mq.model.snapshots import Snapshot

_to_msgpack: Final = msgspec.msgpack.Encoder().encode
_to_json: Final = msgspec.json.Encoder().encode
_waiter: Final = msgspec.msgpack.Decoder(Waiter).decode
_texts: Final = msgspec.json.Decoder(tuple[str, ...]).decode
_pairs: Final = msgspec.json.Decoder(dict[str, str]).decode


def execution_row(record: asyncpg.Record) -> ExecutionRow:
    """The index row among a record's columns."""
    return ExecutionRow(
        tenant=record["tenant"],
        execution_id=record["execution_id"],
        flow=record["flow"],
        version=record["version"],
        queue=record["queue"],
        status=Status(record["status"]),
        last_seq=record["last_seq"],
        wake_at=record["wake_at"],
        gates=unpack_texts(record["gates"]),
        error=record["error"],
        recoveries=record["recoveries"],
        parent=record["parent"],
        features=unpack_texts(record["features"]),
        labels=unpack_pairs(record["labels"]),
        created_at=record["created_at"],
        updated_at=record["updated_at"],
        started_at=record["started_at"],
        ended_at=record["ended_at"],
        fence=record["fence"],
        owner=record["owner"],
        attempt=record["attempt"],
        deadline=record["deadline"],
        hint_at=record["hint_at"],
        hints=record["hints"],
        inbox=record["inbox"],
        input_digest=record["input_digest"],
        in_doubt=unpack_texts(record["in_doubt"]),
        trouble=record["trouble"],
    )


def unpack_snapshot(record: asyncpg.Record) -> Snapshot | None:
    """The stored fold among a record's columns, None where there is none."""
    if record["seq"] is None:
        return None
    return Snapshot(record["seq"], record["fold"], record["state"])


def worker_record(record: asyncpg.Record) -> WorkerRecord:
    """A process of the fleet."""
    return WorkerRecord(
        owner=record["owner"],
        role=record["role"],
        host=record["host"],
        queues=tuple(record["queues"]),
        slots=record["slots"],
        release=record["release"],
        lease_until=record["lease_until"],
        started_at=record["started_at"],
        draining=record["draining"],
    )


def flow_record(record: asyncpg.Record) -> FlowRecord:
    """A registered flow."""
    return FlowRecord(flow=record["flow"], version=record["version"], queue=record["queue"])


def dead_letter(record: asyncpg.Record) -> DeadLetter:
    """A dead letter."""
    return DeadLetter(
        id=record["id"],
        queue=record["queue"],
        reason=record["reason"],
        body=record["body"],
        headers=unpack_pairs(record["headers"]),
        at=record["at"],
    )


# JSON text stands for lists and labels: it holds any text, NUL included, as plain ASCII
# escapes, which a text column would refuse by itself.


def pack_texts(texts: Sequence[str]) -> str | None:
    """A list of texts for a column; nothing for an empty one."""
    return _to_json(texts).decode() if texts else None


def unpack_texts(stored: str | None) -> tuple[str, ...]:
    """A list of texts from a column."""
    return _texts(stored) if stored is not None else ()


def pack_pairs(pairs: dict[str, str]) -> str | None:
    """Labels or headers for a column; nothing for none."""
    return _to_json(pairs).decode() if pairs else None


def pack_wanted(pairs: dict[str, str]) -> list[str] | None:
    """Labels to filter by, each as it stands among stored ones; nothing for none."""
    return [_to_json({name: text}).decode()[1:-1] for name, text in pairs.items()] or None


def unpack_pairs(stored: str | None) -> dict[str, str]:
    """Labels or headers from a column."""
    return _pairs(stored) if stored is not None else {}


def pack_waiter(waiter: Waiter | None) -> bytes | None:
    """Somebody who waits, for a column."""
    return None if waiter is None else _to_msgpack(waiter)


def unpack_waiters(stored: Sequence[bytes]) -> tuple[Waiter, ...]:
    """Those who wait, from a column."""
    return tuple(_waiter(each) for each in stored)


class _Mail(msgspec.Struct, frozen=True, array_like=True):
    """What an inbox row holds beside its execution's key. Fields are added at the end."""

    item_id: str
    kind: InboxKind
    gate: str
    wait_id: str | None
    payload: bytes
    reply_to: str | None
    correlation: str
    actor: str = ""


_mail: Final = msgspec.msgpack.Decoder(_Mail).decode


def pack_item(item: InboxItem) -> bytes:
    """An inbox item for a column."""
    return _to_msgpack(
        _Mail(
            item.item_id,
            item.kind,
            item.gate,
            item.wait_id,
            item.payload,
            item.reply_to,
            item.correlation,
            item.actor,
        )
    )


def unpack_item(key: ExecutionKey, stored: bytes) -> InboxItem:
    """An inbox item from a column."""
    mail = _mail(stored)
    return InboxItem(
        tenant=key.tenant,
        execution_id=key.execution_id,
        item_id=mail.item_id,
        kind=mail.kind,
        gate=mail.gate,
        wait_id=mail.wait_id,
        payload=mail.payload,
        reply_to=mail.reply_to,
        correlation=mail.correlation,
        actor=mail.actor,
    )
