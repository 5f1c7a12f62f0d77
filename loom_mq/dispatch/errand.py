"""One attempt of a worker in this process: from the claim to its end (F5, F6)."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from loom_mq.engine.attempts import CRASH_DELAY, Attempts
from loom_mq.engine.drive import Drive
from loom_mq.engine.giveback import GiveBack
from loom_mq.engine.hands import Hand
from loom_mq.engine.home import DriveEnd
from loom_mq.engine.policy import is_left_to_another
from loom_mq.errors import (
    AttemptFailedError,
    ExecutionEndedError,
    ExecutionSupersededError,
    FlowCodeMismatchError,
    StaleFenceError,
    StartFencedOutError,
    StorageWriteError,
)
from loom_mq.flows.registry import AnyFlow
from loom_mq.journal.protocol import Claim, Claimed, ClaimVerdict, Journal
from loom_mq.model.execution import ExecutionKey, ExecutionRow
from loom_mq.observe.metrics import Metrics

START_TRIES: Final = 2
"""Tries of a start that a holder who has written nothing keeps out (F6)."""


class Allocation(enum.StrEnum):
    """How a worker comes by an execution."""

    LEASED = "leased"
    """Only when its holder is not alive (F7)."""
    PREEMPTING = "preempting"
    """Every attempt takes a newer fence, from a living holder too: the policy of the
    original Loom, under which a dispatcher alone decides who is dead."""


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of a worker share.

    Attributes:
        claim: patient `Journal.claim`.
    """

    owner: str
    policy: Allocation
    journal: Journal
    claim: Callable[[Sequence[Claim]], Awaitable[Sequence[ClaimVerdict]]]
    attempts: Attempts
    give_back: GiveBack
    metrics: Metrics


class Errand:
    """See the module's docstring.

    Args:
        means: what the worker provides.
        key: the execution.
        flow: its code.

    Attributes:
        unwanted: whoever sent it has gone, or the worker stops: it is to end soon.
    """

    def __init__(self, means: Means, key: ExecutionKey, flow: AnyFlow) -> None:
        self.key = key
        self.unwanted = False
        self._means = means
        self._flow = flow
        self._drive: Drive | None = None

    def give_up(self) -> None:
        """End as soon as possible, and let another go on."""
        self.unwanted = True
        if self._drive is not None:
            self._drive.give_back()

    async def run(self, row: ExecutionRow, hand: Hand, *, bereaved: bool) -> None:
        """Claim the execution and drive it until it parks or ends; see `LocalWorker.execute`.

        Args:
            row: as it stands.
            hand: of the execution.
            bereaved: its holder did not give it back.

        Raises:
            LoomError: the attempt failed, or the execution is another's.
        """
        try:
            claimed = await self._claim(row)
        except ExecutionEndedError:
            return
        while True:
            drive, end = await self._run(claimed, hand, bereaved=bereaved)
            if end is not DriveEnd.PARKED_WITH_MAIL or self.unwanted:
                break
            claimed = await self._claim(claimed.row)
            bereaved = False
        self._check(drive, end)

    async def _claim(self, row: ExecutionRow) -> Claimed:
        """Take a newer fence, by compare-and-set (J5).

        Who loses that to a racer that has written nothing looks once more, and takes the
        execution then only from a holder that is not alive (F6).
        """
        means, name = self._means, self.key.execution_id
        preempt = means.policy is Allocation.PREEMPTING
        for _ in range(START_TRIES):
            claim = Claim(
                key=row.key,
                owner=means.owner,
                expected_fence=row.fence,
                deadline=self._flow.attempt_timeout,
                preempt=preempt,
            )
            [verdict] = await means.claim([claim])
            if verdict.claimed is not None:
                return verdict.claimed
            error = verdict.error or AttemptFailedError("the claim was not answered")
            if not is_left_to_another(error, name):
                # it may have been committed all the same (J4)
                means.give_back.add(self.key, CRASH_DELAY, row.fence + 1)
                raise error
            [now] = await means.journal.get([self.key])
            if not isinstance(error, StaleFenceError) or now is None or now.last_seq >= 0:
                means.metrics.superseded("claim")
                raise error
            row, preempt = now, False
        raise _fenced_out(self.key, row.fence)

    async def _run(self, claimed: Claimed, hand: Hand, *, bereaved: bool) -> tuple[Drive, DriveEnd]:
        """Drive what was claimed; a start that is fenced out is tried once more (F6).

        Raises:
            LoomError: the refusal that ended it.
        """
        means = self._means
        if claimed.start is not None:
            means.metrics.execution_started(self._flow.name)
        current = claimed.row.fence
        for _ in range(START_TRIES):
            drive = self._drive = await means.attempts.open(
                self.key, self._flow, claimed, bereaved=bereaved
            )
            if self.unwanted:
                drive.give_back()
            end, refusal = await means.attempts.run(drive, self._flow, hand)
            if refusal is None:
                return drive, end
            if claimed.start is None or not isinstance(refusal, StaleFenceError):
                raise refusal
            [row] = await means.journal.get([self.key])
            if row is None or row.last_seq >= 0:
                raise refusal
            current = refusal.current
        raise _fenced_out(self.key, current)

    def _check(self, drive: Drive, end: DriveEnd) -> None:
        """Raise what an attempt that was not refused, but came to nothing, means."""
        name = self.key.execution_id
        if end is DriveEnd.MISMATCH:
            raise FlowCodeMismatchError(
                drive.mismatch or f"execution {name!r}: its log does not fit the code",
                execution_id=name,
            )
        if end is not DriveEnd.GIVEN_BACK:
            return
        if self.unwanted or self._means.attempts.draining:
            raise AttemptFailedError(
                f"the attempt of execution {name!r} was given up; it can go on elsewhere",
                execution_id=name,
            )
        raise ExecutionSupersededError(
            f"execution {name!r}: a newer attempt of this worker has taken it", execution_id=name
        )


def _fenced_out(key: ExecutionKey, current: int) -> StorageWriteError:
    """The failure of a start that a holder who never wrote keeps out: to be tried again."""
    error = StorageWriteError(
        f"execution {key.execution_id!r} was not started: another took fence {current} and has "
        "written nothing; dispatch it again",
        execution_id=key.execution_id,
    )
    error.__cause__ = StartFencedOutError(key.execution_id, current=current)
    return error
