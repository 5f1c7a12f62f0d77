"""The fleet's own code under simulated faults: rules S1 to S23 and L1 to L10.

``make simulate SECONDS=60 SEED=1`` runs more of it; see `tests.simulation.rig.simulate`.
"""

from __future__ import annotations

import pytest

from tests.simulation.rig.corpus import CORPUS, calm, kill_everywhere
from tests.simulation.rig.jobs import Job
from tests.simulation.rig.run import Plan, Report, run
from tests.simulation.rig.shrink import shrink
from tests.simulation.rig.simulate import explain, find_canary, same_elsewhere

SEEDS = 40
CHUNK = 4

# a process that is killed leaves what it was about to await
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.timeout(300),
]


def told(plan: Plan, report: Report) -> str:
    """What went wrong, and how to see it again."""
    return "\n".join((f"{plan}", *explain(plan, report)))


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_rule_is_broken(first: int) -> None:
    """Whatever is killed, lost, doubled, late or cut off."""
    for seed in range(first, first + CHUNK):
        plan = Plan(seed=seed)
        report = run(plan)
        assert not report.violations, told(plan, report)


@pytest.mark.parametrize("job", CORPUS, ids=lambda job: job.id)
def test_each_program_comes_to_its_end(job: Job) -> None:
    """With nothing in its way, and by the main path alone (L7)."""
    plan = calm(job)
    report = run(plan)
    assert not report.violations, told(plan, report)
    assert not report.goals["takeover"]


@pytest.mark.parametrize("name", ["two steps", "a sleep", "a gate"])
def test_a_process_may_die_at_any_step(name: str) -> None:
    """F7, F9: each worker, dispatcher and timer service, before each of its steps."""
    job = next(each for each in CORPUS if each.id == name)
    deaths = 0
    for place, at, report in kill_everywhere(job, every=2):
        assert not report.violations, (place, at, told(calm(job, {place: at}), report))
        deaths += report.goals["killed"]
    assert deaths > 30


def test_a_planted_fault_is_found() -> None:
    """A park that now and then forgets its timer is found, and made small."""
    tries = find_canary(1)
    assert tries is not None
    plan = Plan(seed=tries, broken=True)
    report = run(plan)
    rule = report.violations[0].rule
    assert rule == "S22"
    small = shrink(plan, report, rule, budget=12)
    assert any(each.rule == rule for each in small.report.violations)
    assert _weight(small.report) < _weight(report)
    again = run(small.plan)
    assert again.digest == small.report.digest


def _weight(report: Report) -> int:
    return sum(1 for draws in report.draws.values() for draw in draws if draw)


def test_a_seed_is_a_run() -> None:
    """The same seed, the same run: here, from its tape, and under another hash seed."""
    report = run(Plan(seed=7))
    assert run(Plan(seed=7)).digest == report.digest
    assert run(Plan(recorded=report.draws)).digest == report.digest
    assert same_elsewhere(7)
    assert run(Plan(seed=8)).digest != report.digest
