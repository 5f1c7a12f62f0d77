"""What a service manager does: starts a process again when it has ended (C68)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from tests.support.fleet import Fleet, Process

EVERY = 0.05


class Supervisor:
    """Keeps one service of a fleet up, and notes how each of its processes ended.

    Args:
        fleet: started.
        process: the first of them, running.
    """

    def __init__(self, fleet: Fleet, process: Process) -> None:
        self._fleet = fleet
        self.process = process
        self.codes: list[int] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            if not self.process.running:
                self.codes.append(await self.process.exit_code())
                self.process = self._fleet.spawn(self.process.role)
            await asyncio.sleep(EVERY)
