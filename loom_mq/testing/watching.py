"""Waiting for executions, and skipping the time in which nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from loom_mq.errors import UnknownExecutionError
from loom_mq.journal.protocol import ListQuery
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from loom_mq.testing.fleet import Fleet
from loom_mq.testing.skipping import QUIET_TURNS, moment_of
from loom_mq.testing.stuck import StuckError, still_at_work, why_stuck

GRACE: Final = 0.2
"""Real seconds in which somebody else may still do something about a parked execution."""
STALL: Final = 2.0
"""The same for one that should run and that nobody has in hand: the sweep may send it."""
LOOK: Final = 0.05
MAX_SKIPS: Final = 10_000
MAX_IDLE_SKIPS: Final = 250
"""Skips that one waits for an execution that nothing but others can wake."""

There = Callable[[ExecutionRow], bool]


class Watcher:
    """See the module's docstring.

    Args:
        fleet: open.
        patience: real seconds that code may run without any event.
    """

    def __init__(self, fleet: Fleet, patience: float) -> None:
        self._fleet = fleet
        self._patience = patience
        self._turn = asyncio.Lock()

    async def settle(self) -> None:
        """Return when nothing is under way.

        Raises:
            StuckError: something was for longer than the patience.
        """
        fleet, pulse = self._fleet, self._fleet.pulse
        since, seen, quiet = fleet.clock.monotonic(), pulse.beats, 0
        while quiet < QUIET_TURNS:
            if fleet.busy:
                await pulse.wait(LOOK)
                quiet = 0
            else:
                await asyncio.sleep(0)
                quiet += 1
            if pulse.beats != seen:
                since, seen, quiet = fleet.clock.monotonic(), pulse.beats, 0
            elif fleet.clock.monotonic() - since > self._patience:
                raise await self._too_long()

    async def skip_to(self, until: int) -> None:
        """Let everything happen that is due before `until`, and make it that late.

        Raises:
            StuckError: as for `settle`; or too much happens before.
        """
        async with self._turn:
            for _ in range(MAX_SKIPS):
                await self.settle()
                if not await self._skip(until):
                    break
            else:
                raise StuckError(
                    f"{MAX_SKIPS} timers fired before {moment_of(until).isoformat()}; it is "
                    f"{moment_of(self._fleet.clock.now()).isoformat()} now. Skip in smaller parts",
                    "",
                )
            self._fleet.clock.move_to(until)
            await self._fleet.timers.once()
            await self.settle()

    async def until(self, key: ExecutionKey, there: There, wanted: str) -> ExecutionRow:
        """Skip time until an execution is where it is wanted.

        Args:
            key: the execution.
            there: whether it is; asked while nothing is under way.
            wanted: what it is wanted to do, for the error.

        Raises:
            StuckError: it never will be.
            UnknownExecutionError: there is no such execution.
        """
        total = idle = 0
        last_seq = -1
        while True:
            async with self._turn:
                await self.settle()
                row = await self.row(key)
                if there(row):
                    return row
                if row.status.terminal:
                    raise await self._stuck(row, wanted)
                moved = not await self._unfinished() and await self._skip(None)
            idle = idle + 1 if row.last_seq == last_seq and row.wake_at is None else 0
            total, last_seq = total + 1, row.last_seq
            if moved and idle <= MAX_IDLE_SKIPS and total <= MAX_SKIPS:
                continue
            if moved or not await self._fleet.pulse.wait(await self._grace(row)):
                raise await self._stuck(row, wanted)

    async def row(self, key: ExecutionKey) -> ExecutionRow:
        """An execution's index row.

        Raises:
            UnknownExecutionError: there is no such execution.
        """
        [row] = await self._fleet.journal.get([key])
        if row is None:
            raise UnknownExecutionError(
                f"there is no execution {key.execution_id!r}", execution_id=key.execution_id
            )
        return row

    async def _skip(self, until: int | None) -> bool:
        """Make it as late as the next timer says, and fire it; False when there is none."""
        due = await self._fleet.journal.next_timer()
        if due is None or (until is not None and due > until):
            return False
        self._fleet.clock.move_to(due)
        await self._fleet.timers.once()
        return True

    async def _unfinished(self) -> list[ExecutionRow]:
        """Executions that should run and that nobody has in hand."""
        counts = await self._fleet.journal.count()
        rows: list[ExecutionRow] = []
        for status in (Status.RUNNING, Status.PENDING):
            if counts.get(status):
                rows += await self._fleet.journal.find(ListQuery(status=status))
        return rows

    async def _grace(self, row: ExecutionRow) -> float:
        unfinished = await self._unfinished()
        waiting = any(each.trouble is None for each in unfinished)
        return STALL if waiting and row.trouble is None else GRACE

    async def _stuck(self, row: ExecutionRow, wanted: str) -> StuckError:
        # what keeps time from going on is what is to be mended, be it another execution
        others = [] if row.status.terminal else await self._unfinished()
        culprit = row if row in others or not others or row.in_doubt else others[0]
        return why_stuck(culprit, await self._fleet.log(culprit.key), wanted)

    async def _too_long(self) -> StuckError:
        for row in await self._unfinished():
            return still_at_work(row, await self._fleet.log(row.key), self._patience)
        return StuckError(f"the environment did not come to rest in {self._patience:g} s", "")
