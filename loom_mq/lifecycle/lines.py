"""Executions as lines of JSON, exact to the byte (J8).

An archive is UTF-8 text. Each execution is one header line, which says the format's
version, the index row, the newest snapshot and how many events follow, and then one
line per event. Bytes are base64. Archives may be concatenated. `data` of an event's
line shows its payload to people; nothing reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

import msgspec

from loom_mq.codec.display import to_display
from loom_mq.errors import ArchiveError
from loom_mq.kernel.fold import decode_payload
from loom_mq.lifecycle.reading import ArchivedExecution, gap_in
from loom_mq.model.events import Envelope, Wait
from loom_mq.model.execution import ExecutionRow
from loom_mq.model.failures import Failure
from loom_mq.model.snapshots import Snapshot

ARCHIVE_VERSION: Final = 1
"""The format that this release writes, and the newest one that it reads."""


class _Fold(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot, its members named."""

    seq: int
    fold: int
    state: bytes


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The line that begins an execution."""

    loom_archive: int
    execution: ExecutionRow
    snapshot: _Fold | None
    events: int


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    """The line of one event."""

    seq: int
    id: UUID
    kind: str
    at: int
    fence: int
    kernel: bool
    schema: int
    payload: bytes


class _Readable(_Event, frozen=True, kw_only=True):
    data: object


class _Mark(msgspec.Struct, frozen=True):
    loom_archive: int | None = None


_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_mark: Final = msgspec.json.Decoder(_Mark).decode
_header: Final = msgspec.json.Decoder(_Header).decode
_event: Final = msgspec.json.Decoder(_Event).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


# ---- writing -------------------------------------------------------------------------------


def to_lines(archived: ArchivedExecution, *, readable: bool = True) -> Iterator[str]:
    """An execution as lines of an archive, each without its line end.

    Args:
        archived: what `fetch` gave.
        readable: show every payload in clear as well. Without it whoever searches the
            archive for somebody's name finds nothing, but the payloads are there all the
            same.
    """
    snapshot = archived.snapshot
    header = _Header(
        loom_archive=ARCHIVE_VERSION,
        execution=archived.row,
        snapshot=None
        if snapshot is None
        else _Fold(seq=snapshot.seq, fold=snapshot.fold, state=snapshot.state),
        events=len(archived.events),
    )
    yield _encode(header).decode()
    for event in archived.events:
        line = _Event(
            seq=event.seq,
            id=UUID(bytes=event.id),
            kind=event.kind,
            at=event.at,
            fence=event.fence,
            kernel=event.kernel,
            schema=event.schema,
            payload=event.payload,
        )
        if readable:
            line = _Readable(**msgspec.structs.asdict(line), data=_shown(event))
        yield _encode(line).decode()


def _shown(event: Envelope) -> object:
    """An event's payload for people."""
    try:
        payload = decode_payload(event)
    except msgspec.MsgspecError:
        return "<damaged>"
    return None if payload is None else _members(payload)


def _members(struct: msgspec.Struct) -> dict[str, object]:
    return {name: _member(part) for name, part in msgspec.structs.asdict(struct).items()}


def _member(part: object) -> object:
    if isinstance(part, bytes):  # the only bytes in payloads are stored values
        return to_display(part)
    if isinstance(part, Failure | Wait):
        return _members(part)
    if isinstance(part, tuple) and any(isinstance(each, Wait) for each in part):
        return [_member(each) for each in part]
    return msgspec.to_builtins(part)


# ---- reading -------------------------------------------------------------------------------


def read_archive(lines: Iterable[str]) -> Iterator[ArchivedExecution]:
    """The executions of an archive, one after the other; only one is held at a time.

    Args:
        lines: of the archive, with or without line ends, such as an open file. Blank
            ones are passed over.

    Raises:
        ArchiveError: while iterating, before the execution that cannot be read; says in
            which line, and whether the archive is cut off, damaged, of a newer release,
            or none at all.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    empty = True
    for number, line in numbered:
        empty = False
        yield _read_execution(_read_header(number, line), number, numbered)
    if empty:
        raise ArchiveError("line 1: there is nothing here, so this is no archive of loom-mq")


def _read_header(number: int, line: str) -> _Header:
    try:
        version = _mark(line).loom_archive
    except _UNREADABLE as error:
        raise _fault(number, f"this is no archive of loom-mq, or damaged: {error}") from None
    if version is None:
        raise _fault(
            number,
            "the header of an execution should stand here, but there is none; this is no archive "
            "of loom-mq, or a part of one",
        )
    if version > ARCHIVE_VERSION:
        raise _fault(
            number,
            f"it is of format version {version}, and this release reads up to {ARCHIVE_VERSION}; "
            "use the newer release that wrote it",
        )
    try:
        return _header(line)
    except _UNREADABLE as error:
        raise _fault(number, f"the header cannot be read: {error}") from None


def _read_execution(
    header: _Header, number: int, numbered: Iterator[tuple[int, str]]
) -> ArchivedExecution:
    row, name = header.execution, header.execution.execution_id
    events: list[Envelope] = []
    while len(events) < header.events:
        missing = (
            f"execution {name!r} has {header.events} events, but only {len(events)} are here: the "
            "archive is cut off"
        )
        number, line = next(numbered, (number, ""))
        if not line:
            raise _fault(number, missing)
        event = _read_event(number, line, missing)
        if events and event.seq != events[-1].seq + 1:
            raise _fault(
                number,
                f"event {event.seq} of execution {name!r} follows event {events[-1].seq}; what "
                "belongs between or after them is missing",
            )
        events.append(event)
    fold = header.snapshot
    snapshot = None if fold is None else Snapshot(fold.seq, fold.fold, fold.state)
    gap = gap_in(events, snapshot, row.last_seq)
    if gap:
        raise _fault(number, f"the log of execution {name!r} is not whole: {gap}")
    return ArchivedExecution(row=row, events=tuple(events), snapshot=snapshot)


def _read_event(number: int, line: str, missing: str) -> Envelope:
    try:
        if _mark(line).loom_archive is not None:
            raise _fault(number, f"another execution begins here; {missing}")
        event = _event(line)
    except _UNREADABLE as error:
        raise _fault(number, f"the event cannot be read: {error}; {missing} or damaged") from None
    return Envelope(
        event.id.bytes,
        event.seq,
        event.kind,
        event.at,
        event.fence,
        event.kernel,
        event.schema,
        event.payload,
    )


def _fault(number: int, what: str) -> ArchiveError:
    return ArchiveError(f"line {number}: {what}")
