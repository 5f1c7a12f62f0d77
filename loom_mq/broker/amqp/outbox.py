"""Frames on their way to the socket: what one tick writes goes out as one piece."""

from __future__ import annotations

import asyncio

from aiormq.abc import ChannelFrame


class Outbox:
    """Collects frames of all channels of one connection for one write.

    Never blocks its callers: the window of unconfirmed messages and the prefetch bound
    what can be in here.

    Args:
        queue: the connection's own queue to its writer.
    """

    def __init__(self, queue: asyncio.Queue[ChannelFrame]) -> None:
        self._queue = queue
        self._parts: list[bytes] = []
        self._scheduled = False
        self._closed = False
        self._pump: asyncio.Task[None] | None = None

    def write(self, frames: bytes) -> None:
        """Send marshalled frames at the end of this tick, in order of the calls."""
        if self._closed:
            return
        self._parts.append(frames)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Hand over what is there now."""
        self._scheduled = False
        if not self._parts or self._pump is not None:
            return
        if self._queue.full():
            self._pump = asyncio.get_running_loop().create_task(self._pumping())
        else:
            self._queue.put_nowait(self._take())

    async def drained(self) -> None:
        """Wait until everything written so far is in the socket's buffer."""
        self.flush()
        if self._pump is not None:
            await asyncio.wait({self._pump})
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._queue.put(ChannelFrame(b"", should_close=False, drain_future=written))
        await written

    def close(self) -> None:
        """The connection is gone: drop everything."""
        self._closed = True
        self._parts.clear()
        if self._pump is not None:
            self._pump.cancel()

    def _take(self) -> ChannelFrame:
        frame = ChannelFrame(b"".join(self._parts), should_close=False)
        self._parts.clear()
        return frame

    async def _pumping(self) -> None:
        try:
            while self._parts:
                await self._queue.put(self._take())
        finally:
            self._pump = None
