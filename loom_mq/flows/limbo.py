"""Where flow code waits that can lead nowhere any more, until it is taken apart (K12)."""

from __future__ import annotations

import asyncio
import ctypes
from collections import Counter
from contextlib import suppress
from typing import Any, Final, NoReturn

CANCELLED_SO_OFTEN: Final = 3
TOLD_SO_OFTEN: Final = 10


class FlowEnded(BaseException):  # a signal, no error
    """Ends a flow that has swallowed its cancellation; no `Exception`, so that it passes."""


class Limbo:
    """One activation's.

    Attributes:
        closing: the activation is being taken apart; whoever comes back here has
            swallowed a cancellation.
    """

    def __init__(self) -> None:
        self.closing = False
        self._returns: Counter[asyncio.Task[Any]] = Counter()
        self._left: set[asyncio.Task[Any]] = set()

    async def stay(self) -> NoReturn:
        """Never return: what comes next belongs to a later run of the flow.

        A task that swallows its cancellation is told again in a way that no ``except
        CancelledError`` catches. If that is swallowed too, it is left to itself, out of
        asyncio's sight: the worker's own end would wait for it.
        """
        task = _this_task()
        self._returns[task] += self.closing
        if self._returns[task] > TOLD_SO_OFTEN:
            self.leave_behind(task)
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()
        if self._returns[task] > CANCELLED_SO_OFTEN:
            raise FlowEnded
        while True:
            await asyncio.get_running_loop().create_future()

    def leave_behind(self, task: asyncio.Task[Any]) -> None:
        """Keep a task for good, out of asyncio's sight and of the garbage collector's.

        A flow that loops over whatever it catches must not run again. The collector would
        throw `GeneratorExit` into it and never come back, and the end of the event loop would
        wait for it. One that swallows all is rare, and costs its memory until the process
        ends.
        """
        if task in self._left:
            return
        self._left.add(task)
        asyncio._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("flow code runs in a task")
    return task
