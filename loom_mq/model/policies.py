"""Policies that users set on steps (K4)."""

from __future__ import annotations

import enum
import math

import msgspec

from loom_mq.errors import ConfigurationError


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how patiently a failing step is tried again.

    Attributes:
        attempts: attempts in all, the first included; 1 means no retry.
        initial: seconds before the second attempt.
        factor: each pause is this many times the one before.
        maximum: longest pause in seconds.
        jitter: share of each pause that is random, 0 to 1; spreads a herd.
        retry_on: only these error classes are tried again.
        give_up_on: these are never tried again, whatever `retry_on` says.

    Raises:
        ConfigurationError: a figure is out of range.
    """

    attempts: int = 3
    initial: float = 0.5
    factor: float = 2.0
    maximum: float = 60.0
    jitter: float = 0.5
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"Retry.attempts must be at least 1, not {self.attempts}")
        for name in ("initial", "maximum"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"Retry.{name} must be 0 or more seconds, not {value}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ConfigurationError(f"Retry.factor must be 1 or more, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"Retry.jitter must be between 0 and 1, not {self.jitter}")


NO_RETRY = Retry(attempts=1)


class StartPolicy(enum.StrEnum):
    """What a start does when its id is taken (K16). The same start twice is one
    execution under each of them while that one has not ended.
    """

    EXISTING = "existing"
    """Give the execution that is there, ended or not."""
    REJECT = "reject"
    """Refuse, whatever is there."""
    AFTER_CLOSE = "after-close"
    """Start anew when the one that is there has ended."""
    AFTER_FAILURE = "after-failure"
    """Start anew when the one that is there failed or was cancelled."""
