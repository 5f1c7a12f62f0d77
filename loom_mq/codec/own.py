"""Values that a step's own codec stores: `@step(codec=...)` (K16).

The stored form is the byte `0x04` and what the codec made of the value, so that whoever
lists a log can tell that no one else reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from loom_mq.codec.plain import OWN
from loom_mq.codec.values import ValueCodec
from loom_mq.errors import CodecError, ConfigurationError, PayloadTooLargeError

__all__ = ["OWN", "OwnCodec", "ResultCodec", "StepCodec"]


@runtime_checkable
class StepCodec(Protocol):
    """What `@step(codec=...)` takes: how a step's result becomes bytes and a value again.

    Both methods must be pure and safe for threads, and `decode` must go on reading what
    every earlier release of the program wrote.
    """

    def encode(self, value: Any, /) -> bytes:
        """The value as bytes; raises whatever it likes when it cannot."""

    def decode(self, data: bytes, /) -> Any:
        """The value that these bytes stand for."""


class ResultCodec(Protocol):
    """What a run of a flow asks of the codec of a step's result."""

    def encode(self, value: object, *, what: str, limit: int | None = None) -> bytes:
        """See `ValueCodec.encode`."""

    def roundtrip(
        self, value: object, *, what: str, limit: int | None = None
    ) -> tuple[bytes, object]:
        """See `ValueCodec.roundtrip`."""

    def decode(self, data: bytes, *, what: str = "stored value") -> object:
        """See `ValueCodec.decode`."""


class OwnCodec:
    """A step's own codec under the rules of every other: K2, J10, errors that name the step.

    Args:
        own: encodes and decodes.
        owner: whose results they are, for errors, such as ``step charge``.
        others: the codec of the step's annotation; reads what was stored before the step
            had a codec of its own, and what an operator gives as plain data (K6). Asked
            only then, since it may be that it does not know the type.

    Raises:
        ConfigurationError: `own` has no method `encode` or `decode`.
    """

    def __init__(self, own: StepCodec, owner: str, others: Callable[[], ValueCodec]) -> None:
        if isinstance(own, type) or not isinstance(own, StepCodec):
            raise ConfigurationError(
                f"{owner}: codec must be an object with the methods encode(value) -> bytes and "
                f"decode(bytes) -> value, not {own!r}"
            )
        self._own = own
        self._owner = owner
        self._others = others

    def encode(self, value: object, *, what: str, limit: int | None = None) -> bytes:
        """The stored form of a value, after making sure that it can be read again.

        Raises:
            CodecError: the codec raised, or gave no bytes.
            PayloadTooLargeError: the stored form is larger than `limit` bytes.
        """
        return self.roundtrip(value, what=what, limit=limit)[0]

    def roundtrip(
        self, value: object, *, what: str, limit: int | None = None
    ) -> tuple[bytes, object]:
        """The stored form of a value, and the value as it will be read again (K2).

        Raises:
            CodecError: the codec raised, or gave no bytes.
            PayloadTooLargeError: the stored form is larger than `limit` bytes.
        """
        try:
            body: object = self._own.encode(value)
        except MemoryError:
            raise
        except Exception as error:
            raise self._refused(what, "encode", error) from error
        if not isinstance(body, bytes | bytearray | memoryview):
            raise CodecError(
                what, "$", f"the step's own codec encoded to {type(body).__name__}, not bytes"
            )
        data = OWN + bytes(body)
        if limit is not None and len(data) > limit:
            raise PayloadTooLargeError(what, len(data), limit)
        return data, self._decoded(data, what)

    def decode(self, data: bytes, *, what: str = "stored value") -> object:
        """The value that was stored.

        Raises:
            CodecError: the codec raised, or it is no value of the step's annotation.
        """
        if data[:1] == OWN:
            return self._decoded(data, self._owner)
        try:
            others = self._others()
        except ConfigurationError as error:
            raise CodecError(
                self._owner,
                "$",
                f"it was not stored by the step's own codec, and no other knows its type: {error}",
            ) from error
        return others.decode(data, what=what)

    def _decoded(self, data: bytes, what: str) -> object:
        try:
            return self._own.decode(data[1:])
        except MemoryError:
            raise
        except Exception as error:
            raise self._refused(what, "decode", error) from error

    def _refused(self, what: str, verb: str, error: Exception) -> CodecError:
        return CodecError(
            what,
            "$",
            f"the step's own codec {type(self._own).__name__} could not {verb} it: "
            f"{type(error).__name__}: {str(error)[:500]}",
        )
