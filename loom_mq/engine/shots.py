"""Snapshots of one attempt: taken as they fall due, stored once they are true (J7)."""

from __future__ import annotations

from collections.abc import Callable

from loom_mq.kernel.fold import ExecutionState
from loom_mq.kernel.snapshots import due, encode_state
from loom_mq.model.snapshots import Snapshot

PARK_EVENTS = 100
"""Events since the newest snapshot that make one worth it at a park, where a re-run is sure
to come."""


class Shots:
    """See the module's docstring.

    Args:
        state: the fold, kept up to date by the log's writer.
        newest: how far the newest stored snapshot reaches, -1 without one.
        every: events between two snapshots, at least.
        keep: stores one, in the background.
    """

    def __init__(
        self, state: ExecutionState, newest: int, every: int, keep: Callable[[Snapshot], None]
    ) -> None:
        self._state = state
        self._newest = newest
        self._every = every
        self._keep = keep
        self._waiting: Snapshot | None = None

    def written(self, durable_seq: int) -> None:
        """The log is durable so far. The fold may be ahead of it: a snapshot waits until its
        own last event is written.
        """
        if self._waiting is None:
            self._take(self._every)
        if self._waiting is not None and self._waiting.seq <= durable_seq:
            self._keep(self._waiting)
            self._waiting = None

    def parked(self) -> None:
        """The park is durable."""
        self._take(min(PARK_EVENTS, self._every))
        self.written(self._state.last_seq)

    def _take(self, every: int) -> None:
        state = self._state
        if due(state.last_seq, self._newest, every) and not state.status.terminal:
            self._waiting = encode_state(state)
            self._newest = state.last_seq
