"""Why an execution is where it is: one reason, in words (F11)."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from loom_mq.clock import MICROS
from loom_mq.kernel.explain import ReasonCode, explain
from loom_mq.kernel.fold import ExecutionState, Frame, FrameStatus
from loom_mq.kernel.wording import span
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import (
    ExecutionRow,
    FlowRecord,
    InboxItem,
    InboxKind,
    Status,
    WorkerRecord,
)
from loom_mq.model.failures import Failure

NOW = 1_000_000 * MICROS
WORKER = WorkerRecord(owner="worker/a/1/x", role="worker", host="a", queues=("orders",))
DISPATCHER = WorkerRecord(owner="dispatcher/a/2/x", role="dispatcher", host="a")
TIMER = WorkerRecord(owner="timer/a/3/x", role="timer", host="a")
FLEET = [WORKER, DISPATCHER, TIMER]
FLOWS = [FlowRecord(flow="fulfil", version="7", queue="orders")]
ROW = ExecutionRow(
    tenant="default",
    execution_id="e 1",
    flow="fulfil",
    version="7",
    queue="orders",
    status=Status.RUNNING,
    last_seq=3,
    wake_at=None,
    gates=(),
    error=None,
    recoveries=0,
    parent=None,
    features=(),
    labels={},
    created_at=NOW - 90 * MICROS,
    updated_at=NOW - 60 * MICROS,
    started_at=NOW - 80 * MICROS,
    ended_at=None,
    fence=1,
    owner=WORKER.owner,
    attempt=1,
    deadline=None,
    hint_at=None,
    hints=0,
    inbox=0,
    input_digest=b"",
)


def row(**changes: object) -> ExecutionRow:
    return msgspec.structs.replace(ROW, **changes)


def pending(**changes: object) -> ExecutionRow:
    return row(
        **{
            "status": Status.PENDING,
            "owner": None,
            "last_seq": -1,
            "hint_at": NOW - 85 * MICROS,
            **changes,
        }
    )


def parked(**changes: object) -> ExecutionRow:
    return row(**{"status": Status.SUSPENDED, "owner": None, **changes})


@pytest.mark.parametrize(
    ("code", "stuck", "execution", "fleet"),
    [
        (ReasonCode.RUNNING, False, row(), FLEET),
        (ReasonCode.LEASE_EXPIRED, True, row(owner="worker/b/9/z"), FLEET),
        (ReasonCode.NO_DISPATCHER, True, row(owner="worker/b/9/z"), [WORKER, TIMER]),
        (ReasonCode.RECOVERY_EXHAUSTED, True, row(owner="worker/b/9/z", recoveries=10), FLEET),
        (ReasonCode.ATTEMPT_OVERDUE, True, row(deadline=NOW - 1), FLEET),
        (ReasonCode.DISPATCHING, False, pending(created_at=NOW - MICROS, hint_at=NOW), FLEET),
        (ReasonCode.QUEUE_BACKLOG, True, pending(hints=2), FLEET),
        (ReasonCode.QUEUE_BACKLOG, True, pending(), FLEET),
        (ReasonCode.QUEUE_NO_CONSUMERS, True, pending(queue="other"), FLEET),
        (ReasonCode.QUEUE_NO_CONSUMERS, True, pending(), [DISPATCHER, TIMER]),
        (ReasonCode.NO_COMPATIBLE_WORKER, True, pending(version="6"), FLEET),
        (ReasonCode.NO_DISPATCHER, True, pending(), [WORKER, TIMER]),
        (ReasonCode.DISPATCHING, False, row(owner=None, hint_at=NOW + 9 * MICROS), FLEET),
        (ReasonCode.GATE_WAITING, False, parked(gates=("Approval",)), FLEET),
        (ReasonCode.GATE_WAITING, False, parked(gates=("Approval",)), []),
        (ReasonCode.TIMER_WAITING, False, parked(wake_at=NOW + 60 * MICROS), FLEET),
        (ReasonCode.TIMER_OVERDUE, True, parked(wake_at=NOW - 60 * MICROS), FLEET),
        (ReasonCode.NO_TIMER, True, parked(wake_at=NOW - 60 * MICROS), [WORKER, DISPATCHER]),
        (ReasonCode.QUEUE_NO_CONSUMERS, True, parked(wake_at=NOW - 60 * MICROS), [TIMER]),
        (ReasonCode.COMPLETED, False, row(status=Status.COMPLETED, owner=None), FLEET),
        (ReasonCode.CANCELLED, False, row(status=Status.CANCELLED, owner=None), []),
    ],
)
def test_one_reason_for_each_situation(
    code: ReasonCode, stuck: bool, execution: ExecutionRow, fleet: list[WorkerRecord]
) -> None:
    reason = explain(execution, fleet, FLOWS, NOW)
    assert (reason.code, reason.stuck) == (code, stuck)
    assert reason.sentence.endswith(".")


def test_a_gate_tells_its_type_and_the_command() -> None:
    """The command can be copied whatever the id holds."""
    wait = Wait("#1", WaitKind.GATE, "Approval", NOW + 22 * 3600 * MICROS, "bool")
    reason = explain(
        parked(gates=("Approval",), wake_at=wait.due),
        FLEET,
        FLOWS,
        NOW,
        state=ExecutionState(parked_on=(wait,)),
    )
    assert "'Approval' (bool)" in reason.sentence
    assert "22 h" in reason.sentence
    assert shlex.split(reason.next) == ["loom", "resume", "e 1", "Approval", "true"]


def test_an_answer_counts_only_for_a_gate_that_is_open() -> None:
    """K7: an early answer for a later gate waits rightly; one for this gate is news."""
    early, due = (
        InboxItem(
            tenant="default", execution_id="e 1", item_id=gate, kind=InboxKind.ANSWER, gate=gate
        )
        for gate in ("Later", "Approval")
    )
    execution = parked(gates=("Approval",), inbox=1)
    assert explain(execution, FLEET, FLOWS, NOW, mail=[early]).code is ReasonCode.GATE_WAITING
    assert explain(execution, FLEET, FLOWS, NOW, mail=[due]).code is ReasonCode.ANSWER_UNTAKEN
    alone = explain(execution, [], FLOWS, NOW, mail=[due], embedded=True)
    assert alone.code is ReasonCode.QUEUE_NO_CONSUMERS
    assert alone.next == "loom dev FILE"


def test_steps_are_named_where_the_log_is_at_hand() -> None:
    failure = Failure("OSError", "builtins", "no route")
    retrying = Frame("charge", FrameStatus.RETRYING, 2, 2, failure=failure, due=NOW + 8 * MICROS)
    backing_off = explain(row(), FLEET, FLOWS, NOW, state=ExecutionState(frames={"#0": retrying}))
    assert backing_off.code is ReasonCode.BACKING_OFF
    assert backing_off.sentence == "'charge' failed 2 times, next try in 8.0 s: OSError: no route."
    wait = Wait("#0!2", WaitKind.BACKOFF, "charge", retrying.due)
    state = ExecutionState(frames={"#0": retrying}, parked_on=(wait,))
    long_pause = explain(parked(wake_at=wait.due), FLEET, FLOWS, NOW, state=state)
    assert long_pause == backing_off
    running = Frame("ship", FrameStatus.RUNNING, 1)
    busy = explain(row(), FLEET, FLOWS, NOW, state=ExecutionState(frames={"#0": running}))
    assert busy.code is ReasonCode.RUNNING
    assert busy.sentence.startswith("'ship' runs on worker/a/1/x")


def test_an_embedded_engine_is_every_service() -> None:
    execution = row(owner="embedded/a/8/z")
    assert explain(execution, [WORKER], FLOWS, NOW, embedded=True).code is ReasonCode.LEASE_EXPIRED
    assert explain(execution, [], FLOWS, NOW, embedded=True).code is ReasonCode.NO_DISPATCHER


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.25, "0.2 s"),
        (9.99, "10.0 s"),
        (59, "59 s"),
        (60, "1 m"),
        (250, "4 m 10 s"),
        (7200, "2 h"),
        (97200, "1 d 3 h"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert span(seconds) == text
