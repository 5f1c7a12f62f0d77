"""``python -m benchmarks.run``: every system under every workload, in turn, on private servers."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.floor import floors
from benchmarks.lab import Lab
from benchmarks.loom_fleet import LoomFleet
from benchmarks.peers.dbos_peer import peers
from benchmarks.report import Json, Outcome, Report
from benchmarks.system import System, Workload, WorkloadNotOfferedError

WARM_UP: Final = 100
"""Executions before W1 is measured; their speed sets the size of the runs."""
LARGEST_BURST: Final = 50_000
REPORT_WIDTH: Final = 120
BUSY: Final = 0.3
"""Load of the machine above which the figures are called into question."""


@dataclass(frozen=True)
class Scale:
    """How much of everything: times in seconds."""

    runs: int
    burst_seconds: float
    latencies: int
    takeovers: int
    takeover_bound: float
    idle_seconds: float
    sleepers: int


FULL: Final = Scale(5, 5.0, 200, 5, 60.0, 20.0, 1000)
QUICK: Final = Scale(1, 2.0, 50, 2, 10.0, 3.0, 200)


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    scale: Scale
    systems: Sequence[System]
    workloads: frozenset[Workload]
    json: Path | None


def systems() -> list[System]:
    """All that can be measured, in the order of the table. New systems are named here."""
    return [LoomFleet(), *floors(), *peers()]


async def measure(
    system: System,
    outcome: Outcome,
    scale: Scale,
    wanted: frozenset[Workload],
    tell: Callable[[str], None],
) -> None:
    """Put a prepared system through every wanted workload that it offers."""
    offered = system.workloads & wanted
    if offered & {Workload.THROUGHPUT, Workload.LATENCY}:
        tell("warm-up")
        await system.w1(WARM_UP)
    if Workload.THROUGHPUT in offered:
        tell("W1")
        speed = await system.w1(WARM_UP)
        outcome.burst = min(max(int(speed * scale.burst_seconds), WARM_UP), LARGEST_BURST)
        for _ in range(scale.runs):
            outcome.throughput.append(await system.w1(outcome.burst))
    if Workload.LATENCY in offered:
        tell("W2")
        for _ in range(scale.runs):
            outcome.latency.append(await system.w2(scale.latencies))
    if Workload.TAKEOVER in offered:
        tell("W3")
        outcome.takeover += await system.w3(scale.takeovers)
    if Workload.IDLE in offered:
        tell("W4")
        outcome.idle.append(await system.w4(scale.idle_seconds, 0))
        with suppress(WorkloadNotOfferedError):
            outcome.asleep.append(await system.w4(scale.idle_seconds, scale.sleepers))


async def one(
    system: System,
    lab: Lab,
    scale: Scale,
    wanted: frozenset[Workload],
    tell: Callable[[str], None],
) -> Outcome:
    """One system from its empty database to the end of its processes; a failure is a finding."""
    outcome = Outcome(system.name, system.role)
    try:
        async with lab.corner(scale.takeover_bound) as context:
            try:
                tell("start")
                await system.prepare(context)
                await measure(system, outcome, scale, wanted, tell)
            finally:
                await system.close()
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


async def run(options: Options, console: Console) -> Report:
    """Everything in turn, on servers of its own."""
    conditions = machine(options.scale)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as folder:
        async with Lab(Path(folder)) as lab:
            conditions |= await lab.conditions()
            for system in options.systems:

                def tell(stage: str, name: str = system.name) -> None:
                    console.print(f"{name}: {stage}", style="dim", highlight=False)

                outcomes.append(await one(system, lab, options.scale, options.workloads, tell))
    return Report(outcomes, conditions, options.scale.takeover_bound, options.scale.sleepers)


def machine(scale: Scale) -> dict[str, Json]:
    """What the figures depend on, besides the servers."""
    load = os.getloadavg()[0]
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(load, 2),
        "quiet": load <= BUSY,
        "scale": dataclasses.asdict(scale),
    }


def options(arguments: Sequence[str], available: Sequence[System]) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short look, under three minutes")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="systems whose name holds NAME"
    )
    parser.add_argument(
        "--workload", action="append", default=[], choices=[w.value for w in Workload]
    )
    parser.add_argument("--runs", type=int, help="runs of W1 and W2, rounds of W3")
    parser.add_argument("--sleepers", type=int, help="sleeping executions of W4")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value to FILE")
    given = parser.parse_args(arguments)
    scale = QUICK if given.quick else FULL
    if given.runs is not None:
        scale = dataclasses.replace(scale, runs=given.runs, takeovers=given.runs)
    if given.sleepers is not None:
        scale = dataclasses.replace(scale, sleepers=given.sleepers)
    names: list[str] = given.only
    workloads = frozenset(Workload(value) for value in given.workload) or frozenset(Workload)
    chosen = [
        system
        for system in available
        if (not names or any(name.lower() in system.name.lower() for name in names))
        and system.workloads & workloads
    ]
    if not chosen:
        offers = "; ".join(f"{s.name} ({', '.join(sorted(s.workloads))})" for s in available)
        parser.error(f"no such system offers such a workload. There are: {offers}")
    return Options(scale, chosen, workloads, given.json)


def main() -> int:
    """Measure, show, save. 1 if a system failed."""
    console = Console(width=None if sys.stdout.isatty() else REPORT_WIDTH)
    chosen = options(sys.argv[1:], systems())
    report = asyncio.run(run(chosen, console))
    report.show(console)
    if chosen.json is not None:
        report.save(chosen.json)
    return int(any(outcome.error is not None for outcome in report.outcomes))


if __name__ == "__main__":
    sys.exit(main())
