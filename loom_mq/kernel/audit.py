"""Answers that no gate should have taken, and answers that no gate waits for (K7, K8). Pure.

The kernel writes no stray answer. A log may hold one all the same: from before a fault was
mended, from an import, or from a writer that is not ours. An audit looks for them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from loom_mq.kernel.fold import ExecutionState, OpKind, apply, decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, WaitKind
from loom_mq.model.execution import InboxItem, InboxKind, Status


class StrayReason(enum.StrEnum):
    """Why an answer is a stray; stable, for programs."""

    NO_SUCH_GATE = "no-such-gate"
    """No park and no gate of the flow ever named this wait under this gate's name."""
    SECOND_ANSWER = "second-answer"
    """The wait had its answer."""
    TOO_LATE = "too-late"
    """The wait had ended by its time."""
    AFTER_THE_END = "after-the-end"
    """The execution had ended."""
    IN_DOUBT = "in-doubt"
    """The execution waited for a verdict on a step, and for no answer to this gate."""
    NULL_AFTER_FAILURE = "null-answer-after-parked-failure"
    """An empty answer to a park during which a step failed (K8)."""
    UNREAD = "unread"
    """It lies in the inbox, and no gate that it could be for is open."""


class StrayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One stray answer.

    Attributes:
        seq: where it stands in the log, None while it lies in the inbox.
        gate: the gate's name as the answer has it.
        wait_id: the wait that it is addressed to, None for whichever opens first.
        answer_id: the sender's id.
        actor: who says so, empty when nobody told.
        sentence: the same for people.
    """

    seq: int | None
    gate: str
    wait_id: str | None
    answer_id: str
    actor: str
    reason: StrayReason
    sentence: str


def stray_answers(
    events: Iterable[Envelope],
    inbox: Iterable[InboxItem] = (),
    *,
    before: ExecutionState | None = None,
) -> tuple[StrayAnswer, ...]:
    """The strays of one execution, in the order of the log, then of the inbox (K7, K8).

    Args:
        events: its log.
        inbox: its unread inbox items, oldest first.
        before: the fold of what comes before `events`, for a log that was cut behind its
            snapshot; changed in place.
    """
    watch = _Watch(before if before is not None else ExecutionState())
    for envelope in events:
        watch.see(envelope)
    found = watch.found
    found.extend(
        stray
        for item in inbox
        if item.kind is InboxKind.ANSWER and (stray := _unread(watch.state, item)) is not None
    )
    return tuple(found)


class _Watch:
    """Folds a log and looks at each answer before it is folded in."""

    def __init__(self, state: ExecutionState) -> None:
        self.state = state
        self.found: list[StrayAnswer] = []
        self._null_refused: frozenset[str] = frozenset()
        """Waits of the newest park, when a step failed during it."""
        self._doubted: frozenset[str] | None = None
        """Waits of the newest park, while only a verdict or one of these could wake it."""

    def see(self, envelope: Envelope) -> None:
        payload = decode_payload(envelope)
        match payload:
            case ev.AnswerTaken():
                self._judge(envelope.seq, payload)
                if self._doubted is not None and payload.wait_id in self._doubted:
                    self._doubted = None
            case ev.ExecutionSuspended():
                self._null_refused = frozenset()
                doubted = any(wait.kind is WaitKind.VERDICT for wait in payload.waits)
                self._doubted = _gates(payload.waits) if doubted else None
            case ev.ExecutionResumed():
                if self.state.failed_while_parked:
                    self._null_refused = _gates(self.state.parked_on)
                if payload.ended:
                    self._doubted = None
            case ev.VerdictTaken() | ev.CancelRequested():
                self._doubted = None
            case _:
                pass
        apply(self.state, payload, envelope.seq, envelope.at)

    def _judge(self, seq: int, answer: ev.AnswerTaken) -> None:
        fault = self._fault(answer)
        if fault is None:
            return
        reason, why = fault
        self.found.append(
            StrayAnswer(
                seq=seq,
                gate=answer.gate,
                wait_id=answer.wait_id,
                answer_id=answer.answer_id,
                actor=answer.actor,
                reason=reason,
                sentence=f"Event {seq}: gate {answer.gate!r} took the answer "
                f"{answer.answer_id!r}{_by(answer.actor)} for wait {answer.wait_id}, {why}.",
            )
        )

    def _fault(self, answer: ev.AnswerTaken) -> tuple[StrayReason, str] | None:
        state = self.state
        if state.status.terminal:
            return StrayReason.AFTER_THE_END, f"when the execution had ended {state.status.value}"
        ended = _ended(state, answer.wait_id)
        if ended is not None:
            return ended
        if not self._named(answer):
            return (
                StrayReason.NO_SUCH_GATE,
                "which no park and no gate of the flow ever named so",
            )
        if self._doubted is not None and answer.wait_id not in self._doubted:
            return (
                StrayReason.IN_DOUBT,
                "while the execution waited for a verdict on a step and not at this gate",
            )
        parked = state.failed_while_parked or answer.wait_id in self._null_refused
        if parked and is_null(answer.answer):
            return (
                StrayReason.NULL_AFTER_FAILURE,
                "an empty one after a step had failed during the park, which cannot be told "
                "from a mere change of status",
            )
        return None

    def _named(self, answer: ev.AnswerTaken) -> bool:
        """Whether the wait is that gate's: by a park, or by the flow that took it just now."""
        state = self.state
        known = state.ops.get(answer.wait_id)
        if known is not None:
            wait = state.waits.get(answer.wait_id)
            gate = wait is None or wait.kind is WaitKind.GATE
            return gate and known == (OpKind.WAIT, answer.gate)
        # a wait of the engine's own (a back-off, a verdict) takes no place
        return state.status is Status.RUNNING or self._doubted is not None


def _unread(state: ExecutionState, item: InboxItem) -> StrayAnswer | None:
    if state.status.terminal:
        why = f"the execution has ended {state.status.value}"
    elif item.wait_id is not None and (ended := _ended(state, item.wait_id)) is not None:
        why = f"{ended[1]} already".removeprefix("when ")
    elif any(
        wait.kind is WaitKind.GATE and wait.name == item.gate and item.wait_id in (None, wait.id)
        for wait in state.parked_on
    ):
        return None
    elif state.in_doubt:
        why = "the execution waits for a verdict on a step, not at this gate"
    else:
        why = "no such gate is open; it is kept until one opens"
    to = "" if item.wait_id is None else f" for wait {item.wait_id}"
    return StrayAnswer(
        seq=None,
        gate=item.gate,
        wait_id=item.wait_id,
        answer_id=item.item_id,
        actor=item.actor,
        reason=StrayReason.UNREAD,
        sentence=f"The answer {item.item_id!r}{_by(item.actor)} to gate {item.gate!r}{to} lies "
        f"unread: {why}.",
    )


def _ended(state: ExecutionState, wait_id: str) -> tuple[StrayReason, str] | None:
    answer = state.answers.get(wait_id)
    if answer is None:
        return None
    if answer.payload is None:
        return StrayReason.TOO_LATE, "when that wait had ended by its time"
    return StrayReason.SECOND_ANSWER, "when that wait had its answer"


def _gates(waits: Iterable[ev.Wait]) -> frozenset[str]:
    return frozenset(wait.id for wait in waits if wait.kind is WaitKind.GATE)


def _by(actor: str) -> str:
    return f" of {actor!r}" if actor else ""


_NULLS: Final = (b"\xc0", b"null")


def is_null(payload: bytes) -> bool:
    """Whether an answer in stored form is ``None``, whichever way it was stored."""
    return payload[1:].strip() in _NULLS
