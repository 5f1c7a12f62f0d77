"""A lane: requests of many callers travel together, each gets its own answer (J3).

While one batch is under way the next one fills, so load makes batches bigger instead
of slower. The journal's group commit, the dispatcher's admission and the outgoing
messages are all lanes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

Flush = Callable[[Sequence[Q]], Awaitable[Sequence[A]]]


class LaneClosedError(Exception):
    """The lane was closed before this request went out."""


class Lane(Generic[Q, A]):
    """Collects requests and flushes them in batches.

    Args:
        flush: sends one batch and returns one answer per request, in order. What it
            raises goes to every request of that batch.
        max_batch: requests per batch.
        max_inflight: batches under way at once.
        settle_ticks: turns of the event loop to wait before a batch is cut, so that
            what callers add in the same breath rides along.
    """

    def __init__(
        self,
        flush: Flush[Q, A],
        *,
        max_batch: int = 500,
        max_inflight: int = 1,
        settle_ticks: int = 1,
    ) -> None:
        self._flush = flush
        self._max_batch = max_batch
        self._max_inflight = max_inflight
        self._settle_ticks = settle_ticks
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(self, request: Q) -> asyncio.Future[A]:
        """Queue a request; the future gets its answer or the batch's error.

        Cancelling the future gives up waiting, not the request.
        """
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(LaneClosedError("this lane is closed"))
            return future
        self._waiting.append((request, future))
        if len(self._senders) < self._max_inflight:
            # a batch belongs to none of its requests, so it runs in no one's context
            task = asyncio.get_running_loop().create_task(self._send(), context=Context())
            self._senders.add(task)
        return future

    async def close(self) -> None:
        """Refuse new requests, and return when those already taken are answered."""
        self._closed = True
        while self._senders:
            await asyncio.wait(self._senders)

    def abort(self) -> None:
        """Refuse new requests and drop those not yet under way."""
        self._closed = True
        error = LaneClosedError("this lane was closed before the request went out")
        for _request, future in self._waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting; that is no news
        self._waiting.clear()
        for task in self._senders:
            task.cancel()

    async def _send(self) -> None:
        try:
            await self._send_all()
        finally:
            # at once, not in a callback of the task: a request that comes in between
            # would find a sender that no longer looks
            task = asyncio.current_task()
            if task is not None:
                self._senders.discard(task)

    async def _send_all(self) -> None:
        while self._waiting:
            for _ in range(self._settle_ticks):
                await asyncio.sleep(0)
            size = min(self._max_batch, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(size)]
            if not batch:
                return
            try:
                answers = await self._flush([request for request, _ in batch])
            except asyncio.CancelledError:
                _fail(batch, LaneClosedError("this lane was aborted; the outcome is unknown"))
                raise
            except Exception as error:  # whatever it is belongs to the callers
                _fail(batch, error)
            else:
                for (_request, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)


def _fail(batch: Sequence[tuple[object, asyncio.Future[A]]], error: Exception) -> None:
    for _request, future in batch:
        if not future.done():
            future.set_exception(error)
            future.exception()
