"""Self-describing msgpack for values without a declared type (K2, C44).

What msgpack carries by itself goes as it is; tuples, sets, dates and the like go as
extensions, so that they come back as what they were. Only exact types are taken: a
subclass would come back as something else, so it is refused the first time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

MAX_DEPTH: Final = 100
INT64: Final = range(-(2**63), 2**64)

_TUPLE, _SET, _FROZENSET, _BIG, _DATETIME, _DATE, _TIME, _DELTA, _DECIMAL, _UUID, _PAIRS, _ARRAY = (
    range(1, 13)
)

_pack = msgspec.msgpack.Encoder().encode


class UnfitError(Exception):
    """A value cannot be stored; `where` is the place inside it."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(reason)
        self.where = where
        self.reason = reason


def encode(value: object) -> bytes:
    """The value as self-describing msgpack.

    Raises:
        UnfitError: some part of it is not of a type that comes back as it was.
    """
    return _pack(_prepare(value, "$", 0))


def decode(data: bytes | memoryview) -> object:
    """What `encode` was given.

    Raises:
        msgspec.DecodeError, ValueError: not from `encode`.
    """
    return _decoder.decode(data)


def _prepare(value: object, where: str, depth: int) -> object:
    """The value with everything that msgpack lacks turned into extensions."""
    if depth > MAX_DEPTH:
        raise UnfitError(where, f"nested deeper than {MAX_DEPTH}, or it contains itself")
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is str:
        return _text(value, where)  # type: ignore[arg-type]  # checked by its exact type
    if kind is int:
        return value if value in INT64 else _ext(_BIG, str(value))
    prepare = _PREPARE.get(kind)
    if prepare is None:
        raise UnfitError(where, _why_not(value))
    return prepare(value, where, depth + 1)


def _text(value: str, where: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UnfitError(
                where, "the text holds a lone surrogate, which is no character"
            ) from error
    return value


def _ext(code: int, content: object) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _pack(content))


def _list(value: Any, where: str, depth: int) -> list[object]:
    return [_prepare(item, f"{where}[{index}]", depth) for index, item in enumerate(value)]


def _dict(value: dict[object, object], where: str, depth: int) -> object:
    plain = all(type(key) is str for key in value)
    if plain:
        return {
            _prepare(key, f"{where} key", depth): _prepare(item, f"{where}.{key}", depth)
            for key, item in value.items()
        }
    pairs = [
        (_prepare(key, f"{where} key {key!r}", depth), _prepare(item, f"{where}[{key!r}]", depth))
        for key, item in value.items()
    ]
    return _ext(_PAIRS, pairs)


def _why_not(value: object) -> str:
    name = type(value).__name__
    if hasattr(value, "__await__"):
        if hasattr(value, "close"):
            value.close()  # or Python would warn about it as well
        return f"a {name} is a result still to come; await it and return what it gives"
    if hasattr(value, "__next__") or hasattr(value, "__anext__"):
        return f"a {name} cannot be stored; return a list of its items"
    return (
        f"a {name} cannot be stored without knowing its type; annotate it (the step's or flow's "
        "return type, the flow's input) with a dataclass, Struct, Enum or another type that "
        "msgspec knows"
    )


_AS_IS: Final = frozenset({type(None), bool, float, bytes})

_PREPARE: Final[dict[type, Callable[[Any, str, int], object]]] = {
    list: _list,
    dict: _dict,
    tuple: lambda v, w, d: _ext(_TUPLE, _list(v, w, d)),
    set: lambda v, w, d: _ext(_SET, _list(v, w, d)),
    frozenset: lambda v, w, d: _ext(_FROZENSET, _list(v, w, d)),
    dt.datetime: lambda v, _w, _d: _ext(_DATETIME, [v.isoformat(), v.fold]),
    dt.date: lambda v, _w, _d: _ext(_DATE, v.isoformat()),
    dt.time: lambda v, _w, _d: _ext(_TIME, [v.isoformat(), v.fold]),
    dt.timedelta: lambda v, _w, _d: _ext(_DELTA, [v.days, v.seconds, v.microseconds]),
    Decimal: lambda v, _w, _d: _ext(_DECIMAL, str(v)),
    UUID: lambda v, _w, _d: _ext(_UUID, v.bytes),
    bytearray: lambda v, _w, _d: _ext(_ARRAY, bytes(v)),
}

_RESTORE: Final[dict[int, Callable[[Any], object]]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _BIG: int,
    _DATETIME: lambda v: dt.datetime.fromisoformat(v[0]).replace(fold=v[1]),
    _DATE: dt.date.fromisoformat,
    _TIME: lambda v: dt.time.fromisoformat(v[0]).replace(fold=v[1]),
    _DELTA: lambda v: dt.timedelta(v[0], v[1], v[2]),
    _DECIMAL: Decimal,
    _UUID: lambda v: UUID(bytes=v),
    _PAIRS: lambda v: {key: item for key, item in v},  # noqa: C416  # pairs arrive as lists
    _ARRAY: bytearray,
}


def _restore(code: int, content: memoryview) -> object:
    restore = _RESTORE.get(code)
    if restore is None:
        raise ValueError(f"extension {code} was written by a newer release")
    return restore(_decoder.decode(content))


_decoder: Final = msgspec.msgpack.Decoder(ext_hook=_restore)
