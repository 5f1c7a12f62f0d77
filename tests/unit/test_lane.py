"""Lanes: batching with one answer per request (J3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from loom_mq.lane import Lane, LaneClosedError


class Recorder:
    """A flush that can be held back and made to fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def __call__(self, batch: Sequence[int]) -> list[int]:
        self.batches.append(list(batch))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [each * 10 for each in batch]


async def test_requests_of_one_breath_travel_together() -> None:
    flush = Recorder()
    lane: Lane[int, int] = Lane(flush)
    assert await asyncio.gather(*(lane.submit(n) for n in range(5))) == [0, 10, 20, 30, 40]
    assert flush.batches == [[0, 1, 2, 3, 4]]


async def test_load_makes_the_next_batch_bigger() -> None:
    flush = Recorder()
    flush.gate.clear()
    lane: Lane[int, int] = Lane(flush)
    first = lane.submit(1)
    while not flush.batches:
        await asyncio.sleep(0)
    rest = [lane.submit(n) for n in range(2, 7)]
    flush.gate.set()
    await asyncio.gather(first, *rest)
    assert flush.batches == [[1], [2, 3, 4, 5, 6]]


async def test_a_batch_has_a_limit() -> None:
    flush = Recorder()
    lane: Lane[int, int] = Lane(flush, max_batch=2)
    await asyncio.gather(*(lane.submit(n) for n in range(5)))
    assert [len(batch) for batch in flush.batches] == [2, 2, 1]


async def test_an_error_belongs_to_its_batch_alone() -> None:
    flush = Recorder()
    lane: Lane[int, int] = Lane(flush)
    flush.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await lane.submit(1)
    flush.error = None
    assert await lane.submit(2) == 20


async def test_closing_answers_what_was_taken_and_refuses_the_rest() -> None:
    lane: Lane[int, int] = Lane(Recorder())
    taken = lane.submit(1)
    await lane.close()
    assert taken.result() == 10
    with pytest.raises(LaneClosedError):
        await lane.submit(2)


async def test_aborting_fails_whoever_waits() -> None:
    flush = Recorder()
    flush.gate.clear()
    lane: Lane[int, int] = Lane(flush, max_batch=1)
    under_way, waiting = lane.submit(1), lane.submit(2)
    while not flush.batches:
        await asyncio.sleep(0)
    lane.abort()
    for future in (under_way, waiting):
        with pytest.raises(LaneClosedError):
            await future
