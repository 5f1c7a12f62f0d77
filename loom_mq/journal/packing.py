"""Events in storage: one row per append, its envelopes packed as one msgpack array.

A row is the unit of writing; a page is the unit of reading. Sequences are dense from
0, so a page's rows are those that overlap a range of sequences, and never more than
`limit` of them; `slice_page` cuts the few events that stick out at either end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from loom_mq.model.events import Envelope

_encode = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[Envelope, ...]).decode


def pack_events(events: tuple[Envelope, ...]) -> bytes:
    """The stored form of one append's events (J1)."""
    return _encode(events)


def unpack_events(packed: bytes) -> tuple[Envelope, ...]:
    """The events of one stored append.

    Fields that a newer release put at the end of an envelope are left out.

    Raises:
        msgspec.DecodeError: these bytes were not written by `pack_events`.
    """
    return _decode(packed)


def page_range(last_seq: int, *, first: int, limit: int, newest: bool) -> tuple[int, int]:
    """The sequences that a page of a log covers.

    Args:
        last_seq: newest sequence of the log, -1 for an empty one.
        first: lowest sequence wanted.
        limit: events at most.
        newest: the last `limit` events instead of the first ones.

    Returns:
        Lowest sequence and the one after the highest; equal when the page is empty.
    """
    low = max(first, 0)
    if newest:
        low = max(low, last_seq + 1 - max(limit, 0))
    return low, max(low, min(low + limit, last_seq + 1))


def slice_page(rows: Iterable[bytes], low: int, high: int) -> list[Envelope]:
    """The events from `low` up to, not including, `high`.

    Args:
        rows: packed appends in rising order that cover the range.
        low: lowest sequence wanted.
        high: the sequence after the highest wanted.
    """
    return [event for packed in rows for event in _decode(packed) if low <= event.seq < high]
