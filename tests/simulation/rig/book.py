"""Broken rules, and rare things that happened, as they are noted in the course of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.simulation.rig.observer import Violation

MOST: Final = 100
"""Broken rules that are kept; the first is what counts."""
LONGEST: Final = 3000


class Book:
    """See the module's docstring.

    Attributes:
        violations: the first `MOST`.
        goals: rare things, counted.
        first: called with the first broken rule.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.goals: Counter[str] = Counter()
        self.first: Callable[[], None] = lambda: None

    def complain(self, rule: str, execution_id: str, text: str) -> None:
        """A rule was broken."""
        if not self.violations:
            self.first()
        if len(self.violations) < MOST:
            self.violations.append(
                Violation(rule=rule, execution_id=execution_id, text=text[:LONGEST])
            )

    def reached(self, goal: str) -> None:
        """Something rare has happened."""
        self.goals[goal] += 1
