"""Plain data from outside, in any language: msgpack of built-in types, or JSON (F2).

It is checked once when it comes in and takes its type when it is read, by the code
that knows the annotation.
"""

from __future__ import annotations

from typing import Final

import msgspec

from loom_mq.codec.tagged import MAX_DEPTH
from loom_mq.errors import CodecError

PLAIN: Final = b"\x02"
JSON: Final = b"\x03"
OWN: Final = b"\x04"
"""What a step's own codec made; nobody else reads it (`own`)."""
FAILED: Final = b"\x06"
"""Begins the record of a decision that raised an error: what follows is the failure."""

ERASED: Final = b"\x05"
"""The whole stored form of a value that was erased (J8); nothing follows it."""

_NO_CONTAINER: Final = bytes(
    byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF)
)


def wrap_plain(data: bytes, *, what: str = "input") -> bytes:
    """Stored form of plain msgpack from outside.

    Args:
        data: msgpack of built-in types; timestamps are the only extension allowed.
        what: who owns the value, for the error.

    Raises:
        CodecError: malformed, with unknown extensions, or nested too deeply.
    """
    try:
        value = decode_plain(data)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise CodecError(what, "$", _told(error)) from error
    if _may_be_deep(data):
        _check_depth(value, what)
    return PLAIN + data


def wrap_json(data: bytes, *, what: str = "input") -> bytes:
    """Stored form of JSON from outside, byte for byte.

    Numbers stay as they were written, so that a field of type Decimal gets every digit.

    Args:
        data: JSON in UTF-8.
        what: who owns the value, for the error.

    Raises:
        CodecError: malformed, with lone surrogates, or nested too deeply.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise CodecError(what, "$", _told(error)) from error
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value, what)
    return JSON + data


def decode_plain(data: bytes) -> object:
    """The built-in types that plain msgpack holds.

    Raises:
        msgspec.DecodeError, ValueError, TypeError, RecursionError: it is something else.
    """
    return _decoder.decode(data)


def is_too_deep(data: bytes) -> bool:
    """Whether msgpack nests lists and maps deeper than `MAX_DEPTH`."""
    return _may_be_deep(data) and _is_deep(msgspec.msgpack.decode(data))


def _may_be_deep(data: bytes) -> bool:
    # fewer containers than levels allowed cannot be too deep, and counting them is cheap
    return len(data.translate(None, _NO_CONTAINER)) > MAX_DEPTH


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for container in level
            for part in _parts(container)
            if isinstance(part, list | dict | tuple)
        ]
        if not level:
            return False
    return True


def _parts(container: object) -> list[object] | tuple[object, ...]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return container if isinstance(container, list | tuple) else ()


def _check_depth(value: object, what: str) -> None:
    if _is_deep(value):
        raise CodecError(what, "$", f"nested deeper than {MAX_DEPTH} levels")


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"nested deeper than {MAX_DEPTH} levels"
    return str(error)[:500]


def _no_extension(code: int, _data: memoryview) -> object:
    raise ValueError(f"extension {code} is not plain data")


_decoder: Final = msgspec.msgpack.Decoder(ext_hook=_no_extension)
