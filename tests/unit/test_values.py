"""Stored values: what comes back is what went in (K2)."""

from __future__ import annotations

import collections
import datetime as dt
import inspect
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal, Never
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from loom_mq.codec.adapters import register_type_adapter
from loom_mq.codec.values import codec_for
from tests.unit.value_kit import (
    EAST,
    LONG_AGO,
    Address,
    Bits,
    Colour,
    Event,
    Level,
    Order,
    Page,
    Point,
    Text,
    Tree,
    check,
    order,
    picture,
    refusal,
)

UNTYPED_VALUES = [
    None, True, False, 0, -1, 1.5, -0.0, math.inf, math.nan, "", "a\x00b", "日本 🎈",
    b"", b"\x00\xff", bytearray(b"xy"),
    (), (1, 2), (1, (2, [3, (4,)])), {3, 1, 2}, set(), frozenset({"a", "b"}), frozenset(),
    {(1, 2), (3, 4)}, {frozenset({1})},
    2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40),
    Decimal("1.10"), Decimal("-0"), Decimal("NaN"), Decimal("sNaN12"), Decimal("-Infinity"),
    Decimal("1E+400"), uuid.UUID(int=5),
    dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.time(1, 2, 3, 4), dt.time(1, 2, tzinfo=EAST),
    dt.time(1, fold=1), dt.time(1, tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
    dt.datetime(2026, 1, 1, tzinfo=dt.timezone(-dt.timedelta(hours=3, microseconds=1))),
    dt.datetime(2026, 1, 1, 2, 3, 4, 5, tzinfo=dt.timezone(-dt.timedelta(microseconds=1))),
    dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 1, 2, fold=1), dt.datetime(2026, 1, 1, tzinfo=EAST),
    dt.datetime(1900, 1, 1, tzinfo=LONG_AGO),
    dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.min.replace(tzinfo=EAST),
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.timedelta.max, dt.timedelta.min, dt.timedelta(days=-1, microseconds=1),
    {"a": 1, "k\x00": 2}, {1: "a", "1": "b", None: 3, 1.5: 4, b"x": 5}, {True: 1},
    {(1, 2): 3, "x": 4}, {2**64: 1}, {Decimal(1): (1,)}, {dt.date(2026, 1, 1): 1},
    [{"deep": [{"er": ({1}, {"k": (None,)})}]}], {"b": 1, "a": 2},
]  # fmt: skip


