"""What an operator says about a step whose end is unknown (K6)."""

from __future__ import annotations

import enum

import msgspec


class VerdictKind(enum.StrEnum):
    """What became of the effect."""

    COMPLETED = "completed"
    """It was done; the verdict holds what it returned."""
    FAILED = "failed"
    """It was not done, and is not to be tried again."""
    RUN_AGAIN = "run-again"
    """It was not done; start it again."""


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """One verdict.

    Attributes:
        value: what the step returned, in stored form; empty unless completed.
        message: why, for people; the error's text when failed.
    """

    kind: VerdictKind
    value: bytes = b""
    message: str = ""
