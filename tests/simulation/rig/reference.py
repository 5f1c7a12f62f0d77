"""What must come of a program, found without the engine: one instruction after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.simulation.rig.jobs import Job, Node

ERRORS: Final = {
    "declines": "Declined",
    "fails": "ValueError",
    "exits": "StepFailedError",
    "unencodable": "CodecError",
}
"""What a flow gets from steps that fail."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What must come of an execution that is not cancelled.

    Attributes:
        value: what it returns; None when it fails.
        error: the name of the error that it fails with; empty when it does not.
        done: nodes whose effects must have come to their end.
        tried: nodes whose effects must have begun.
        undone: nodes that must have been undone, in this order.
        never: nodes whose effects must not have begun.
        asked: gates that must have been reached.
        cancellable: it may as well end cancelled.
    """

    value: list[Any] | None
    error: str
    done: frozenset[int]
    tried: frozenset[int]
    undone: tuple[int, ...]
    never: frozenset[int]
    asked: frozenset[int]
    cancellable: bool


class _FailedError(Exception):
    """A program's error."""


class _Interpreter:
    def __init__(self, job: Job) -> None:
        self._answers = {answer.node for answer in job.answers}
        self.done: set[int] = set()
        self.tried: set[int] = set()
        self.undone: list[int] = []
        self.asked: set[int] = set()

    def do(self, node: Node) -> Any:
        method: Callable[[Node], Any] = getattr(self, f"_{node.op}")
        return method(node)

    def _seq(self, node: Node) -> list[Any]:
        return [self.do(kid) for kid in node.kids]

    def _gather(self, node: Node) -> list[Any]:
        return [self._caught(kid) for kid in node.kids]

    def _catch(self, node: Node) -> Any:
        return self._caught(node.kids[0])

    def _tidy(self, node: Node) -> Any:
        try:
            return self.do(node.kids[0])
        finally:
            self._finish(node)

    def _sleep(self, _node: Node) -> str:
        return "slept"

    def _gate(self, node: Node) -> Any:
        self.asked.add(node.id)
        return answer_to(node.id) if node.id in self._answers else "nobody"

    def _decide(self, node: Node) -> int:
        return node.id

    def _emit(self, _node: Node) -> str:
        return "emitted"

    def _patched(self, _node: Node) -> str:
        return "True"

    def _caught(self, node: Node) -> Any:
        try:
            return self.do(node)
        except _FailedError as error:
            return str(error)

    def _step(self, node: Node) -> int:
        self.tried.add(node.id)
        if node.kind in ERRORS:
            raise _FailedError(ERRORS[node.kind])
        return self._finish(node)

    def _finish(self, node: Node) -> int:
        self.tried.add(node.id)
        self.done.add(node.id)
        return node.id * 10

    def _saga(self, node: Node) -> list[Any]:
        values: list[Any] = []
        armed: list[int] = []
        try:
            for kid in node.kids:
                values.append(self.do(kid))
                armed.append(kid.id)
                values.append(self._finish(kid))
        except _FailedError:
            self.undone += reversed(armed)
            raise
        return values


def answer_to(gate: int) -> int:
    """What a gate is answered with."""
    return gate * 1000


def expected(job: Job) -> Expected:
    """What must come of a job."""
    interpreter = _Interpreter(job)
    value: list[Any] | None = None
    error = ""
    try:
        value = interpreter.do(job.program)
    except _FailedError as failed:
        error = str(failed)
    return Expected(
        value=value,
        error=error,
        done=frozenset(interpreter.done),
        tried=frozenset(interpreter.tried),
        undone=tuple(interpreter.undone),
        never=frozenset(_all(job.program)) - interpreter.tried,
        asked=frozenset(interpreter.asked),
        cancellable=job.cancel > 0,
    )


def _all(node: Node) -> list[int]:
    return [node.id, *(each for kid in node.kids for each in _all(kid))]
