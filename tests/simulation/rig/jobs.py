"""Work for a simulated fleet: programs whose outcome is determined, whatever happens to it.

A program is a tree of instructions; the flow `simulated` plays the one of its execution. What a
step does is a function of its instruction, so `reference` can say what must come of a program
without knowing anything of the engine.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tests.simulation.rig.choices import Choices

KINDS: Final = (
    "work",
    "plain",
    "declines",
    "fails",
    "flaky",
    "sluggish",
    "careful",
    "exits",
    "unencodable",
    "stubborn",
)
"""Of steps; see `effects`."""
FAILING: Final = frozenset({"declines", "fails", "exits", "unencodable"})
_LIKELY: Final = ("work",) * 5 + ("plain", "flaky", "careful") + KINDS
SLEEPS: Final = (1, 1, 50, 50, 500, 500, 2_000, 2_000, 10_000, 60_000)
"""Milliseconds."""
TENANTS: Final = ("default", "default", "default", "other/tenant:ü")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction.

    Attributes:
        op: which; a method of `player.Player`.
        id: its number; the steps and gates of a program differ by it.
        kids: instructions within.
        kind: of a step.
        n: milliseconds, or how often it fails at first.
    """

    op: str
    id: int
    kids: tuple[Node, ...] = ()
    kind: str = ""
    n: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the client does about a gate.

    Attributes:
        node: the gate's instruction.
        early: it is sent as soon as the execution is admitted.
        twice: the same answer is sent again, under its id.
        wrong: an answer of another type is sent before.
    """

    node: int
    early: bool = False
    twice: bool = False
    wrong: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One execution, and what its client does.

    Attributes:
        answers: to its gates; a gate without one times out.
        cancel: seconds after its start at which it is cancelled; 0 for never.
        delay: seconds until it is started.
        twice: it is started a second time, under the same id.
        other: it is started a second time with another input, which must be refused.
        again: a step in doubt is to run again; else it is said to have completed.
    """

    id: str
    tenant: str
    program: Node
    answers: tuple[Answer, ...] = ()
    cancel: float = 0.0
    delay: float = 0.0
    twice: bool = False
    other: bool = False
    again: bool = False


class Work(msgspec.Struct, frozen=True):
    """All of a run's executions."""

    jobs: tuple[Job, ...]


def make_work(choices: Choices, size: int) -> Work:
    """Random work; an execution's program does not depend on how many there are."""
    return Work(tuple(_make_job(choices, number) for number in range(size)))


def _make_job(choices: Choices, number: int) -> Job:
    author = _Author(choices, 2 + choices.pick("size", 8))
    program = author.program()
    answers = tuple(
        Answer(
            node=gate.id,
            early=choices.chance("early", 0.3),
            twice=choices.chance("twice", 0.2),
            wrong=choices.chance("wrong", 0.2),
        )
        for gate in author.gates
        if not gate.n
    )
    return Job(
        id=f"e{number}",
        tenant=TENANTS[choices.pick("tenant", len(TENANTS))],
        program=program,
        answers=answers,
        cancel=0.05 + choices.delay("cancel", 20.0) if choices.chance("cancel", 0.15) else 0.0,
        delay=choices.delay("start", 20.0) if choices.chance("delayed", 0.5) else 0.0,
        twice=choices.chance("start-twice", 0.2),
        other=choices.chance("start-other", 0.1),
        again=choices.chance("again", 0.5),
    )


class _Author:
    """Makes programs of a limited size."""

    def __init__(self, choices: Choices, size: int) -> None:
        self.gates: list[Node] = []
        self._choices = choices
        self._left = size
        self._made = 0

    def program(self) -> Node:
        kids = [self._make(0)]
        while self._left > 0:
            kids.append(self._make(0))
        return self._node("seq", kids=tuple(kids))

    def _node(self, op: str, *, kids: tuple[Node, ...] = (), kind: str = "", n: int = 0) -> Node:
        self._made += 1
        return Node(op=op, id=self._made, kids=kids, kind=kind, n=n)

    def _pick(self, kind: str, *values: str) -> str:
        return values[self._choices.pick(kind, len(values))]

    def _make(self, depth: int) -> Node:
        self._left -= 1
        if depth >= 3 or self._left <= 0 or not self._choices.chance("branch", 0.35):
            return self._leaf()
        op = self._pick("op", "gather", "gather", "seq", "catch", "saga", "tidy")
        count = 1 if op in ("catch", "tidy") else 2 + self._choices.pick("kids", 2)
        return self._node(op, kids=tuple(self._make(depth + 1) for _ in range(count)))

    def _leaf(self) -> Node:
        op = self._pick(
            "leaf", "step", "step", "step", "step", "step", "sleep", "gate", "decide", "emit",
            "patched",
        )  # fmt: skip
        if op == "step":
            return self._step()
        if op == "sleep":
            return self._node("sleep", n=SLEEPS[self._choices.pick("ms", len(SLEEPS))])
        if op == "gate":
            gate = self._node("gate", n=700 if self._choices.chance("timeout", 0.3) else 0)
            self.gates.append(gate)
            return gate
        return self._node(op)

    def _step(self) -> Node:
        kind = _LIKELY[self._choices.pick("kind", len(_LIKELY))]
        step = self._node("step", kind=kind, n=1 + self._choices.pick("failures", 2))
        if kind in FAILING and not self._choices.chance("escapes", 0.2):
            return self._node("catch", kids=(step,))
        return step
