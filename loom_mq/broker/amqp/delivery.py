"""A message taken from a queue on RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable

from pamqp.commands import Basic

from loom_mq.broker.amqp.ledger import Ledger

Bury = Callable[["AmqpDelivery", str], None]
"""Puts a delivery into its dead-letter queue with a reason, then settles it."""


class AmqpDelivery:
    """See `broker.protocol.Delivery`."""

    __slots__ = ("_bury", "_done", "body", "ledger", "properties", "queue", "redelivered", "tag")

    def __init__(
        self,
        *,
        queue: str,
        body: bytes,
        redelivered: bool,
        tag: int,
        properties: Basic.Properties,
        ledger: Ledger,
        bury: Bury,
    ) -> None:
        self.queue = queue
        self.body = body
        self.redelivered = redelivered
        self.tag = tag
        self.properties = properties
        self.ledger = ledger
        self._bury = bury
        self._done = False

    @property
    def content_type(self) -> str:
        """As the sender said, else empty."""
        return self.properties.content_type or ""

    @property
    def type(self) -> str:
        """As the sender said, else empty."""
        return self.properties.message_type or ""

    @property
    def reply_to(self) -> str | None:
        """Queue to reply to."""
        return self.properties.reply_to or None

    @property
    def correlation_id(self) -> str | None:
        """The sender's name for its request."""
        return self.properties.correlation_id or None

    @property
    def headers(self) -> dict[str, str]:
        """Text headers; others, such as RabbitMQ's tables, are left out."""
        headers = self.properties.headers or {}
        return {name: value for name, value in headers.items() if isinstance(value, str)}

    def ack(self) -> None:
        """Done with it."""
        if self._first():
            self.ledger.ack(self.tag)

    def requeue(self) -> None:
        """Give it back for another consumer."""
        if self._first():
            self.ledger.reject(self.tag, requeue=True)

    def dead_letter(self, reason: str) -> None:
        """Put it into the dead-letter queue with a reason (F2)."""
        if self._first():
            self._bury(self, reason)

    def _first(self) -> bool:
        first = not self._done
        self._done = True
        return first
