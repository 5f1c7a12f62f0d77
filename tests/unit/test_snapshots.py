"""Snapshots: exact, mended when an older fold wrote them, and taken at a flat cost (J7)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom_mq.kernel.fold import Answer, ExecutionState, Frame, FrameStatus, OpKind, fold
from loom_mq.kernel.snapshots import decode_snapshot, due, encode_state, normalise
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import Status
from loom_mq.model.failures import CauseLine, Failure
from loom_mq.model.snapshots import FOLD_VERSION, Snapshot
from tests.unit.generated_logs import PLAIN, as_log

GATE = Wait("#1", WaitKind.GATE, "Größe", 500, "bool")
FAILED_STEP = {"#0": Frame("s", FrameStatus.FAILED, failure=PLAIN, failed_at=3)}


def full_state() -> ExecutionState:
    """A state with something in every part, all its kinds of value included."""
    return ExecutionState(
        status=Status.SUSPENDED,
        last_seq=2**40,
        flow="flow",
        version="1\x00",
        input=bytes(range(256)),
        features=("a", "b"),
        parent="x/y:z",
        labels={"": "ö"},
        run="ab12",
        ops={"#0": (OpKind.STEP, "s"), "~0#1": (OpKind.EMIT, "")},
        frames={
            "#0": Frame("s", FrameStatus.IN_DOUBT, 2, 1, b"", PLAIN, 9, 7, 2**32 - 1, True),
            "#2": Frame("t", FrameStatus.RUNNING),
        },
        decisions={"#3": b"\xff"},
        waits={"#1": GATE},
        parked_on=(GATE, Wait("#0?2", WaitKind.VERDICT, "s")),
        answers={"#4": Answer(None), "#5": Answer(b""), "#6": Answer(b"\x00\xc0")},
        newest_place=5,
        told_at=6,
        parked_at=7,
        turn=3,
        settled={"#6": 3, "#0": 1},
        recoveries=2,
        cancelling="",
        failed_while_parked=True,
        result=b"",
        failure=Failure("E", "m", "x\ny", "t", (CauseLine("C", "c"),), "channel", b""),
        reason="why",
        started_at=0,
        updated_at=2**53 + 1,
        ended_at=1,
    )


def test_j7_a_state_comes_back_as_it_was() -> None:
    """J7: every field, with its type and its order."""
    state = full_state()
    blank = ExecutionState()
    for field in msgspec.structs.fields(ExecutionState):
        assert getattr(state, field.name) != getattr(blank, field.name), f"{field.name} is unset"
    snapshot = encode_state(state)
    back = decode_snapshot(snapshot)
    assert back == state
    assert back is not state
    assert list(back.settled) == ["#6", "#0"], "the order of telling"
    assert repr(back) == repr(state), "types included"
    assert encode_state(back) == snapshot
    assert (snapshot.seq, snapshot.fold) == (2**40, FOLD_VERSION)


def test_j7_a_state_that_was_read_is_the_readers_own() -> None:
    """J7: folding a tail onto it changes neither the snapshot nor another reader's state."""
    state = fold(as_log([ev.ExecutionStarted("f", "1", b""), ev.StepStarted("#0", "s", 1)]))
    snapshot = encode_state(state)
    one, other = decode_snapshot(snapshot), decode_snapshot(snapshot)
    assert one is not None
    fold(as_log([ev.StepCompleted("#0", b"r"), ev.DecisionRecorded("#1", "d", b"")]), one)
    assert other == state != one
    assert decode_snapshot(encode_state(ExecutionState())) == ExecutionState()


def test_j7_a_snapshot_that_is_of_no_use_is_none() -> None:
    """J7: of a newer fold, damaged, or not of the sequence that it claims."""
    good = encode_state(full_state())
    assert decode_snapshot(msgspec.structs.replace(good, fold=FOLD_VERSION + 1)) is None
    assert decode_snapshot(msgspec.structs.replace(good, seq=good.seq - 1)) is None
    assert decode_snapshot(msgspec.structs.replace(good, state=good.state[:-1])) is None
    assert decode_snapshot(msgspec.structs.replace(good, state=b"")) is None
    assert decode_snapshot(msgspec.structs.replace(good, state=b"\x93\x01\x02\x03")) is None


def test_j7_a_field_of_a_later_release_is_ignored_and_a_missing_one_has_its_default() -> None:
    """J7: the same fold version reads states with more and with fewer fields."""
    content = msgspec.msgpack.encode({"last_seq": 4, "status": "running", "of_later": [1]})
    state = decode_snapshot(Snapshot(4, FOLD_VERSION, content))
    assert state == ExecutionState(last_seq=4, status=Status.RUNNING)


