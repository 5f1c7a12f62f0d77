"""Places in a flow's control flow (K3). Pure.

Every durable call takes a place the moment it is called, counted per scope, so
places depend on what the flow's code does and never on what finishes first. Each
asyncio task that a flow makes is a scope of its own, named by the order in which its
parent made it.

A place reads `<scope>#<n>`: `#0` is the first durable call of the flow itself,
`~1#0` the first one inside the second task that the flow made.
"""

from __future__ import annotations

from collections.abc import Iterable


class Scope:
    """One strand of a flow: hands out places and names of child scopes in call order."""

    __slots__ = ("calls", "path", "tasks")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.calls = 0
        self.tasks = 0

    def place(self) -> str:
        """The next place in this scope."""
        place = f"{self.path}#{self.calls}"
        self.calls += 1
        return place

    def task_path(self) -> str:
        """The path of the next task made in this scope."""
        path = f"{self.path}~{self.tasks}"
        self.tasks += 1
        return path

    def marker(self, name: str) -> str:
        """A place for a mark that stands before the next place and takes none itself, so
        that code with the mark and code without it count alike.
        """
        return f"{self.path}#{self.calls}?{name}"

    def went_on_in(self, places: Iterable[str]) -> bool:
        """Whether any of these places comes after the present point of this scope: the
        next calls themselves, or something in a task made from here on.
        """
        own, inner = f"{self.path}#", f"{self.path}~"
        for place in places:
            if place.startswith(own):
                number = place[len(own) :].partition("?")
                if not number[1] and int(number[0]) >= self.calls:
                    return True
            elif place.startswith(inner):
                task = place[len(inner) :].replace("~", "#").partition("#")[0]
                if int(task) >= self.tasks:
                    return True
        return False
