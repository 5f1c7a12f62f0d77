"""Laws of the fold, over generated logs and from every sequence (J7, K1, K8).

2,000 logs each; ``LOOM_TEST_PROFILE=thorough`` takes 100,000.
"""

from __future__ import annotations

import msgspec
from hypothesis import example, given

from loom_mq.kernel.fold import ExecutionState, FrameStatus, apply, fold
from loom_mq.kernel.snapshots import decode_snapshot, encode_state, normalise
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind, Wait, WaitKind, kind_of_type
from loom_mq.model.execution import Status
from loom_mq.model.snapshots import Snapshot
from tests.unit.generated_logs import (
    ANY_EVENT,
    LAWS,
    PLAIN,
    STEP_SAMPLES,
    Payloads,
    any_logs,
    as_log,
    choices,
    lawful_before,
    lawful_logs,
)

START = ev.ExecutionStarted("flow", "1", b"")
STEP = ev.StepStarted("#0", "s", 1)
PARK = ev.ExecutionSuspended((Wait("#1", WaitKind.GATE, "Approval"),))
LATE = ev.StepFailed("#0", PLAIN)
ANSWER = ev.AnswerTaken("#1", "Approval", b"\x00\xc3", "id")
SIBLING_FAILS_LATE: Payloads = [START, STEP, PARK, LATE]

ENDS = (
    ev.ExecutionResumed(),
    PARK,
    ev.ExecutionCompleted(b""),
    ev.ExecutionFailed(PLAIN),
    ev.ExecutionCancelled("enough"),
)
"""Whatever ends a park."""

EARLIER_FOLD = 1


def snapshots_of(log: list[Envelope]) -> list[Snapshot]:
    """A snapshot from before the log and one at every sequence of it."""
    state = ExecutionState()
    taken = [encode_state(state)]
    for event in log:
        taken.append(encode_state(fold([event], state)))
    return taken


def earlier_snapshots_of(log: list[Envelope]) -> list[Snapshot]:
    """The same, by the fold of before ADR 0105."""
    state = ExecutionState()
    taken = [msgspec.structs.replace(encode_state(state), fold=EARLIER_FOLD)]
    for event in log:
        _fold_as_before(state, event)
        taken.append(msgspec.structs.replace(encode_state(state), fold=EARLIER_FOLD))
    return taken


def _fold_as_before(state: ExecutionState, event: Envelope) -> None:
    """A replica of the earlier fold: a step's failure moved the status to failed, whatever
    it was, no mark was kept, and a resume opened what was not at its end.
    """
    if event.kind == EventKind.EXECUTION_RESUMED and state.ended_at is None and state.parked_on:
        state.status = Status.SUSPENDED
    fold([event], state)
    if event.kind == EventKind.EXECUTION_RESUMED and state.ended_at is None:
        state.status = Status.RUNNING
    if event.kind == EventKind.STEP_FAILED:
        state.status = Status.FAILED
        state.failed_while_parked = False


def read(snapshot: Snapshot) -> ExecutionState:
    state = decode_snapshot(snapshot)
    assert state is not None
    return state


def assert_equals_the_whole_log(taken: list[Snapshot], log: list[Envelope]) -> None:
    """Snapshot and tail are the whole log, order inside included."""
    whole = fold(log)
    content = encode_state(whole).state
    for snapshot in taken:
        state = fold(log[snapshot.seq + 1 :], read(snapshot))
        assert state == whole, f"from the snapshot at {snapshot.seq}"
        assert encode_state(state).state == content, f"from the snapshot at {snapshot.seq}"


@LAWS
@given(lawful_logs)
def test_j7_snapshot_and_tail_are_the_whole_log(payloads: Payloads) -> None:
    """J7: from every sequence of every lawful log."""
    log = as_log(payloads)
    assert_equals_the_whole_log(snapshots_of(log), log)


@LAWS
@given(any_logs)
def test_j7_snapshot_and_tail_are_the_whole_log_in_any_order(payloads: Payloads) -> None:
    """J7: even of logs that no engine would write."""
    log = as_log(payloads)
    assert_equals_the_whole_log(snapshots_of(log), log)


