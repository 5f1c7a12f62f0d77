"""Figures: percentiles, medians of runs, CPU time of process trees, tables and JSON."""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile, ``percent`` from 0 to 100. Raises `ValueError` on no values."""
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(rank, 1) - 1]


def median(values: Sequence[float]) -> float:
    """The median of runs; infinite values (a bound that was reached) sort last."""
    return statistics.median(values)


def _cpu_and_parent(pid: int) -> tuple[float, int] | None:
    """CPU seconds of one process and of the children it has buried, and its parent's pid."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses: count fields after its end.
    fields = stat[stat.rindex(")") + 2 :].split()
    return sum(map(int, fields[11:15])) / _TICKS, int(fields[1])


def tree_cpu(roots: Iterable[int]) -> float:
    """CPU seconds spent so far by these processes and all below them, dead ones included.

    A dead process counts through the parent that waited for it. Resolution: one clock tick
    (10 ms) per process.
    """
    cpu: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (found := _cpu_and_parent(int(entry.name))) is not None:
            pid = int(entry.name)
            cpu[pid] = found[0]
            children.setdefault(found[1], []).append(pid)
    total = 0.0
    seen: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in seen:
            seen.add(pid)
            total += cpu.get(pid, 0.0)
            left.extend(children.get(pid, ()))
    return total


async def cores_used(roots: Sequence[int], seconds: float) -> float:
    """Mean cores that these process trees use over the next ``seconds``."""
    before, began = tree_cpu(roots), time.perf_counter()
    await asyncio.sleep(seconds)
    after, ended = tree_cpu(roots), time.perf_counter()
    return (after - before) / (ended - began)
