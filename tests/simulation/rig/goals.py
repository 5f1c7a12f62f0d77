"""What should happen in some runs: what never happens is not tested."""

from __future__ import annotations

from collections import Counter
from typing import Final

GOALS: Final = (
    "takeover",
    "stale fence refused",
    "claim superseded",
    "start fenced out by a silent holder",
    "fence taken by hand",
    "append repeated after an unknown outcome",
    "claim repeated after an unknown outcome",
    "unknown-commit-landed",
    "unknown-commit-lost",
    "late-commit",
    "zombie found its lease lost",
    "zombie ran an effect",
    "batch with mixed verdicts",
    "effect ran again",
    "straggler aborted at a park",
    "answer before its gate",
    "answer sent twice",
    "answer of another type refused",
    "gate timed out",
    "timer fired twice",
    "parked in doubt",
    "verdict",
    "start sent twice",
    "start with another input refused",
    "cancelled",
    "compensated",
    "recovered from a snapshot",
    "duplicated",
    "delayed",
    "publish-lost",
    "confirm-lost",
    "killed",
    "paused",
    "blocked",
    "drained",
    "connection-lost",
    "journal-down",
    "broker-restart",
    "blocked-connection",
    "purged",
    "queue-deleted",
)
ENOUGH: Final = 500
"""Runs among which each of them should be found."""


def missing(goals: Counter[str], runs: int) -> list[str]:
    """What was never reached, after so many runs that it should have been."""
    return [goal for goal in GOALS if not goals[goal]] if runs >= ENOUGH else []
