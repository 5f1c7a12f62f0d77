"""Why an execution is where it is: one reason, in words (F11)."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from loom_mq.clock import MICROS
from loom_mq.kernel.explain import ReasonCode, explain
from loom_mq.kernel.facts import BrokerFacts, DeadPackage, Depth
from loom_mq.kernel.fold import Answer, ExecutionState, Frame, FrameStatus
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


def overdue(**changes: object) -> ExecutionRow:
    """Its timer fired a minute ago, which left a hint."""
    return parked(**{"wake_at": NOW - 60 * MICROS, "hint_at": NOW - 30 * MICROS, **changes})


def draining(worker: WorkerRecord) -> WorkerRecord:
    return msgspec.structs.replace(worker, draining=True)


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
        (ReasonCode.NO_DISPATCHER, True, pending(), [WORKER, draining(DISPATCHER), TIMER]),
        (ReasonCode.QUEUE_NO_CONSUMERS, True, pending(), [draining(WORKER), DISPATCHER, TIMER]),
        (ReasonCode.RUNNING, False, row(), [draining(WORKER), DISPATCHER, TIMER]),
        (ReasonCode.DISPATCH_LOST, True, pending(hint_at=None), FLEET),
        (ReasonCode.DISPATCH_LOST, True, row(owner=None), FLEET),
        (ReasonCode.DISPATCHING, False, row(owner=None, updated_at=NOW - MICROS), FLEET),
        (ReasonCode.DISPATCHING, False, row(owner=None, hint_at=NOW + 9 * MICROS), FLEET),
        (ReasonCode.GATE_WAITING, False, parked(gates=("Approval",)), FLEET),
        (ReasonCode.GATE_WAITING, False, parked(gates=("Approval",)), []),
        (ReasonCode.TIMER_WAITING, False, parked(wake_at=NOW + 60 * MICROS), FLEET),
        (ReasonCode.TIMER_OVERDUE, True, overdue(), FLEET),
        (ReasonCode.TIMER_OVERDUE, True, overdue(wake_at=NOW - 4 * MICROS, hint_at=None), FLEET),
        (ReasonCode.TIMER_ROW_MISSING, True, overdue(hint_at=None), FLEET),
        (ReasonCode.NO_TIMER, True, parked(wake_at=NOW - 60 * MICROS), [WORKER, DISPATCHER]),
        (ReasonCode.QUEUE_NO_CONSUMERS, True, overdue(), [TIMER]),
        (ReasonCode.IN_DOUBT, True, parked(in_doubt=("charge",)), FLEET),
        (ReasonCode.IN_DOUBT, True, parked(in_doubt=("charge",), gates=("Approval",)), []),
        (ReasonCode.CODE_MISMATCH, True, row(owner=None, trouble="another step"), FLEET),
        (ReasonCode.CODE_MISMATCH, True, parked(trouble="another step", gates=("A",)), FLEET),
        (ReasonCode.RUNNING, False, row(trouble="another step"), FLEET),
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


def answer_to(gate: str, wait_id: str | None = None) -> InboxItem:
    return InboxItem(
        tenant="default",
        execution_id="e 1",
        item_id=gate,
        kind=InboxKind.ANSWER,
        gate=gate,
        wait_id=wait_id,
    )


def test_an_answer_that_is_kept_is_told() -> None:
    """K7: whoever answered too early, or too late, learns where it went."""
    wait = Wait("#1", WaitKind.GATE, "Approval")
    state = ExecutionState(parked_on=(wait,), answers={"#0": Answer(b"x")})
    execution = parked(gates=("Approval",), inbox=1)

    def told(*mail: InboxItem) -> str:
        return explain(execution, FLEET, FLOWS, NOW, state=state, mail=mail).sentence

    assert "kept" not in told()
    assert told(answer_to("Later")).endswith(
        "An answer for gate 'Later' is kept for when it opens."
    )
    assert told(answer_to("Later"), answer_to("Last")).endswith(
        "2 answers for gates 'Later' and 'Last' are kept for when they open."
    )
    assert told(answer_to("Approval", "#0")).endswith(
        "An answer for gate 'Approval' came after that wait had ended, and nobody will take it."
    )
    busy = explain(row(inbox=1), FLEET, FLOWS, NOW, mail=[answer_to("Later")])
    assert busy.code is ReasonCode.RUNNING
    assert "is kept" in busy.sentence
    addressed = explain(
        execution, FLEET, FLOWS, NOW, state=state, mail=[answer_to("Approval", "#1")]
    )
    assert addressed.code is ReasonCode.ANSWER_UNTAKEN


def verdict_on(step: str) -> InboxItem:
    return InboxItem(
        tenant="default", execution_id="e 1", item_id=step, kind=InboxKind.VERDICT, gate=step
    )


def test_a_step_in_doubt_is_named_with_the_command() -> None:
    """K6: the command cannot be taken over without a thought, for it lacks the value."""
    execution = parked(in_doubt=("charge",))
    reason = explain(execution, FLEET, FLOWS, NOW)
    assert reason.sentence.startswith("Step 'charge' began and nobody knows how it ended; ")
    assert "since 1 m" in reason.sentence
    assert reason.since == execution.updated_at
    assert shlex.split(reason.next) == [
        *("loom", "verdict", "e 1", "charge", "completed"),
        *("--value", "JSON"),
    ]
    given = explain(execution, FLEET, FLOWS, NOW, mail=[verdict_on("charge")])
    assert given.code is ReasonCode.ANSWER_UNTAKEN
    assert given.sentence.startswith("A verdict arrived")
    other = explain(execution, FLEET, FLOWS, NOW, mail=[verdict_on("ship")])
    assert other.code is ReasonCode.IN_DOUBT


def test_namesakes_in_doubt_are_told_apart_by_their_places() -> None:
    """K6."""
    waits = tuple(Wait(f"~{n}#0?1", WaitKind.VERDICT, "charge") for n in (0, 1))
    execution = parked(in_doubt=("charge", "charge"))
    state = ExecutionState(parked_on=waits)
    reason = explain(execution, FLEET, FLOWS, NOW, state=state)
    assert shlex.split(reason.next)[3] == "~0#0"
    by_place = explain(execution, FLEET, FLOWS, NOW, state=state, mail=[verdict_on("~1#0")])
    assert by_place.code is ReasonCode.ANSWER_UNTAKEN


def test_a_name_that_begins_with_a_dash_is_no_option() -> None:
    reason = explain(parked(in_doubt=("-x",)), FLEET, FLOWS, NOW)
    words = shlex.split(reason.next)
    assert words[words.index("--") + 1 :] == ["e 1", "-x", "completed"]
    assert words[: words.index("--")] == ["loom", "verdict", "--value", "JSON"]


def test_code_that_does_not_fit_tells_what_the_log_holds() -> None:
    """K3: the worker's own words, and what to deploy."""
    reason = explain(
        parked(trouble="version '7' asks for 'ship' where the log holds 'pick'"), FLEET, FLOWS, NOW
    )
    assert reason.sentence == "version '7' asks for 'ship' where the log holds 'pick'."
    assert reason.next == "loom replay FILE --flow fulfil --live"


