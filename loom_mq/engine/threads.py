"""Threads for plain ``def`` steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class StepThreads:
    """A pool of threads for blocking steps.

    Args:
        size: steps that may block at once.
    """

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="loom-step")

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread. Cancelling the call does not stop the thread."""

        def guarded() -> tuple[Any, BaseException | None]:
            # a StopIteration cannot travel through a future (C92), so errors go as values
            try:
                return function(), None
            except BaseException as error:
                return None, error

        value, error = await asyncio.get_running_loop().run_in_executor(self._pool, guarded)
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Take no more; threads that are stuck do not hold up the process's end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
