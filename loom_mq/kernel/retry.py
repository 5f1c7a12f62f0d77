"""Whether and when a failed step is tried again (K4). Pure."""

from __future__ import annotations

from loom_mq.errors import CodecError, PayloadTooLargeError
from loom_mq.model.policies import Retry

NEVER_AGAIN = (CodecError, PayloadTooLargeError)
"""The effect ran and its value cannot be kept: running it again would only repeat it."""


def next_delay(policy: Retry, failures: int, error: BaseException, luck: float) -> float | None:
    """Seconds until the next attempt, or None to give up.

    Args:
        policy: the step's policy.
        failures: attempts that have failed so far, this one included.
        error: how this one failed.
        luck: a number from 0 to 1 that decides the random share of the pause.
    """
    if failures >= policy.attempts or isinstance(error, NEVER_AGAIN + policy.give_up_on):
        return None
    if not isinstance(error, policy.retry_on):
        return None
    try:
        pause = min(policy.maximum, policy.initial * policy.factor ** (failures - 1))
    except OverflowError:
        pause = policy.maximum
    return pause * (1 - policy.jitter * luck)
