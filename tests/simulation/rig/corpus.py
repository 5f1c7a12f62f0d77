"""Small programs of every kind, for exhaustive kills: one process dies at each of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from tests.simulation.rig.chaos import Weather
from tests.simulation.rig.jobs import Answer, Job, Node, Work
from tests.simulation.rig.nodes import Shape
from tests.simulation.rig.run import Plan, Report, run

_numbers = count(1)
_SHAPE: Final = Shape(dispatchers=2, workers=2, timers=2, park_drain=0.02, backoff_park=0.5)


def op(op: str, *kids: Node, kind: str = "", n: int = 0) -> Node:
    """An instruction."""
    return Node(op=op, id=next(_numbers) % 60, kids=kids, kind=kind, n=n)


def step(kind: str = "work", n: int = 1) -> Node:
    """A step."""
    return op("step", kind=kind, n=n)


def caught(kind: str) -> Node:
    """A step that fails, and a flow that does not mind."""
    return op("catch", step(kind))


def _job(name: str, *kids: Node, cancel: float = 0.0, again: bool = False) -> Job:
    program = op("seq", *kids)
    gates = [node for node in _all(program) if node.op == "gate" and not node.n]
    return Job(
        id=name,
        tenant="default",
        program=program,
        answers=tuple(
            Answer(node=gate.id, early=index % 2 == 1, twice=index % 3 == 2)
            for index, gate in enumerate(gates)
        ),
        cancel=cancel,
        again=again,
    )


def _all(node: Node) -> Iterator[Node]:
    yield node
    for kid in node.kids:
        yield from _all(kid)


CORPUS: Final = (
    _job("one step", step()),
    _job("two steps", step(), step()),
    _job("four steps", step(), step(), step(), step()),
    _job("a plain step", step("plain"), step("plain")),
    _job("a typed failure", caught("declines"), step()),
    _job("an untyped failure", caught("fails"), step()),
    _job("a failure that escapes", step(), step("fails")),
    _job("a typed failure that escapes", step(), step("declines")),
    _job("a step that exits", caught("exits"), step()),
    _job("what cannot be stored", caught("unencodable"), step()),
    _job("tried again soon", step("flaky", 2)),
    _job("tried again later", step("sluggish", 2), step()),
    _job("must not run twice", step("careful"), step()),
    _job("must not run twice, and may", step("careful"), step(), again=True),
    _job("careful ones side by side", op("gather", step("careful"), step("careful"))),
    _job("a sleep", step(), op("sleep", n=700), step()),
    _job("two sleeps", op("sleep", n=300), op("sleep", n=300)),
    _job("a long sleep", op("sleep", n=20_000), step()),
    _job("a gate", step(), op("gate"), step()),
    _job("two gates", op("gate"), op("gate"), step()),
    _job("a gate that times out", op("gate", n=400), step()),
    _job("a gate side by side with a step", op("gather", op("gate"), step())),
    _job(
        "a sleep side by side with steps",
        op("gather", op("sleep", n=400), op("seq", step(), step())),
    ),
    _job("two sleeps side by side", op("gather", op("sleep", n=300), op("sleep", n=600)), step()),
    _job("decisions", op("decide"), op("emit"), op("patched"), step()),
    _job("side by side", op("gather", step(), step(), step())),
    _job("side by side, one fails", op("gather", step(), step("fails"), step("declines"))),
    _job("nested", op("gather", op("gather", step(), step()), op("seq", step(), step()))),
    _job("a saga that holds", op("saga", step(), step())),
    _job("a saga that is undone", op("catch", op("saga", step(), step(), step("fails")))),
    _job("a saga that escapes", op("saga", step(), step("declines"))),
    _job("a saga with a sleep", op("catch", op("saga", step(), op("sleep", n=300), step("fails")))),
    _job("tidied up", op("tidy", step()), step()),
    _job("cancelled in a step", step(), step(), step(), step(), step(), cancel=0.3),
    _job("cancelled in a sleep", step(), op("sleep", n=60_000), cancel=1.0),
    _job("cancelled at a gate", op("tidy", op("gate", n=60_000)), cancel=1.0),
    _job("cancelled and tidied up", op("tidy", op("sleep", n=60_000)), cancel=1.0),
    _job("cancelled while it is undone", op("saga", step(), op("sleep", n=60_000)), cancel=1.0),
    _job("cancelled with a stubborn step", op("gather", step("stubborn"), step()), cancel=0.2),
    _job("nothing at all", op("seq")),
)


def calm(job: Job, kill_at: dict[str, int] | None = None, *, seed: int = 0) -> Plan:
    """A run of one program in which nothing happens but, perhaps, one death."""
    return Plan(
        seed=seed,
        work=Work((job,)),
        shape=_SHAPE,
        weather=Weather(),
        kill_at=kill_at or {},
        prefixes=2,
    )


def kill_everywhere(job: Job, *, every: int = 1) -> Iterator[tuple[str, int, Report]]:
    """Kill the first process of each place before each of its steps.

    Args:
        job: the program.
        every: only each so-manieth step, to save time.

    Yields:
        The place, the step, and what came of it.
    """
    taken = run(calm(job)).taken
    for place, steps in taken.items():
        for at in range(1, steps + 1, every):
            yield place, at, run(calm(job, {place: at}))
