"""The simulator's observers see replies that are not so: S14, S15, S21, S23.

Each rule has histories that break it, which must be seen, and one that comes near and does not.
"""

from __future__ import annotations

from typing import Final

import pytest

import loom_mq as loom
from loom_mq.model import events as ev
from loom_mq.model.execution import Status
from loom_mq.model.failures import Failure
from loom_mq.model.messages import (
    Cause,
    ControlItem,
    ControlMessage,
    ControlOp,
    Package,
    PackageMessage,
    RefusalReason,
    StartItem,
    StartMessage,
)
from tests.simulation.rig.bench import KEY, RESULT, Bench, answer, gate, step
from tests.simulation.rig.jobs import Answer, Node
from tests.simulation.rig.player import simulated
from tests.simulation.rig.stories import Stories, Story, must_be_fine, must_be_seen, name_of

TOLD: Final = Stories()
DONE: Final = ev.ExecutionCompleted(RESULT)
FAILURE: Final = Failure("ValueError", "builtins", "no")


def failed(error_type: str) -> loom.ExecutionFailedError:
    """What a client hears of a failure."""
    return loom.ExecutionFailedError("it failed", error_type=error_type)


# ---- S14: what was accepted is taken -------------------------------------------------------------


def answered(bench: Bench, *, taken: bool) -> None:
    """A gate is answered, and its flow goes on."""
    bench.start()
    bench.park(gate())
    bench.deliver(answer())
    bench.told("answer-accepted", ("answer 1", loom.Answered.STORED))
    bench.claim("a", 1)
    more = ev.AnswerTaken("0", "gate 1", b"7", "answer 1", 1)
    events = [ev.ExecutionResumed((), 1), *([more] if taken else [])]
    bench.write(*events, fence=2, consume=("answer 1",) if taken else ())
    result = simulated.result_codec.encode([1000], what="result")
    bench.write(ev.ExecutionCompleted(result), fence=2)
    bench.told("completed", [1000])
    bench.ended(Node(op="gate", id=1), answers=(Answer(node=1),))


@TOLD.keeps("S14")
def an_answer_is_taken(bench: Bench) -> None:
    answered(bench, taken=True)


@TOLD.breaks("S14")
def an_answer_was_accepted_and_is_not_taken(bench: Bench) -> None:
    answered(bench, taken=False)


# ---- S15: nobody is told what is not so ----------------------------------------------------------


@TOLD.keeps("S15")
def clients_see_it_go_on_and_end(bench: Bench) -> None:
    bench.start()
    bench.told("saw", Status.PENDING)
    bench.told("saw", Status.RUNNING)
    bench.write(DONE)
    bench.told("saw", Status.RUNNING)
    bench.told("completed", [10])
    bench.told("saw", Status.COMPLETED)
    bench.told("cancel-refused")
    bench.told("answer-refused", ("answer 1", RefusalReason.TERMINAL))


@TOLD.breaks("S15")
def an_end_that_is_not_there(bench: Bench) -> None:
    bench.start()
    bench.told("completed", [10])


@TOLD.breaks("S15")
def another_end(bench: Bench) -> None:
    bench.start(DONE)
    bench.told("cancelled")


@TOLD.breaks("S15")
def another_value(bench: Bench) -> None:
    bench.start(DONE)
    bench.told("completed", [11])


@TOLD.breaks("S15")
def another_error(bench: Bench) -> None:
    bench.start(ev.ExecutionFailed(FAILURE))
    bench.told("failed", failed("KeyError"))


@TOLD.breaks("S15")
def an_end_is_taken_back(bench: Bench) -> None:
    bench.start(DONE)
    bench.told("completed", [10])
    bench.told("saw", Status.RUNNING)


@TOLD.breaks("S15")
def an_end_is_seen_before_it_is_there(bench: Bench) -> None:
    bench.start()
    bench.told("saw", Status.COMPLETED)


@TOLD.breaks("S15")
def an_answer_is_said_to_be_taken(bench: Bench) -> None:
    bench.start()
    bench.deliver(answer())
    bench.told("answer-accepted", ("answer 1", loom.Answered.TAKEN))


@TOLD.breaks("S15")
def it_is_said_to_have_ended(bench: Bench) -> None:
    bench.start()
    bench.told("cancel-refused")


@TOLD.breaks("S15")
def an_answer_comes_too_late_they_say(bench: Bench) -> None:
    bench.start()
    bench.told("answer-refused", ("answer 1", RefusalReason.TERMINAL))


@TOLD.breaks("S15")
def two_inputs_share_an_id(bench: Bench) -> None:
    bench.start()
    bench.told("no-conflict")


# ---- S21: what is settled is durable -------------------------------------------------------------

START: Final = StartMessage(items=(StartItem(id=KEY.execution_id, flow="simulated"),))
PACKAGE: Final = PackageMessage(
    1, (Package(KEY.tenant, KEY.execution_id, "simulated", "1", 0, Cause.START),)
)


def control(op: ControlOp) -> ControlMessage:
    """A request about the execution."""
    return ControlMessage(items=(ControlItem(op=op, id=KEY.execution_id, item_id="answer 1"),))


@TOLD.keeps("S21")
def all_is_durable_when_it_is_settled(bench: Bench) -> None:
    bench.acked(control(ControlOp.RESUME), "control")  # there is nothing that could take it
    bench.start()
    bench.acked(START, "start")
    bench.acked(PACKAGE, "packages")
    bench.acked(control(ControlOp.STATE), "control")
    bench.deliver(answer())
    bench.acked(control(ControlOp.RESUME), "control")
    bench.write(DONE)
    bench.acked(control(ControlOp.CANCEL), "control")


@TOLD.breaks("S21")
def a_start_is_settled_and_not_admitted(bench: Bench) -> None:
    bench.acked(START, "start")


@TOLD.breaks("S21")
def a_package_is_settled_and_not_claimed(bench: Bench) -> None:
    bench.admit()
    bench.acked(PACKAGE, "packages")


@TOLD.breaks("S21")
def an_answer_is_settled_and_not_there(bench: Bench) -> None:
    bench.start()
    bench.acked(control(ControlOp.RESUME), "control")


@TOLD.breaks("S21")
def a_cancel_is_settled_and_not_there(bench: Bench) -> None:
    bench.start()
    bench.deliver(answer())
    bench.acked(control(ControlOp.CANCEL), "control")


# ---- S23: nothing comes of what is not there -----------------------------------------------------


@TOLD.keeps("S23")
def a_start_was_accepted(bench: Bench) -> None:
    bench.admit()
    bench.told("accepted-start")


@TOLD.breaks("S23")
def a_start_was_accepted_and_is_not_there(bench: Bench) -> None:
    bench.told("accepted-start")


@TOLD.breaks("S23")
def an_effect_of_nobody(bench: Bench) -> None:
    bench.effect()


@TOLD.breaks("S23")
def a_job_is_not_there_in_the_end(bench: Bench) -> None:
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
    assert TOLD.rules == {"S14", "S15", "S21", "S23"}
