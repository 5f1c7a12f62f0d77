"""The audit of answers: which no gate should have taken, which no gate waits for (K7, K8)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from loom_mq.codec.values import codec_for, from_json, wrap_json, wrap_plain
from loom_mq.kernel.audit import StrayReason, is_null, stray_answers
from loom_mq.kernel.fold import fold
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import InboxItem, InboxKind
from loom_mq.model.verdicts import VerdictKind
from tests.unit.generated_logs import LAWS, PLAIN, Payloads, as_log, lawful_logs

YES = b"\x00\xc3"
NULL = b"\x01\xc0"
START = ev.ExecutionStarted("flow", "1", b"")
STEP = ev.StepStarted("#0", "charge", 1, 0, True)
GATE = Wait("#1", WaitKind.GATE, "Approval", 900)
PARK = ev.ExecutionSuspended((GATE,))
WAKE = ev.ExecutionResumed()
TIME_OUT = ev.ExecutionResumed(("#1",))
IN_DOUBT = ev.EffectInDoubt("#0", "charge", 1)
DOUBT = Wait("#0?1", WaitKind.VERDICT, "charge")
VERDICT = ev.VerdictTaken("#0", VerdictKind.COMPLETED, "", "v")
LATE = ev.StepFailed("#0", PLAIN)


def answer(
    wait_id: str = "#1", gate: str = "Approval", value: bytes = YES, actor: str = ""
) -> ev.AnswerTaken:
    return ev.AnswerTaken(wait_id, gate, value, "a", 0, actor)


def reasons(*payloads: msgspec.Struct | None) -> list[tuple[int | None, StrayReason]]:
    return [(each.seq, each.reason) for each in stray_answers(as_log(list(payloads)))]


@pytest.mark.parametrize(
    "payloads",
    [
        (START, PARK, WAKE, answer()),
        (START, PARK, answer()),
        (START, answer()),
        (START, answer(value=NULL)),
        (START, PARK, WAKE, answer(value=NULL)),
        (START, STEP, LATE, PARK, WAKE, answer(value=NULL)),
        (START, STEP, PARK, LATE, WAKE, answer()),
        (START, STEP, PARK, LATE, WAKE, PARK, WAKE, answer(value=NULL)),
        (START, STEP, PARK, None, WAKE, answer(value=NULL)),
        (START, STEP, IN_DOUBT, ev.ExecutionSuspended((DOUBT,)), WAKE, VERDICT, answer()),
        (START, STEP, IN_DOUBT, ev.ExecutionSuspended((GATE, DOUBT)), WAKE, answer()),
        (
            START,
            STEP,
            IN_DOUBT,
            ev.ExecutionSuspended((GATE, DOUBT)),
            WAKE,
            answer(),
            answer("#2"),
        ),
        (START, STEP, IN_DOUBT, ev.ExecutionSuspended((GATE, DOUBT)), TIME_OUT, answer("#2")),
        (
            START,
            STEP,
            IN_DOUBT,
            ev.ExecutionSuspended((DOUBT,)),
            WAKE,
            ev.CancelRequested("enough"),
            answer("#2"),
        ),
    ],
)
def test_k7_a_lawful_answer_is_no_stray(payloads: tuple[msgspec.Struct | None, ...]) -> None:
    """K7, K8: parked for or found there already, an empty one included."""
    assert reasons(*payloads) == []


@pytest.mark.parametrize(
    ("payloads", "reason"),
    [
        ((START, PARK, WAKE, answer(gate="Other")), StrayReason.NO_SUCH_GATE),
        ((START, PARK, answer("#7")), StrayReason.NO_SUCH_GATE),
        ((START, STEP, answer("#0")), StrayReason.NO_SUCH_GATE),
        ((answer(),), StrayReason.NO_SUCH_GATE),
        (
            (START, ev.ExecutionSuspended((Wait("#1", WaitKind.TIMER, "", 9),)), WAKE, answer()),
            StrayReason.NO_SUCH_GATE,
        ),
        ((START, PARK, WAKE, answer(), answer()), StrayReason.SECOND_ANSWER),
        ((START, answer(), PARK, answer()), StrayReason.SECOND_ANSWER),
        ((START, PARK, TIME_OUT, answer()), StrayReason.TOO_LATE),
        ((START, PARK, ev.ExecutionCancelled("enough"), answer()), StrayReason.AFTER_THE_END),
        ((START, STEP, ev.ExecutionSuspended((DOUBT,)), answer()), StrayReason.IN_DOUBT),
        ((START, STEP, ev.ExecutionSuspended((DOUBT,)), WAKE, answer()), StrayReason.IN_DOUBT),
        (
            (START, STEP, ev.ExecutionSuspended((GATE, DOUBT)), WAKE, answer("#2")),
            StrayReason.IN_DOUBT,
        ),
        ((START, STEP, PARK, LATE, answer(value=NULL)), StrayReason.NULL_AFTER_FAILURE),
        ((START, STEP, PARK, LATE, WAKE, answer(value=NULL)), StrayReason.NULL_AFTER_FAILURE),
    ],
)
def test_k7_a_stray_is_found(payloads: tuple[msgspec.Struct, ...], reason: StrayReason) -> None:
    """K7, K8: the last event of each log is an answer that no gate should have taken."""
    assert reasons(*payloads) == [(len(payloads) - 1, reason)]


def test_a_stray_tells_who_and_what() -> None:
    log = as_log([START, PARK, TIME_OUT, answer(actor="ann")])
    [stray] = stray_answers(log)
    assert (stray.seq, stray.gate, stray.wait_id, stray.actor) == (3, "Approval", "#1", "ann")
    assert stray.sentence == (
        "Event 3: gate 'Approval' took the answer 'a' of 'ann' for wait #1, when that wait had "
        "ended by its time."
    )


def mail(
    gate: str = "Approval", wait_id: str | None = None, kind: InboxKind = InboxKind.ANSWER
) -> InboxItem:
    return InboxItem(
        tenant="t",
        execution_id="e",
        item_id="m",
        kind=kind,
        gate=gate,
        wait_id=wait_id,
        payload=YES,
        actor="ann",
    )


@pytest.mark.parametrize(
    ("payloads", "item", "why"),
    [
        ((START, PARK), mail(), None),
        ((START, PARK), mail(wait_id="#1"), None),
        ((START, PARK), mail("Other", kind=InboxKind.VERDICT), None),
        ((START, PARK), mail("", kind=InboxKind.CANCEL), None),
        ((START, PARK), mail("Other"), "no such gate is open; it is kept until one opens"),
        ((START, PARK), mail(wait_id="#2"), "no such gate is open; it is kept until one opens"),
        ((START,), mail(), "no such gate is open; it is kept until one opens"),
        ((START, PARK, TIME_OUT), mail(wait_id="#1"), "that wait had ended by its time already"),
        ((START, answer()), mail(wait_id="#1"), "that wait had its answer already"),
        ((START, ev.ExecutionCompleted(b"")), mail(), "the execution has ended completed"),
        (
            (START, ev.ExecutionSuspended((DOUBT,))),
            mail(),
            "the execution waits for a verdict on a step, not at this gate",
        ),
        ((START, ev.ExecutionSuspended((DOUBT, GATE))), mail(), None),
    ],
)
def test_k7_an_unread_answer_that_nothing_waits_for_is_told(
    payloads: tuple[msgspec.Struct, ...], item: InboxItem, why: str | None
) -> None:
    """K7: one for an open gate is no stray: it is about to be taken."""
    strays = stray_answers(as_log(list(payloads)), [item])
    if why is None:
        assert strays == ()
        return
    [stray] = strays
    assert (stray.seq, stray.reason, stray.answer_id) == (None, StrayReason.UNREAD, "m")
    assert stray.sentence.endswith(f"lies unread: {why}.")


def test_j8_the_tail_of_a_log_is_judged_by_what_came_before() -> None:
    """J8: a log that was cut behind its snapshot begins with that."""
    log = as_log([START, PARK, TIME_OUT, answer(), ev.DecisionRecorded("#4", "d", b"")])
    for cut in range(4):
        whole = stray_answers(log)
        assert stray_answers(log[cut:], before=fold(log[:cut])) == whole


@LAWS
@given(lawful_logs)
def test_k7_the_only_strays_of_a_lawful_log_are_empty_answers_after_a_failure(
    payloads: Payloads,
) -> None:
    """K7, K8: the logs are what an engine may write, apart from that one shape, which the
    original wrote.
    """
    strays = stray_answers(as_log(payloads))
    assert {each.reason for each in strays} <= {StrayReason.NULL_AFTER_FAILURE}
    if not any(isinstance(each, ev.StepFailed) for each in payloads):
        assert strays == ()


def test_every_way_to_store_none_is_empty() -> None:
    """K8: whichever way an answer came in."""
    for codec in (codec_for(object), codec_for(bool | None)):
        assert is_null(codec.encode(None, what="answer"))
        assert not is_null(codec.encode(False, what="answer"))
    assert is_null(from_json("null", object))
    assert is_null(wrap_json(b" null "))
    assert is_null(wrap_plain(b"\xc0"))
    assert not is_null(wrap_json(b"0"))
