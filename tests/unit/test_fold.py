"""The fold: what each event means (K1, K8, F8, J1)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom_mq.kernel.fold import Answer, ExecutionState, FrameStatus, OpKind, apply, fold
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind, Wait, WaitKind, kind_of_type
from loom_mq.model.execution import Status
from loom_mq.model.failures import Failure

FAILURE = Failure(type="ValueError", module="builtins", message="no")
STARTED = ev.ExecutionStarted(flow="f", version="1", input=b"in", labels={"a": "b"})
GATE = Wait("#1", WaitKind.GATE, "Approval", 500, "bool")
NAP = Wait("#2", WaitKind.TIMER, "", 300)
PARKED = ev.ExecutionSuspended((GATE, NAP))

STEP_EVENTS: tuple[msgspec.Struct, ...] = (
    ev.StepStarted("#0", "s", 1),
    ev.StepCompleted("#0", b"r"),
    ev.StepFailed("#0", FAILURE),
    ev.StepCancelled("#0"),
    ev.StepRetrying("#0", FAILURE, 1, 99),
    ev.StepTold("#0", 1),
)


def log(*payloads: msgspec.Struct) -> list[Envelope]:
    return [
        Envelope(
            bytes(16),
            seq,
            kind_of_type[type(each)].value,
            100 + seq,
            1,
            True,
            1,
            msgspec.msgpack.encode(each),
        )
        for seq, each in enumerate(payloads)
    ]


def test_step_kinds_are_all_here() -> None:
    """The property below covers every STEP_* kind that exists."""
    assert {kind_of_type[type(each)] for each in STEP_EVENTS} == {
        kind for kind in EventKind if kind.startswith("STEP_")
    }


@pytest.mark.parametrize("event", STEP_EVENTS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("before", [(), (STARTED,), (STARTED, PARKED)])
def test_k1_no_step_event_moves_the_status(
    event: msgspec.Struct, before: tuple[msgspec.Struct, ...]
) -> None:
    """K1: only EXECUTION_* events move the status, from pending, running and suspended."""
    state = fold(log(*before))
    status = state.status
    apply(state, event, state.last_seq + 1, 999)
    assert state.status is status
    assert state.updated_at == 999


def test_a_failed_execution_has_its_failure() -> None:
    """K1: failed means EXECUTION_FAILED is in the log, with its error."""
    state = fold(log(STARTED, ev.StepStarted("#0", "s", 1), ev.StepFailed("#0", FAILURE)))
    assert (state.status, state.failure) == (Status.RUNNING, None)
    apply(state, ev.ExecutionFailed(FAILURE), 3, 200)
    assert (state.status, state.failure, state.ended_at) == (Status.FAILED, FAILURE, 200)


def test_j1_an_unknown_kind_changes_only_the_time() -> None:
    """J1: a newer release's event folds to nothing but `updated_at`."""
    known = log(STARTED)
    strange = Envelope(bytes(16), 1, "SOMETHING_NEW", 777, 1, True, 9, b"\xc1")
    state = fold(known)
    expected = fold(known)
    expected.last_seq, expected.updated_at = 1, 777
    assert fold([strange], state) == expected


def test_a_park_names_its_waits_and_its_wake() -> None:
    state = fold(log(STARTED, PARKED))
    assert (state.status, state.gates, state.wake_at) == (Status.SUSPENDED, ("Approval",), 300)
    assert state.ops["#1"] == (OpKind.WAIT, "Approval")
    apply(state, ev.ExecutionResumed(("#2",)), 2, 300)
    assert (state.status, state.gates, state.wake_at) == (Status.RUNNING, (), None)
    assert state.answers == {"#2": Answer(None)}
    assert state.waits["#1"] == GATE, "an open gate keeps its due time for the next park"


def test_k8_the_mark_is_set_while_parked_and_cleared_by_whatever_ends_the_park() -> None:
    """K8: a failure that lands while parked leaves a mark; every end of the park clears it."""
    endings: tuple[msgspec.Struct, ...] = (
        ev.ExecutionResumed(),
        PARKED,
        ev.ExecutionCompleted(b""),
        ev.ExecutionFailed(FAILURE),
        ev.ExecutionCancelled("why"),
    )
    for ending in endings:
        late = (STARTED, ev.StepStarted("#0", "s", 1), PARKED, ev.StepFailed("#0", FAILURE))
        state = fold(log(*late))
        assert state.failed_while_parked
        assert state.status is Status.SUSPENDED
        apply(state, ending, 4, 1)
        assert not state.failed_while_parked


def test_f8_recoveries_count_since_the_last_progress() -> None:
    """F8: progress is a completed step, a park or a resume; a start of a step is none."""
    recovered = ev.ExecutionRecovered("w", 2)
    state = fold(log(STARTED, recovered, recovered, ev.StepStarted("#0", "s", 3)))
    assert state.recoveries == 2
    for progress in (ev.StepCompleted("#0", b""), PARKED, ev.ExecutionResumed()):
        again = fold(log(STARTED, recovered))
        apply(again, progress, 2, 1)
        assert again.recoveries == 0


def test_a_step_runs_twice_and_keeps_its_count() -> None:
    state = fold(
        log(
            STARTED,
            ev.StepStarted("#0", "s", 1),
            ev.StepRetrying("#0", FAILURE, 1, 50),
            ev.StepStarted("#0", "s", 2),
            ev.StepCompleted("#0", b"r"),
        )
    )
    frame = state.frames["#0"]
    assert (frame.status, frame.attempts, frame.failures) == (FrameStatus.COMPLETED, 2, 1)


