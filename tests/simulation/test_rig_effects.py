"""The simulator's observers see effects that should not be: S9 to S13, S18, L1.

Each rule has histories that break it, which must be seen, and one that comes near and does not.
"""

from __future__ import annotations

from typing import Final

import pytest

import loom_mq as loom
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import InboxItem, InboxKind
from loom_mq.model.failures import Failure
from loom_mq.model.verdicts import VerdictKind
from tests.simulation.rig.bench import KEY, RESULT, Bench, cancel, step
from tests.simulation.rig.jobs import Node
from tests.simulation.rig.stories import Stories, Story, must_be_fine, must_be_seen, name_of

TOLD: Final = Stories()
DONE: Final = ev.ExecutionCompleted(RESULT)
FAILURE: Final = Failure("ValueError", "builtins", "no")


def started(name: str = "work", attempt: int = 1, *, once: bool = False) -> ev.StepStarted:
    """A step's beginning on the log."""
    return ev.StepStarted("0", name, attempt, 0, once)


def completed() -> ev.StepCompleted:
    """A step's end on the log."""
    return ev.StepCompleted("0", b"", 1)


# ---- S9: no effect begins whose end is durable ---------------------------------------------------


@TOLD.keeps("S9")
def a_step_runs_and_ends(bench: Bench) -> None:
    bench.start(started())
    bench.ran()
    bench.write(completed(), DONE)


@TOLD.keeps("S9")
def who_was_superseded_asleep_does_not_know(bench: Bench) -> None:
    bench.start(started())
    bench.wait(6.0)
    bench.claim("b", 1)
    bench.write(ev.ExecutionRecovered("b", 2), by="b", fence=2)
    bench.ran(by="b")
    bench.write(completed(), by="b", fence=2)
    bench.ran(by="a")


@TOLD.breaks("S9")
def it_begins_after_its_end(bench: Bench) -> None:
    bench.start(started(), completed())
    bench.effect()


@TOLD.breaks("S9")
def it_begins_after_the_end_of_all(bench: Bench) -> None:
    bench.start(DONE)
    bench.effect()


@TOLD.breaks("S9")
def its_end_is_written_twice(bench: Bench) -> None:
    bench.start(started(), completed(), completed())
    bench.ended(step())


# ---- S10: once in a tenure, and once more for each retry -----------------------------------------


@TOLD.keeps("S10")
def it_is_tried_again(bench: Bench) -> None:
    bench.start(started("flaky"))
    bench.ran("flaky#1", "ValueError")
    bench.ran("flaky#1", attempt=2)


@TOLD.keeps("S10")
def it_runs_again_after_a_death(bench: Bench) -> None:
    bench.start(started())
    bench.effect()
    bench.wait(6.0)
    bench.claim("b", 1)
    bench.ran(by="b", attempt=2)


@TOLD.keeps("S10")
def a_straggler_was_aborted_at_a_park(bench: Bench) -> None:
    bench.start(started())
    effect = bench.effect()
    bench.eyes.ended(effect, "CancelledError")
    bench.park(bench.sleep(place="1"))
    bench.wake()
    bench.ran()


@TOLD.breaks("S10")
def it_runs_twice_at_once(bench: Bench) -> None:
    bench.start(started())
    bench.effect()
    bench.effect()


@TOLD.breaks("S10")
def it_runs_twice_for_one_holder(bench: Bench) -> None:
    bench.start(started())
    bench.ran()
    bench.ran(attempt=2)


@TOLD.breaks("S10")
def it_is_tried_again_against_its_policy(bench: Bench) -> None:
    bench.start(started("fails"))
    bench.ran("fails#1", "ValueError")
    bench.ran("fails#1", attempt=2)


@TOLD.breaks("S10")
def an_attempt_is_made_twice(bench: Bench) -> None:
    bench.start(started("flaky"))
    bench.ran("flaky#1", "ValueError")
    bench.ran("flaky#1")


@TOLD.breaks("S10")
def a_park_forgets_what_had_ended(bench: Bench) -> None:
    bench.start(started())
    bench.ran()
    bench.park(bench.sleep(place="1"))
    bench.wake()
    bench.effect()


@TOLD.breaks("S10")
def it_runs_where_nobody_took_it(bench: Bench) -> None:
    bench.start(started())
    bench.effect(by="b")


# ---- S11: what must not run twice does not, unless somebody says so ------------------------------


def doubted(bench: Bench, verdict: VerdictKind) -> None:
    """A careful step's holder dies, and an operator says how it is to be taken."""
    bench.start(started("careful1", once=True))
    bench.effect("careful1#1")
    bench.wait(6.0)
    bench.claim("b", 1)
    bench.write(ev.ExecutionRecovered("b", 2), by="b", fence=2)
    doubt = Wait("0?1", WaitKind.VERDICT, "careful1")
    bench.write(ev.EffectInDoubt("0", "careful1", 1), by="b", fence=2)
    bench.park(doubt, by="b", fence=2)
    item = InboxItem(
        tenant=KEY.tenant, execution_id=KEY.execution_id, item_id="v", gate="careful1",
        kind=InboxKind.VERDICT,
    )  # fmt: skip
    bench.deliver(item)
    bench.claim("b", 2)
    taken = ev.VerdictTaken("0", verdict, "", "v")
    more = [started("careful1", 2, once=True)] if verdict is VerdictKind.RUN_AGAIN else []
    resumed = ev.ExecutionResumed((), 1)
    bench.write(resumed, taken, *more, by="b", fence=3, consume=("v",))


