"""Plain msgpack and JSON from any language, and values as operators see them (F2, J10)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from loom_mq.codec.tagged import MAX_DEPTH
from loom_mq.codec.values import (
    codec_for,
    from_builtins,
    from_json,
    to_display,
    wrap_json,
    wrap_plain,
)
from loom_mq.errors import CodecError, PayloadTooLargeError
from tests.unit.value_kit import picture

pack = msgspec.msgpack.encode


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    price: Decimal
    at: dt.datetime
    blob: bytes
    tags: set[str]
    by_day: dict[int, tuple[int, str]]


PLAIN = {
    "id": "00000000-0000-0000-0000-000000000007",
    "price": "1.10",
    "at": "2026-01-01T00:00:00+05:30",
    "blob": "AP8=",
    "tags": ["a", "b"],
    "by_day": {"3": [1, "x"]},
}
ORDER = Order(
    id=uuid.UUID(int=7),
    price=Decimal("1.10"),
    at=dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    blob=b"\x00\xff",
    tags={"a", "b"},
    by_day={3: (1, "x")},
)


def test_plain_data_takes_its_type_when_it_is_read() -> None:
    """F2: a foreign client knows none of our forms."""
    codec = codec_for(Order)
    native = {**PLAIN, "blob": b"\x00\xff", "by_day": {3: [1, "x"]}}
    for data in (
        wrap_plain(pack(PLAIN)),
        wrap_plain(pack(native)),
        wrap_json(json.dumps(PLAIN, indent=2).encode()),
        from_json(json.dumps(PLAIN), Order),
        from_json(json.dumps(PLAIN).encode(), Order),
        from_builtins(PLAIN, Order),
    ):
        assert picture(codec.decode(data)) == picture(ORDER)


def test_plain_data_without_a_type_is_taken_as_it_is() -> None:
    """F2."""
    codec = codec_for(Any)
    value = {"a": [1, 2.5, None, True, "x\x00"], "b": {}}
    assert codec.decode(wrap_plain(pack(value))) == value
    assert codec.decode(wrap_json(json.dumps(value).encode())) == value
    assert codec.decode(from_json(json.dumps(value), Any)) == value
    assert codec.decode(from_builtins(value, Any)) == value
    assert codec.decode(wrap_plain(b"\xc0")) is None


def test_json_keeps_every_digit() -> None:
    """F2: the number is read as the type that is declared."""
    digits = b'{"price": 0.10000000000000000000001, "n": 123456789012345678901234567890}'
    decoded = codec_for(dict[str, Decimal]).decode(wrap_json(digits))
    assert decoded == {
        "price": Decimal("0.10000000000000000000001"),
        "n": Decimal(123456789012345678901234567890),
    }


def test_input_that_does_not_fit_names_the_place() -> None:
    """F2, K7: what a wrong answer to a gate is told."""
    wrong = {**PLAIN, "by_day": {"3": [1, 2]}}
    attempts: tuple[Callable[[], object], ...] = (
        lambda: codec_for(Order).decode(wrap_plain(pack(wrong))),
        lambda: codec_for(Order).decode(wrap_json(json.dumps(wrong).encode())),
        lambda: from_json(json.dumps(wrong), Order),
        lambda: from_builtins(wrong, Order),
    )
    for attempt in attempts:
        with pytest.raises(CodecError) as caught:
            attempt()
        assert caught.value.where == "$.by_day[...][1]"
        assert "`Order`" in caught.value.reason
    with pytest.raises(CodecError, match="Expected `bool`"):
        codec_for(bool).decode(wrap_plain(pack("yes")))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x01\x02",
        b"\xa1\xff",
        pack(msgspec.msgpack.Ext(5, b"x")),
        b"\x81\x80\x01",
        b"\x91" * (MAX_DEPTH + 1) + b"\x01",
        b"\x91" * 100_000 + b"\x01",
        b"\x81\xa1a" * 200 + b"\x01",
    ],
    ids=lambda data: repr(data)[:30],
)
def test_bad_msgpack_is_refused_when_it_comes_in(data: bytes) -> None:
    """F2, C20."""
    with pytest.raises(CodecError):
        wrap_plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"NaN",
        b"[1,]",
        b'"\xff"',
        b'"\\ud800"',
        b'{"a": "\\ud800x"}',
        b"1 2",
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" * 100_000,
        b"1" * 5000,
    ],
    ids=lambda data: repr(data)[:30],
)
def test_bad_json_is_refused_when_it_comes_in(data: bytes) -> None:
    """F2, C16, C20."""
    with pytest.raises(CodecError):
        wrap_json(data)
    with pytest.raises(CodecError):
        from_json(data, Any)


def test_nesting_up_to_the_bound_is_taken() -> None:
    """C20."""
    wide = b"\xdc\x00\xc8" + b"\x91\x01" * 200
    deep = b"\x91" * MAX_DEPTH + b"\xc0"
    assert codec_for(Any).decode(wrap_plain(wide)) == [[1]] * 200
    codec_for(Any).decode(wrap_plain(deep))
    codec_for(Any).decode(wrap_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH))


def test_text_with_lone_surrogates_is_refused() -> None:
    """C16."""
    with pytest.raises(CodecError):
        from_json('"\ud800"', Any)
    with pytest.raises(CodecError):
        from_builtins(["\ud800"], list[str])


def test_input_from_outside_has_a_limit_too() -> None:
    """J10."""
    with pytest.raises(PayloadTooLargeError):
        from_json('"aaaaaaaaaa"', str, limit=5)


# ---- for operators ----------------------------------------------------------------------


def test_every_stored_value_can_be_shown() -> None:
    """The history of an execution is JSON, whatever its steps returned."""
    value = {
        "t": (1, {2}, frozenset()),
        "d": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "e": dt.datetime(2026, 1, 1),
        "n": [math.nan, math.inf],
        "b": b"\x00\xff",
        "big": 10**40,
        "huge": 10**3900,
        "money": Decimal("1.10"),
        "wait": dt.timedelta(hours=1),
        3: uuid.UUID(int=7),
        (1, 2): "pair",
    }
    shown = to_display(codec_for(Any).encode(value, what="x"))
    assert isinstance(shown, dict)
    text = json.dumps(shown, allow_nan=False)
    assert json.loads(text) == shown
    assert shown["t"] == [1, [2], []]
    assert shown["d"] == "2026-01-01T00:00:00Z"
    assert shown["n"] == ["nan", "inf"]
    assert shown["b"] == "AP8="
    assert shown["big"] == 10**40
    assert shown["money"] == "1.10"
    assert shown["3"] == "00000000-0000-0000-0000-000000000007"
    assert shown["[1,2]"] == "pair"


def test_typed_and_plain_values_are_shown_alike() -> None:
    typed = to_display(codec_for(Order).encode(ORDER, what="x"))
    assert isinstance(typed, dict)
    assert {**typed, "tags": sorted(typed["tags"])} == PLAIN
    assert to_display(wrap_plain(pack(PLAIN))) == PLAIN
    assert to_display(wrap_json(json.dumps(PLAIN).encode())) == PLAIN


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x01\xc1", b"\x03{", b"\x7fabc", b"\x00\xc1",
                                  b"\x01\xd4\x7f\x00", b"\x02" + b"\x91" * 10_000])  # fmt: skip
def test_what_cannot_be_read_is_still_shown(data: bytes) -> None:
    """A listing must go on."""
    assert isinstance(to_display(data), str)
