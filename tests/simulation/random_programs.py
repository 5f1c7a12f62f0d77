"""Random flow programs, as trees; see `player` for what they do.

Everything that a program's flow learns goes onto the list that it returns, and its branches
share a counter that decides which step comes next. So a re-run that is told things in another
order shows it twice: in what it returns, and by asking for a step that its log does not hold.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

GATES: Final = ("red", "green", "blue")
FLAVOURS: Final = 3
"""Steps of each kind that differ by name only."""
MAX_NODES: Final = 26
MAX_DEPTH: Final = 6
KINDS: Final = (
    "work",
    "plain",
    "fails",
    "declines",
    "flaky",
    "sluggish",
    "once",
    "once_fails",
    "stubborn",
    "sour",
    "timed",
)
"""Of steps; see `player`."""
ONCE: Final = ("once", "once_fails")
ABLE_TO_FAIL: Final = ("fails", "declines", "once_fails")
_LIKELY: Final = ("work",) * 6 + ("plain",) + ("once",) * 2 + KINDS


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction.

    Attributes:
        op: which; a method of `Player`.
        id: its number, for what is seen.
        kids: instructions within.
        name: kind of step, gate, or name of a mark.
        n: a number: milliseconds, modulus, which.
        flag: a variant.
    """

    op: str
    id: int = 0
    kids: tuple[Node, ...] = ()
    name: str = ""
    n: int = 0
    flag: bool = False


class Author:
    """Makes programs of a limited size.

    Args:
        luck: decides everything.
    """

    def __init__(self, luck: random.Random) -> None:
        self._luck = luck
        self._left = luck.choice((6, 10, 16, MAX_NODES))
        self._locked = False
        self._ids = 0

    def program(self) -> Node:
        """A whole one."""
        kids = tuple(self._make(0) for _ in range(self._luck.randint(2, 4)))
        return self._node("seq", kids=kids, flag=self._luck.random() < 0.3)

    def _node(self, op: str, **fields: Any) -> Node:
        self._ids += 1
        self._left -= 1
        return Node(op=op, id=self._ids, **fields)

    def _coin(self, chance: float = 0.5) -> bool:
        return self._luck.random() < chance

    def _some(self, depth: int, least: int, most: int) -> tuple[Node, ...]:
        return tuple(self._make(depth + 1) for _ in range(self._luck.randint(least, most)))

    def _make(self, depth: int) -> Node:
        luck = self._luck
        if self._left <= 0 or depth >= MAX_DEPTH or self._coin(0.42):
            return self._leaf()
        match luck.choices(
            ("gather", "group", "race", "completed", "seq", "catch", "tidy", "saga", "pick",
             "spawn", "lock", "until"),
            (5, 4, 5, 3, 4, 3, 4, 2, 3, 1, 1, 1),
        )[0]:  # fmt: skip
            case "gather" | "group" | "race" | "completed" as op:
                return self._node(op, kids=self._some(depth, 2, 4), flag=self._coin(0.4))
            case "seq":
                return self._node("seq", kids=self._some(depth, 2, 4))
            case "catch":
                return self._node("catch", kids=self._some(depth, 1, 2), flag=self._coin(0.4))
            case "tidy":
                return self._node("tidy", kids=self._some(depth, 2, 2), flag=self._coin(0.8))
            case "saga":
                return self._node("saga", kids=self._some(depth, 2, 4))
            case "pick":
                return self._node("pick", kids=self._some(depth, 2, 3))
            case "until":
                return self._node(
                    "until", kids=self._some(depth, 0, 1), n=luck.choice((-10, 1, 5, 30, 100))
                )
            case "lock":
                return self._lock(depth)
            case _:
                return self._node("spawn", kids=self._some(depth, 1, 1))

    def _lock(self, depth: int) -> Node:
        if self._locked:  # one within the other is a deadlock some day
            return self._leaf()
        self._locked = True
        kids = self._some(depth, 1, 1)
        self._locked = False
        return self._node("lock", kids=kids, n=self._luck.randrange(2))

    def _leaf(self) -> Node:
        luck = self._luck
        match luck.choices(
            ("step", "bump", "sleep", "gate", "decide", "emit", "patched", "hop", "nudge", "poll",
             "raise", "until"),
            (12, 4, 2, 2, 2, 1, 1, 1, 2, 0.5, 0.5, 0.7),
        )[0]:  # fmt: skip
            case "step":
                return self._step()
            case "sleep":
                return self._node("sleep", n=luck.choice((0, 1, 10, 50, 300)))
            case "gate":
                return self._node(
                    "gate", name=luck.choice(GATES), n=luck.choice((0, 0, 5, 50, 1000))
                )
            case "until":
                return self._node("until", n=luck.choice((-10, 1, 5, 30, 100)))
            case "bump":
                return self._node("bump", n=luck.randint(1, 3))
            case op:
                return self._node(op, n=luck.randrange(4))

    def _step(self) -> Node:
        kind = self._luck.choice(_LIKELY)
        step = self._node("step", name=kind, n=self._luck.randrange(FLAVOURS), flag=self._coin())
        if kind in ABLE_TO_FAIL and self._coin(0.7):
            return self._node("catch", kids=(step,))
        return step


def make_program(luck: random.Random) -> Node:
    """A random program."""
    return Author(luck).program()
