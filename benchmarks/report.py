"""What a run has found: summaries, the tables for people, the JSON for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.measure import median, percentile
from benchmarks.system import Role

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

ABSENT: Final = "–"


@dataclass
class Outcome:
    """Every value that one system gave, run by run."""

    name: str
    role: Role
    throughput: list[float] = field(default_factory=list)
    """W1: executions per second, one value per run."""
    burst: int = 0
    """Executions in each run of W1."""
    latency: list[list[float]] = field(default_factory=list)
    """W2: seconds, one list per run."""
    takeover: list[float] = field(default_factory=list)
    """W3: seconds, one value per round; infinite when it reached the bound."""
    idle: list[float] = field(default_factory=list)
    """W4: cores with nothing to do, one value per run."""
    asleep: list[float] = field(default_factory=list)
    """W4: cores with sleeping executions, one value per run."""
    error: str | None = None
    """What went wrong, if something did; the values before it stand."""


@dataclass(frozen=True)
class Figure:
    """One column: how to get the figure from an outcome, its unit, and which way is better."""

    key: str
    title: str
    of: Callable[[Outcome], float | None]
    scale: float
    digits: int
    more_is_better: bool = False


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _latency(percent: float) -> Callable[[Outcome], float | None]:
    return lambda outcome: _median([percentile(run, percent) for run in outcome.latency])


FIGURES: Final = (
    Figure("w1_per_s", "W1 /s", lambda o: _median(o.throughput), 1, 0, more_is_better=True),
    Figure("w2_p50_s", "W2 p50 ms", _latency(50), 1000, 1),
    Figure("w2_p99_s", "W2 p99 ms", _latency(99), 1000, 1),
    Figure("w3_median_s", "W3 s", lambda o: _median(o.takeover), 1, 3),
    Figure("w3_worst_s", "W3 worst s", lambda o: max(o.takeover, default=None), 1, 3),
    Figure("w4_idle_cores", "W4 idle cores", lambda o: _median(o.idle), 1, 3),
    Figure("w4_asleep_cores", "W4 asleep cores", lambda o: _median(o.asleep), 1, 3),
)


@dataclass(frozen=True)
class Report:
    """A whole run. ``bound`` is W3's longest wait in seconds, ``sleepers`` W4's executions."""

    outcomes: Sequence[Outcome]
    conditions: dict[str, Json]
    bound: float
    sleepers: int

    def show(self, console: Console) -> None:
        """Print the figures, then the ratios of loom-mq to every other system."""
        console.print(self._figures())
        for loom in self._role(Role.LOOM):
            console.print(self._ratios(loom))
        for outcome in self.outcomes:
            if outcome.error is not None:
                console.print(f"{outcome.name} failed: {outcome.error}", style="red", markup=False)
        for key, value in self.conditions.items():
            console.print(f"{key}: {value}", style="dim", markup=False, highlight=False)

    def save(self, path: Path) -> None:
        """Write everything, raw values included, as JSON; a reached bound is null."""
        content: dict[str, Json] = {
            "conditions": self.conditions,
            "w3_bound_s": self.bound,
            "w4_sleepers": self.sleepers,
            "systems": [self._system(outcome) for outcome in self.outcomes],
            "ratios": {
                loom.name: {
                    other.name: {figure.key: _ratio(figure, loom, other) for figure in FIGURES}
                    for other in self._others(loom)
                }
                for loom in self._role(Role.LOOM)
            },
        }
        path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")

    def _role(self, role: Role) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.role is role]

    def _others(self, loom: Outcome) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.role is not loom.role]

    def _figures(self) -> Table:
        table = Table(title=f"Figures (medians; W4 asleep: {self.sleepers} executions)")
        table.add_column("system", no_wrap=True)
        for figure in FIGURES:
            table.add_column(figure.title, justify="right")
        for outcome in self.outcomes:
            table.add_row(outcome.name, *(self._cell(figure, outcome) for figure in FIGURES))
        return table

    def _cell(self, figure: Figure, outcome: Outcome) -> str:
        value = figure.of(outcome)
        if value is None:
            return ABSENT
        if math.isinf(value):
            return f"not within {self.bound:g}"
        return f"{value * figure.scale:,.{figure.digits}f}"

    def _ratios(self, loom: Outcome) -> Table:
        table = Table(title=f"{loom.name} / other (W1: above 1 is better; the rest: below 1)")
        table.add_column("other", no_wrap=True)
        for figure in FIGURES:
            table.add_column(figure.title.rsplit(" ", 1)[0], justify="right")
        for other in self._others(loom):
            ratios = (_ratio(figure, loom, other) for figure in FIGURES)
            table.add_row(
                other.name, *(ABSENT if ratio is None else f"{ratio:.2f}" for ratio in ratios)
            )
        return table

    def _system(self, outcome: Outcome) -> dict[str, Json]:
        return {
            "name": outcome.name,
            "role": outcome.role.value,
            "error": outcome.error,
            "figures": {figure.key: _finite(figure.of(outcome)) for figure in FIGURES},
            "w1_executions": outcome.burst,
            "runs": {
                "w1_per_s": list(outcome.throughput),
                "w2_s": [list(run) for run in outcome.latency],
                "w3_s": [_finite(value) for value in outcome.takeover],
                "w4_idle_cores": list(outcome.idle),
                "w4_asleep_cores": list(outcome.asleep),
            },
        }


def _ratio(figure: Figure, loom: Outcome, other: Outcome) -> float | None:
    ours, theirs = _finite(figure.of(loom)), _finite(figure.of(other))
    return ours / theirs if ours is not None and theirs else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