@TOLD.keeps("S11")
def somebody_says_that_it_may_run_again(bench: Bench) -> None:
    doubted(bench, VerdictKind.RUN_AGAIN)
    bench.ran("careful1#1", by="b", attempt=2)


@TOLD.breaks("S11")
def somebody_says_that_it_is_done(bench: Bench) -> None:
    doubted(bench, VerdictKind.COMPLETED)
    bench.effect("careful1#1", by="b", attempt=2)


@TOLD.breaks("S11")
def it_runs_again_unasked(bench: Bench) -> None:
    bench.start(started("careful1", once=True))
    bench.effect("careful1#1")
    bench.wait(6.0)
    bench.claim("b", 1)
    again = started("careful1", 2, once=True)
    bench.write(ev.ExecutionRecovered("b", 2), again, by="b", fence=2)
    bench.effect("careful1#1", by="b", attempt=2)


@TOLD.breaks("S11")
def it_begins_before_its_beginning_is_durable(bench: Bench) -> None:
    bench.start()
    bench.effect("careful1#1")


# ---- S12, S13, S18, L1: what comes of a job is what must come of it ------------------------------


def ran_to_its_end(bench: Bench) -> None:
    """One step, and the end."""
    bench.start(started())
    bench.ran()
    bench.write(completed(), DONE)


@TOLD.keeps("S12")
def it_returns_what_it_should(bench: Bench) -> None:
    ran_to_its_end(bench)
    bench.told("completed", [10])
    bench.ended(step())


@TOLD.breaks("S12")
def it_returns_something_else(bench: Bench) -> None:
    ran_to_its_end(bench)
    bench.told("completed", [10])
    bench.ended(step(2))


@TOLD.breaks("S12")
def it_should_have_failed(bench: Bench) -> None:
    ran_to_its_end(bench)
    bench.told("completed", [10])
    bench.ended(step(1, "fails"))


@TOLD.breaks("S12")
def it_is_cancelled_and_nobody_asked(bench: Bench) -> None:
    bench.start()
    bench.deliver(cancel())
    asked = ev.CancelRequested("enough", "", 1)
    bench.write(asked, ev.ExecutionCancelled("enough"), consume=("cancel",))
    bench.told("cancelled")
    bench.ended(step())


@TOLD.keeps("S13")
def all_its_effects_happened(bench: Bench) -> None:
    it_returns_what_it_should(bench)


@TOLD.breaks("S13")
def an_effect_never_happened(bench: Bench) -> None:
    bench.start(started(), completed(), DONE)
    bench.ended(step())


@TOLD.breaks("S13")
def an_effect_happened_that_should_not(bench: Bench) -> None:
    bench.start(started())
    bench.ran("work#2")
    bench.ended(step(1, "fails"), step(2))


def failed(error_type: str) -> loom.ExecutionFailedError:
    """What a client hears of a failure."""
    return loom.ExecutionFailedError("it failed", error_type=error_type)


def undone(bench: Bench, *nodes: int) -> None:
    """A saga of two steps is undone in some order."""
    bench.start(*(ev.StepStarted(f"{place}", "work", 1) for place in range(4)))
    for place, node in enumerate((1, 1, 2, 2)):
        bench.ran(f"work#{node}", place=f"{place}")
    bench.ran("fails#3", "ValueError", place="9")
    for node in nodes:
        bench.ran(f"undo#{node}", place=f"u{node}")
    bench.write(ev.ExecutionFailed(FAILURE))
    bench.told("failed", failed("ValueError"))
    saga = Node(op="saga", id=9, kids=(step(1), step(2), step(3, "fails")))
    bench.ended(saga)


@TOLD.keeps("S18")
def the_last_is_undone_first(bench: Bench) -> None:
    undone(bench, 2, 1)


@TOLD.breaks("S18")
def the_first_is_undone_first(bench: Bench) -> None:
    undone(bench, 1, 2)


@TOLD.breaks("S18")
def one_is_not_undone(bench: Bench) -> None:
    undone(bench, 2)


@TOLD.keeps("L1")
def its_client_hears_of_its_end(bench: Bench) -> None:
    it_returns_what_it_should(bench)


@TOLD.breaks("L1")
def its_client_hears_nothing(bench: Bench) -> None:
    ran_to_its_end(bench)
    bench.ended(step())


# ---- the tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "story"), TOLD.breaking, ids=name_of)
def test_it_is_seen(rule: str, story: Story) -> None:
    """What breaks a rule is told under its name."""
    must_be_seen(rule, story)


@pytest.mark.parametrize(("rule", "story"), TOLD.keeping, ids=name_of)
def test_nothing_is_seen(rule: str, story: Story) -> None:
    """What comes near breaks nothing."""
    must_be_fine(story)


def test_every_rule_has_both() -> None:
    """None is held that is never seen to be broken, and none that anything breaks."""
    assert TOLD.rules == {"S9", "S10", "S11", "S12", "S13", "S18", "L1"}