def test_a_cancel_under_way_is_told() -> None:
    """K13: by its event while cleanup runs, by its item before."""
    state = ExecutionState(cancelling="customer called")
    assert explain(row(), FLEET, FLOWS, NOW, state=state).sentence.endswith(
        "It is being cancelled: customer called."
    )
    cancel = InboxItem(
        tenant="default", execution_id="e 1", item_id="cancel", kind=InboxKind.CANCEL
    )
    assert explain(row(), FLEET, FLOWS, NOW, mail=[cancel]).sentence.endswith(
        "A cancel arrived and was not taken yet."
    )


def test_steps_are_named_where_the_log_is_at_hand() -> None:
    failure = Failure("OSError", "builtins", "no route")
    retrying = Frame("charge", FrameStatus.RETRYING, 2, 2, failure=failure, due=NOW + 8 * MICROS)
    backing_off = explain(row(), FLEET, FLOWS, NOW, state=ExecutionState(frames={"#0": retrying}))
    assert backing_off.code is ReasonCode.BACKING_OFF
    assert backing_off.sentence == "'charge' failed 2 times, next try in 8.0 s: OSError: no route."
    wait = Wait("#0!2", WaitKind.BACKOFF, "charge", retrying.due)
    state = ExecutionState(frames={"#0": retrying}, parked_on=(wait,))
    long_pause = explain(parked(wake_at=wait.due), FLEET, FLOWS, NOW, state=state)
    assert msgspec.structs.replace(long_pause, evidence=backing_off.evidence) == backing_off
    running = Frame("ship", FrameStatus.RUNNING, 1)
    busy = explain(row(), FLEET, FLOWS, NOW, state=ExecutionState(frames={"#0": running}))
    assert busy.code is ReasonCode.RUNNING
    assert busy.sentence.startswith("'ship' runs on worker/a/1/x")


