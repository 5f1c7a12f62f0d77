"""Keeps one unreadable message from ending the connection of everybody who gets it (F2).

RabbitMQ takes any bytes as a short string. The client library decodes properties as
UTF-8 in the connection's reader, and a message from a foreign client for which that fails
ends the connection; the broker delivers it again, and again. Such frames are mended here
before the library sees them, so that the consumer can dead-letter the message.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from pamqp.frame import unmarshal

UNREADABLE: Final = 255
"""Stands as the delivery mode of a message whose properties could not be read."""

_PIECE: Final = 256 * 1024
_METHOD_FRAME: Final = 1
_HEADER_FRAME: Final = 2
_BASIC_DELIVER: Final = b"\x00\x3c\x00\x3c"
_TABLE_OR_TIMESTAMP: Final = 0x2040
_ONLY_DELIVERY_MODE: Final = b"\x10\x00"
_FIXED: Final = 12
"""Bytes of a content header before its flags: class, weight, body size."""
_FRAME_END: Final = b"\xce"


class ReadableFrames:
    """What the client library's frame reader reads from: type, size, payload, in three steps.

    It takes bytes from the socket in large pieces and cuts them itself, which is quicker
    than the three reads per frame that the library would make.

    Args:
        reader: the socket's reader.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._bytes = b""
        self._at = 0
        self._head = b""

    @classmethod
    def over(cls, reader: asyncio.StreamReader) -> asyncio.StreamReader:
        """Wrap a reader, as far as the client library uses it."""
        return cast(asyncio.StreamReader, cls(reader))

    def at_eof(self) -> bool:
        """Whether nothing more will come."""
        return self._at >= len(self._bytes) and self._reader.at_eof()

    async def read(self, count: int = -1) -> bytes:
        """Bytes as they come; used only before a broken connection is given up."""
        rest, self._bytes, self._at = self._bytes[self._at :], b"", 0
        return rest or await self._reader.read(count)

    async def readexactly(self, count: int) -> bytes:
        """The next bytes, mended if they are an unreadable payload."""
        start = self._at
        if len(self._bytes) - start < count:
            await self._more(count)
            start = 0
        self._at = start + count
        data = self._bytes[start : self._at]
        head = self._head
        if len(head) < 7:
            self._head = head + data
            return data
        self._head = b""
        if head[0] == _HEADER_FRAME:
            return _readable_header(head, data)
        if head[0] == _METHOD_FRAME and data.startswith(_BASIC_DELIVER) and not data[:-1].isascii():
            return _readable_deliver(head, data)
        return data

    async def _more(self, count: int) -> None:
        """Have at least `count` bytes, from the start on."""
        parts = [self._bytes[self._at :]]
        size = len(parts[0])
        while size < count:
            part = await self._reader.read(_PIECE)
            if not part:
                raise asyncio.IncompleteReadError(b"".join(parts), count)
            parts.append(part)
            size += len(part)
        self._bytes, self._at = b"".join(parts), 0


def _readable_header(head: bytes, payload: bytes) -> bytes:
    flags = int.from_bytes(payload[_FIXED : _FIXED + 2])
    if payload[_FIXED + 2 : -1].isascii() and not flags & _TABLE_OR_TIMESTAMP:
        return payload  # nothing in it can fail: the broker has checked its lengths
    if _can_be_read(head, payload):
        return payload
    mended = payload[:_FIXED] + _ONLY_DELIVERY_MODE + bytes([UNREADABLE])
    return mended.ljust(len(payload) - 1, b"\x00") + _FRAME_END


def _readable_deliver(head: bytes, payload: bytes) -> bytes:
    if _can_be_read(head, payload):
        return payload
    names = 4 + 1 + payload[4] + 8 + 1  # after method, consumer tag, delivery tag, redelivered
    mended = bytes(byte if byte < 128 else ord("?") for byte in payload[names:-1])
    return payload[:names] + mended + _FRAME_END


def _can_be_read(head: bytes, payload: bytes) -> bool:
    try:
        unmarshal(head + payload)
    except Exception:  # whatever the library raises would end the connection
        return False
    return True
