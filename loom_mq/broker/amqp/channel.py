"""A channel that handles messages in the connection's own reader.

The client library makes a queue hop, a task and several futures per message. Here
deliveries, returns and confirms are handled as their last frame arrives; every other
frame goes the library's way. Measured on two cores with everything in one process:
0.15 ms of CPU per message published, confirmed, delivered and acknowledged, against
0.58 ms on the library's channel and 0.96 ms through aio-pika's wrapper.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiormq.abc import AbstractConnection
from aiormq.channel import Channel
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.frame import marshal
from pamqp.header import ContentHeader

Content = Basic.Deliver | Basic.Return
"""Methods that are followed by a message."""

_KEPT_FRAMES: Final = 1000


class _Frames(asyncio.Queue[Any]):
    """The channel's queue of incoming frames, less those handled at once."""

    def __init__(self, channel: LeanChannel) -> None:
        super().__init__()
        self._channel = channel

    async def put(self, item: tuple[int, Any]) -> None:
        if not self._channel.take(item[1]):
            await super().put(item)


class LeanChannel(Channel):
    """See the module. Subclasses say what a message and a confirm mean."""

    def __init__(self, connection: AbstractConnection, number: int, *, confirms: bool) -> None:
        super().__init__(connection, number, publisher_confirms=confirms)
        # the library's reader task has not run yet, so it will read from this queue
        self.frames = _Frames(self)
        self._method: Content | None = None
        self._header: ContentHeader | None = None
        self._parts: list[bytes] = []
        self._missing = 0
        self._publish_frames: dict[str, bytes] = {}

    def on_content(self, method: Content, header: ContentHeader, body: bytes) -> None:
        """A whole message has arrived. Must not raise."""

    def on_confirm(self, frame: Basic.Ack | Basic.Nack) -> None:
        """The broker took or refused messages. Must not raise."""

    def take(self, frame: object) -> bool:
        """Handle a frame if it is one of the hot path's."""
        if isinstance(frame, ContentBody):
            self._more(frame.value)
        elif isinstance(frame, ContentHeader):
            self._begin(frame)
        elif isinstance(frame, Basic.Deliver | Basic.Return):
            self._method = frame
        elif isinstance(frame, Basic.Ack | Basic.Nack):
            self.on_confirm(frame)
        else:
            return False
        return True

    def encode(self, queue: str, properties: Basic.Properties, body: bytes) -> bytes:
        """The frames of one message for a queue, mandatory."""
        publish = self._publish_frames.get(queue)
        if publish is None:
            method = Basic.Publish(exchange="", routing_key=queue, mandatory=True)
            publish = marshal(method, self.number)
            if len(self._publish_frames) >= _KEPT_FRAMES:
                self._publish_frames.clear()
            self._publish_frames[queue] = publish
        size = len(body)
        header = marshal(ContentHeader(properties=properties, body_size=size), self.number)
        most = self.max_content_size
        if size <= most:
            return publish + header + (marshal(ContentBody(body), self.number) if body else b"")
        chunks = (body[start : start + most] for start in range(0, size, most))
        return b"".join(
            [publish, header, *(marshal(ContentBody(chunk), self.number) for chunk in chunks)]
        )

    def _begin(self, header: ContentHeader) -> None:
        self._header = header
        self._parts = []
        self._missing = header.body_size
        if not self._missing:
            self._complete()

    def _more(self, part: bytes) -> None:
        self._parts.append(part)
        self._missing -= len(part)
        if self._missing <= 0:
            self._complete()

    def _complete(self) -> None:
        method, header = self._method, self._header
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._method, self._header, self._parts = None, None, []
        if method is not None and header is not None:
            self.on_content(method, header, body)