@pytest.mark.parametrize("value", UNTYPED_VALUES, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("annotation", [Any, object, inspect.Parameter.empty, Never])
def test_a_value_without_an_annotation_comes_back_as_it_was(
    annotation: object, value: object
) -> None:
    """C44, C46, C16, C85."""
    check(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (None, None),
        (bool, True),
        (int, 2**63),
        (int, 10**40),
        (int, -(2**63) - 1),
        (float, -0.0),
        (float, math.nan),
        (str, "a\x00b"),
        (bytes, b"\x00"),
        (bytearray, bytearray(b"x")),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=1)),
        (dt.date, dt.date(2026, 1, 1)),
        (dt.time, dt.time(1, 2, tzinfo=LONG_AGO)),
        (dt.datetime, dt.datetime(2026, 1, 1)),
        (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=EAST)),
        (dt.datetime, dt.datetime(1900, 1, 1, tzinfo=LONG_AGO)),
        (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=1)))),
        (dt.datetime, dt.datetime.min.replace(tzinfo=EAST)),
        (dt.datetime, dt.datetime.max.replace(tzinfo=dt.UTC)),
        (dt.timedelta, dt.timedelta.min),
        (tuple[int, str], (1, "a")),
        (tuple[Any, ...], (1, ({2}, Decimal("3.0")))),
        (set[int], {3, 1, 2}),
        (frozenset[tuple[int, int]], frozenset({(1, 2)})),
        (dict[str, Any], {"a": (1, {2}), "b": dt.datetime(2026, 1, 1, tzinfo=EAST)}),
        (dict[str, Any], {"a": 2**70}),
        (dict[int, int], {2**70: 2**80}),
        (dict[tuple[int, int], dt.date], {(1, 2): dt.date(2026, 1, 1)}),
        (list, [1, (2,), {3}]),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Bits, Bits.ONE | Bits.TWO),
        (Literal["a", 1], "a"),
        (int | str | None, None),
        (int | float, 1),
        (Annotated[int, msgspec.Meta(gt=0)], 1),
        (Annotated[int, [1]], 1),
        (Point, Point(1, 2.5)),
        (Address, {"street": "x", "since": dt.date(2026, 1, 1)}),
        (Page[dt.date], Page([dt.date(2026, 1, 1)])),
        (Tree, Tree([Tree([]), Tree([Tree([])])])),
        (Event, Event(dt.datetime(2026, 1, 1, tzinfo=EAST), {"x": (1, Decimal("1.0"))})),
        (Order, order()),
        (Order, order(parent=order())),
        (Order, order(size=(2**70, -(2**70)), extra={2**65: frozenset({2**66})})),
        (Order, order(placed=dt.datetime(1900, 1, 1, tzinfo=LONG_AGO))),
        (list[Order], [order(), order(placed=dt.datetime(2026, 1, 1))]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_value_with_an_annotation_comes_back_as_it_was(annotation: object, value: object) -> None:
    """C44, C46: msgspec's own forms would lose offsets and stop at 64 bits."""
    check(annotation, value)


def test_a_zone_becomes_its_offset_on_the_first_run_already() -> None:
    """K2: both runs see the offset; the moment is the same."""
    moment = dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Amsterdam"), fold=1)
    for annotation in (Any, dt.datetime):
        codec = codec_for(annotation)
        data, first = codec.roundtrip(moment, what="step s")
        again = codec.decode(data)
        assert isinstance(first, dt.datetime)
        assert picture(first) == picture(again)
        assert first.utcoffset() == dt.timedelta(hours=1)
        assert first.timestamp() == moment.timestamp()


def test_a_type_near_the_annotation_becomes_the_annotated_one_on_the_first_run() -> None:
    """K2: first run and replay agree even when the step was loose."""
    cases: list[tuple[object, object, object]] = [
        (list[int], (1, 2), [1, 2]),
        (float, 3, 3.0),
        (dict[str, int], collections.OrderedDict(a=1), {"a": 1}),
        (Colour, "red", Colour.RED),
        (set[int], [1, 1], {1}),
    ]
    for annotation, value, expected in cases:
        data, first = codec_for(annotation).roundtrip(value, what="step s")
        assert picture(first) == picture(expected)
        assert picture(codec_for(annotation).decode(data)) == picture(expected)


def test_a_later_change_by_the_flow_reaches_nobody() -> None:
    """K2: what is handed on is a copy."""
    for annotation in (Any, list[list[int]]):
        value = [[1]]
        data, first = codec_for(annotation).roundtrip(value, what="step s")
        value[0].append(2)
        assert first == [[1]]
        assert codec_for(annotation).decode(data) == [[1]]


def test_sets_are_stored_in_the_same_order_everywhere() -> None:
    """F2: the digest of an input must not depend on a process's hash seed."""
    words = [f"word-{number}" for number in range(50)]
    for annotation in (Any, set[str], Page[frozenset[str]]):
        wrap: Callable[[list[str]], object] = (
            (lambda items: Page([frozenset(items)])) if annotation not in (Any, set[str]) else set
        )
        codec = codec_for(annotation)
        assert codec.encode(wrap(words), what="x") == codec.encode(wrap(words[::-1]), what="x")


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (Any, {"a": [1, None, b"x"]}, "0181a1619301c0c40178"),
        (Any, {1: 2, None: 3}, "01820102c003"),
        (Any, (1, "a"), "01d6019201a161"),
        (Any, {2, 1}, "01c70302920102"),
        (Any, frozenset({1}), "01d5039101"),
        (Any, 2**64, "01c71504b4" + b"18446744073709551616".hex()),
        (Any, dt.datetime(2026, 1, 1), "01c7160592b3" + b"2026-01-01T00:00:00".hex() + "00"),
        (Any, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "01d6ff6955b900"),
        (Any, dt.date(2026, 1, 1), "01c70b06aa" + b"2026-01-01".hex()),
        (Any, dt.time(1, 2, fold=1), "01c70b0792a8" + b"01:02:00".hex() + "01"),
        (Any, dt.timedelta(1, 2, 3), "01d60893010203"),
        (Any, Decimal("1.10"), "01c70509a4" + b"1.10".hex()),
        (Any, uuid.UUID(int=7), "01c7120ac410" + "00" * 15 + "07"),
        (Any, {(1,): 2}, "01c7070b9192d501910102"),
        (Any, bytearray(b"x"), "01c7030cc40178"),
        (Point, Point(1, 2.0), "009201cb4000000000000000"),
        (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=EAST),
         "00b9" + b"2026-01-01T00:00:00+05:30".hex()),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_the_stored_form_never_changes(annotation: object, value: object, stored: str) -> None:
    """J1: logs of years ago must be readable, and messages.md tells other languages how."""
    assert check(annotation, value).hex() == stored


# ---- classes that msgspec does not know --------------------------------------------------


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_a_registered_class_can_be_used_in_annotations() -> None:
    """K2."""
    register_type_adapter(
        Money, lambda money: {"cents": money.cents}, lambda kind, value: kind(value["cents"])
    )
    codec = codec_for(dict[str, list[Money]])
    data, first = codec.roundtrip({"a": [Money(5), Money(2**70)]}, what="step s")
    for seen in (first, codec.decode(data)):
        assert isinstance(seen, dict)
        assert [money.cents for money in seen["a"]] == [5, 2**70]
        assert all(type(money) is Money for money in seen["a"])
    assert refusal(dict[str, list[Money]], {"a": [Money(1), Text("x")]}).where == "$.a[1]"
    assert refusal(Any, [Money(1)]).where == "$[0]"


def test_pydantic_models_come_back_as_models() -> None:
    """K2: loom-mq does not need pydantic, and takes its models all the same."""
    model = pydantic.create_model(
        "Invoice",
        total=(Decimal, ...),
        at=(dt.datetime, ...),
        marks=(set[int], ...),
        lines=(tuple[str, ...], ...),
        raw=(bytes, b"\xff"),
    )
    value = model(
        total=Decimal("1.10"),
        at=dt.datetime(2026, 1, 1, tzinfo=EAST),
        marks={1, 2**70},
        lines=("a", "b"),
    )
    codec = codec_for(list[model])  # type: ignore[valid-type]  # made at run time
    data, first = codec.roundtrip([value], what="step s")
    assert first == codec.decode(data) == [value]
    assert type(codec.decode(data)[0]) is model  # type: ignore[index]  # a list by its codec
    error = refusal(list[model], ["x"])  # type: ignore[valid-type]  # made at run time
    assert error.where == "$[0]"
