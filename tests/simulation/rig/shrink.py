"""Makes a failing run small: zeros on its tape, less work, fewer draws."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.simulation.rig.run import Plan, Report, run

Progress = Callable[[str], None]


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest run that still breaks the same rule."""

    plan: Plan
    report: Report
    runs: int


def shrink(plan: Plan, report: Report, rule: str, *, budget: int = 150) -> Shrunk:
    """Write zeros into blocks of the tape while the same rule is broken.

    Args:
        plan: what failed.
        report: how.
        rule: the id of the rule that must stay broken.
        budget: runs at most.
    """
    return _Shrinker(plan, report, rule, budget).shrink()


class _Shrinker:
    def __init__(self, plan: Plan, report: Report, rule: str, budget: int) -> None:
        self._rule = rule
        self._left = budget
        self._runs = 0
        self._plan = msgspec.structs.replace(plan, seed=None, recorded=report.draws)
        self._report = report

    def shrink(self) -> Shrunk:
        self._drop_jobs()
        progress = True
        while progress and self._left > 0:
            progress = False
            for stream in sorted(self._report.draws, key=_order):
                progress |= self._zero(stream)
        return Shrunk(self._plan, self._report, self._runs)

    def _drop_jobs(self) -> None:
        """Do less work: drop ever smaller groups of executions."""
        jobs = list(range(self._plan.executions) if self._plan.only is None else self._plan.only)
        size = len(jobs) // 2
        while size >= 1 and self._left > 0:
            start = 0
            while start < len(jobs) and len(jobs) > 1 and self._left > 0:
                fewer = jobs[:start] + jobs[start + size :]
                if fewer and self._try(only=tuple(fewer)):
                    jobs = fewer
                else:
                    start += size
            size //= 2

    def _zero(self, stream: str) -> bool:
        """Zero ever smaller blocks of one stream."""
        better = False
        draws = self._draws(stream)
        size = max(1, len(draws))
        while size >= max(1, len(draws) // 16) and self._left > 0:
            start = 0
            while start < len(draws) and self._left > 0:
                block = draws[start : start + size]
                if any(block):
                    changed = [*draws[:start], *(0 for _ in block), *draws[start + size :]]
                    if self._try(recorded={**(self._plan.recorded or {}), stream: changed}):
                        better = True
                        draws = self._draws(stream)
                start += size
            size //= 2
        return better

    def _draws(self, stream: str) -> list[int]:
        return (self._plan.recorded or {}).get(stream, [])

    def _try(self, **changes: object) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        self._runs += 1
        plan = msgspec.structs.replace(self._plan, **changes)
        report = run(plan)
        if not any(each.rule == self._rule for each in report.violations):
            return False
        # what was drawn is what counts; what lies behind on the tape was never read
        self._plan = msgspec.structs.replace(plan, recorded=report.draws)
        self._report = report
        return True


def _order(stream: str) -> tuple[int, str]:
    first = ("schedule", "threads", "clock", "broker", "journal", "process", "steps", "clients")
    return (first.index(stream) if stream in first else len(first), stream)
