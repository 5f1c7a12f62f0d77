"""Publishing with confirms: windows, verdicts, deadlines (F10, C21, C34, C59)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from loom_mq.broker.amqp.backoff import Backoff
from loom_mq.broker.amqp.calls import LAG_SECONDS, cause_text, end, first_of
from loom_mq.broker.amqp.confirms import Batch, Letter, PublishChannel
from loom_mq.broker.amqp.link import Link
from loom_mq.errors import (
    BrokerError,
    BrokerUnreachableError,
    PublishRefusedError,
    PublishTimeoutError,
    UnroutableError,
)
from loom_mq.observe.limiter import OncePer

_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Unconfirmed bytes at most, so that a stopped broker cannot make this process swell."""
_SLICE: Final = 200
"""Messages made into frames before other tasks get a turn."""
_LOG_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class PublishCounts(msgspec.Struct):
    """What became of messages, since the start."""

    confirmed: int = 0
    returned: int = 0
    refused: int = 0
    unknown: int = 0
    """No verdict in time: there or not there."""
    unsent: int = 0


class Publisher:
    """Publishes over a link; keeps a channel with confirms open on it.

    Args:
        link: used for nothing else, so that a broker that stops reading it (memory or
            disk alarm) stops no acknowledgement with it.
        timeout: seconds for one call of `publish`.
        window: unconfirmed messages at most.
        on_missing: told a queue's name when a message for it came back.
    """

    def __init__(
        self, link: Link, *, timeout: float, window: int, on_missing: Callable[[str], None]
    ) -> None:
        self._link = link
        self._timeout = timeout
        self._window = window
        self._on_missing = on_missing
        self._channel: PublishChannel | None = None
        self._up = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._said = OncePer(_LOG_SECONDS)
        self.counts = PublishCounts()

    @property
    def ready(self) -> bool:
        """Whether a channel is open."""
        return self._channel is not None

    def start(self) -> None:
        """Begin to keep a channel open."""
        self._task = asyncio.get_running_loop().create_task(self._keep_open())

    async def wait_ready(self) -> None:
        """Wait until a channel is open."""
        while self._channel is None:
            self._up.clear()
            await self._up.wait()

    async def close(self) -> None:
        """Stop; what is unconfirmed gets its verdict."""
        task, self._task = self._task, None
        await end(task)

    async def publish(self, letters: Sequence[Letter]) -> list[BrokerError | None]:
        """Send all and wait for the broker's word on each, in bounded time."""
        if not letters:
            return []
        if self._task is None:
            return [self._late(letter, sent=False, blocked=False) for letter in letters]
        batch = Batch(len(letters))
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout):
                async with self._turn:  # first come, first served
                    await self._send(letters, batch)
                await batch.done
        except TimeoutError:
            self._out_of_time(letters, batch, began)
        finally:
            batch.answered = True
        self._count(letters, batch.verdicts)
        return batch.verdicts

    async def _send(self, letters: Sequence[Letter], batch: Batch) -> None:
        index = 0
        while index < len(letters):
            channel = await self._channel_with_room()
            slice_end = min(len(letters), index + _SLICE)
            while index < slice_end and self._has_room(channel):
                channel.send(letters[index], batch, index)
                index += 1
            if index < len(letters):
                await asyncio.sleep(0)

    async def _channel_with_room(self) -> PublishChannel:
        while True:
            await self.wait_ready()
            channel = self._channel
            if channel is None:
                continue
            if channel.session.blocked:
                await channel.session.unblocked()
            elif self._has_room(channel):
                return channel
            else:
                channel.room.clear()
                await channel.room.wait()

    def _has_room(self, channel: PublishChannel) -> bool:
        return (
            channel is self._channel
            and len(channel.unconfirmed) < self._window
            and channel.unconfirmed_bytes < _WINDOW_BYTES
        )

    def _out_of_time(self, letters: Sequence[Letter], batch: Batch, began: float) -> None:
        channel = self._channel
        blocked = channel is not None and channel.session.blocked
        late: set[int] = set()
        if channel is not None:
            late = {item.index for item in channel.unconfirmed.values() if item.batch is batch}
        for index, letter in enumerate(letters):
            if index < batch.sent and index not in late:
                continue
            batch.verdicts[index] = self._late(letter, sent=index < batch.sent, blocked=blocked)
        busy = asyncio.get_running_loop().time() - began > self._timeout + LAG_SECONDS
        silent = channel is not None and not blocked and channel.confirmed_at < began
        if late and channel is not None and silent and not busy:
            # not one confirm in all that time: the connection is half dead or the broker
            # stands still, and what was sent must not all go out at once much later
            channel.session.condemn(f"no publish was confirmed within {self._timeout:g} s")

    def _late(self, letter: Letter, *, sent: bool, blocked: bool) -> BrokerError:
        about = f"message for queue {letter.queue!r}"
        if sent:
            return PublishTimeoutError(
                f"{about}: not confirmed within {self._timeout:g} s; it may or may not be there"
            )
        if blocked:
            return PublishTimeoutError(
                f"{about}: not sent within {self._timeout:g} s, because the broker has blocked "
                "publishers (memory or disk alarm); free memory or disk on the broker"
            )
        if self._channel is None:
            return BrokerUnreachableError(
                f"{about}: not sent within {self._timeout:g} s, because the broker is not "
                f"reachable ({self._link.reason})"
            )
        return PublishTimeoutError(
            f"{about}: not sent within {self._timeout:g} s, because {self._window} messages "
            "were waiting for their confirm"
        )

    def _count(self, letters: Sequence[Letter], verdicts: Sequence[BrokerError | None]) -> None:
        counts = self.counts
        for letter, verdict in zip(letters, verdicts, strict=True):
            match verdict:
                case None:
                    counts.confirmed += 1
                case UnroutableError():
                    counts.returned += 1
                    self._on_missing(letter.queue)
                    self._say("publish.returned", letter.queue, verdict)
                case PublishRefusedError():
                    counts.refused += 1
                    self._say("publish.refused", letter.queue, verdict)
                case BrokerUnreachableError():
                    counts.unsent += 1
                case _:
                    counts.unknown += 1

    def _say(self, event: str, queue: str, verdict: BrokerError) -> None:
        held_back = self._said.admit((event, queue))
        if held_back is not None:
            _log.warning(event, queue=queue, reason=str(verdict), held_back=held_back)

    async def _keep_open(self) -> None:
        backoff = Backoff("publish")
        generation = 0
        while True:
            session = await self._link.session()
            generation += 1
            channel: PublishChannel | None = None
            try:
                wire, number = session.next_number()
                mark = f"{session.mark}.{generation}"
                channel = PublishChannel(wire, number, session, mark)
                await session.open(channel, seconds=self._timeout)
                self._channel = channel
                self._up.set()
                backoff.reset()
                await first_of(channel.closing, session.lost)
            except Exception as error:  # a client library's surprise must not end publishing
                _log.warning("publish.channel_failed", reason=str(error))
            finally:
                self._channel = None
                if channel is not None:
                    channel.fail(_why(channel, self._link))
            await asyncio.sleep(backoff.next())


def _why(channel: PublishChannel, link: Link) -> str:
    closing = channel.closing
    if closing.done() and not closing.cancelled():
        return cause_text(closing.exception())
    return link.reason or "closed"
