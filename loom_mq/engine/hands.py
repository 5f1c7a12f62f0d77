"""Which executions a worker has in hand, so that it never drives one twice at once.

The journal would not stop it: to a claim that is sent again, as after a lost answer, it
says yes a second time to the same owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from loom_mq.engine.drive import Drive
from loom_mq.model.execution import ExecutionKey


class Hand:
    """One execution from the first look at its package to the end of its attempt."""

    __slots__ = ("changed", "drive")

    def __init__(self) -> None:
        self.drive: Drive | None = None
        self.changed = asyncio.Event()

    def driving(self, drive: Drive | None) -> None:
        """The attempt that runs now, None between two."""
        self.drive = drive
        self.changed.set()
        self.changed = asyncio.Event()


class Hands:
    """Everything that a worker has in hand."""

    def __init__(self) -> None:
        self._hands: dict[ExecutionKey, Hand] = {}

    def __len__(self) -> int:
        return len(self._hands)

    def __contains__(self, key: object) -> bool:
        return key in self._hands

    def __iter__(self) -> Iterator[Drive]:
        return iter([hand.drive for hand in self._hands.values() if hand.drive is not None])

    def drive_of(self, key: ExecutionKey) -> Drive | None:
        """The attempt that runs now."""
        hand = self._hands.get(key)
        return None if hand is None else hand.drive

    async def take(self, key: ExecutionKey, fence: int) -> Hand | None:
        """Take an execution, or None when a package for it is a duplicate.

        A package that comes while an attempt is saying goodbye is none: it may be the
        wake of the very park that the attempt has just written. Nor is one that comes
        while another is still asking for the claim, which may be refused. A package that
        means to supersede the very fence in hand says that the execution was taken from
        this worker (its attempt was wedged, F4): the attempt is given up for a new one.

        Args:
            key: the execution.
            fence: the fence that the package means to supersede.
        """
        while (hand := self._hands.get(key)) is not None:
            if hand.drive is not None and not hand.drive.closing:
                if fence < hand.drive.fence:
                    return None
                hand.drive.give_back()
            await hand.changed.wait()
        hand = self._hands[key] = Hand()
        return hand

    def drop(self, key: ExecutionKey) -> None:
        """The execution is out of hand."""
        self._hands.pop(key).driving(None)