def read_as_of_fold_1(state: ExecutionState) -> ExecutionState | None:
    return decode_snapshot(Snapshot(state.last_seq, 1, encode_state(state).state))


def test_d4_a_failed_step_of_an_old_fold_is_running() -> None:
    """ADR 0105 D4: failed without an error, with a failed step, not parked."""
    state = ExecutionState(status=Status.FAILED, frames=FAILED_STEP)
    mended = read_as_of_fold_1(state)
    assert mended == ExecutionState(status=Status.RUNNING, frames=FAILED_STEP)
    assert normalise(state) == mended
    assert state.status is Status.FAILED, "what was handed in stays as it was"


def test_d4_a_parked_one_is_suspended_and_gains_the_mark() -> None:
    """ADR 0105 D4, K8: the failure landed after the park."""
    state = ExecutionState(status=Status.FAILED, frames=FAILED_STEP, parked_on=(GATE,))
    mended = read_as_of_fold_1(state)
    assert mended == msgspec.structs.replace(
        state, status=Status.SUSPENDED, failed_while_parked=True
    )
    assert normalise(state) == mended


@pytest.mark.parametrize(
    "state",
    [
        ExecutionState(status=Status.FAILED, frames=FAILED_STEP, failure=PLAIN),
        ExecutionState(status=Status.FAILED, frames=FAILED_STEP, failure=PLAIN, parked_on=(GATE,)),
        ExecutionState(status=Status.FAILED),
        ExecutionState(status=Status.FAILED, parked_on=(GATE,)),
        ExecutionState(status=Status.FAILED, frames={"#0": Frame("s", FrameStatus.COMPLETED)}),
        ExecutionState(status=Status.RUNNING, frames=FAILED_STEP),
        ExecutionState(status=Status.SUSPENDED, frames=FAILED_STEP, parked_on=(GATE,)),
        ExecutionState(status=Status.CANCELLED, frames=FAILED_STEP, ended_at=3),
        ExecutionState(status=Status.COMPLETED, frames=FAILED_STEP, ended_at=3, result=b""),
    ],
)
def test_d4_nothing_else_is_mended(state: ExecutionState) -> None:
    """ADR 0105 D4: only failed, only without an error, only with a failed step."""
    assert read_as_of_fold_1(state) == state
    assert normalise(state) is state


def test_d4_an_end_that_was_recorded_stands() -> None:
    """ADR 0105 D4: a failure that came in behind the end reopens nothing."""
    state = ExecutionState(status=Status.FAILED, frames=FAILED_STEP, ended_at=9)
    assert normalise(state).status is Status.CANCELLED
    completed = msgspec.structs.replace(state, result=b"")
    assert normalise(completed).status is Status.COMPLETED
    assert not normalise(completed).failed_while_parked


def test_d4_what_this_fold_wrote_is_taken_as_it_is() -> None:
    """ADR 0105 D4: a snapshot of the present fold is exact, so nothing is guessed about it."""
    state = ExecutionState(status=Status.FAILED, frames=FAILED_STEP)
    assert decode_snapshot(encode_state(state)) == state


@pytest.mark.parametrize(
    ("seq", "last", "wanted"),
    [
        (-1, -1, False),
        (98, -1, False),
        (99, -1, True),
        (198, 99, False),
        (199, 99, True),
        (1_099, 999, False),
        (1_332, 999, False),
        (1_333, 999, True),
        (1_332, 1_332, False),
    ],
)
def test_j7_due_after_so_many_events_and_a_quarter_of_the_log(
    seq: int, last: int, wanted: bool
) -> None:
    """J7: with `every` at 100; a short execution never has one."""
    assert due(seq, last, 100) is wanted


@given(st.integers(1, 300), st.integers(0, 5_000), st.integers(1, 40))
def test_j7_snapshots_cost_a_flat_share(every: int, length: int, batch: int) -> None:
    """J7: asked after every batch of events, all snapshots together fold at most four events
    per event of the log, and reading from the newest leaves a bounded tail.
    """
    last, folded = -1, 0
    for seq in range(batch - 1, length, batch):
        if due(seq, last, every):
            assert seq + 1 >= every
            folded += seq + 1
            last = seq
        assert seq - last < max(every, (last + 1) / 3 + 1)
    assert folded <= 4 * length
