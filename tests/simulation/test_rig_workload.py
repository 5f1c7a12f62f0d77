"""The simulator's work and its oracle, on a fleet to which nothing happens: K2, K4 to K7, K13, K15.

Before the oracle may judge a fleet in trouble it must agree with one that is well.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from itertools import count
from types import ModuleType
from typing import Final

import msgspec
import pytest

import loom_mq as loom
from tests.simulation.rig import jobs, reference
from tests.simulation.rig.broker import BrokerFaults
from tests.simulation.rig.chaos import Weather
from tests.simulation.rig.choices import Tape
from tests.simulation.rig.corpus import CORPUS
from tests.simulation.rig.effects import STEPS
from tests.simulation.rig.jobs import KINDS, Answer, Job, Node, Work, make_work
from tests.simulation.rig.plain import OUTCOMES, complaints, every, play, problems
from tests.simulation.rig.reference import expected
from tests.simulation.rig.run import Plan, run

JOBS: Final = 60
SEEDS: Final = 5

# what a cancelled flow has made it need not await
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


# ---- the fleet and the oracle agree --------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1])
def test_the_corpus_ends_as_the_reference_says(seed: int | None) -> None:
    """Each of its programs, with clients at their most punctual and with others."""
    work = Work(CORPUS)
    assert not complaints(work, play(work, seed))


def test_generated_work_ends_as_the_reference_says() -> None:
    """Some hundreds of programs, those that are cancelled included."""
    told: Counter[str] = Counter()
    for seed in range(SEEDS):
        work = make_work(Tape(seed).stream("workload"), JOBS)
        seen = play(work, seed)
        assert not complaints(work, seen), seed
        told.update(each.what for heard in seen.heard.values() for each in heard)
    for what in (*OUTCOMES, "answer-accepted", "answer-refused", "conflict"):
        assert told[what], (what, told)
    assert not told["no-conflict"]


def test_a_seed_is_the_same_work_and_the_same_run() -> None:
    """Nothing is left to chance but by choices, and more jobs do not change those before."""
    work = make_work(Tape(3).stream("workload"), 20)
    assert make_work(Tape(3).stream("workload"), 20) == work
    assert make_work(Tape(3).stream("workload"), 7).jobs == work.jobs[:7]
    assert play(work, 3).order == play(work, 3).order


def test_clients_hear_how_it_ended_although_messages_are_lost() -> None:
    """F2, K7: they ask again under the same id, and nothing happens twice by it."""
    weather = Weather(lasts=60.0, broker=BrokerFaults(lost=0.2, unconfirmed=0.2, doubled=0.2))
    report = run(Plan(seed=5, executions=30, weather=weather))
    assert not report.violations
    assert report.goals["publish-lost"] > 20
    assert report.goals["confirm-lost"] > 20


# ---- the oracle is right, and it is sharp --------------------------------------------------------

_numbers = count(1)


def op(op: str, *kids: Node, kind: str = "", n: int = 0, id: int = 0) -> Node:
    """An instruction."""
    return Node(op=op, id=id or 100 + next(_numbers), kids=kids, kind=kind, n=n)


def step(id: int, kind: str = "work") -> Node:
    """A step."""
    return op("step", id=id, kind=kind, n=1)


def job(*kids: Node, answers: tuple[Answer, ...] = ()) -> Job:
    """An execution."""
    return Job(id="by hand", tenant="default", program=op("seq", *kids), answers=answers)


BY_HAND: Final[dict[str, tuple[Job, list[object] | None, str, set[int], tuple[int, ...]]]] = {
    "one after the other": (job(step(1), step(2)), [10, 20], "", {1, 2}, ()),
    "what fails ends it": (job(step(1), step(2, "fails"), step(3)), None, "ValueError", {1}, ()),
    "a typed failure": (job(op("catch", step(1, "declines"))), ["Declined"], "", set(), ()),
    "no exit": (job(op("catch", step(1, "exits")), step(2)), ["StepFailedError", 20], "", {2}, ()),
    "at last": (job(step(1, "flaky"), step(2, "sluggish")), [10, 20], "", {1, 2}, ()),
    "side by side": (
        job(op("gather", step(1), step(2, "fails"), step(3))),
        [[10, "ValueError", 30]],
        "",
        {1, 3},
        (),
    ),
    "undone, last one first": (
        job(op("catch", op("saga", step(1), step(2), step(3, "declines"), step(4)))),
        ["Declined"],
        "",
        {1, 2},
        (2, 1),
    ),
    "not undone": (job(op("saga", step(1), step(2))), [[10, 10, 20, 20]], "", {1, 2}, ()),
    "one within the other": (
        job(op("saga", op("saga", step(1), id=5), step(2, "fails"))),
        None,
        "ValueError",
        {1, 5},
        (5,),
    ),
    "tidied up all the same": (
        job(op("catch", op("tidy", step(1, "fails"), id=7))),
        ["ValueError"],
        "",
        {7},
        (),
    ),
    "answered": (
        job(op("gate", id=4), op("gate", id=5, n=50), answers=(Answer(node=4),)),
        [4000, "nobody"],
        "",
        set(),
        (),
    ),
    "the rest": (
        job(op("sleep", n=5), op("decide", id=2), op("emit"), op("patched")),
        ["slept", 2, "emitted", "True"],
        "",
        set(),
        (),
    ),
}
"""Programs, and what a reader says must come of them: value, error, effects done, undone."""


@pytest.mark.parametrize("name", BY_HAND)
def test_the_reference_says_what_a_reader_says(name: str) -> None:
    """And the fleet says so too."""
    program, value, error, done, undone = BY_HAND[name]
    wanted = expected(program)
    assert (wanted.value, wanted.error) == (value, error)
    assert (set(wanted.done), wanted.undone) == (done, undone)
    work = Work((program,))
    assert not complaints(work, play(work, None))


def test_another_end_would_be_seen() -> None:
    """Whatever is changed in what was expected of a run, the run does not agree with it."""
    program = job(step(1), op("catch", op("saga", step(2), step(3), step(4, "fails"))), step(5))
    seen, wanted = play(Work((program,)), None), expected(program)
    assert not list(problems(program, wanted, seen))
    changes: dict[str, object] = {
        "value": [10, "ValueError", 51],
        "error": "ValueError",
        "done": wanted.done - {3},
        "tried": wanted.tried | {6},
        "undone": (2, 3),
        "never": frozenset({5}),
    }
    for field, value in changes.items():
        other = msgspec.structs.replace(wanted, **{field: value})
        assert list(problems(program, other, seen)), field


def test_the_reference_knows_nothing_of_the_engine() -> None:
    """It could not agree with a mistake of the code that it judges."""
    modules: list[ModuleType] = [reference, jobs]
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            assert not [name for name in names if name.startswith("loom_mq")], module.__name__


def test_generated_work_holds_all_there_is() -> None:
    """Every instruction and every kind of step, in what a minute simulates and in the corpus."""
    made = make_work(Tape(0).stream("workload"), 300)
    for work in (made, Work(CORPUS)):
        found = [node for each in work.jobs for node in every(each.program)]
        assert {node.kind for node in found if node.op == "step"} == set(KINDS)
        assert {node.op for node in found} == {
            "seq", "step", "catch", "sleep", "decide", "emit", "patched", "gather", "saga", "tidy",
            "gate",
        }  # fmt: skip
    assert set(STEPS) | {"careful"} == set(KINDS)
    assert len({each.id for each in CORPUS}) == len(CORPUS) >= 40
    assert all(isinstance(each, loom.Step) for each in STEPS.values())
