"""What cannot be stored is refused the first time, with its place and a remedy (C20, C44)."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest

from loom_mq.codec.tagged import MAX_DEPTH
from loom_mq.codec.values import codec_for
from loom_mq.errors import CodecError, ConfigurationError, PayloadTooLargeError
from tests.unit.value_kit import (
    Address,
    BigOrder,
    Colour,
    Level,
    Line,
    Order,
    Page,
    Point,
    Text,
    Tree,
    check,
    order,
    refusal,
)


async def coroutine() -> int:
    return 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Point(1), "annotate"),
        (Colour.RED, "annotate"),
        (Level.HIGH, "annotate"),
        (Line("a", Decimal(1)), "annotate"),
        (Page([1]), "annotate"),
        (Text("x"), "`Text` would come back as `str`"),
        (collections.OrderedDict(a=1), "`OrderedDict` would come back as `dict`"),
        (collections.deque([1]), "cannot be stored"),
        (1 + 2j, "cannot be stored"),
        (range(3), "cannot be stored"),
        (NotImplemented, "cannot be stored"),
        (..., "cannot be stored"),
        (ValueError("x"), "raise it"),
        (int, "the class `int`"),
        (functools.partial(print), "code"),
        (threading.Lock(), "`lock` cannot be stored"),
        (generator(), "return a list"),
        (async_generator(), "return a list"),
        (memoryview(b"x"), "cannot be stored"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_would_come_back_as_something_else_is_refused_at_once(
    value: object, hint: str
) -> None:
    """C20, C44, C85: on the first run, with place and remedy."""
    for annotation in (Any, dict[str, Any]):
        error = refusal(annotation, {"items": [1, {"it": value}]})
        assert error.where == "$.items[1].it"
        assert hint in error.reason
    assert refusal(Any, value).where == "$"


def test_a_coroutine_is_refused_with_the_word_await() -> None:
    """C85."""
    for annotation in (Any, int, dict[str, Any]):
        pending = coroutine()
        error = refusal(annotation, {"x": pending})
        assert "await it" in error.reason
        assert error.where == "$.x"
        pending.close()


async def test_a_future_is_refused_with_the_word_await() -> None:
    """C85."""
    future = asyncio.get_running_loop().create_future()
    assert "await it" in refusal(Any, [future]).reason


@pytest.mark.parametrize(
    ("annotation", "value", "where"),
    [
        (int, "x", "$"),
        (None, 1, "$"),
        (list[int], [1, "x"], "$[1]"),
        (int, True, "$"),
        (Order, order(size=(1, "x")), "$.size[1]"),
        (Order, order(lines=[Line("a", Decimal(1)), Line("b", Decimal(1), "2")]),  # type: ignore[arg-type]  # the point
         "$.lines[1].count"),
        (Order, order(tags={1}), "$.tags[0]"),
        (dict[str, Any], {1: 2}, "key in $"),
        (list[int], threading.Lock(), "$"),
        (Order, order(lines=[threading.Lock()]), "$.lines[0]"),
        (Annotated[int, msgspec.Meta(gt=0)], 0, "$"),
        (Colour, "blue", "$"),
        (Address, {"street": "x"}, "$"),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_annotation_is_refused(
    annotation: object, value: object, where: str
) -> None:
    """C20."""
    assert refusal(annotation, value).where == where


def test_what_a_subclass_adds_is_not_dropped_in_silence() -> None:
    """C44."""
    value = BigOrder(**{**vars(order()), "discount": 5})
    assert "`BigOrder` would come back as `Order`" in refusal(Order, value).reason
    check(BigOrder, value)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    """C16."""
    for annotation in (Any, dict[str, list[str]], dict[str, Any]):
        error = refusal(annotation, {"a": ["ok", "x\ud800"]})
        assert error.where == "$.a[1]"
        assert "lone surrogate at index 1" in error.reason
        assert refusal(annotation, {"\udc00": []}).where == "$ key '\\udc00'"
    broken = order(lines=[Line("\ud800", Decimal(1))])
    assert refusal(Order, broken).where == "$.lines[0].sku"


def test_a_number_that_no_text_can_hold_is_refused() -> None:
    """C46: the others round-trip exactly."""
    check(int, 10**3900)
    for annotation in (Any, list[int], dict[str, Any]):
        assert "bits" in refusal(annotation, {"n": [10**5000]}).reason
    assert refusal(list[int], [1, 10**5000]).where == "$[1]"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def tree(depth: int) -> Tree:
    made = Tree([])
    for _ in range(depth // 2 - 1):
        made = Tree([made])
    return made


def test_loops_and_deep_nesting_are_refused() -> None:
    """C20: one codec error, whatever the stack."""
    loop: list[object] = [1]
    loop.append({"me": loop})
    for annotation in (Any, list[Any], list[object]):
        error = refusal(annotation, loop)
        assert error.where == "$[1].me"
        assert "contains itself" in error.reason
        assert "nested deeper" in refusal(annotation, nested(5000)).reason
        assert "nested deeper" in refusal(annotation, nested(MAX_DEPTH + 1)).reason
        check(annotation, nested(MAX_DEPTH))
    check(Tree, tree(MAX_DEPTH))
    for depth in (MAX_DEPTH + 2, 5000):
        assert "nested deeper" in refusal(Tree, tree(depth)).reason
    ring = Tree([])
    ring.kids.append(ring)
    assert "contains itself" in refusal(Tree, ring).reason


def test_a_value_that_shares_its_parts_without_end_is_given_up() -> None:
    """J10: the time it takes is bounded by the limit."""
    value: list[Any] = ["x"]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(PayloadTooLargeError):
        codec_for(Any).encode(value, what="step charge", limit=10_000)


@pytest.mark.parametrize("annotation", [Any, str, dict[str, Any] | str])
def test_the_limit_is_the_stored_size(annotation: object) -> None:
    """J10."""
    codec = codec_for(annotation)
    size = len(codec.encode("x" * 1000, what="step charge"))
    codec.encode("x" * 1000, what="step charge", limit=size)
    with pytest.raises(PayloadTooLargeError, match="step charge") as caught:
        codec.encode("x" * 1000, what="step charge", limit=size - 1)
    assert (caught.value.size, caught.value.limit) == (size, size - 1)


@dataclasses.dataclass
class Fussy:
    x: int

    def __post_init__(self) -> None:
        if self.x == 1:
            raise KeyError("one")
        if self.x == 2:
            raise ValueError("two is too many")


def test_errors_of_user_code_become_codec_errors() -> None:
    """C20: nothing else escapes from the codec."""
    made = Fussy(0)
    made.x = 1
    error = refusal(Fussy, made)
    assert isinstance(error.__cause__, KeyError)
    made.x = 2
    assert "two is too many" in refusal(Fussy, made).reason


@pytest.mark.parametrize(
    "annotation",
    [
        complex, Callable[[], int], Awaitable[int], type[int], list[threading.Thread], "Order", 3,
        dt.datetime | str, list[int] | tuple[int, ...], Line | Order, collections.OrderedDict,
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_an_annotation_that_cannot_be_stored_is_named(annotation: object) -> None:
    """K2: at registration, with what to use instead."""
    with pytest.raises(ConfigurationError, match="cannot be stored") as caught:
        codec_for(annotation)
    assert "use a dataclass" in str(caught.value)


def test_codecs_are_made_once() -> None:
    assert codec_for(Order) is codec_for(Order)
    assert codec_for(list[int]) is codec_for(list[int])


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x00", b"\x00\xc1", b"\x00\x91\x91", b"\x01", b"\x01\xc1", b"\x01\xd4\x08\x00",
        b"\x01\xd4\x0b\x00", b"\x02", b"\x03x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("annotation", [Any, int, Order])
def test_damaged_bytes_are_a_codec_error(annotation: object, data: bytes) -> None:
    """F2."""
    with pytest.raises(CodecError):
        codec_for(annotation).decode(data, what="result of step s")


def test_bytes_of_a_newer_version_say_so() -> None:
    """F2."""
    for data in (b"\x09abc", b"\x01\xd4\x7f\x00"):
        with pytest.raises(CodecError, match="newer version"):
            codec_for(Any).decode(data)


def test_a_value_stored_without_a_type_can_be_read_with_one_and_the_other_way_round() -> None:
    """K2: a client that knows only the flow's name, a step that got its annotation later."""
    line = Line("a", Decimal("1.10"), 2**70)
    data = codec_for(Any).encode(
        {"sku": "a", "price": Decimal("1.10"), "count": 2**70}, what="input"
    )
    assert codec_for(Line).decode(data) == line
    small = codec_for(Line).encode(Line("a", Decimal("1.10")), what="x")
    assert codec_for(Any).decode(small) == {"sku": "a", "price": "1.10", "count": 1}
