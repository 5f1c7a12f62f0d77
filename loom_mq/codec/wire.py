"""Messages to bytes and back, with an answer for every kind of bad bytes (F2)."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from loom_mq.errors import InputError, MalformedMessageError, UnknownMessageVersionError
from loom_mq.model.messages import (
    NEWEST_VERSION,
    ControlMessage,
    HintMessage,
    PackageMessage,
    ReplyMessage,
    StartMessage,
    TokenMessage,
)

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"

Message = StartMessage | ControlMessage | ReplyMessage | PackageMessage | HintMessage | TokenMessage
M = TypeVar(
    "M", StartMessage, ControlMessage, ReplyMessage, PackageMessage, HintMessage, TokenMessage
)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[msgspec.Struct]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (
        StartMessage,
        ControlMessage,
        ReplyMessage,
        PackageMessage,
        HintMessage,
        TokenMessage,
    )
}


class _Header(msgspec.Struct, frozen=True):
    v: int = 0


def is_json(content_type: str) -> bool:
    """Whether a content type says JSON, with or without parameters."""
    return content_type.partition(";")[0].strip().lower() == JSON


def encode(message: Message) -> bytes:
    """The message as msgpack."""
    return _encoder.encode(message)


def decode(kind: type[M], body: bytes, content_type: str = MSGPACK) -> M:
    """Read a message of a known kind.

    Args:
        kind: the message class expected on this queue.
        body: what was delivered.
        content_type: ``application/msgpack`` (or empty) or ``application/json``.

    Raises:
        UnknownMessageVersionError: written by a newer release.
        MalformedMessageError: anything else that cannot be read; never shows the body.
    """
    try:
        if is_json(content_type):
            message = msgspec.json.decode(body, type=kind)
        else:
            message = _decoders[kind].decode(body)  # type: ignore[assignment]  # keyed by kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(kind, body, content_type, error) from None
    if message.v > NEWEST_VERSION:
        raise _too_new(message.v)
    return message


def _too_new(version: int) -> UnknownMessageVersionError:
    return UnknownMessageVersionError(
        f"the message needs version {version}, this process reads up to {NEWEST_VERSION}; "
        "upgrade the fleet before its clients"
    )


def _refusal(
    kind: type[msgspec.Struct], body: bytes, content_type: str, error: Exception
) -> InputError:
    """Tell a message from the future from one that is simply broken."""
    try:
        if is_json(content_type):
            version = msgspec.json.decode(body, type=_Header).v
        elif kind.__struct_config__.array_like:
            head = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
            version = msgspec.msgpack.decode(head[1], type=int)
        else:
            version = msgspec.msgpack.decode(body, type=_Header).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        version = 0
    if version > NEWEST_VERSION:
        return _too_new(version)
    name = kind.__struct_config__.tag
    return MalformedMessageError(f"not a readable {name!s} message: {error}")
