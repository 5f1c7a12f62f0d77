"""Any value of any supported type comes back as it was (K2, C44, C46)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import json
import uuid
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from loom_mq.codec.values import ValueCodec, codec_for, to_display
from loom_mq.errors import CodecError
from tests.unit.value_kit import picture

offsets = st.builds(
    dt.timezone,
    st.timedeltas(min_value=dt.timedelta(hours=-23, minutes=-59), max_value=dt.timedelta(hours=23)),
)
zones = st.none() | st.just(dt.UTC) | offsets
moments = st.builds(
    lambda moment, fold: moment.replace(fold=fold),
    st.datetimes(timezones=zones),
    st.integers(0, 1),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
hashable_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | texts
    | st.binary(max_size=8)
    | st.decimals()
    | st.uuids()
    | st.dates()
    | st.times(timezones=zones)
    | moments
    | st.timedeltas()
)
# a signalling NaN has no hash
keys = hashable_scalars.filter(lambda key: not (isinstance(key, Decimal) and key.is_snan()))
hashables = st.recursive(
    keys,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    hashable_scalars | st.binary(max_size=4).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(hashables, max_size=4)
        | st.frozensets(hashables, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4)
    ),
    max_leaves=20,
)


def check(codec: ValueCodec, value: object) -> None:
    data, first = codec.roundtrip(value, what="step s")
    assert picture(first) == picture(value)
    assert picture(codec.decode(data)) == picture(value)
    assert codec.encode(value, what="step s") == data
    # what a re-run sees, stored again, is the same
    assert picture(codec.decode(codec.encode(first, what="step s"))) == picture(value)
    json.dumps(to_display(data), allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(values)
def test_untyped(value: object) -> None:
    check(codec_for(Any), value)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(texts, values, max_size=4))
def test_a_dict_of_anything(value: dict[str, object]) -> None:
    check(codec_for(dict[str, Any]), value)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: float
    y: int


class Tag(TypedDict):
    name: str
    since: dt.date


class Part(msgspec.Struct, array_like=True):
    price: Decimal
    marks: frozenset[int]


@dataclasses.dataclass
class Plain:
    """Nothing in it that needs more than msgspec's own form."""

    flag: bool
    number: int
    rate: float
    name: str
    raw: bytes
    id: uuid.UUID
    price: Decimal
    day: dt.date
    pause: dt.timedelta
    colour: Colour
    level: Level
    at: Point
    tag: Tag
    parts: list[Part]
    pair: tuple[int, str]
    many: tuple[float, ...]
    marks: set[int]
    names: dict[str, int | None]
    by_number: dict[int, list[str]]


@dataclasses.dataclass
class Timed:
    moment: dt.datetime
    maybe: dt.datetime | None
    inner: Plain | None


@dataclasses.dataclass
class Clocked:
    time: dt.time
    timed: list[Timed]


def plains(**given_fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Plain]:
    return st.builds(
        Plain,
        name=texts,
        price=st.decimals(),
        tag=st.fixed_dictionaries({"name": texts, "since": st.dates()}),
        parts=st.lists(
            st.builds(Part, st.decimals(), st.frozensets(st.integers(), max_size=3)), max_size=3
        ),
        pair=st.tuples(st.integers(), texts),
        names=st.dictionaries(texts, st.none() | st.integers(), max_size=3),
        by_number=st.dictionaries(st.integers(), st.lists(texts, max_size=2), max_size=3),
        **given_fields,
    )


# the fold of a datetime is not kept inside classes; equality does not depend on it
plain_moments = st.datetimes(timezones=zones).map(lambda moment: moment.replace(fold=0))
timed = st.builds(Timed, plain_moments, st.none() | plain_moments, st.none() | plains())


@settings(max_examples=80, deadline=None)
@given(plains())
def test_a_plain_class(value: Plain) -> None:
    check(codec_for(Plain), value)


@settings(max_examples=80, deadline=None)
@given(timed)
def test_a_class_with_datetimes(value: Timed) -> None:
    check(codec_for(Timed), value)


@settings(max_examples=60, deadline=None)
@given(st.builds(Clocked, st.times(timezones=zones), st.lists(timed, max_size=2)))
def test_a_class_with_times(value: Clocked) -> None:
    check(codec_for(Clocked), value)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=40), st.sampled_from([Any, int, Plain, Timed, dict[str, Any]]))
def test_garbage_is_a_codec_error_or_a_value(data: bytes, annotation: object) -> None:
    """F2: nothing else, whatever lies in the log."""
    for header in (b"", b"\x00", b"\x01", b"\x02", b"\x03"):
        with contextlib.suppress(CodecError):
            codec_for(annotation).decode(header + data)
        to_display(header + data)
