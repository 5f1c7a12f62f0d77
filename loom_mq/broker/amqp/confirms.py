"""A channel that matches confirms and returns with the messages that it sent (C21)."""

from __future__ import annotations

import asyncio

import msgspec
from aiormq.abc import AbstractConnection
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from loom_mq.broker.amqp.channel import Content, LeanChannel
from loom_mq.broker.amqp.session import Session
from loom_mq.errors import (
    BrokerError,
    PublishRefusedError,
    PublishTimeoutError,
    UnroutableError,
)


class Letter(msgspec.Struct, frozen=True):
    """A lawful message, ready to be sent."""

    queue: str
    properties: Basic.Properties
    body: bytes


class Batch:
    """The messages of one call; `done` when each has its verdict."""

    __slots__ = ("answered", "done", "sent", "verdicts", "waiting")

    def __init__(self, size: int) -> None:
        self.verdicts: list[BrokerError | None] = [None] * size
        self.sent = 0
        self.waiting = size
        self.answered = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, verdict: BrokerError | None) -> None:
        """One message has its verdict."""
        if self.answered:
            return  # the caller has gone with the verdicts
        self.verdicts[index] = verdict
        self.waiting -= 1
        if not self.waiting and not self.done.done():
            self.done.set_result(None)


class _Unconfirmed:
    __slots__ = ("batch", "index", "queue", "returned", "size")

    def __init__(self, batch: Batch, index: int, letter: Letter) -> None:
        self.batch = batch
        self.index = index
        self.queue = letter.queue
        self.size = len(letter.body)
        self.returned = ""


class PublishChannel(LeanChannel):
    """Numbers what it sends and matches what comes back."""

    def __init__(
        self, connection: AbstractConnection, number: int, session: Session, mark: str
    ) -> None:
        super().__init__(connection, number, confirms=True)
        self.session = session
        self.unconfirmed: dict[int, _Unconfirmed] = {}
        self.unconfirmed_bytes = 0
        self.confirmed_at = 0.0
        self.room = asyncio.Event()
        self._mark = mark
        self._sent = 0

    def send(self, letter: Letter, batch: Batch, index: int) -> None:
        """Send one message of a batch, with the other frames of this tick."""
        self._sent += 1
        tag = self._sent
        # returns carry no number of ours but this one
        letter.properties.message_id = f"{self._mark}-{tag}"
        frames = self.encode(letter.queue, letter.properties, letter.body)
        unconfirmed = _Unconfirmed(batch, index, letter)
        self.unconfirmed[tag] = unconfirmed
        self.unconfirmed_bytes += unconfirmed.size
        batch.sent = index + 1
        self.session.outbox.write(frames)

    def on_content(self, method: Content, header: ContentHeader, body: bytes) -> None:
        """A message came back: no queue took it."""
        mark, _, tag = (header.properties.message_id or "").rpartition("-")
        if mark == self._mark and tag.isdecimal():
            unconfirmed = self.unconfirmed.get(int(tag))
            if unconfirmed is not None:
                # the broker returns a message before it confirms it
                unconfirmed.returned = getattr(method, "reply_text", "") or "returned"

    def on_confirm(self, frame: Basic.Ack | Basic.Nack) -> None:
        """The broker took or refused one message or all up to one."""
        taken = isinstance(frame, Basic.Ack)
        last = frame.delivery_tag or 0
        self.confirmed_at = self.loop.time()
        if frame.multiple:
            while self.unconfirmed:
                tag = next(iter(self.unconfirmed))
                if tag > last:
                    break
                self._confirm(tag, taken)
        else:
            self._confirm(last, taken)
        self.room.set()

    def fail(self, reason: str) -> None:
        """The channel is gone: nothing more will be told about what was sent."""
        for unconfirmed in self.unconfirmed.values():
            unconfirmed.batch.settle(
                unconfirmed.index,
                PublishTimeoutError(
                    f"message for queue {unconfirmed.queue!r}: the connection to the broker went "
                    f"before the broker confirmed ({reason}); it may or may not be there"
                ),
            )
        self.unconfirmed.clear()
        self.unconfirmed_bytes = 0
        self.room.set()

    def _confirm(self, tag: int, taken: bool) -> None:
        unconfirmed = self.unconfirmed.pop(tag, None)
        if unconfirmed is None:
            return
        self.unconfirmed_bytes -= unconfirmed.size
        verdict: BrokerError | None = None
        if unconfirmed.returned:
            verdict = UnroutableError(
                f"no queue {unconfirmed.queue!r} took the message ({unconfirmed.returned})"
            )
        elif not taken:
            verdict = PublishRefusedError(
                f"the broker refused a message for queue {unconfirmed.queue!r}; it is full or out "
                "of order, see the broker's log"
            )
        unconfirmed.batch.settle(unconfirmed.index, verdict)