@LAWS
@given(choices.map(lawful_before))
@example([*SIBLING_FAILS_LATE, ev.ExecutionCancelled("enough")])
@example([*SIBLING_FAILS_LATE, ev.ExecutionCompleted(b"")])
@example([*SIBLING_FAILS_LATE, ev.ExecutionFailed(PLAIN)])
@example([*SIBLING_FAILS_LATE, ev.ExecutionResumed(), ANSWER])
@example([*SIBLING_FAILS_LATE, ev.ExecutionResumed(("#1",))])
@example([START, STEP, ev.ExecutionCancelled("enough"), LATE])
@example([START, STEP, ev.ExecutionCompleted(b""), LATE])
def test_j7_an_earlier_folds_snapshot_and_tail_are_the_whole_log(payloads: Payloads) -> None:
    """J7, ADR 0105 D4: a snapshot in which a step's failure moved the status is mended as it
    is read, from every sequence; what the gates were answered was always equal.
    """
    log = as_log(payloads)
    taken = earlier_snapshots_of(log)
    assert_equals_the_whole_log(taken, log)
    state = ExecutionState()
    for snapshot, event in zip(taken[1:], log, strict=True):
        fold([event], state)
        before = msgspec.msgpack.decode(snapshot.state, type=ExecutionState)
        assert before.answers == state.answers
        assert read(snapshot) == state


def test_logs_of_any_order_may_hold_every_kind() -> None:
    assert {type(each) for each in ANY_EVENT} == {type(None), *kind_of_type}


def test_k1_there_is_a_sample_of_every_kind_of_step_event() -> None:
    """K1: the law below covers every STEP_* kind that there is."""
    kinds = {kind_of_type[type(each)] for each in STEP_SAMPLES}
    assert kinds == {kind for kind in EventKind if kind.startswith("STEP_")}


@LAWS
@given(lawful_logs)
@example([])
@example([START])
@example([START, PARK])
def test_k1_no_step_event_moves_the_status(payloads: Payloads) -> None:
    """K1: each STEP_* kind, from wherever a log may stand. An end is not moved either."""
    state = ExecutionState()
    for seq, payload in enumerate([*payloads, None]):
        content = encode_state(state)
        for event in STEP_SAMPLES:
            then = read(content)
            apply(then, event, seq, 9_999)
            assert then.status is state.status, f"{event} after {seq} events"
        apply(state, payload, seq, 1_000 + seq)


@LAWS
@given(lawful_logs)
def test_k1_failed_has_its_error_and_an_end_is_final(payloads: Payloads) -> None:
    """K1: failed means that EXECUTION_FAILED is on the log, with its error; a step that fails
    later than its execution ended changes no more than its frame.
    """
    state = ExecutionState()
    ended: Status | None = None
    failed = False
    for seq, payload in enumerate(payloads):
        apply(state, payload, seq, seq)
        failed = failed or isinstance(payload, ev.ExecutionFailed)
        assert (state.status is Status.FAILED) == failed == (state.failure is not None)
        assert normalise(state) is state, "nothing of ours is ever mended"
        if state.status.terminal:
            ended = ended or state.status
            assert state.status is ended
            assert (state.parked_on, state.wake_at) == ((), None)
        if isinstance(payload, ev.StepFailed):
            assert state.frames[payload.step_id].status is FrameStatus.FAILED


@LAWS
@given(lawful_logs)
@example([*SIBLING_FAILS_LATE, ENDS[0]])
@example([*SIBLING_FAILS_LATE, ENDS[1]])
@example([*SIBLING_FAILS_LATE, ENDS[2]])
@example([*SIBLING_FAILS_LATE, ENDS[3]])
@example([*SIBLING_FAILS_LATE, ENDS[4]])
def test_k8_the_mark_is_there_from_a_failure_while_parked_to_the_end_of_the_park(
    payloads: Payloads,
) -> None:
    """K8: set by a step's failure while suspended, cleared by whatever ends the park, absent
    otherwise, never in an execution that has ended.
    """
    state = ExecutionState()
    parked = expected = False
    for seq, payload in enumerate(payloads):
        apply(state, payload, seq, seq)
        if isinstance(payload, tuple(type(end) for end in ENDS)):
            parked, expected = isinstance(payload, ev.ExecutionSuspended), False
        elif isinstance(payload, ev.StepFailed):
            expected = expected or parked
        assert state.failed_while_parked is expected, f"after {payload}"
        assert not (state.failed_while_parked and state.status.terminal)
