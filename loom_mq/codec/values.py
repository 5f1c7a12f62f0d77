"""Values as they are stored: what a step returns, what a flow takes, what a gate gets.

A stored value is one header byte and a body:

====== ===================================================================================
header body
====== ===================================================================================
0x00   msgpack by the declared type
0x01   self-describing msgpack (`tagged`); takes its type, if any is declared, when read
0x02   plain msgpack from outside; takes its type when read
0x03   JSON from outside; takes its type when read
0x04   bytes of a step's own codec (`own`)
0x05   nothing: the value was erased (J8)
0x06   a failure as msgpack: a decision raised it instead of making a value
====== ===================================================================================

What a step returns is what a re-run will see: `roundtrip` gives both, equal, types
included (K2, C44). What does not come back as it is, is refused the first time (C20).

Inside a class, parts that are declared as Any keep dates, decimals, tuples and the
like; a set in such a part becomes a list and an instance of a class a dict, on the
first run already. Datetimes keep their offset, not the name of their zone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Final, Literal
from uuid import UUID

import msgspec

from loom_mq.codec import plain, tagged
from loom_mq.codec.adapters import Hooks
from loom_mq.codec.display import to_display
from loom_mq.codec.faults import BOXED, Fault, find_fault, told_by
from loom_mq.codec.plain import wrap_json, wrap_plain
from loom_mq.codec.shapes import shape_of
from loom_mq.errors import CodecError, LoomError, PayloadTooLargeError

__all__ = [
    "ValueCodec",
    "codec_for",
    "from_builtins",
    "from_json",
    "to_display",
    "wrap_json",
    "wrap_plain",
]

TYPED: Final = b"\x00"
TAGGED: Final = b"\x01"

_pack: Final = msgspec.msgpack.Encoder().encode

_BYTES: Final = (bytes, bytearray, memoryview)

_LEFT_ALONE: Final = (
    bytes,
    bytearray,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    Decimal,
    UUID,
)
"""Scalars that `tagged` carries better than text would."""


class ValueCodec:
    """Encodes and decodes the values of one annotation. Made by `codec_for`.

    Safe for threads.

    Args:
        annotation: any type that msgspec or an adapter knows; Any for self-describing
            values.

    Raises:
        ConfigurationError: values of the annotation cannot be stored.
    """

    def __init__(self, annotation: object) -> None:
        shape = shape_of(annotation)
        self.annotation = annotation
        self.typed = not shape.untyped
        self._hooks = Hooks(shape.adapters)
        self._order: Literal["deterministic"] | None = "deterministic" if shape.sorts else None
        self._encode = msgspec.msgpack.Encoder(
            enc_hook=self._hooks.encode, order=self._order
        ).encode
        declared = msgspec.msgpack.Decoder(
            annotation if self.typed else object, dec_hook=self._hooks.decode
        )
        self._decode: Callable[[bytes], object] = declared.decode
        self._box = msgspec.defstruct("Box", [(BOXED, annotation if self.typed else object)])
        self._store: Callable[[object, int | None], tuple[bytes, object]]
        self._exact = shape.opaque and not shape.classes and not shape.adapters
        self._classes = shape.classes
        self._recursive = shape.recursive
        if self._exact:
            self._store = self._store_exact
        elif shape.opaque or shape.clock or shape.adapters:
            self._store = self._store_lowered
        elif shape.timed:
            self._store = self._store_timed
        else:
            self._store = self._store_typed

    def encode(self, value: object, *, what: str, limit: int | None = None) -> bytes:
        """The stored form of a value, after making sure that it can be read again.

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

        Args:
            value: what to store; never part of what is returned, so that a later change
                to it reaches nobody.
            what: who owns it, for the error, such as ``step charge``.
            limit: bytes allowed (J10).

        Raises:
            CodecError: it cannot be stored, or does not fit the annotation.
            PayloadTooLargeError: it is larger than `limit`.
        """
        try:
            data, back = self._store(value, limit)
        except (LoomError, MemoryError):
            raise
        except tagged.TooManyPartsError:
            if limit is None:
                raise CodecError(what, "$", "it has too many parts") from None
            raise PayloadTooLargeError(what, limit + 1, limit) from None
        except Exception as error:  # user code runs in here: __post_init__, tzinfo, adapters
            raise CodecError(what, *self._fault(value, error)) from _origin(error)
        if limit is not None and len(data) > limit:
            raise PayloadTooLargeError(what, len(data), limit)
        if self._classes and type(back) is not type(value) and isinstance(value, type(back)):
            self._check_base(value, back, what)
        return data, back

    def decode(self, data: bytes, *, what: str = "stored value") -> object:
        """The value that was stored.

        Args:
            data: its stored form.
            what: who owns it, for the error.

        Raises:
            CodecError: it does not fit the annotation, or a newer release wrote it.
        """
        try:
            return self._load(data)
        except MemoryError:
            raise
        except Exception as error:  # user code runs in here: __post_init__, adapters
            raise CodecError(what, *self._misfit(error)) from _origin(error)

    @cached_property
    def _json(self) -> msgspec.json.Decoder[object]:
        declared = self.annotation if self.typed else object
        return msgspec.json.Decoder(declared, dec_hook=self._hooks.decode)

    # ---- storing ------------------------------------------------------------------

    def _store_typed(self, value: object, limit: int | None) -> tuple[bytes, object]:
        try:
            body = self._encode(value)
        except OverflowError:  # an integer beyond 64 bits somewhere inside
            return self._store_lowered(value, limit)
        self._check_depth(body)
        return TYPED + body, self._decode(body)

    def _store_timed(self, value: object, limit: int | None) -> tuple[bytes, object]:
        """As ISO texts: msgpack's own form of a datetime would lose its offset."""
        try:
            moments = self._encode(value)
            body = _pack(msgspec.to_builtins(value, builtin_types=_BYTES, order=self._order))
            self._check_depth(body)
            back = self._decode(body)
            # ISO texts drop the seconds of an offset (local times of long ago)
            if self._encode(back) == moments:
                return TYPED + body, back
        except OverflowError:  # a big integer, or a datetime that has no UTC form
            pass
        return self._store_lowered(value, limit)

    def _store_lowered(self, value: object, limit: int | None) -> tuple[bytes, object]:
        lowered = self._lower(value)
        body = tagged.encode(lowered, limit)
        return TAGGED + body, self._convert(tagged.decode(body))

    def _store_exact(self, value: object, limit: int | None) -> tuple[bytes, object]:
        body = tagged.encode(value, limit)
        back = tagged.decode(body)
        return TAGGED + body, self._convert(back) if self.typed else back

    def _lower(self, value: object) -> object:
        lowered: object = msgspec.to_builtins(
            value, builtin_types=_LEFT_ALONE, enc_hook=self._hooks.encode, order=self._order
        )
        return lowered

    def _check_depth(self, body: bytes) -> None:
        if self._recursive and plain.is_too_deep(body):
            raise RecursionError

    # ---- reading ------------------------------------------------------------------

    def _load(self, data: bytes) -> object:
        header = data[:1]
        if header == TYPED:
            return self._decode(data[1:])
        if header == TAGGED:
            value = tagged.decode(data[1:])
            return self._convert(value) if self.typed else value
        if header == plain.PLAIN:
            value = plain.decode_plain(data[1:])
            return self._convert(value, str_keys=True) if self.typed else value
        if header == plain.JSON:
            return self._json.decode(data[1:])
        if not header:
            raise ValueError("there is no value")
        if header == plain.OWN:
            raise ValueError("a step's own codec stored it; declare the step with that codec")
        if header == plain.ERASED:
            raise ValueError("it was erased, with all else that its execution knew of somebody")
        raise ValueError(f"it was written by a newer version of loom-mq (form {header.hex()})")

    def _convert(self, value: object, *, str_keys: bool = False) -> object:
        # to a class this is fast, to any other annotation it is not
        box = msgspec.convert(
            {BOXED: value}, self._box, dec_hook=self._hooks.decode, str_keys=str_keys
        )
        back: object = getattr(box, BOXED)
        return back

    def convert(self, value: object, *, what: str = "value") -> object:
        """The value that built-in types from outside stand for.

        Args:
            value: dicts, lists, texts, numbers; dates and the like may be text.
            what: who owns it, for the error.

        Raises:
            CodecError: it does not fit.
        """
        try:
            return self._convert(value, str_keys=True) if self.typed else value
        except MemoryError:
            raise
        except Exception as error:  # user code runs in here: __post_init__, adapters
            raise CodecError(what, *self._misfit(error)) from _origin(error)

    # ---- refusing -------------------------------------------------------------------

    def _fault(self, value: object, error: Exception) -> Fault:
        """Place and reason of a value that could not be stored."""
        if isinstance(error, msgspec.ValidationError):
            where, reason = self._misfit(error)
            return Fault(where, f"{reason}; give what the annotation says, or change it")
        try:
            found = find_fault(value, exact=self._exact, fits=self._fits)
        except Exception:  # objects with attributes that raise when they are looked at
            found = None
        return found or self._misfit(error)

    def _misfit(self, error: Exception) -> Fault:
        return told_by(error, self.annotation)

    def _fits(self, value: object) -> bool:
        try:
            self._lower(value)
        except Exception:
            return False
        return True

    def _check_base(self, value: object, back: object, what: str) -> None:
        """Refuse an instance of a subclass where its base is declared: it would lose parts."""
        base, kind = type(back), type(value)
        if base.__module__ == "builtins":
            return
        raise CodecError(
            what,
            "$",
            f"`{kind.__name__}` would come back as `{base.__name__}`; annotate `{kind.__name__}`, "
            "or a union of tagged Structs",
        )


