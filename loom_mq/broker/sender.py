"""Outgoing items, grouped: many packages or replies per message.

What could not be published is reported to whoever asked; nothing is kept here, because
the journal is what remembers (a lost hint is sent again by a sweep).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from loom_mq.broker.protocol import Broker, Outgoing
from loom_mq.errors import BrokerError
from loom_mq.lane import Lane

T = TypeVar("T")

Answered = Callable[[Sequence[str], Sequence[BrokerError | None]], None]

MESSAGE_WEIGHT = 4 * 1024 * 1024
"""Bytes after which a message takes no further item; well under any broker's limit."""
WINDOWS = 4
"""Windows of confirms under way at once."""

Pack = Callable[[str, Sequence[T]], Outgoing]


class GroupedSender(Generic[T]):
    """Sends items to queues, as few messages as possible.

    Args:
        broker: where to.
        pack: makes one message of items for one queue.
        weigh: bytes that an item takes, nearly.
        per_message: items per message at most.
        answered: told of each message's queue and verdict.
    """

    def __init__(
        self,
        broker: Broker,
        pack: Pack[T],
        weigh: Callable[[T], int],
        *,
        per_message: int,
        answered: Answered | None = None,
    ) -> None:
        self._broker = broker
        self._pack = pack
        self._weigh = weigh
        self._answered = answered
        self._per_message = per_message
        self._lane: Lane[tuple[str, T], BrokerError | None] = Lane(
            self._flush, max_batch=2000, max_inflight=WINDOWS, settle_ticks=1
        )

    def send(self, queue: str, item: T) -> asyncio.Future[BrokerError | None]:
        """Send an item; the future gets the broker's verdict on its message."""
        return self._lane.submit((queue, item))

    async def close(self) -> None:
        """Return when everything handed in has its verdict."""
        await self._lane.close()

    def abort(self) -> None:
        """Drop what is not under way."""
        self._lane.abort()

    async def _flush(self, items: Sequence[tuple[str, T]]) -> Sequence[BrokerError | None]:
        by_queue: dict[str, list[int]] = {}
        for index, (queue, _item) in enumerate(items):
            by_queue.setdefault(queue, []).append(index)
        groups = [
            (queue, group)
            for queue, indexes in by_queue.items()
            for group in self._cut(indexes, items)
        ]
        verdicts = await self._broker.publish(
            [self._pack(queue, [items[index][1] for index in group]) for queue, group in groups]
        )
        if self._answered is not None:
            self._answered([queue for queue, _group in groups], verdicts)
        answers: list[BrokerError | None] = [None] * len(items)
        for (_queue, group), verdict in zip(groups, verdicts, strict=True):
            for index in group:
                answers[index] = verdict
        return answers

    def _cut(self, indexes: Sequence[int], items: Sequence[tuple[str, T]]) -> Iterator[list[int]]:
        """Parts that fit a message by number and by weight; one item is always taken."""
        part: list[int] = []
        weight = 0
        for index in indexes:
            more = self._weigh(items[index][1])
            if part and (len(part) == self._per_message or weight + more > MESSAGE_WEIGHT):
                yield part
                part, weight = [], 0
            part.append(index)
            weight += more
        if part:
            yield part
