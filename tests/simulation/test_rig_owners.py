"""The simulator's observers see what is taken from the living, early, twice or never.

S14, S19, S20, S22 to S24, L2.

Each rule has histories that break it, which must be seen, and one that comes near and does not.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from loom_mq.errors import StaleFenceError
from loom_mq.journal.protocol import (
    AdmitVerdict,
    AppendVerdict,
    Claim,
    ClaimIntent,
    ClaimVerdict,
    DueTimer,
    Renewal,
    Runnable,
)
from loom_mq.model import events as ev
from tests.simulation.rig.bench import KEY, Bench, answer, cancel, gate
from tests.simulation.rig.stories import Stories, Story, must_be_fine, must_be_seen, name_of

TOLD: Final = Stories()


# ---- S14: mail is taken once, by what it is for --------------------------------------------------


def taken(item_id: str = "answer 1", wait: str = "0", turn: int = 1) -> ev.AnswerTaken:
    """A gate takes an answer."""
    return ev.AnswerTaken(wait, "gate 1", b"7", item_id, turn)


def parked_at_a_gate(bench: Bench, lie: object = None) -> None:
    """Parked, answered, and taken again by `a`."""
    bench.start()
    bench.park(gate())
    bench.deliver(answer(), lie=lie)
    bench.claim("a", 1)


@TOLD.keeps("S14")
def an_answer_is_taken(bench: Bench) -> None:
    parked_at_a_gate(bench)
    bench.deliver(answer())
    resumed = ev.ExecutionResumed((), 1)
    bench.write(resumed, taken(), fence=2, consume=("answer 1",))
    bench.deliver(answer())


@TOLD.keeps("S14")
def a_cancel_is_taken(bench: Bench) -> None:
    bench.start()
    bench.deliver(cancel())
    asked = ev.CancelRequested("enough", "", 1)
    bench.write(asked, ev.ExecutionCancelled("enough"), consume=("cancel",))


@TOLD.breaks("S14")
def an_answer_is_taken_that_nobody_gave(bench: Bench) -> None:
    bench.start()
    bench.write(taken(), consume=("answer 1",))


@TOLD.breaks("S14")
def an_answer_is_taken_twice(bench: Bench) -> None:
    parked_at_a_gate(bench)
    resumed = ev.ExecutionResumed((), 1)
    bench.write(resumed, taken(), taken(), fence=2, consume=("answer 1",))


@TOLD.breaks("S14")
def an_answer_is_taken_and_stays(bench: Bench) -> None:
    parked_at_a_gate(bench)
    bench.write(ev.ExecutionResumed((), 1), taken(), fence=2)


@TOLD.breaks("S14")
def another_gate_takes_it(bench: Bench) -> None:
    parked_at_a_gate(bench)
    other = ev.AnswerTaken("1", "gate 2", b"7", "answer 1", 1)
    bench.write(ev.ExecutionResumed((), 1), other, fence=2, consume=("answer 1",))


@TOLD.breaks("S14")
def a_wait_ends_by_its_time_and_by_an_answer(bench: Bench) -> None:
    bench.start()
    bench.park(gate(bench.clock.now()))
    bench.deliver(answer())
    bench.claim("a", 1)
    resumed = ev.ExecutionResumed(("0",), 1)
    bench.write(resumed, taken(turn=2), fence=2, consume=("answer 1",))


@TOLD.breaks("S14")
def it_is_cancelled_and_nobody_asked(bench: Bench) -> None:
    bench.start()
    bench.write(ev.CancelRequested("enough", "", 1))


@TOLD.breaks("S14")
def mail_is_lost(bench: Bench) -> None:
    bench.start()
    bench.deliver(answer())
    bench.entry.inbox.clear()
    bench.put(inbox=0)
    bench.write(ev.StepStarted("0", "work", 1))


@TOLD.breaks("S14")
def who_takes_it_is_told_of_no_mail(bench: Bench) -> None:
    bench.start()
    bench.park(gate())
    bench.deliver(answer())
    claim = Claim(key=KEY, owner="a", expected_fence=1)
    (verdict,) = bench.secretly("claim", [claim])
    silent = msgspec.structs.replace(verdict.claimed, inbox=())
    bench.say("claim", [claim], answer=[ClaimVerdict(silent)])


# ---- S19: nobody is superseded while he lives ----------------------------------------------------


@TOLD.keeps("S19")
def the_dead_are_superseded(bench: Bench) -> None:
    bench.start()
    bench.wait(4.0)
    bench.renew()
    bench.wait(4.0)
    bench.claim("b", 1)
    bench.wait(2.0)
    bench.renew()
    bench.claim("b", 1)


@TOLD.keeps("S19")
def the_wedged_are_superseded(bench: Bench) -> None:
    bench.admit()
    claim = ClaimIntent(owner="a", expected_fence=0, deadline=1.0)
    bench.write(ev.ExecutionStarted("simulated", "1", b""), claim=claim)
    bench.wait(2.0)
    bench.do("take_abandoned", limit=9, resend_after=5.0, max_recoveries=9, by="dispatcher")
    bench.claim("b", 1)


@TOLD.keeps("S19")
def a_lease_ends_with_its_holder(bench: Bench) -> None:
    bench.start()
    bench.do("lapse_if_gone", "a", by="dispatcher")
    bench.killed("a")
    bench.do("lapse_if_gone", "a", by="dispatcher")
    bench.claim("b", 1)


@TOLD.breaks("S19")
def the_living_are_superseded(bench: Bench) -> None:
    bench.start()
    claim = Claim(key=KEY, owner="b", expected_fence=1, preempt=True)
    verdicts = bench.secretly("claim", [claim])
    plain = msgspec.structs.replace(claim, preempt=False)
    bench.say("claim", [plain], by="b", answer=verdicts)


@TOLD.breaks("S19")
def it_is_swept_from_the_living(bench: Bench) -> None:
    bench.start()
    bench.say("take_abandoned", by="dispatcher", answer=[Runnable(bench.entry.row)])


@TOLD.breaks("S19")
def the_lease_of_the_living_is_ended(bench: Bench) -> None:
    bench.do("lapse_if_gone", "a", by="dispatcher", lie=True)


@TOLD.breaks("S19")
def a_lapsed_lease_is_renewed(bench: Bench) -> None:
    bench.wait(6.0)
    bench.renew(lie=Renewal(held=True, now=bench.clock.now()))


@TOLD.breaks("S19")
def a_running_lease_is_not_renewed(bench: Bench) -> None:
    bench.renew(lie=Renewal(held=False, now=bench.clock.now()))


# ---- S20: nothing is taken without a reason ------------------------------------------------------


@TOLD.keeps("S20")
def it_is_taken_for_each_reason(bench: Bench) -> None:
    bench.start()
    bench.park(bench.sleep())
    bench.wake()
    bench.do("defer", [KEY], "a", 0.0, [2])
    bench.do(
        "take_unsent", limit=9, resend_after=5.0, backoff_limit=9.0, queues=None, by="dispatcher"
    )
    bench.claim("b", 2)


@TOLD.breaks("S20")
def two_take_it_from_each_other(bench: Bench) -> None:
    bench.start()
    for fence in range(1, 5):
        owner = "ab"[fence % 2]
        bench.do("defer", [KEY], "ab"[1 - fence % 2], 0.0, [fence])
        bench.claim(owner, fence)


# ---- S22: a timer for each time, never early -----------------------------------------------------


@TOLD.keeps("S22")
def a_sleep(bench: Bench) -> None:
    bench.start()
    wait = bench.sleep()
    bench.park(wait)
    bench.do("due_timers", limit=10, hold=5.0, by="timer")
    bench.wake()
    bench.do("drop_timers", [(KEY, wait.due)], by="timer")
    bench.write(ev.ExecutionResumed(("0",), 1), fence=2)


@TOLD.keeps("S22")
def a_timer_that_was_lost_is_armed_again(bench: Bench) -> None:
    bench.start()
    wait = bench.sleep()
    bench.park(wait)
    bench.do("arm_timers", [(KEY, wait.due), (KEY, 5)], by="dispatcher")


@TOLD.breaks("S22")
def it_waits_without_a_timer(bench: Bench) -> None:
    bench.start()
    bench.park(bench.sleep(), timers=())


@TOLD.breaks("S22")
def its_timer_is_not_there(bench: Bench) -> None:
    bench.start()
    bench.park(bench.sleep())
    bench.entry.timers.clear()
    bench.deliver(answer())


@TOLD.breaks("S22")
def a_timer_without_a_park(bench: Bench) -> None:
    bench.start()
    bench.write(ev.StepStarted("0", "work", 1), timers=(bench.clock.now(),))


@TOLD.breaks("S22")
def a_timer_fires_early(bench: Bench) -> None:
    bench.start()
    wait = bench.sleep()
    bench.park(wait)
    early = [DueTimer(bench.entry.row, wait.due or 0)]
    bench.do("due_timers", limit=10, hold=5.0, by="timer", lie=early)


@TOLD.breaks("S22")
def two_are_given_the_same_timer(bench: Bench) -> None:
    bench.start()
    bench.park(bench.sleep())
    bench.wait(10.0)
    due = bench.do("due_timers", limit=10, hold=5.0, by="timer")
    bench.do("due_timers", limit=10, hold=5.0, by="another", lie=due)


@TOLD.breaks("S22")
def it_wakes_early(bench: Bench) -> None:
    bench.start()
    bench.park(bench.sleep())
    bench.deliver(cancel())
    bench.claim("a", 1)
    bench.write(ev.ExecutionResumed(("0",), 1), fence=2)


# ---- S23, S24: what was accepted is there, and everybody hears of his own ------------------------


@TOLD.keeps("S23")
def it_is_started_twice(bench: Bench) -> None:
    bench.admit()
    bench.admit()
    bench.eyes.shadow.check()


@TOLD.breaks("S23")
def it_is_made_twice(bench: Bench) -> None:
    bench.admit()
    bench.admit(lie=[AdmitVerdict(bench.entry.row, True, True)])


@TOLD.breaks("S23")
def it_is_gone(bench: Bench) -> None:
    bench.start()
    bench.store._store.remove(bench.entry)
    bench.eyes.shadow.check()


@TOLD.keeps("S24")
def a_refusal_names_its_own(bench: Bench) -> None:
    bench.start()
    bench.write(ev.StepStarted("0", "work", 1), fence=0)


@TOLD.breaks("S24")
def a_refusal_names_another(bench: Bench) -> None:
    bench.start()
    error = StaleFenceError("e2", held=0, current=1)
    bench.write(ev.StepStarted("0", "work", 1), fence=0, lie=[AppendVerdict(error=error)])


@TOLD.breaks("S24")
def a_start_finds_the_execution_of_another(bench: Bench) -> None:
    bench.admit()
    row = msgspec.structs.replace(bench.entry.row, tenant="another")
    bench.admit(lie=[AdmitVerdict(row, False, True)])


# ---- L2: nobody is forgotten, at any commit ------------------------------------------------------


@TOLD.keeps("L2")
def it_is_parked_and_given_back(bench: Bench) -> None:
    bench.start()
    bench.do("defer", [KEY], "a", 0.0, [1])
    bench.do(
        "take_unsent", limit=9, resend_after=5.0, backoff_limit=9.0, queues=None, by="dispatcher"
    )
    bench.claim("b", 1)
    bench.write(ev.ExecutionRecovered("b", 2), by="b", fence=2)
    bench.park(gate(), by="b", fence=2)
    bench.deliver(answer("gate 2"))


@TOLD.breaks("L2")
def it_is_given_back_and_nobody_is_sent(bench: Bench) -> None:
    bench.start()
    bench.do("defer", [KEY], "a", None, [1])


@TOLD.breaks("L2")
def an_answer_lies_where_nobody_looks(bench: Bench) -> None:
    bench.start()
    bench.park(gate())
    bench.deliver(answer())
    bench.claim("a", 1)
    bench.do("defer", [KEY], "a", None, [2])


@TOLD.breaks("L2")
def its_timer_is_dropped_before_it_goes_on(bench: Bench) -> None:
    bench.start()
    wait = bench.sleep()
    bench.park(wait)
    bench.wake()
    bench.do("drop_timers", [(KEY, wait.due)], by="timer")
    bench.do("defer", [KEY], "a", None, [2])


@TOLD.breaks("L2")
def it_is_admitted_and_nobody_is_sent(bench: Bench) -> None:
    bench.admit()
    bench.put(hint_at=None)
    bench.admit()


# ---- the tests ----------------------------------------------------------------------------------


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
    assert TOLD.rules == {"S14", "S19", "S20", "S22", "S23", "S24", "L2"}
