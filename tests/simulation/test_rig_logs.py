"""The simulator's observers see a journal that breaks a log: S1 to S8.

Each rule has histories that break it, which must be seen, and one that comes near and does not.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from loom_mq.errors import ExecutionEndedError, StaleFenceError
from loom_mq.journal.protocol import (
    AppendVerdict,
    Claim,
    ClaimVerdict,
    DeliverVerdict,
)
from loom_mq.kernel.snapshots import encode_state
from loom_mq.model import events as ev
from loom_mq.model.execution import Status
from loom_mq.model.failures import Failure
from tests.simulation.rig.bench import KEY, RESULT, Bench, answer, gate
from tests.simulation.rig.stories import Stories, Story, must_be_fine, must_be_seen, name_of

GRANTED: Final = [AppendVerdict()]
DONE: Final = ev.ExecutionCompleted(RESULT)
TOLD: Final = Stories()


# ---- S1: who appends and who claims names what stands --------------------------------------------


@TOLD.keeps("S1")
def a_start_and_an_end(bench: Bench) -> None:
    bench.start()
    bench.write(ev.StepStarted("0", "work", 1))
    bench.write(ev.StepCompleted("0", b"", 1), DONE)


@TOLD.breaks("S1")
def an_append_under_an_old_fence_is_granted(bench: Bench) -> None:
    bench.start()
    bench.wait(6.0)
    bench.claim("b", 1)
    bench.write(ev.StepStarted("0", "work", 1), lie=GRANTED)


@TOLD.breaks("S1")
def an_old_fence_is_superseded_once_more(bench: Bench) -> None:
    bench.start()
    bench.wait(6.0)
    claimed = bench.claim("b", 1)
    bench.wait(6.0)
    bench.claim("a", 1, lie=[claimed])


# ---- S2: fences grow and belong to whoever took them ---------------------------------------------


@TOLD.keeps("S2")
def each_writes_under_his_own_fence(bench: Bench) -> None:
    bench.start()
    bench.wait(6.0)
    bench.claim("b", 1)
    bench.write(ev.ExecutionRecovered("b", 2), by="b", fence=2)


@TOLD.breaks("S2")
def somebody_writes_under_the_fence_of_another(bench: Bench) -> None:
    bench.start()
    bench.write(ev.StepStarted("0", "work", 1), by="b")


@TOLD.breaks("S2")
def an_event_bears_another_fence(bench: Bench) -> None:
    bench.start()
    event = bench.event(ev.StepStarted("0", "work", 1), 0)
    bench.do("append", [bench.entry_of(events=(event,))])


@TOLD.breaks("S2")
def the_row_names_another_owner(bench: Bench) -> None:
    bench.start()
    bench.put(owner="b")
    bench.write(ev.StepStarted("0", "work", 1))


# ---- S3: dense, all or nothing, each envelope once -----------------------------------------------


@TOLD.keeps("S3")
def an_append_of_many(bench: Bench) -> None:
    bench.start(*(ev.StepStarted(f"{place}", "work", 1) for place in range(5)))


@TOLD.breaks("S3")
def a_sequence_is_left_out(bench: Bench) -> None:
    bench.start()
    event = bench.event(ev.StepStarted("0", "work", 1), 1, seq=2)
    bench.do("append", [bench.entry_of(events=(event,))], lie=GRANTED)


@TOLD.breaks("S3")
def an_envelope_is_there_twice(bench: Bench) -> None:
    bench.start()
    known = bench.known.log[0].id
    event = bench.event(ev.StepStarted("0", "work", 1), 1, id=known)
    bench.do("append", [bench.entry_of(events=(event,))], lie=GRANTED)


@TOLD.breaks("S3")
def half_of_it_is_written(bench: Bench) -> None:
    bench.start()
    append = bench.entry_of(ev.StepStarted("0", "work", 1), ev.StepStarted("1", "work", 1))
    half = msgspec.structs.replace(append, events=append.events[:1])
    bench.store._store.entries[KEY].events.extend(half.events)
    bench.say("append", [append], answer=GRANTED)


@TOLD.breaks("S3")
def something_is_left_of_what_was_refused(bench: Bench) -> None:
    bench.start()
    append = bench.entry_of(ev.StepStarted("0", "work", 1), fence=0)
    bench.entry.events.extend(append.events)
    bench.do("append", [append])


@TOLD.breaks("S3")
def time_goes_back_along_a_log(bench: Bench) -> None:
    bench.start()
    event = bench.event(ev.StepStarted("0", "work", 1), 1, at=0)
    bench.do("append", [bench.entry_of(events=(event,))])


# ---- S4: a refusal is true, alone as in a batch --------------------------------------------------


@TOLD.keeps("S4")
def an_old_fence_is_refused(bench: Bench) -> None:
    bench.start()
    bench.wait(6.0)
    bench.claim("b", 1)
    bench.write(ev.StepStarted("0", "work", 1))
    bench.claim("a", 1)


@TOLD.breaks("S4")
def the_current_fence_is_refused(bench: Bench) -> None:
    bench.start()
    error = StaleFenceError(KEY.execution_id, held=1, current=2)
    bench.say("append", [bench.entry_of(DONE)], answer=[AppendVerdict(error=error)])


@TOLD.breaks("S4")
def a_claim_that_may_be_is_refused(bench: Bench) -> None:
    bench.start()
    bench.wait(6.0)
    error = StaleFenceError(KEY.execution_id, held=1, current=2)
    claim = Claim(key=KEY, owner="b", expected_fence=1)
    bench.say("claim", [claim], by="b", answer=[ClaimVerdict(error=error)])


@TOLD.breaks("S4")
def it_is_refused_for_another_reason(bench: Bench) -> None:
    bench.start()
    error = ExecutionEndedError("it has ended", execution_id=KEY.execution_id)
    bench.claim("b", 1, lie=[ClaimVerdict(error=error)])


@TOLD.breaks("S4")
def mail_for_one_that_lives_is_refused(bench: Bench) -> None:
    bench.start()
    error = ExecutionEndedError("it has ended", execution_id=KEY.execution_id)
    bench.say("deliver", [answer()], answer=[DeliverVerdict(error=error)])


# ---- S5: once, however often it is sent ----------------------------------------------------------


@TOLD.keeps("S5")
def an_append_is_sent_again(bench: Bench) -> None:
    bench.start()
    append = bench.write(ev.StepStarted("0", "work", 1))
    bench.do("append", [append])
    bench.write(ev.StepCompleted("0", b"", 1))
    bench.do("append", [append])


@TOLD.breaks("S5")
def what_is_written_is_refused(bench: Bench) -> None:
    bench.start()
    append = bench.write(ev.StepStarted("0", "work", 1))
    error = StaleFenceError(KEY.execution_id, held=1, current=2)
    bench.say("append", [append], answer=[AppendVerdict(error=error)])


@TOLD.breaks("S5")
def it_was_written_otherwise(bench: Bench) -> None:
    bench.start()
    append = bench.write(ev.StepStarted("0", "work", 1))
    other = msgspec.structs.replace(append.events[0], payload=b"\x90")
    bench.do("append", [msgspec.structs.replace(append, events=(other,))])


# ---- S6: the row and the snapshot are the fold ---------------------------------------------------


@TOLD.keeps("S6")
def rows_and_snapshots_follow_the_log(bench: Bench) -> None:
    bench.start(ev.StepStarted("0", "work", 1))
    bench.do("save_snapshots", [(KEY, encode_state(bench.state))])
    bench.write(ev.StepCompleted("0", b"", 1))
    bench.do("save_snapshots", [(KEY, encode_state(bench.state))])
    bench.wait(6.0)
    bench.claim("b", 1)


@TOLD.breaks("S6")
def the_row_says_something_else(bench: Bench) -> None:
    bench.start()
    append = bench.entry_of(ev.ExecutionSuspended((gate(),)))
    index = msgspec.structs.replace(append.index, gates=("gate 2",))
    bench.do("append", [msgspec.structs.replace(append, index=index)])


@TOLD.breaks("S6")
def a_snapshot_knows_more_than_the_log(bench: Bench) -> None:
    bench.start()
    bench.entry_of(ev.StepStarted("0", "work", 1))
    bench.do("save_snapshots", [(KEY, encode_state(bench.state))])


@TOLD.breaks("S6")
def a_snapshot_is_not_the_fold(bench: Bench) -> None:
    bench.start()
    bench.state.turn = 7
    bench.do("save_snapshots", [(KEY, encode_state(bench.state))])


@TOLD.breaks("S6")
def who_takes_it_is_told_half_of_the_log(bench: Bench) -> None:
    bench.start(ev.StepStarted("0", "work", 1))
    bench.wait(6.0)
    claim = Claim(key=KEY, owner="b", expected_fence=1)
    (verdict,) = bench.secretly("claim", [claim])
    half = msgspec.structs.replace(verdict.claimed, events=verdict.claimed.events[:1])
    bench.say("claim", [claim], by="b", answer=[ClaimVerdict(half)])


# ---- S7: one beginning, one end, nothing after it ------------------------------------------------


@TOLD.keeps("S7")
def it_ends(bench: Bench) -> None:
    bench.start(DONE)
    bench.claim("b", 1)
    bench.deliver(answer())


@TOLD.breaks("S7")
def something_follows_the_end(bench: Bench) -> None:
    bench.start(DONE)
    bench.write(ev.StepStarted("0", "work", 1))


@TOLD.breaks("S7")
def it_begins_twice(bench: Bench) -> None:
    bench.start()
    bench.write(ev.ExecutionStarted("simulated", "1", b""))


@TOLD.breaks("S7")
def it_is_taken_after_its_end(bench: Bench) -> None:
    bench.start()
    bench.wait(6.0)
    claimed = bench.claim("b", 1)
    bench.write(ev.ExecutionRecovered("b", 2), DONE, by="b", fence=2)
    bench.claim("a", 2, lie=[claimed])


# ---- S8: only EXECUTION_* moves the status -------------------------------------------------------


@TOLD.keeps("S8")
def a_step_fails_and_the_flow_goes_on(bench: Bench) -> None:
    bench.start(ev.StepStarted("0", "work", 1))
    bench.write(ev.StepFailed("0", Failure("ValueError", "builtins", "no"), 1))
    bench.write(ev.ExecutionFailed(Failure("ValueError", "builtins", "no")))


@TOLD.breaks("S8")
def a_failed_step_fails_the_execution(bench: Bench) -> None:
    bench.start(ev.StepStarted("0", "work", 1))
    append = bench.entry_of(ev.StepFailed("0", Failure("ValueError", "builtins", "no"), 1))
    index = msgspec.structs.replace(append.index, status=Status.FAILED, error="ValueError: no")
    bench.known.state.status = Status.FAILED
    bench.do("append", [msgspec.structs.replace(append, index=index)])


@TOLD.breaks("S8")
def it_resumes_and_was_not_parked(bench: Bench) -> None:
    bench.start()
    bench.write(ev.ExecutionResumed())


@TOLD.breaks("S8")
def it_fails_without_an_error(bench: Bench) -> None:
    bench.start()
    append = bench.entry_of(ev.ExecutionFailed(Failure("ValueError", "builtins", "no")))
    index = msgspec.structs.replace(append.index, error=None)
    bench.do("append", [msgspec.structs.replace(append, index=index)])


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
    assert TOLD.rules == {"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"}
