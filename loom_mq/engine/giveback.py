"""Executions that a worker lets go of: repeated until the journal has it.

The worker's lease goes on, so an execution that it forgot would be nobody's: its owner
alive, and nobody driving it.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from loom_mq.engine.background import Background
from loom_mq.errors import LoomError
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import ExecutionKey

_log = structlog.get_logger(__name__)


class GiveBack:
    """See the module's docstring.

    Args:
        in_hand: whether the execution is being driven again by now.
    """

    def __init__(
        self,
        journal: Journal,
        owner: str,
        background: Background,
        in_hand: Callable[[ExecutionKey], bool],
    ) -> None:
        self._journal = journal
        self._owner = owner
        self._background = background
        self._in_hand = in_hand
        self._pending: dict[ExecutionKey, float | None] = {}

    def add(self, key: ExecutionKey, delay: float | None) -> None:
        """Let go of an execution: to be sent again after `delay` seconds, or not at all."""
        self._pending[key] = delay
        self._background.spawn(self._flush())

    def again(self) -> None:
        """Try once more what the journal did not take."""
        if self._pending:
            self._background.spawn(self._flush())

    async def _flush(self) -> None:
        by_delay: dict[float | None, list[ExecutionKey]] = {}
        for key, delay in list(self._pending.items()):
            del self._pending[key]
            if not self._in_hand(key):
                by_delay.setdefault(delay, []).append(key)
        for delay, keys in by_delay.items():
            try:
                await self._journal.defer(keys, self._owner, delay)
            except LoomError as error:
                _log.warning("execution.give_back_failed", executions=len(keys), error=str(error))
                self._pending.update(dict.fromkeys(keys, delay))
