"""What the tests of stored values share: classes, and a way to compare, types included."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest

from loom_mq.codec.values import ValueCodec, codec_for
from loom_mq.errors import CodecError

T = TypeVar("T")

EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))
LONG_AGO = dt.timezone(dt.timedelta(minutes=19, seconds=32))


def picture(value: object) -> object:
    """Type and content at every level; NaN equals itself, -0.0 is not 0.0."""
    name = type(value).__qualname__
    if isinstance(value, dict):
        return name, [(picture(key), picture(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return name, [picture(item) for item in value]
    if isinstance(value, set | frozenset):
        return name, sorted((picture(item) for item in value), key=repr)
    if isinstance(value, dt.datetime | dt.time):
        return name, value.isoformat(), value.fold
    if isinstance(value, msgspec.Struct):
        return name, [picture(getattr(value, field)) for field in value.__struct_fields__]
    if dataclasses.is_dataclass(value):
        return name, [picture(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Decimal):
        return name, value.as_tuple()
    if isinstance(value, enum.Enum):
        return name, value.name
    return name, repr(value)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Address(TypedDict):
    street: str
    since: dt.date


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    placed: dt.datetime
    lines: list[Line]
    due: dt.date
    window: dt.timedelta
    tags: set[str]
    size: tuple[int, int]
    secret: bytes
    colour: Colour
    level: Level
    address: Address
    at: Point
    parent: Order | None = None
    extra: dict[int, frozenset[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class BigOrder(Order):
    discount: int = 0


class Event(msgspec.Struct, tag=True, rename="camel"):
    happened_at: dt.datetime
    body: Any


class Tree(msgspec.Struct):
    kids: list[Tree]


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


def order(**changes: Any) -> Order:
    made = Order(
        id=uuid.UUID(int=7),
        placed=dt.datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=EAST),
        lines=[Line("a", Decimal("1.10")), Line("b\x00", Decimal("NaN"), 2)],
        due=dt.date(2026, 3, 2),
        window=dt.timedelta(days=-1, microseconds=1),
        tags={"x", "y"},
        size=(3, 4),
        secret=b"\x00\xff",
        colour=Colour.RED,
        level=Level.HIGH,
        address={"street": "Long Road", "since": dt.date(1999, 1, 1)},
        at=Point(1, -0.0),
        extra={5: frozenset({1, 2})},
    )
    return dataclasses.replace(made, **changes)


def check(annotation: object, value: object) -> bytes:
    """First run, replay and a later replay see the same; gives what is stored."""
    codec = codec_for(annotation)
    data, first = codec.roundtrip(value, what="step s", limit=1 << 20)
    assert picture(first) == picture(value)
    assert picture(codec.decode(data)) == picture(value)
    assert picture(ValueCodec(annotation).decode(data)) == picture(value)
    assert codec.encode(value, what="step s") == data
    return data


def refusal(annotation: object, value: object) -> CodecError:
    with pytest.raises(CodecError) as caught:
        codec_for(annotation).roundtrip(value, what="step charge", limit=1 << 20)
    assert caught.value.what == "step charge"
    assert "step charge" in str(caught.value)
    return caught.value
