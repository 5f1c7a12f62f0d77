"""Inbox items that an activation has in hand, and which gate each is for (K7)."""

from __future__ import annotations

from collections.abc import Iterable

from loom_mq.model.execution import InboxItem, InboxKind


class Mail:
    """Answers waiting for their gates, and a cancel if there is one. Oldest first."""

    def __init__(self) -> None:
        self._answers: dict[str, InboxItem] = {}
        self._done: set[str] = set()
        self.cancel: InboxItem | None = None

    def add(self, items: Iterable[InboxItem]) -> bool:
        """Take over items read from the journal; those known already change nothing.

        Returns:
            Whether anything was new.
        """
        new = False
        for item in items:
            if item.item_id in self._answers or item.item_id in self._done:
                continue
            if item.kind is InboxKind.CANCEL:
                new = new or self.cancel is None
                self.cancel = self.cancel or item
            else:
                self._answers[item.item_id] = item
                new = True
        return new

    def find(self, gate: str, wait_id: str) -> InboxItem | None:
        """The oldest answer addressed to this wait, or to whichever wait of the gate."""
        for item in self._answers.values():
            if item.gate == gate and item.wait_id in (None, wait_id):
                return item
        return None

    def drop(self, item: InboxItem) -> None:
        """An answer was taken or refused."""
        self._answers.pop(item.item_id, None)
        self._done.add(item.item_id)

    def __len__(self) -> int:
        return len(self._answers) + (self.cancel is not None)
