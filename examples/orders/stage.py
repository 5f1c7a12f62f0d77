"""What the demo shows: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loom_mq import Status

QUIET = 2.0
"""Seconds between two lines where there is no terminal."""


class Stage:
    """Progress and words.

    Args:
        orders: how many there are.
    """

    def __init__(self, orders: int) -> None:
        self._orders = orders
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._terminal = sys.stdout.isatty()
        self._progress = Progress(
            TextColumn("orders"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[rest]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._terminal,
        )
        self._task = self._progress.add_task("orders", total=orders, rest="")
        self._spoke_at = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str, style: str = "") -> None:
        """One line."""
        self._console.print(text, style=style)
        sys.stdout.flush()

    def show(self, counts: dict[Status, int], at_gate: int) -> None:
        """How far it is."""
        done = sum(number for status, number in counts.items() if status.terminal)
        asleep = counts.get(Status.SUSPENDED, 0) - at_gate
        busy = counts.get(Status.RUNNING, 0) + counts.get(Status.PENDING, 0)
        rest = f"{busy} in hand, {asleep} asleep, {at_gate} wait for approval"
        self._progress.update(self._task, completed=done, rest=rest)
        if not self._terminal and time.monotonic() - self._spoke_at >= QUIET:
            self._spoke_at = time.monotonic()
            self.say(f"  {done}/{self._orders} completed, {rest}")
