"""``python -m benchmarks.replay``: what a long execution costs, in one process and without I/O.

Two figures: the cost per step from the tenth to the last step of one execution, which must
stay flat, and the time in which a worker that takes the execution over comes back to where it
stood (fold and replay of the flow's code).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence

import structlog
from rich.console import Console
from rich.table import Table

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import fold
from loom_mq.testing import TestEnvironment

_began: list[float] = []


@loom.step
async def tick(number: int) -> int:
    """A step that does nothing."""
    return number


@loom.flow
async def chain(ctx: loom.Context, steps: int) -> int:
    """So many steps, one after the other."""
    total = 0
    for number in range(steps):
        total += await ctx.run(tick, number)
        _began.append(time.perf_counter())
    return total


async def measure(steps: int, console: Console) -> None:
    """Run one execution of `steps` steps, and replay it."""
    _began.clear()
    async with TestEnvironment([chain]) as env:
        run = await env.start(chain, steps, id="long")
        await run.result(timeout=600)
        log = await env.events("long")
    table = Table("steps", "cost per step", title=f"one execution of {steps:,} steps")
    first = 10
    while first < steps - 1:
        last = min(first * 10, steps - 1)
        cost = (_began[last] - _began[first]) / (last - first)
        table.add_row(f"{first:,} to {last:,}", f"{cost * 1e6:,.0f} µs")
        first = last
    console.print(table)
    folding = min(_timed(lambda: fold(log)) for _ in range(3))
    replaying = []
    for _ in range(3):
        start = time.perf_counter()
        outcome = await rehearse(chain, log)
        replaying.append(time.perf_counter() - start)
        if not outcome.ok:
            raise SystemExit(outcome.problem)
    console.print(
        f"{len(log):,} events: folded in {folding:.3f} s, replayed in {min(replaying):.3f} s "
        "(target: 10,000 in under 0.5 s)"
    )


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the one execution")
    options = parser.parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asyncio.run(measure(options.steps, Console()))


if __name__ == "__main__":
    main()
