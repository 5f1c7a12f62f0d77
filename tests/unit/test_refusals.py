"""What is refused, and what is no failure: answers, verdicts, newer holders (K6, K7, K8, F5)."""

from __future__ import annotations

import msgspec
import pytest

from loom_mq.errors import (
    DuplicateSequenceError,
    ExecutionAlreadyExistsError,
    HeldByLiveOwnerError,
    StaleFenceError,
    StartFencedOutError,
    StorageWriteError,
    is_superseded_refusal,
)
from loom_mq.flows.mail import Mail
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.kernel.refusals import refusal_of
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import InboxItem, InboxKind
from tests.unit.generated_logs import PLAIN, as_log

NULL = b"\x01\xc0"
YES = b"\x00\xc3"
START = ev.ExecutionStarted("flow", "1", b"")
STEP = ev.StepStarted("#0", "s", 1)
PARK = ev.ExecutionSuspended(
    (Wait("#1", WaitKind.GATE, "Approval"), Wait("#2?1", WaitKind.VERDICT, "charge"))
)
LATE = ev.StepFailed("#0", PLAIN)


def item(
    payload: bytes = YES,
    gate: str = "Approval",
    wait_id: str | None = None,
    kind: InboxKind = InboxKind.ANSWER,
    item_id: str = "a",
) -> InboxItem:
    return InboxItem(
        tenant="t",
        execution_id="e",
        item_id=item_id,
        kind=kind,
        gate=gate,
        wait_id=wait_id,
        payload=payload,
    )


def state_of(*events: msgspec.Struct) -> ExecutionState:
    return fold(as_log([START, STEP, *events]))


def test_k8_an_empty_answer_after_a_failure_while_parked_is_refused() -> None:
    """K8: by its reason; to the very wait, and to whichever opens first."""
    state = state_of(PARK, LATE)
    for wait_id in (None, "#1"):
        refusal = refusal_of(state, item(NULL, wait_id=wait_id))
        assert refusal is not None
        assert refusal.reason == "null-answer-after-parked-failure"


def test_k8_nothing_else_is_refused() -> None:
    """K8: not with a value, not without such a failure, not at another gate, not elsewhere."""
    parked = state_of(PARK, LATE)
    assert refusal_of(parked, item(YES)) is None
    assert refusal_of(parked, item(NULL, gate="Other")) is None
    assert refusal_of(parked, item(NULL, wait_id="#7")) is None
    assert refusal_of(state_of(PARK), item(NULL)) is None
    assert refusal_of(state_of(LATE, PARK), item(NULL)) is None
    assert refusal_of(state_of(PARK, LATE, ev.ExecutionResumed(), PARK), item(NULL)) is None


def test_k6_a_verdict_is_for_a_step_in_doubt() -> None:
    """K6: by the step's name or by its place."""
    state = state_of(PARK)
    for step in ("charge", "#2"):
        assert refusal_of(state, item(gate=step, kind=InboxKind.VERDICT)) is None
    refusal = refusal_of(state, item(gate="s", kind=InboxKind.VERDICT))
    assert refusal is not None
    assert refusal.reason == "not-suspended"


def test_k7_an_answer_goes_to_the_wait_that_it_names() -> None:
    """K7: never to a later gate of the same name; without a name to whichever asks first."""
    mail = Mail()
    addressed, free = item(wait_id="#1", item_id="a"), item(item_id="b")
    assert mail.add([addressed, free])
    assert mail.find("Other", "#1") is None
    assert mail.find("Approval", "#4") is free
    assert mail.find("Approval", "#1") is addressed
    assert mail.take("Approval", "#1") is addressed
    assert mail.take("Approval", "#4") is free
    assert mail.find("Approval", "#4") is None


def test_k7_the_same_id_twice_is_one_item() -> None:
    """K7: while it waits, and after it was taken."""
    mail = Mail()
    assert mail.add([item()])
    assert not mail.add([item(NULL)])
    assert len(mail) == 1
    assert mail.take("Approval", "#1") == item()
    assert not mail.add([item()])
    assert mail.find("Approval", "#1") is None


def test_k7_a_verdict_is_no_answer() -> None:
    """K6, K7: though its step may be named like a gate."""
    mail = Mail()
    mail.add([item(kind=InboxKind.VERDICT, item_id="v"), item(item_id="a")])
    found = mail.find("Approval", "#1")
    assert found is not None
    assert found.item_id == "a"


def wrapped(cause: Exception | None) -> StorageWriteError:
    error = StorageWriteError("the write did not go out")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "superseded"),
    [
        (StaleFenceError("e", held=1, current=2), True),
        (ExecutionAlreadyExistsError("e"), True),
        (wrapped(StaleFenceError("e", held=1, current=2)), True),
        (StaleFenceError("other", held=1, current=2), False),
        (ExecutionAlreadyExistsError("other"), False),
        (wrapped(StaleFenceError("other", held=1, current=2)), False),
        (wrapped(ExecutionAlreadyExistsError("e")), False),
        (wrapped(OSError("disk full")), False),
        (wrapped(None), False),
        (StartFencedOutError("e", current=1), False),
        (HeldByLiveOwnerError("e", owner="w"), False),
        (DuplicateSequenceError("e", seq=1, next_seq=2), False),
        (None, False),
    ],
)
def test_f5_superseded_is_told_by_class_and_by_name(
    error: Exception | None, superseded: bool
) -> None:
    """F5: a newer holder owns this very execution; everything else is a failure."""
    assert is_superseded_refusal(error, "e") is superseded
