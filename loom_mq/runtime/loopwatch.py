"""Sees from outside when the event loop is blocked, and by what (C05)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import deque
from pathlib import PurePath
from typing import Final

import structlog

from loom_mq.errors import UnsupportedInFlowError
from loom_mq.flows.stepping import current_step
from loom_mq.observe.limiter import once_per
from loom_mq.observe.metrics import Metrics

INTERVAL: Final = 0.25
BLOCKED_AFTER: Final = 1.0
_FRAMES: Final = 5
_SAMPLES: Final = 40

_log = structlog.get_logger(__name__)


class LoopWatch:
    """Asks the event loop for a sign of life four times a second, from a thread.

    Args:
        loop: the loop of the thread that calls `start`.
        metrics: told the worst delay of the last ten seconds.
        blocked_after: seconds of silence that are worth a warning.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        *,
        blocked_after: float = BLOCKED_AFTER,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._blocked_after = blocked_after
        self._once = once_per(60.0)
        self._lags: deque[float] = deque(maxlen=_SAMPLES)
        self._stopped = threading.Event()
        self._watched = threading.get_ident()

    def start(self) -> None:
        """Begin to watch the calling thread and its loop."""
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, name="loom-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            answered = threading.Event()
            sent = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not answered.wait(self._blocked_after):
                self._report()
                while not answered.wait(INTERVAL):
                    if self._stopped.is_set():
                        return
            self._lags.append(time.monotonic() - sent)
            self._metrics.loop_lag(max(self._lags))

    def _report(self) -> None:
        stack = traceback.extract_stack(sys._current_frames().get(self._watched))
        frames = [
            f"{frame.name} ({PurePath(frame.filename).name}:{frame.lineno})"
            for frame in stack[-_FRAMES:]
        ]
        held_back = self._once.admit(frames[-1] if frames else "unknown")
        if held_back is not None:
            _log.warning(
                "loop.blocked",
                seconds=self._blocked_after,
                running=self._running(),
                stack=frames,
                held_back=held_back,
                advice="blocking code belongs into a plain `def` step, which gets a thread",
            )

    def _running(self) -> str | None:
        """The step that runs, where Python lets another thread know; else the task."""
        try:
            task = asyncio.current_task(self._loop)
        except RuntimeError:
            return None
        if task is None:
            return None
        context_of = getattr(task, "get_context", None)  # from Python 3.12 on
        if context_of is not None:
            try:
                step = context_of().copy().run(current_step)
            except UnsupportedInFlowError:
                return task.get_name()
            return f"step {step.name} of execution {step.execution_id}"
        return task.get_name()