@given(st.lists(st.sampled_from([STARTED, PARKED, ev.ExecutionResumed(("#2",)), *STEP_EVENTS])))
def test_folding_in_pages_is_folding_at_once(payloads: list[msgspec.Struct]) -> None:
    """The fold has no memory but its state: any cut of a log folds alike."""
    whole = log(*payloads)
    for cut in range(len(whole) + 1):
        assert fold(whole[cut:], fold(whole[:cut], ExecutionState())) == fold(whole)


def test_k8_a_failure_outside_a_park_leaves_no_mark() -> None:
    """K8: the mark is of a park; before one and after one there is none."""
    state = fold(log(STARTED, ev.StepStarted("#0", "s", 1), ev.StepFailed("#0", FAILURE)))
    assert not state.failed_while_parked
    state = fold(log(STARTED, PARKED, ev.ExecutionResumed(), ev.StepFailed("#0", FAILURE)))
    assert not state.failed_while_parked


def test_k8_a_resume_of_what_is_not_parked_is_of_the_status_only() -> None:
    """K8: it ends no wait, and does not move an execution that has ended."""
    woken = ev.ExecutionResumed(("#1", "#2"))
    running = fold(log(STARTED, PARKED, ev.ExecutionResumed(("#2",)), woken))
    assert (running.status, set(running.answers)) == (Status.RUNNING, {"#2"})
    for end in (ev.ExecutionCompleted(b""), ev.ExecutionCancelled("why")):
        ended = fold(log(STARTED, PARKED, end, woken))
        assert ended.status.terminal
        assert ended.answers == {}


def test_k7_the_first_end_of_a_wait_counts() -> None:
    """K7: a second answer, and one that comes after the time, change nothing."""
    first, second = (ev.AnswerTaken("#1", "Approval", value, "a") for value in (b"1", b"2"))
    assert fold(log(STARTED, first, second)).answers == {"#1": Answer(b"1")}
    timed_out = fold(log(STARTED, PARKED, ev.ExecutionResumed(("#1",)), first))
    assert timed_out.answers == {"#1": Answer(None)}
    in_time = fold(log(STARTED, PARKED, first, ev.ExecutionResumed(("#1",))))
    assert in_time.answers == {"#1": Answer(b"1")}


@pytest.mark.parametrize(
    ("then", "served"),
    [
        ((), False),
        ((ev.ExecutionRecovered("w", 2),), False),
        ((ev.StepRetrying("#9", FAILURE, 1, 9),), False),
        ((ev.DecisionRecorded("#1", "d", b""),), True),
        ((ev.StepStarted("#1", "s", 1),), True),
        ((ev.CustomEmitted("#1", "t", b""),), True),
        ((PARKED,), True),
        ((ev.ExecutionSuspended((Wait("#8!1", WaitKind.BACKOFF, "t", 9),)),), True),
        ((ev.StepCompleted("#8", b"", 2),), True),
        ((ev.StepCompleted("#8", b"", 1),), False),
        ((ev.StepCompleted("#8", b"", ev.UNTOLD),), False),
        ((ev.ExecutionCompleted(b""),), True),
    ],
)
def test_k2_a_failure_is_served_once_the_flow_went_past_it(
    then: tuple[msgspec.Struct, ...], served: bool
) -> None:
    """K2, K3: it did when it called, was told or parked since; else its step runs again."""
    begun = (STARTED, ev.StepStarted("#8", "t", 1), ev.StepStarted("#0", "s", 1))
    plain = fold(log(*begun, ev.StepFailed("#0", FAILURE, 1), *then))
    assert plain.serves("#0") is served
    typed = msgspec.structs.replace(FAILURE, channel="declined", payload=b"")
    assert fold(log(*begun, ev.StepFailed("#0", typed, 1), *then)).serves("#0"), "K5: always"


def test_k3_what_is_found_out_anew_is_told_anew() -> None:
    """K3: a step that runs again after its failure was told is no part of that turn any more."""
    again = log(
        STARTED,
        ev.StepStarted("#0", "s", 1),
        ev.StepFailed("#0", FAILURE, 1),
        ev.StepStarted("#0", "s", 2),
        ev.StepFailed("#0", FAILURE, ev.UNTOLD),
        ev.ExecutionCancelled("why"),
    )
    assert fold(again[:3]).settled == {"#0": 1}
    assert fold(again).settled == {}
    assert fold(again).script() == []


def test_k3_a_step_that_ended_before_its_cancellation_came_is_told_as_cancelled() -> None:
    """K3, K10: both are on the log; the step is completed, and what the flow was told is that
    it is cancelled, in its turn.
    """
    state = fold(
        log(
            STARTED,
            ev.StepStarted("#0", "s", 1),
            ev.StepCompleted("#0", b"r", ev.UNTOLD),
            ev.StepCancelled("#0", 3),
        )
    )
    frame = state.frames["#0"]
    assert (frame.status, frame.withdrawn, frame.result) == (FrameStatus.COMPLETED, True, b"r")
    assert state.script() == [(3, ["#0"])]


def test_k2_a_failure_that_a_recovery_reopened_stays_open() -> None:
    """K2, K3: whatever the flow does after the recovery, it was not told of that failure."""
    events = (
        STARTED,
        ev.StepStarted("~0#0", "s", 1),
        ev.StepFailed("~0#0", FAILURE, 1),
        ev.ExecutionRecovered("w", 2),
        ev.StepStarted("#0", "end", 1),
        ev.StepCompleted("#0", b"r", 2),
    )
    state = fold(log(*events))
    assert not state.serves("~0#0")
    assert state.script() == [(2, ["#0"])]
