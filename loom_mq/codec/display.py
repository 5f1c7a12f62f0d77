"""Stored values as operators see them: without their types, in terms of JSON."""

from __future__ import annotations

import base64
import math
from typing import Final

import msgspec

from loom_mq.codec import plain, tagged
from loom_mq.model.failures import Failure

_typed: Final = msgspec.msgpack.Decoder(ext_hook=lambda code, data: f"<form {code}>")


_failure = msgspec.msgpack.Decoder(Failure)


def to_display(data: bytes) -> object:
    """Any stored value in terms of JSON, as well as it can be told without its type.

    Tuples and sets are lists, bytes are base64, dates and decimals are text, keys are
    text. For eyes only: it cannot be turned back. Never raises.
    """
    try:
        match data[:1]:
            case b"\x00":
                return _show(_typed.decode(data[1:]))
            case b"\x01":
                return _show(tagged.decode(data[1:]))
            case plain.PLAIN:
                return _show(plain.decode_plain(data[1:]))
            case plain.JSON:
                return _show(msgspec.json.decode(data[1:]))
            case plain.OWN:
                return f"<{len(data) - 1} bytes by the step's own codec>"
            case plain.ERASED:
                return "<erased>"
            case plain.FAILED:
                return f"failed: {_failure.decode(data[1:]).headline}"
            case b"":
                return "<no value>"
    except Exception as error:  # whatever somebody else wrote, a listing must go on
        return f"<{len(data)} bytes that cannot be read: {type(error).__name__}>"
    return f"<{len(data)} bytes from a newer version of loom-mq>"


def _show(value: object) -> object:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {_key(key): _show(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [_show(item) for item in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [_show(item) for item in value]
    return msgspec.to_builtins(value)


def _key(key: object) -> str:
    shown = _show(key)
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
