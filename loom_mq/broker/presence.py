"""A process's presence on the broker: the fastest word of its death, and only a hint.

A process holds a token message unacknowledged. When its connection goes, the broker puts
the token back, and since a message may not wait in that queue it lands in the presence
queue within milliseconds. Whoever reads it there must ask the journal whether the process
is really dead: a lost connection tells the same story.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from loom_mq.broker.protocol import Broker, Consumer, Delivery, Outgoing
from loom_mq.broker.topology import presence_token
from loom_mq.codec.wire import encode
from loom_mq.model.messages import MESSAGE_VERSION, TokenMessage

REFRESH_SECONDS: Final = 10.0
"""How often to call `PresenceToken.refresh`: the longest time without a token after a
reconnect, and well within the 30 minutes after which RabbitMQ closes the channel of an
unacknowledged message."""

_ARRIVAL_SECONDS: Final = 10.0
_PREFETCH: Final = 2
"""The new token comes while the old one is held."""
_log = structlog.get_logger(__name__)


class PresenceToken:
    """Holds the token of one process.

    Args:
        broker: entered already; the token dies with its connection.
        owner: the process, as in its leases; see `ids.new_owner`.
    """

    def __init__(self, broker: Broker, owner: str) -> None:
        self._broker = broker
        self._queue = presence_token(owner)
        self._body = encode(TokenMessage(MESSAGE_VERSION, owner))
        self._consumer: Consumer | None = None
        self._held: Delivery | None = None
        self._arrived = asyncio.Event()
        self._turn = asyncio.Lock()
        self._stopped = False

    async def start(self) -> bool:
        """Take the token for the first time.

        Returns:
            Whether it is held; without it a death is found by the lease alone.

        Raises:
            BrokerError: the token's queue cannot be declared or consumed.
        """
        self._consumer = await self._broker.consume(self._queue, self._hold, prefetch=_PREFETCH)
        return await self.refresh()

    async def refresh(self) -> bool:
        """Take a new token and let the old one go.

        To be called every `REFRESH_SECONDS` and after each loss of the connection.

        Returns:
            Whether a token is held on the present connection.
        """
        async with self._turn:
            if self._stopped or self._consumer is None or not self._consumer.consuming:
                return False  # nobody would take it, and the broker would call us dead
            self._arrived.clear()
            token = Outgoing(
                queue=self._queue.name, body=self._body, type="token", persistent=False
            )
            [verdict] = await self._broker.publish([token])
            if verdict is None:
                try:
                    async with asyncio.timeout(_ARRIVAL_SECONDS):
                        await self._arrived.wait()
                    return True
                except TimeoutError:
                    pass
            _log.warning("presence.not_held", queue=self._queue.name, reason=str(verdict or "lost"))
            return False

    async def stop(self) -> None:
        """Say goodbye: nobody hears of a death, and the broker drops the queue in a while."""
        async with self._turn:
            self._stopped = True
            if self._held is not None:
                self._held.ack()
                self._held = None
            if self._consumer is not None:
                await self._consumer.cancel()

    def _hold(self, delivery: Delivery) -> None:
        before, self._held = self._held, delivery
        if before is not None:
            before.ack()
        if self._stopped:
            delivery.ack()
        self._arrived.set()