@pytest.mark.parametrize(
    ("code", "broker", "said"),
    [
        (
            ReasonCode.BROKER_UNREACHABLE,
            BrokerFacts(unreachable="refused by 127.0.0.1:5672"),
            "cannot be reached: refused by 127.0.0.1:5672.",
        ),
        (ReasonCode.BROKER_ALARM, BrokerFacts(alarm="memory alarm"), "no messages: memory alarm."),
        (
            ReasonCode.QUEUE_NO_CONSUMERS,
            BrokerFacts(depths={"orders": Depth(120, 0)}),
            "queue 'orders' has 120 messages and no consumer, though by the journal 1 worker "
            "serves it.",
        ),
        (
            ReasonCode.QUEUE_BACKLOG,
            BrokerFacts(depths={"orders": Depth(1, 2)}),
            "1 message waits in it to be taken.",
        ),
        (ReasonCode.QUEUE_BACKLOG, BrokerFacts(depths={"orders": None}), "the broker only."),
    ],
)
def test_what_the_broker_knows_is_told(code: ReasonCode, broker: BrokerFacts, said: str) -> None:
    """Only of what needs a package: a gate waits whether the broker is there or not."""
    reason = explain(pending(), FLEET, FLOWS, NOW, broker=broker)
    assert (reason.code, reason.stuck) == (code, True)
    assert said in reason.sentence
    assert any("broker" in each for each in reason.evidence)
    gate = explain(parked(gates=("Approval",)), FLEET, FLOWS, NOW, broker=broker)
    assert gate.code is ReasonCode.GATE_WAITING


def test_a_package_that_nobody_could_use_is_told() -> None:
    """F2: unless another one has been taken since."""
    dead = DeadPackage("letter-1", "delivery_limit", NOW - 30 * MICROS)
    reason = explain(pending(), FLEET, FLOWS, NOW, dead=dead)
    assert reason.code is ReasonCode.DEAD_LETTERED
    assert reason.sentence.endswith("its package was dead-lettered 30 s ago: delivery_limit.")
    assert shlex.split(reason.next) == ["loom", "dlq", "show", "letter-1"]
    assert explain(overdue(), FLEET, FLOWS, NOW, dead=dead).code is ReasonCode.DEAD_LETTERED
    old = msgspec.structs.replace(dead, at=NOW - 91 * MICROS)
    assert explain(pending(), FLEET, FLOWS, NOW, dead=old).code is ReasonCode.QUEUE_BACKLOG


def test_a_step_that_takes_far_too_long_is_told() -> None:
    """By what such steps usually take; its worker lives, so no sweep ends it."""
    state = ExecutionState(frames={"#0": Frame("render", FrameStatus.RUNNING, 1)})

    def told(usual: int) -> ReasonCode:
        usually = {"render": usual * MICROS}
        return explain(row(), FLEET, FLOWS, NOW, state=state, usual=usually).code

    assert told(2) is ReasonCode.STEP_SLOW
    assert told(13) is ReasonCode.RUNNING
    reason = explain(row(), FLEET, FLOWS, NOW, state=state, usual={"render": 2 * MICROS})
    assert reason.stuck
    assert "'render' runs for 1 m on worker/a/1/x" in reason.sentence
    assert "usually it takes 2.0 s at most" in reason.sentence


def test_the_evidence_is_there_for_whoever_doubts() -> None:
    worker = msgspec.structs.replace(draining(WORKER), lease_until=NOW + 4 * MICROS)
    busy = explain(row(recoveries=2, inbox=1), [worker, DISPATCHER], FLOWS, NOW)
    assert "and drains" in busy.sentence
    assert busy.evidence == (
        "running: attempt 1, fence 1, 4 events, the last change 1 m ago",
        "held by worker/a/1/x, lease 4.0 s left, draining",
        "queue 'orders': 0 workers, 0 slots",
        "alive: 1 dispatcher, 0 timer services",
        "1 unread item in its inbox",
        "recovered 2 times since its last progress",
    )
    waiting = explain(pending(hint_at=NOW + MICROS, hints=1), FLEET, FLOWS, NOW)
    assert waiting.evidence[1:3] == (
        "held by nobody",
        "another package is due in 1.0 s; 1 sent again so far",
    )
    assert explain(row(status=Status.COMPLETED, owner=None), FLEET, FLOWS, NOW).evidence == ()


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
