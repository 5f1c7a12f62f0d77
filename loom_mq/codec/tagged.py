"""Self-describing msgpack for values without a declared type (K2, C44, C46).

What msgpack carries by itself goes as it is; tuples, sets, dates and the like go as
extensions, so that they come back as what they were. Only exact types are taken: a
subclass would come back as its base, so it is refused the first time.

Bytes are the same for equal values that were built in the same order; sets are
sorted, because their own order differs from process to process. An aware datetime
keeps its offset; the name of its zone is not kept.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

MAX_DEPTH: Final = 100
"""Containers inside containers. Fixed, so that what one process could write every other can
read, however deep its own stack is at that moment."""

MAX_INT_BITS: Final = 13_000
"""Python refuses to read longer numbers than some 4300 digits from text."""

_MAX_PARTS: Final = 1 << 26

(
    _TUPLE,
    _SET,
    _FROZENSET,
    _BIG_INT,
    _DATETIME,
    _DATE,
    _TIME,
    _TIMEDELTA,
    _DECIMAL,
    _UUID,
    _PAIRS,
    _BYTEARRAY,
) = range(1, 13)

_pack: Final = msgspec.msgpack.Encoder().encode
_Ext = msgspec.msgpack.Ext


class UnfitError(Exception):
    """Some part of a value cannot be stored; `faults.find_fault` tells which and why."""


class TooManyPartsError(UnfitError):
    """A value has more parts than its size limit has bytes."""


def encode(value: object, limit: int | None = None) -> bytes:
    """The value as self-describing msgpack.

    Args:
        value: what to encode.
        limit: bytes that the result may have. Only used to give up early on a value that
            shares its parts so often that it would never end; the caller checks the size.

    Raises:
        UnfitError: some part of it would not come back as what it is.
        UnicodeEncodeError: a text in it holds a lone surrogate.
    """
    return _pack(_lower(value, 0, [_MAX_PARTS if limit is None else limit]))


def decode(data: bytes | memoryview) -> object:
    """What `encode` was given.

    Raises:
        msgspec.DecodeError, ValueError, TypeError, RecursionError: not made by `encode`.
    """
    return _decoder.decode(data)


def _lower(value: object, depth: int, room: list[int]) -> object:
    """The value with everything that msgpack lacks turned into extensions.

    Args:
        value: any value.
        depth: containers around it.
        room: one number, the parts that are still allowed.
    """
    kind = type(value)
    if kind in AS_IS:
        return value
    lower = _LOWER.get(kind)
    if lower is None:
        raise UnfitError
    return lower(value, depth, room)


def _int(value: int, _depth: int, _room: list[int]) -> object:
    if -0x8000_0000_0000_0000 <= value <= 0xFFFF_FFFF_FFFF_FFFF:
        return value
    if value.bit_length() > MAX_INT_BITS:
        raise UnfitError
    return _Ext(_BIG_INT, _pack(str(value)))


def _enter(value: Collection[object], depth: int, room: list[int]) -> int:
    if depth >= MAX_DEPTH:
        raise UnfitError
    room[0] -= len(value)
    if room[0] < 0:
        raise TooManyPartsError
    return depth + 1


def _items(value: Collection[object], depth: int, room: list[int]) -> list[object]:
    inner = _enter(value, depth, room)
    return [item if type(item) in AS_IS else _lower(item, inner, room) for item in value]


def _dict(value: dict[object, object], depth: int, room: list[int]) -> object:
    inner = _enter(value, depth, room)
    if _TEXTS.issuperset(map(type, value)):
        return {
            key: item if type(item) in AS_IS else _lower(item, inner, room)
            for key, item in value.items()
        }
    keys = _items(value, depth, room)
    items = _items(value.values(), depth, room)
    if _PLAIN_KEYS.issuperset(map(type, keys)):
        return dict(zip(keys, items, strict=True))
    return _Ext(_PAIRS, _pack(list(zip(keys, items, strict=True))))


def _tuple(value: tuple[object, ...], depth: int, room: list[int]) -> object:
    return _Ext(_TUPLE, _pack(_items(value, depth, room)))


def _unordered(code: int) -> Callable[[Any, int, list[int]], object]:
    def lower(value: Collection[object], depth: int, room: list[int]) -> object:
        items = sorted(map(_pack, _items(value, depth, room)))
        return _Ext(code, _pack([msgspec.Raw(item) for item in items]))

    return lower


def _datetime(value: dt.datetime, _depth: int, _room: list[int]) -> object:
    if value.tzinfo is dt.UTC and not value.fold:
        return value  # msgpack has a form for this one, and it is the common one
    return _moment(_DATETIME, value)


def _moment(code: int, value: dt.datetime | dt.time) -> object:
    return _Ext(code, _pack((value.isoformat(), value.fold)))


AS_IS: Final = frozenset({type(None), bool, float, bytes, str})
_TEXTS: Final = frozenset({str})
_PLAIN_KEYS: Final = AS_IS | {int}
CONTAINERS: Final = frozenset({list, dict, tuple, set, frozenset})

_LOWER: Final[dict[type, Callable[[Any, int, list[int]], object]]] = {
    int: _int,
    list: _items,
    dict: _dict,
    tuple: _tuple,
    set: _unordered(_SET),
    frozenset: _unordered(_FROZENSET),
    dt.datetime: _datetime,
    dt.time: lambda v, _depth, _room: _moment(_TIME, v),
    dt.date: lambda v, _depth, _room: _Ext(_DATE, _pack(v.isoformat())),
    dt.timedelta: lambda v, _depth, _room: _Ext(
        _TIMEDELTA, _pack((v.days, v.seconds, v.microseconds))
    ),
    Decimal: lambda v, _depth, _room: _Ext(_DECIMAL, _pack(str(v))),
    UUID: lambda v, _depth, _room: _Ext(_UUID, _pack(v.bytes)),
    bytearray: lambda v, _depth, _room: _Ext(_BYTEARRAY, _pack(v)),
}

SCALARS: Final = (AS_IS | _LOWER.keys()) - CONTAINERS
"""With `CONTAINERS`: every type that a value without an annotation may consist of."""


def _to_datetime(content: list[Any]) -> dt.datetime:
    text, fold = content
    text, zone = _fine_zone(text)
    moment = dt.datetime.fromisoformat(text)
    return moment.replace(fold=fold, tzinfo=zone) if zone else moment.replace(fold=fold)


def _to_time(content: list[Any]) -> dt.time:
    text, fold = content
    text, zone = _fine_zone(text)
    time = dt.time.fromisoformat(text)
    return time.replace(fold=fold, tzinfo=zone) if zone else time.replace(fold=fold)


def _fine_zone(text: str) -> tuple[str, dt.timezone | None]:
    """Split off an offset like ``+00:00:00.000001``.

    Python writes it but reads it as UTC when it is shorter than a second.
    """
    if text[-7:-6] != "." or text[-16:-15] not in ("+", "-"):
        return text, None
    sign = -1 if text[-16] == "-" else 1
    size = dt.time.fromisoformat(text[-15:])
    offset = dt.timedelta(
        hours=size.hour, minutes=size.minute, seconds=size.second, microseconds=size.microsecond
    )
    return text[:-16], dt.timezone(sign * offset)


_RESTORE: Final[dict[int, tuple[type, Callable[[Any], object]]]] = {
    _TUPLE: (list, tuple),
    _SET: (list, set),
    _FROZENSET: (list, frozenset),
    _BIG_INT: (str, int),
    _DATETIME: (list, _to_datetime),
    _DATE: (str, dt.date.fromisoformat),
    _TIME: (list, _to_time),
    _TIMEDELTA: (list, lambda content: dt.timedelta(*content)),
    _DECIMAL: (str, Decimal),
    _UUID: (bytes, lambda content: UUID(bytes=content)),
    _PAIRS: (list, dict),
    _BYTEARRAY: (bytes, bytearray),
}


def _restore(code: int, data: memoryview) -> object:
    known = _RESTORE.get(code)
    if known is None:
        raise ValueError(f"extension {code} was written by a newer version of loom-mq")
    kind, restore = known
    content = _decoder.decode(data)
    if type(content) is not kind:
        raise ValueError(f"extension {code} holds something else than it should")
    return restore(content)


_decoder: Final = msgspec.msgpack.Decoder(ext_hook=_restore)
