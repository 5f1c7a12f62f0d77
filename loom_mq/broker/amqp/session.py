"""One life of one connection to the broker."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aio_pika import Connection
from aio_pika.connection import make_url
from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.connection import (
    TCPTransportFactory,
    TLSTransportFactory,
    TransportFactory,
)
from yarl import URL

from loom_mq.broker.amqp.calls import call, cause_text, first_of
from loom_mq.broker.amqp.channel import LeanChannel
from loom_mq.broker.amqp.outbox import Outbox
from loom_mq.broker.amqp.readable import ReadableFrames
from loom_mq.errors import BrokerUnreachableError, SettingsError

_ABORT_SECONDS: Final = 1.0


class Sockets(TransportFactory):
    """Makes the connection's socket and keeps hold of it.

    The client library has no way to give a connection up without a goodbye, and a
    goodbye to a frozen broker waits for it (C60).
    """

    def __init__(self, url: URL) -> None:
        secure = url.scheme == "amqps"
        self._factory: TransportFactory = TLSTransportFactory() if secure else TCPTransportFactory()
        self._writer: asyncio.StreamWriter | None = None

    async def create(
        self,
        url: URL,
        **kwargs: object,  # the client library's own open set of options
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as the client library would."""
        reader, writer = await self._factory.create(url, **kwargs)
        self._writer = writer
        return ReadableFrames.over(reader), writer

    def abort(self) -> None:
        """Drop the socket at once."""
        if self._writer is not None:
            self._writer.transport.abort()


def broker_url(url: str, *, name: str, heartbeat: int) -> URL:
    """The address with this connection's parameters; those in the address win.

    Raises:
        SettingsError: not an AMQP address; the message does not repeat it (C93).
    """
    try:
        parsed = make_url(url)
    except ValueError:
        parsed = URL()
    if parsed.scheme not in ("amqp", "amqps") or not parsed.host:
        raise SettingsError(
            "the broker address must look like amqp://user:password@host:5672/vhost"
        )
    wanted = {"heartbeat": str(heartbeat), "name": name}
    return parsed.update_query({key: wanted[key] for key in wanted if key not in parsed.query})


class Session:
    """A live connection: made by `connect`, ended by `close` or by the world.

    Attributes:
        lost: resolves with the reason when the connection is gone.
        outbox: frames to be sent together.
        mark: tells this session from all others, for message ids.
    """

    def __init__(
        self, connection: Connection, wire: AbstractConnection, sockets: Sockets, mark: str
    ) -> None:
        self.mark = mark
        self._connection = connection
        self._wire = wire
        self._sockets = sockets
        self._condemned = ""
        self.outbox = Outbox(wire.write_queue)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        wire.closing.add_done_callback(self._on_closing)

    @classmethod
    async def connect(cls, url: URL, *, seconds: float, mark: str) -> Session:
        """Connect and log in.

        Raises:
            BrokerUnreachableError: not within `seconds`, refused, or not allowed in.
        """
        sockets = Sockets(url)
        connection = Connection(url)
        connection.kwargs["transport_factory"] = sockets
        connecting = asyncio.get_running_loop().create_task(connection.connect())
        try:
            what = "connecting to the broker"
            await call(asyncio.shield(connecting), seconds=seconds, what=what)
            if connection.transport is None:
                raise BrokerUnreachableError(f"{what}: the connection is gone")
        except BaseException:
            # the socket goes first, since the library's own clean-up may wait for the peer
            sockets.abort()
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=_ABORT_SECONDS)
            await connection.close()  # there is no transport: this only marks it closed
            raise
        return cls(connection, connection.transport.connection, sockets, mark)

    @property
    def alive(self) -> bool:
        """Whether nothing is known against it."""
        return not self.lost.done()

    @property
    def blocked(self) -> bool:
        """Whether the broker has told this connection to publish no more (C34).

        The client library shows that only through a wait that does not end, so the
        wait is begun and, if it does not end at once, given up.
        """
        if not self.alive:
            return False
        waiting = self._wire.ready().__await__()
        try:
            next(waiting)
        except StopIteration:
            return False
        waiting.close()
        return True

    async def unblocked(self) -> None:
        """Wait until the broker takes messages again or the connection is gone."""
        ready = asyncio.ensure_future(self._wire.ready())
        try:
            await first_of(ready, self.lost)
        finally:
            ready.cancel()

    async def plain_channel(self, *, seconds: float) -> AbstractChannel:
        """Open a channel for declaring and looking.

        Raises:
            BrokerUnreachableError: not within `seconds`.
        """
        return await call(
            self._wire.channel(publisher_confirms=False), seconds=seconds, what="opening a channel"
        )

    async def open(self, channel: LeanChannel, *, seconds: float) -> None:
        """Open a channel made by `next_number`.

        Raises:
            BrokerUnreachableError: not within `seconds`.
        """
        self._wire.channels[channel.number] = channel
        await call(channel.open(), seconds=seconds, what="opening a channel")

    def next_number(self) -> tuple[AbstractConnection, int]:
        """What a `LeanChannel` is made of: the wire and a free channel number."""
        number = 1
        while number in self._wire.channels:
            number += 1
        return self._wire, number

    def condemn(self, reason: str) -> None:
        """Drop the connection at once, without a goodbye."""
        if self.alive:
            self._condemned = reason
            self._sockets.abort()
            self._end(reason)

    async def close(self, *, seconds: float) -> None:
        """Say goodbye, for `seconds` at most, then drop the connection (C60)."""
        loop = asyncio.get_running_loop()
        closing = loop.create_task(self._goodbye())
        if self.alive:
            await asyncio.wait({closing}, timeout=seconds)
        self._sockets.abort()
        self.outbox.close()
        if not closing.done():
            await asyncio.wait({closing}, timeout=_ABORT_SECONDS)
        closing.cancel()
        await asyncio.wait({closing}, timeout=_ABORT_SECONDS)
        if closing.done() and not closing.cancelled():
            closing.exception()
        self._end("closed")

    async def _goodbye(self) -> None:
        if self.alive:
            await self.outbox.drained()
        await self._connection.close()

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        error: BaseException | None = None
        if not closing.cancelled():
            error = closing.exception()
        self._end(self._condemned or cause_text(error))

    def _end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
