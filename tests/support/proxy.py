"""A TCP proxy that can fall silent as a broken network does."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards to one server; a connection may be made silent: open, and nothing passes."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._target = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._live: list[_Pair] = []
        self._silent: list[_Pair] = []

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pair in self._live + self._silent:
            pair.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def go_silent(self) -> None:
        """Nothing passes any more on the connections that exist; new ones work."""
        for pair in self._live:
            pair.silent = True
        self._silent += self._live
        self._live = []

    def cut_silent(self) -> None:
        """The server learns at last that the silent connections are gone."""
        for pair in self._silent:
            pair.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._host, self._target)
        pair = _Pair(writer, server_writer)
        self._live.append(pair)
        for source, target in ((reader, server_writer), (server_reader, writer)):
            task = asyncio.create_task(pair.pump(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class _Pair:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        self.silent = False

    def cut(self) -> None:
        self._client.transport.abort()
        self._server.transport.abort()

    async def pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.silent:
                    target.write(data)
                    await target.drain()
        except OSError:
            pass
        if not self.silent:
            target.close()
