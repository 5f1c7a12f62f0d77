"""Executions that a worker lets go of: repeated until the journal has it.

The worker's lease goes on, so an execution that it forgot would be nobody's: its owner
alive, and nobody driving it.
"""

from __future__ import annotations

import structlog

from loom_mq.engine.background import Background
from loom_mq.errors import LoomError
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import ExecutionKey

_log = structlog.get_logger(__name__)


class GiveBack:
    """See the module's docstring."""

    def __init__(self, journal: Journal, owner: str, background: Background) -> None:
        self._journal = journal
        self._owner = owner
        self._background = background
        self._pending: dict[ExecutionKey, tuple[float | None, str | None, int]] = {}

    def add(
        self, key: ExecutionKey, delay: float | None, fence: int, trouble: str | None = None
    ) -> None:
        """Let go of an execution held under `fence`: to be sent again after `delay`
        seconds, or when something happens to it (None).

        Args:
            key: the execution.
            delay: seconds.
            fence: the fence held.
            trouble: why nothing could be done with it, for whoever looks.
        """
        self._pending[key] = (delay, trouble, fence)
        self._background.spawn(self._flush())

    def again(self) -> None:
        """Try once more what the journal did not take."""
        if self._pending:
            self._background.spawn(self._flush())

    async def _flush(self) -> None:
        alike: dict[tuple[float | None, str | None], list[tuple[ExecutionKey, int]]] = {}
        for key, (delay, trouble, fence) in list(self._pending.items()):
            del self._pending[key]
            alike.setdefault((delay, trouble), []).append((key, fence))
        for (delay, trouble), held in alike.items():
            keys, fences = zip(*held, strict=True)
            try:
                await self._journal.defer(keys, self._owner, delay, fences, trouble)
            except LoomError as error:
                _log.warning("execution.give_back_failed", executions=len(held), error=str(error))
                for key, fence in held:
                    self._pending.setdefault(key, (delay, trouble, fence))
