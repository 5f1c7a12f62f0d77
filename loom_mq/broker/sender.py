"""Outgoing items, grouped: many packages or replies per message.

What could not be published is reported to whoever asked; nothing is kept here, because
the journal is what remembers (a lost hint is sent again by a sweep).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from loom_mq.broker.protocol import Broker, Outgoing
from loom_mq.errors import BrokerError
from loom_mq.lane import Lane

T = TypeVar("T")

Pack = Callable[[str, Sequence[T]], Outgoing]


class GroupedSender(Generic[T]):
    """Sends items to queues, as few messages as possible.

    Args:
        broker: where to.
        pack: makes one message of items for one queue.
        per_message: items per message at most.
        max_inflight: windows of confirms under way at once.
    """

    def __init__(
        self, broker: Broker, pack: Pack[T], *, per_message: int, max_inflight: int = 4
    ) -> None:
        self._broker = broker
        self._pack = pack
        self._per_message = per_message
        self._lane: Lane[tuple[str, T], BrokerError | None] = Lane(
            self._flush, max_batch=2000, max_inflight=max_inflight, settle_ticks=1
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
            (queue, indexes[start : start + self._per_message])
            for queue, indexes in by_queue.items()
            for start in range(0, len(indexes), self._per_message)
        ]
        verdicts = await self._broker.publish(
            [self._pack(queue, [items[index][1] for index in group]) for queue, group in groups]
        )
        answers: list[BrokerError | None] = [None] * len(items)
        for (_queue, group), verdict in zip(groups, verdicts, strict=True):
            for index in group:
                answers[index] = verdict
        return answers
