"""What a dispatcher does when an attempt is over: the dispatch policy, pure (F4, F5).

The fleet's workers, the dispatchers of `loom_mq.dispatch` and its supervisor decide here,
so there is one answer to "does the package go out again?".
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from loom_mq.errors import (
    ExecutionEndedError,
    HeldByLiveOwnerError,
    StorageWriteError,
    UnknownExecutionError,
    is_superseded_refusal,
)

_NOTHING_TO_DO: Final = (HeldByLiveOwnerError, ExecutionEndedError, UnknownExecutionError)


class AttemptEnd(enum.StrEnum):
    """How an attempt ended, seen by whoever sent its package."""

    SETTLED = "settled"
    """The worker told how the execution stands: parked or ended, a flow that failed
    included."""
    THREW = "threw"
    """The worker, or the way to it, raised an error."""
    DIED = "died"
    """The worker is gone."""
    TIMED_OUT = "timed-out"
    """The attempt's deadline passed."""


class AttemptOutcome(msgspec.Struct, frozen=True):
    """The end of one attempt.

    Attributes:
        end: how it ended.
        error: what was raised, where something was.
    """

    end: AttemptEnd
    error: BaseException | None = None


SETTLED: Final = AttemptOutcome(AttemptEnd.SETTLED)
"""The outcome of every attempt that told how the execution stands."""

ENDLESS: Final = 1
"""Attempts left, for who does not count them: the fleet's are bounded in the journal."""


def threw(error: BaseException | None) -> AttemptOutcome:
    """The outcome of an attempt that raised `error`."""
    return AttemptOutcome(AttemptEnd.THREW, error)


class Action(enum.StrEnum):
    """What to do about an attempt that is over."""

    SETTLE = "settle"
    """Nothing more: there is an outcome, or the execution is somebody else's."""
    REDISPATCH = "redispatch"
    """Send the same package again."""
    SURFACE = "surface"
    """Show the failure to whoever asked: no attempt is left."""


def is_left_to_another(error: BaseException | None, execution_id: str) -> bool:
    """Whether a refusal says that this execution needs no attempt of ours.

    A newer holder owns it (`is_superseded_refusal`, F5), its holder is alive (F7), or
    there is nothing to drive: it has ended or is gone.

    Args:
        error: what was raised.
        execution_id: the execution that was to be driven, under the caller's name.
    """
    if is_superseded_refusal(error, execution_id):
        return True
    if isinstance(error, StorageWriteError):
        return False
    return isinstance(error, _NOTHING_TO_DO) and error.execution_id == execution_id


def next_action(outcome: AttemptOutcome, attempts_left: int, execution_id: str) -> Action:
    """Decide what follows an attempt (F4, F5).

    A thrown error, a dead worker or a passed deadline is a failed attempt, and with
    attempts left the package goes out again. A flow that ended failed is an outcome. A
    refusal that names this execution as superseded is no failure and never leads to
    another attempt: that one would take the execution from the holder that has it.

    Args:
        outcome: of the attempt.
        attempts_left: further attempts that may be made.
        execution_id: the execution, under the caller's own name.
    """
    if outcome.end is AttemptEnd.SETTLED:
        return Action.SETTLE
    if is_left_to_another(outcome.error, execution_id):
        return Action.SETTLE
    return Action.REDISPATCH if attempts_left > 0 else Action.SURFACE
