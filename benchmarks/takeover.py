"""``python -m benchmarks.takeover``: how soon the work of a worker that is lost goes on elsewhere.

A fleet at its defaults (one dispatcher, two workers, one timer). Round for round the worker that
is in the middle of a step is killed with ``kill -9``, and its step runs again on the other one;
then some are frozen (``SIGSTOP``) instead, which nobody can prove, so that the lease decides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.lab import Lab
from benchmarks.loom_fleet import LoomFleet
from benchmarks.measure import median, percentile
from benchmarks.report import Json
from benchmarks.run import REPORT_WIDTH

LEASE: Final = 5.0
"""The default of LOOM_LEASE."""
MEDIAN_OF_KILLS: Final = 1.0
WORST_OF_KILLS: Final = 3.0
WORST_OF_FREEZES: Final = LEASE + 0.5
"""The lease, and the way of a package to the next worker."""
BOUND: Final = 60.0
"""Seconds after which a round counts as lost."""


async def measure(kills: int, freezes: int) -> tuple[list[float], list[float], dict[str, Json]]:
    """Seconds of each round, and what they were measured on."""
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as folder:
        async with Lab(Path(folder)) as lab:
            conditions = await lab.conditions()
            fleet = LoomFleet()
            async with lab.corner(BOUND) as context:
                try:
                    await fleet.prepare(context)
                    killed = await fleet.w3(kills)
                    frozen = await fleet.frozen(freezes)
                finally:
                    await fleet.close()
    return killed, frozen, conditions


def show(console: Console, rows: dict[str, list[float]]) -> None:
    """Print what was seen."""
    table = Table(title="Seconds until the step of a lost worker runs elsewhere")
    for title in ("", "rounds", "least", "median", "p90", "worst"):
        table.add_column(title, justify="right")
    for name, seconds in rows.items():
        if seconds:
            figures = (min(seconds), median(seconds), percentile(seconds, 90), max(seconds))
            table.add_row(name, str(len(seconds)), *(f"{each:.3f}" for each in figures))
    console.print(table)


def kept(killed: list[float], frozen: list[float]) -> bool:
    """Whether every bound held."""
    return (
        (not killed or median(killed) < MEDIAN_OF_KILLS)
        and all(each < WORST_OF_KILLS for each in killed)
        and all(each < WORST_OF_FREEZES for each in frozen)
    )


def main() -> int:
    """Measure and show. 1 if a bound was passed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.takeover", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="rounds with kill -9")
    parser.add_argument("--freezes", type=int, default=5, help="rounds with SIGSTOP")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value to FILE")
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else REPORT_WIDTH)
    killed, frozen, conditions = asyncio.run(measure(given.kills, given.freezes))
    show(console, {"kill -9": killed, "SIGSTOP": frozen})
    for name, value in conditions.items():
        console.print(f"{name}: {value}", style="dim", markup=False, highlight=False)
    held = kept(killed, frozen)
    console.print("every bound held" if held else "a bound was passed", highlight=False)
    if given.json is not None:
        values = {"conditions": conditions, "killed_s": killed, "frozen_s": frozen}
        given.json.write_text(json.dumps(values, indent=2) + "\n")
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
