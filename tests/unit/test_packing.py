"""Events in storage: packed as they are, cut where a page ends (J1)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom_mq.journal.packing import pack_events, page_range, slice_page, unpack_events
from loom_mq.model.events import Envelope

_envelopes = st.builds(
    Envelope,
    id=st.binary(min_size=16, max_size=16),
    seq=st.integers(0, 1 << 62),
    kind=st.text(),
    at=st.integers(0, 1 << 62),
    fence=st.integers(0, 1 << 62),
    kernel=st.booleans(),
    schema=st.integers(0, 1 << 31),
    payload=st.binary(),
)


@given(st.lists(_envelopes, max_size=5).map(tuple))
def test_events_come_back_as_they_were(events: tuple[Envelope, ...]) -> None:
    """J1: any bytes, any kind."""
    assert unpack_events(pack_events(events)) == events


def test_fields_of_a_newer_release_are_left_out() -> None:
    """J1: an envelope may grow at its end."""
    newer = [[b"i" * 16, 0, "K", 1, 1, True, 2, b"p", "something new"]]
    packed = msgspec.msgpack.encode(newer)
    assert unpack_events(packed) == (Envelope(b"i" * 16, 0, "K", 1, 1, True, 2, b"p"),)


@pytest.mark.parametrize("packed", [b"", b"\x91", b"\x91\xc0", b"\xff"])
def test_other_bytes_are_refused(packed: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack_events(packed)


@given(
    sizes=st.lists(st.integers(1, 4), max_size=6),
    first=st.integers(-2, 25),
    limit=st.integers(0, 25),
    newest=st.booleans(),
)
def test_pages_are_slices_of_the_log(
    sizes: list[int], first: int, limit: int, newest: bool
) -> None:
    """J1: whatever appends the events came in, and without reading more than the range."""
    log = [Envelope(b"", seq, "K", 0, 1, True, 1, b"") for seq in range(sum(sizes))]
    rows: list[tuple[Envelope, ...]] = []
    for size in sizes:
        begin = sum(len(row) for row in rows)
        rows.append(tuple(log[begin : begin + size]))
    low, high = page_range(len(log) - 1, first=first, limit=limit, newest=newest)
    covering = [pack_events(row) for row in rows if row[-1].seq >= low and row[0].seq < high]
    tail = log[max(first, 0) :]
    wanted = tail[len(tail) - min(limit, len(tail)) :] if newest else tail[:limit]
    assert slice_page(covering, low, high) == wanted
    assert high - low == len(wanted)
    assert len(covering) <= len(wanted) or not wanted
