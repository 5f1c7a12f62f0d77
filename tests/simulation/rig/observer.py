"""What can be seen of a run, by somebody who trusts none of the code under test."""

from __future__ import annotations

from typing import Any

import msgspec


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A call to the journal, at the instant at which it was carried out.

    Attributes:
        by: the process that made it.
        answer: what it returned, or the exception that it raised.
        at: journal time in microseconds.
        before: what `Observer.before` said.
    """

    by: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any
    at: int
    before: Any = None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A step's effect, as it begins."""

    execution_id: str
    place: str
    step: str
    attempt: int
    by: str
    at: int


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a client was told."""

    execution_id: str
    what: str
    value: Any
    at: int


class Acked(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that a process settled."""

    by: str
    queue: str
    type: str
    body: bytes
    content_type: str
    how: str
    at: int


class Happened(msgspec.Struct, frozen=True):
    """A fault, or something else that befell somebody."""

    what: str
    who: str
    at: int


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was broken."""

    rule: str
    execution_id: str
    text: str


class Observer:
    """Sees everything, and says nothing."""

    def before(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call is about to be carried out."""
        return None

    def applied(self, applied: Applied) -> None:
        """A call was carried out."""

    def began(self, effect: Effect) -> None:
        """An effect begins."""

    def ended(self, effect: Effect, outcome: str) -> None:
        """An effect has ended."""

    def told(self, told: Told) -> None:
        """A client was told something."""

    def acked(self, acked: Acked) -> None:
        """A delivery was settled."""

    def happened(self, happened: Happened) -> None:
        """Something befell somebody."""
