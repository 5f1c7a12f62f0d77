"""Places in a flow's control flow (K3). Pure.

Every durable call takes a place the moment it is called, counted per scope, so
places depend on what the flow's code does and never on what finishes first. Each
asyncio task that a flow makes is a scope of its own, named by the order in which its
parent made it.

A place reads `<scope>#<n>`: `#0` is the first durable call of the flow itself,
`~1#0` the first one inside the second task that the flow made.
"""

from __future__ import annotations


class Scope:
    """One strand of a flow: hands out places and names of child scopes in call order."""

    __slots__ = ("_calls", "_tasks", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._calls = 0
        self._tasks = 0

    def place(self) -> str:
        """The next place in this scope."""
        place = f"{self.path}#{self._calls}"
        self._calls += 1
        return place

    def task_path(self) -> str:
        """The path of the next task made in this scope."""
        path = f"{self.path}~{self._tasks}"
        self._tasks += 1
        return path


def strand_of(place: str) -> str:
    """The path of the scope that a place belongs to."""
    return place.rpartition("#")[0]
