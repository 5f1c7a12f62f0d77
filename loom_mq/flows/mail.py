"""Inbox items that an activation has in hand, and what each is for (K6, K7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loom_mq.model.execution import InboxItem, InboxKind


class Mail:
    """Answers waiting for their gates, verdicts, and a cancel if there is one. Oldest first."""

    def __init__(self) -> None:
        self._items: dict[str, InboxItem] = {}
        self._done: set[str] = set()
        self.cancel: InboxItem | None = None

    def add(self, items: Iterable[InboxItem]) -> bool:
        """Take over items read from the journal; those known already change nothing.

        Returns:
            Whether anything was new.
        """
        new = False
        for item in items:
            if item.item_id in self._items or item.item_id in self._done:
                continue
            if item.kind is InboxKind.CANCEL:
                new = new or self.cancel is None
                self.cancel = self.cancel or item
            else:
                self._items[item.item_id] = item
                new = True
        return new

    def find(self, gate: str, wait_id: str) -> InboxItem | None:
        """The oldest answer addressed to this wait, or to whichever wait of the gate."""
        for item in self._items.values():
            if (
                item.kind is InboxKind.ANSWER
                and item.gate == gate
                and item.wait_id in (None, wait_id)
            ):
                return item
        return None

    def take(self, gate: str, wait_id: str) -> InboxItem | None:
        """As `find`, and nobody else gets it."""
        item = self.find(gate, wait_id)
        if item is not None:
            self.drop(item)
        return item

    def take_verdict(self, step: str, place: str) -> InboxItem | None:
        """The oldest verdict on a step, named by its place or by its name (K6)."""
        for item in self._items.values():
            if item.kind is InboxKind.VERDICT and item.gate in (step, place):
                self.drop(item)
                return item
        return None

    def has_verdict(self, step: str, place: str) -> bool:
        """Whether there is one."""
        return any(
            item.kind is InboxKind.VERDICT and item.gate in (step, place)
            for item in self._items.values()
        )

    def take_cancel(self) -> None:
        """The flow is told of the cancellation."""
        if self.cancel is not None:
            self._done.add(self.cancel.item_id)
            self.cancel = None

    def drop(self, item: InboxItem) -> None:
        """An item was taken or refused."""
        self._items.pop(item.item_id, None)
        self._done.add(item.item_id)

    def put_back(self, item: InboxItem) -> None:
        """An item that was taken was not wanted after all; it is the oldest again."""
        self._done.discard(item.item_id)
        self._items = {item.item_id: item, **self._items}

    def __iter__(self) -> Iterator[InboxItem]:
        return iter(tuple(self._items.values()))

    def __len__(self) -> int:
        return len(self._items) + (self.cancel is not None)
