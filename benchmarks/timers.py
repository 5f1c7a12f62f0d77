"""``python -m benchmarks.timers``: a herd of timers in one second, and other work beside it.

A fleet at its defaults with two timer services, one of which is killed in the middle. Lateness is
the journal time of an execution's end less its due time, so it holds the worker's part, too. The
other work is a client that starts executions of three steps at a steady pace, before the herd,
while it wakes, and afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks.lab import Lab
from benchmarks.loom_fleet import LoomFleet
from benchmarks.loom_flows import alarm, three_steps
from benchmarks.measure import median, percentile
from benchmarks.report import Json
from benchmarks.run import REPORT_WIDTH
from loom_mq.client.client import Client

BOUND: Final = 60.0
TIMEOUT: Final = 300.0
CHUNK: Final = 1000
"""Executions per call of the client."""
QUIET: Final = 5.0
"""Seconds of other work alone, before and after."""
MICROS: Final = 1e6


@dataclass
class Seen:
    """What was measured. Durations in seconds.

    Attributes:
        lateness: of each execution of the herd.
        took: from the first due time to the last end.
        beside: start to result of other work, by phase.
        pace: other executions ended per second, by phase.
        left: timers that are still there.
    """

    lateness: list[float] = field(default_factory=list)
    took: float = 0.0
    beside: dict[str, list[float]] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)
    left: int = 0


class OtherWork:
    """Starts executions at a steady pace and times each."""

    def __init__(self, client: Client, per_second: float) -> None:
        self._client = client
        self._period = 1 / per_second
        self._tasks: set[asyncio.Task[None]] = set()
        self._seconds: list[float] = []

    async def during(self, until: asyncio.Event) -> tuple[list[float], float]:
        """Seconds of each that was started until then, and how many ended per second."""
        self._seconds = []
        began = time.perf_counter()
        due = began
        while not until.is_set():
            task = asyncio.create_task(self._one())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            due += self._period
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        ended = len(self._seconds) / (time.perf_counter() - began)
        await asyncio.gather(*self._tasks)
        return self._seconds, ended

    async def _one(self) -> None:
        began = time.perf_counter()
        await self._client.execute(three_steps, 0, timeout=TIMEOUT)
        self._seconds.append(time.perf_counter() - began)


async def wake(
    fleet: LoomFleet, journal: asyncpg.Connection, herd: int, per_second: float, *, kill: bool
) -> Seen:
    """Put a herd to sleep, and watch it wake."""
    client = fleet.client
    other = OtherWork(client, per_second)
    seen = Seen()
    begin = await _journal_now(journal) + max(20.0, herd / 300)
    for first in range(0, herd, CHUNK):
        numbers = range(first, min(first + CHUNK, herd))
        await client.start_many(
            alarm, [(f"alarm-{n}", begin + n / herd) for n in numbers], timeout=TIMEOUT
        )
    await _until_asleep(journal, herd)
    dues = await _times(journal, "SELECT execution_id, due FROM loom.timers")
    if len(dues) < herd or (left := begin - await _journal_now(journal)) < QUIET:
        raise RuntimeError("the herd was not asleep in time; give it a smaller number")
    await _phase(seen, other, "before", left - 1)
    over = asyncio.Event()
    beside = asyncio.create_task(other.during(over))
    await asyncio.sleep(max(0.0, begin - await _journal_now(journal)))
    if kill:
        await asyncio.sleep(0.5)
        fleet.kill_timer()
    await _until_awake(journal)
    over.set()
    seen.beside["during"], seen.pace["during"] = await beside
    ended = await _times(
        journal, "SELECT execution_id, ended_at FROM loom.executions WHERE flow = 'alarm'"
    )
    seen.lateness = [(ended[name] - due) / MICROS for name, due in dues.items()]
    seen.took = (max(ended.values()) - min(dues.values())) / MICROS
    seen.left = await journal.fetchval("SELECT count(*) FROM loom.timers")
    await _phase(seen, other, "after", QUIET)
    return seen


async def _phase(seen: Seen, other: OtherWork, name: str, seconds: float) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    seen.beside[name], seen.pace[name] = await other.during(over)


async def _times(journal: asyncpg.Connection, question: str) -> dict[str, int]:
    return dict(tuple(row) for row in await journal.fetch(question))


async def _journal_now(journal: asyncpg.Connection) -> float:
    return float(await journal.fetchval("SELECT loom.now_v1()")) / MICROS


async def _until_asleep(journal: asyncpg.Connection, herd: int) -> None:
    asleep = "SELECT count(*) FROM loom.executions WHERE flow = 'alarm' AND status = 'suspended'"
    async with asyncio.timeout(TIMEOUT):
        while await journal.fetchval(asleep) < herd:
            await asyncio.sleep(0.2)


async def _until_awake(journal: asyncpg.Connection) -> None:
    one = "SELECT 1 FROM loom.executions WHERE flow = 'alarm' AND status IN ({}) LIMIT 1"
    any_left = one.format("'suspended', 'running', 'pending'")
    async with asyncio.timeout(TIMEOUT):
        while await journal.fetchval(any_left) is not None:
            await asyncio.sleep(0.2)


async def measure(herd: int, per_second: float, *, kill: bool) -> tuple[Seen, dict[str, Json]]:
    """The whole run on servers of its own."""
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as folder:
        async with Lab(Path(folder)) as lab:
            conditions = await lab.conditions()
            fleet = LoomFleet(timers=2)
            async with lab.corner(BOUND) as context:
                journal = await asyncpg.connect(context.dsn)
                try:
                    await fleet.prepare(context)
                    seen = await wake(fleet, journal, herd, per_second, kill=kill)
                finally:
                    await fleet.close()
                    await journal.close()
    return seen, conditions


def show(console: Console, seen: Seen) -> None:
    """Print what was seen."""
    table = Table(title="Seconds")
    for title in ("", "number", "per s", "p50", "p99", "worst"):
        table.add_column(title, justify="right")
    rows = [("herd, lateness", seen.lateness, len(seen.lateness) / seen.took)]
    rows += [(f"other work, {each}", seen.beside[each], seen.pace[each]) for each in seen.beside]
    for name, values, pace in rows:
        figures = (median(values), percentile(values, 99), max(values))
        table.add_row(name, str(len(values)), f"{pace:.1f}", *(f"{each:.3f}" for each in figures))
    console.print(table)
    early = sum(each < 0 for each in seen.lateness)
    console.print(f"early: {early}; timers left: {seen.left}", highlight=False)


def main() -> int:
    """Measure and show. 1 if a timer was early or one was left."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timers", description=__doc__)
    parser.add_argument("--herd", type=int, default=20_000, help="timers due in one second")
    parser.add_argument("--beside", type=float, default=20.0, help="other executions per second")
    parser.add_argument("--no-kill", action="store_true", help="let both timer services live")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value to FILE")
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else REPORT_WIDTH)
    seen, conditions = asyncio.run(measure(given.herd, given.beside, kill=not given.no_kill))
    show(console, seen)
    for name, value in conditions.items():
        console.print(f"{name}: {value}", style="dim", markup=False, highlight=False)
    if given.json is not None:
        values = {
            "conditions": conditions,
            "lateness_s": seen.lateness,
            "took_s": seen.took,
            "beside_s": seen.beside,
            "beside_per_s": seen.pace,
        }
        given.json.write_text(json.dumps(values, indent=2) + "\n")
    return int(seen.left > 0 or any(each < 0 for each in seen.lateness))


if __name__ == "__main__":
    sys.exit(main())
