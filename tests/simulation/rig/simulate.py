"""``make simulate SECONDS=60 SEED=1``: run after run, each with a seed of its own.

What fails is shrunk and written to a file from which it can be played again:
``python -m tests.simulation.rig.simulate --replay FILE``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Final

import msgspec

from tests.simulation.rig.goals import GOALS, missing
from tests.simulation.rig.run import Plan, Report, run
from tests.simulation.rig.shrink import shrink

CHUNK: Final = 10
"""Runs per task of a process."""
CANARY_TRIES: Final = 300
COMPARED: Final = 50
"""Every so many seeds, one is run again by another interpreter with another hash seed."""
TAPES: Final = Path(tempfile.gettempdir()) / "loom-simulation"


class Totals(msgspec.Struct, kw_only=True):
    """What a number of runs came to."""

    runs: int = 0
    executions: int = 0
    steps: int = 0
    seconds: float = 0.0
    goals: Counter[str] = Counter()
    failed: list[int] = []

    def add(self, other: Totals) -> None:
        """Add those of other runs."""
        self.runs += other.runs
        self.executions += other.executions
        self.steps += other.steps
        self.seconds += other.seconds
        self.goals += other.goals
        self.failed += other.failed


def run_some(first: int, count: int) -> Totals:
    """Run some seeds."""
    totals = Totals()
    for seed in range(first, first + count):
        report = run(Plan(seed=seed))
        totals.runs += 1
        totals.executions += report.executions
        totals.steps += report.steps
        totals.seconds += report.seconds
        totals.goals += report.goals
        if report.violations:
            totals.failed.append(seed)
    return totals


def find_canary(first: int) -> int | None:
    """Seeds until a planted fault is found; None when it was not."""
    for tries in range(CANARY_TRIES):
        if run(Plan(seed=first + tries, broken=True)).violations:
            return tries + 1
    return None


def same_elsewhere(seed: int) -> bool:
    """Whether another interpreter, with other hashes, sees the same."""
    command = [sys.executable, "-m", "tests.simulation.rig.simulate", "--digest", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed % 1000 + 1)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return told.stdout.strip() == f"{run(Plan(seed=seed)).digest}"


def explain(plan: Plan, report: Report) -> Iterator[str]:
    """A failed run, for people."""
    for each in report.violations[:5]:
        yield f"  {each.rule} {each.execution_id}: {each.text}"
    yield f"  shape   {report.shape}"
    yield f"  weather {report.weather}"
    yield from (f"    {line}" for line in report.tail)


def shrink_and_tell(seed: int) -> None:
    """Make a failing seed small, write its tape down, and say all about it."""
    plan = Plan(seed=seed)
    report = run(plan)
    if not report.violations:
        print(f"seed {seed} failed once and does not now: the simulator is not deterministic")
        return
    rule = report.violations[0].rule
    small = shrink(plan, report, rule)
    TAPES.mkdir(parents=True, exist_ok=True)
    path = TAPES / f"{rule}-{seed}.json"
    path.write_bytes(msgspec.json.encode(small.plan))
    drawn = sum(1 for draws in small.report.draws.values() for draw in draws if draw)
    print(f"\nseed {seed} breaks {rule}; shrunk to {drawn} draws in {small.runs} runs: {path}")
    for line in explain(small.plan, small.report):
        print(line)


def simulate(seconds: float, first: int, jobs: int) -> int:
    """Run seeds for a while; the exit status."""
    started = time.monotonic()
    totals = Totals()
    canary = find_canary(first)
    print("canary: not found" if canary is None else f"canary: found by run {canary}", flush=True)
    with ProcessPoolExecutor(jobs) as pool:
        under_way: set[Future[Totals]] = set()
        following = first
        while time.monotonic() - started < seconds and not totals.failed:
            while len(under_way) < jobs:
                under_way.add(pool.submit(run_some, following, CHUNK))
                following += CHUNK
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for each in done:
                totals.add(each.result())
        for rest in under_way:
            totals.add(rest.result())
    took = time.monotonic() - started
    different = [seed for seed in range(first, following, COMPARED) if not same_elsewhere(seed)][:5]
    report(totals, took)
    for seed in sorted(totals.failed)[:3]:
        shrink_and_tell(seed)
    for seed in different:
        print(f"seed {seed} sees other things under another PYTHONHASHSEED")
    never = missing(totals.goals, totals.runs)
    if never:
        print(f"never reached: {', '.join(never)}")
    return 1 if totals.failed or different or never or canary is None else 0


def report(totals: Totals, took: float) -> None:
    """Say what was run, and what was never reached."""
    print(
        f"{totals.runs} runs, {totals.executions} executions, {totals.steps} steps, "
        f"{totals.seconds:.0f} virtual seconds in {took:.1f} s: "
        f"{totals.executions / took * 60:.0f} executions a minute, "
        f"{totals.seconds / took:.0f} virtual seconds per second"
    )
    for goal in GOALS:
        print(f"  {totals.goals[goal]:8}  {goal}")
    print(f"{len(totals.failed)} of {totals.runs} runs broke a rule")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--digest", type=int, metavar="SEED")
    parser.add_argument("--show", type=int, metavar="SEED")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.digest is not None:
        print(run(Plan(seed=given.digest)).digest)
        return 0
    if given.show is not None:
        shrink_and_tell(given.show)
        return 0
    if given.replay is not None:
        plan = msgspec.json.decode(given.replay.read_bytes(), type=Plan)
        played = run(plan)
        print("\n".join(explain(plan, played)))
        return 1 if played.violations else 0
    return simulate(given.seconds, given.seed, given.jobs)


if __name__ == "__main__":
    sys.exit(main())
