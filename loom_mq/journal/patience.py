"""Patience with a journal that is away for a moment: bounded, backed off, safe (J4).

Sending the same batch again is safe whatever became of the first try, because every
write is a compare-and-set or names its own ids. A batch that the storage refuses as
a whole is sent again one by one, so that a request it cannot store fails alone (J3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

import structlog

from loom_mq.clock import Clock
from loom_mq.errors import (
    CommitOutcomeUnknownError,
    JournalUnreachableError,
    LoomError,
    StorageWriteError,
)

Q = TypeVar("Q")
A = TypeVar("A")

MAX_REFUSALS = 3
"""Tries of a request that the storage itself refuses; waiting longer mends no bad data."""

_log = structlog.get_logger(__name__)


def patient(
    call: Callable[[Sequence[Q]], Awaitable[list[A]]],
    refuse: Callable[[StorageWriteError], A],
    *,
    clock: Clock,
    give_up_after: float,
    first_pause: float = 0.05,
    longest_pause: float = 1.0,
) -> Callable[[Sequence[Q]], Awaitable[Sequence[A]]]:
    """Wrap a batch method of the journal.

    Args:
        call: the method.
        refuse: makes the verdict of a request that cannot be taken, or raises.
        clock: for the bound.
        give_up_after: seconds after which a batch fails with `StorageWriteError`.
        first_pause: seconds before the second try; doubled each time.
        longest_pause: seconds, the cap of the pause.
    """

    async def attempt(batch: Sequence[Q]) -> Sequence[A]:
        return await insist(batch, clock.monotonic() + give_up_after)

    async def insist(batch: Sequence[Q], deadline: float) -> Sequence[A]:
        pause = first_pause
        refusals = 0
        while True:
            try:
                return await call(batch)
            except (CommitOutcomeUnknownError, JournalUnreachableError) as error:
                problem: LoomError = error
            except StorageWriteError as refusal:
                if len(batch) > 1:
                    return [(await insist([request], deadline))[0] for request in batch]
                refusals += 1
                if refusals >= MAX_REFUSALS:
                    return [refuse(refusal)]
                problem = refusal
            if clock.monotonic() + pause >= deadline:
                failure = StorageWriteError(
                    f"the journal did not take a write for {give_up_after:g} s: {problem.message}"
                )
                failure.__cause__ = problem
                return [refuse(failure) for _ in batch]
            _log.warning(
                "journal.write.retrying",
                error=problem.message,
                cause=repr(problem.__cause__),
                requests=len(batch),
                pause=pause,
            )
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest_pause)

    return attempt


def raise_refusal(error: StorageWriteError) -> NoReturn:
    """For verdicts that have no room for an error: the whole batch raises it."""
    raise error