def _origin(error: Exception) -> BaseException | None:
    """What to name as the cause: code of the user's, not what our own library said."""
    if isinstance(error, msgspec.MsgspecError):
        return error.__cause__
    return None if isinstance(error, tagged.UnfitError | UnicodeError | RecursionError) else error


@lru_cache(maxsize=4096)
def _cached(annotation: object) -> ValueCodec:
    return ValueCodec(annotation)


def codec_for(annotation: object) -> ValueCodec:
    """The codec of an annotation; made once.

    Args:
        annotation: any type that msgspec knows, a pydantic model, or a class made known by
            `adapters.register_type_adapter`. Any, object, nothing
            (`inspect.Parameter.empty`) and Never mean self-describing values.

    Raises:
        ConfigurationError: values of it cannot be stored; says which type and what to use.
    """
    try:
        hash(annotation)
    except TypeError:  # such as Annotated with a list
        return ValueCodec(annotation)
    return _cached(annotation)


def from_json(
    text: str | bytes, annotation: object, *, what: str = "JSON value", limit: int | None = None
) -> bytes:
    """Stored form of a value that somebody wrote as JSON, checked against its annotation.

    Dates, decimals, UUIDs are texts and bytes are base64 where the annotation says so.

    Args:
        text: JSON.
        annotation: what it must decode to; Any for whatever it is.
        what: who owns it, for the error.
        limit: bytes allowed (J10).

    Raises:
        CodecError: malformed, or it does not fit.
        PayloadTooLargeError: it is larger than `limit`.
    """
    codec = codec_for(annotation)
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    value = codec.decode(plain.JSON + data, what=what)
    return codec.encode(value, what=what, limit=limit)


def from_builtins(
    value: object, annotation: object, *, what: str = "value", limit: int | None = None
) -> bytes:
    """Stored form of a value that came as built-in types, such as from a form or a file.

    Args:
        value: dicts, lists, texts, numbers; dates and the like may be text.
        annotation: what it must convert to; Any for whatever it is.
        what: who owns it, for the error.
        limit: bytes allowed (J10).

    Raises:
        CodecError: it does not fit, or cannot be stored.
        PayloadTooLargeError: it is larger than `limit`.
    """
    codec = codec_for(annotation)
    return codec.encode(codec.convert(value, what=what), what=what, limit=limit)
