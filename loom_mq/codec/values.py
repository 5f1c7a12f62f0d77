"""Values as they are stored: what a step returns, what a flow takes, what a gate gets.

A stored value is one header byte and a body. A value with a declared type is msgpack
by that type; one without is self-describing (see `tagged`); a value from outside, in
any language, is plain msgpack or JSON and takes its type when it is read.

What a step returns is what a re-run will see: `roundtrip` gives both, equal, types
included (K2).
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, Final

import msgspec

from loom_mq.codec import tagged
from loom_mq.errors import CodecError, ConfigurationError, PayloadTooLargeError

TYPED: Final = b"\x00"
TAGGED: Final = b"\x01"
PLAIN: Final = b"\x02"
JSON: Final = b"\x03"

_UNTYPED: Final = (Any, object, inspect.Parameter.empty)

_UNREADABLE: Final = (
    msgspec.DecodeError,
    msgspec.ValidationError,
    ValueError,
    TypeError,
    RecursionError,
)


class ValueCodec:
    """Encodes and decodes the values of one annotation. Made by `codec_for`.

    Args:
        annotation: any type that msgspec knows; Any for self-describing values.

    Raises:
        ConfigurationError: msgspec cannot handle the annotation.
    """

    def __init__(self, annotation: object) -> None:
        self.annotation = annotation
        self.typed = annotation not in _UNTYPED
        self._encode = msgspec.msgpack.Encoder().encode
        try:
            self._decode = msgspec.msgpack.Decoder(annotation if self.typed else Any).decode
        except (TypeError, NameError, RecursionError) as error:
            raise ConfigurationError(
                f"values of type {annotation!r} cannot be stored: {error}; use a dataclass, a "
                "msgspec Struct, a TypedDict, an Enum or built-in types"
            ) from error

    def encode(self, value: object, *, what: str, limit: int | None = None) -> bytes:
        """The stored form of a value.

        Args:
            value: what to store.
            what: who owns it, for the error, such as ``step charge``.
            limit: bytes allowed (J10).

        Raises:
            CodecError: it cannot be stored, or does not fit the annotation.
            PayloadTooLargeError: it is larger than `limit`.
        """
        return self.roundtrip(value, what=what, limit=limit)[0]

    def roundtrip(
        self, value: object, *, what: str, limit: int | None = None
    ) -> tuple[bytes, object]:
        """The stored form of a value, and the value as it will be read again (K2).

        Raises:
            CodecError, PayloadTooLargeError: as for `encode`.
        """
        try:
            data = self._store(value, what)
            if limit is not None and len(data) > limit:
                raise PayloadTooLargeError(what, len(data), limit)
            return data, self._load(data)
        except tagged.UnfitError as error:
            raise CodecError(what, error.where, error.reason) from error
        except _UNREADABLE as error:
            raise CodecError(what, *_place_and_reason(error)) from error

    def decode(self, data: bytes, *, what: str = "stored value") -> object:
        """The value that was stored.

        Raises:
            CodecError: it does not fit the annotation, or a newer release wrote it.
        """
        try:
            return self._load(data)
        except _UNREADABLE as error:
            raise CodecError(what, *_place_and_reason(error)) from error

    def _store(self, value: object, what: str) -> bytes:
        if not self.typed:
            return TAGGED + tagged.encode(value)
        try:
            return TYPED + self._encode(value)
        except OverflowError:
            # an integer beyond 64 bits somewhere inside
            return TAGGED + tagged.encode(msgspec.to_builtins(value))
        except UnicodeEncodeError as error:
            tagged.encode(msgspec.to_builtins(value))  # finds the place and raises
            raise CodecError(what, "$", str(error)) from error

    def _load(self, data: bytes) -> object:
        header, body = data[:1], memoryview(data)[1:]
        if header == TYPED:
            return self._decode(body)
        if header == TAGGED:
            value = tagged.decode(body)
            return self._convert(value, strict=True) if self.typed else value
        if header == PLAIN:
            if not self.typed:
                return msgspec.msgpack.decode(body)
            return self._convert(msgspec.msgpack.decode(body), strict=True)
        if header == JSON:
            value = msgspec.json.decode(body)
            return self._convert(value, strict=True) if self.typed else value
        raise ValueError(f"header {header!r} was written by a newer release")

    def _convert(self, value: object, *, strict: bool) -> object:
        return msgspec.convert(value, self.annotation, strict=strict)


def _place_and_reason(error: Exception) -> tuple[str, str]:
    """Msgspec says ``... - at `$.a[0]` ``; tell the place apart from the reason."""
    if isinstance(error, RecursionError):
        return "$", "nested too deeply, or it contains itself"
    reason, marker, place = str(error).partition(" - at `")
    return (place.rstrip("`") if marker else "$"), reason


@lru_cache(maxsize=4096)
def _cached(annotation: object) -> ValueCodec:
    return ValueCodec(annotation)


def codec_for(annotation: object) -> ValueCodec:
    """The codec of an annotation; made once.

    Raises:
        ConfigurationError: msgspec cannot handle the annotation.
    """
    try:
        return _cached(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return ValueCodec(annotation)


def wrap_plain(data: bytes) -> bytes:
    """Stored form of plain msgpack from outside.

    Raises:
        CodecError: nested too deeply.
    """
    _check(lambda: msgspec.msgpack.decode(data))
    return PLAIN + data


def wrap_json(data: bytes) -> bytes:
    """Stored form of JSON from outside.

    Raises:
        CodecError: not JSON, or nested too deeply.
    """
    _check(lambda: msgspec.json.decode(data))
    return JSON + data


def _check(read: Any) -> None:
    try:
        read()
    except _UNREADABLE as error:
        raise CodecError("plain value", *_place_and_reason(error)) from error


def to_display(data: bytes) -> object:
    """Any stored value without its type, as well as it can be shown to people."""
    try:
        header, body = data[:1], memoryview(data)[1:]
        if header == TAGGED:
            return tagged.decode(body)
        if header == JSON:
            return msgspec.json.decode(body)
        return msgspec.msgpack.decode(body)
    except _UNREADABLE:
        return f"<{len(data)} bytes>"
