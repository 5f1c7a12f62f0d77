"""The journal's events: envelope, kinds and payloads (J1).

Payloads are arrays on the wire: a field may be added at the end with a default, and
none may ever be moved or removed. A kind that this version does not know is kept
and folds to nothing but the time of the last change.
"""

from __future__ import annotations

import enum

import msgspec

from loom_mq.model.failures import Failure
from loom_mq.model.verdicts import VerdictKind

EVENT_SCHEMA = 2
"""Version of the event payloads written by this release.

1 had no turns: what flow code saw happen, it saw one by one, in the order of the log.
"""


UNTOLD = -1
"""The turn of an outcome that no flow has been told of yet."""


class EventKind(enum.StrEnum):
    """What happened."""

    EXECUTION_STARTED = "EXECUTION_STARTED"
    EXECUTION_RECOVERED = "EXECUTION_RECOVERED"
    EXECUTION_SUSPENDED = "EXECUTION_SUSPENDED"
    EXECUTION_RESUMED = "EXECUTION_RESUMED"
    EXECUTION_COMPLETED = "EXECUTION_COMPLETED"
    EXECUTION_FAILED = "EXECUTION_FAILED"
    EXECUTION_CANCELLED = "EXECUTION_CANCELLED"
    STEP_STARTED = "STEP_STARTED"
    STEP_COMPLETED = "STEP_COMPLETED"
    STEP_FAILED = "STEP_FAILED"
    STEP_CANCELLED = "STEP_CANCELLED"
    STEP_RETRYING = "STEP_RETRYING"
    STEP_TOLD = "STEP_TOLD"
    DECISION_RECORDED = "DECISION_RECORDED"
    ANSWER_TAKEN = "ANSWER_TAKEN"
    CUSTOM_EMITTED = "CUSTOM_EMITTED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    EFFECT_IN_DOUBT = "EFFECT_IN_DOUBT"
    VERDICT_TAKEN = "VERDICT_TAKEN"


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One event as it stands in the log.

    Attributes:
        id: UUIDv7, 16 bytes.
        seq: place in the log, dense from 0.
        kind: an `EventKind`, or the name of a kind from a newer release.
        at: journal time, microseconds since the epoch; never falls along a log.
        fence: the fence under which it was written.
        kernel: true only when the kernel's own writer stamped it.
        schema: event schema version.
        payload: the payload struct of the kind, as msgpack.
    """

    id: bytes
    seq: int
    kind: str
    at: int
    fence: int
    kernel: bool
    schema: int
    payload: bytes


class WaitKind(enum.StrEnum):
    """What a parked execution waits for."""

    GATE = "gate"
    TIMER = "timer"
    BACKOFF = "backoff"
    VERDICT = "verdict"


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """One thing that a parked execution waits for (K7).

    Attributes:
        id: where in the flow the wait stands; an answer is addressed to it.
        kind: gate, timer, the pause before a step's next attempt, or an operator's
            verdict on a step in doubt.
        name: the gate's or the step's name; empty for a plain sleep.
        due: journal time at which the wait ends by itself, or None.
        answer_type: how a gate's answer type reads, for people.
    """

    id: str
    kind: WaitKind
    name: str = ""
    due: int | None = None
    answer_type: str = ""


class ExecutionStarted(msgspec.Struct, frozen=True, array_like=True):
    """Sequence 0 of every log.

    Attributes:
        run: tells executions apart that have been started under the same id; empty for
            one whose start would have found an earlier one (K16).
    """

    flow: str
    version: str
    input: bytes
    features: tuple[str, ...] = ()
    parent: str | None = None
    labels: dict[str, str] = {}
    run: str = ""


class ExecutionRecovered(msgspec.Struct, frozen=True, array_like=True):
    """Another attempt took over from a holder that died."""

    owner: str
    attempt: int


class ExecutionSuspended(msgspec.Struct, frozen=True, array_like=True):
    """Parked: nothing is held in memory until one of the waits ends."""

    waits: tuple[Wait, ...]


class ExecutionResumed(msgspec.Struct, frozen=True, array_like=True):
    """A parked execution was woken. Status only: answers are events of their own (K8).

    Attributes:
        ended: waits that ended by their time.
        turn: see `StepCompleted`.
    """

    ended: tuple[str, ...] = ()
    turn: int = 0


class AnswerTaken(msgspec.Struct, frozen=True, array_like=True):
    """A gate took an answer, addressed to this very wait (K7)."""

    wait_id: str
    gate: str
    answer: bytes
    answer_id: str
    turn: int = 0
    actor: str = ""


class ExecutionCompleted(msgspec.Struct, frozen=True, array_like=True):
    """The flow returned."""

    result: bytes


class ExecutionFailed(msgspec.Struct, frozen=True, array_like=True):
    """An error escaped the flow; the only event that makes an execution failed (K1)."""

    failure: Failure


class ExecutionCancelled(msgspec.Struct, frozen=True, array_like=True):
    """Somebody cancelled the execution."""

    reason: str


class StepStarted(msgspec.Struct, frozen=True, array_like=True):
    """A step's effect is about to begin; durable before it does (K6).

    Attributes:
        arguments: checksum of the arguments, 0 when they have none; tells a re-run that
            calls the step with others (C19).
        once: the effect must not run twice (K6).
    """

    step_id: str
    name: str
    attempt: int
    arguments: int = 0
    once: bool = False


class StepCompleted(msgspec.Struct, frozen=True, array_like=True):
    """A step's effect returned this result.

    Attributes:
        turn: number of the turn in which the flow was told. Within a turn it is told in
            the order of the log; between two turns it comes to rest (K3). 0 is a turn of
            its own, `UNTOLD` none: the flow was taken apart before it could be told.
    """

    step_id: str
    result: bytes
    turn: int = 0


class StepFailed(msgspec.Struct, frozen=True, array_like=True):
    """A step failed for good; says nothing about the execution (K1)."""

    step_id: str
    failure: Failure
    turn: int = 0


class StepCancelled(msgspec.Struct, frozen=True, array_like=True):
    """A step was interrupted.

    Attributes:
        turn: see `StepCompleted`.
    """

    step_id: str
    turn: int = 0


class StepTold(msgspec.Struct, frozen=True, array_like=True):
    """The flow was told of a step that had ended while it could not be told."""

    step_id: str
    turn: int


class StepRetrying(msgspec.Struct, frozen=True, array_like=True):
    """An attempt failed and another will be made.

    Attributes:
        failures: attempts that have failed so far.
        due: journal time of the next attempt.
    """

    step_id: str
    failure: Failure
    failures: int
    due: int


class DecisionRecorded(msgspec.Struct, frozen=True, array_like=True):
    """A choice that a re-run must repeat.

    Attributes:
        turn: see `StepCompleted`, when the flow had to wait for leave to make it; 0 when
            it was made as it was asked for.
    """

    op_id: str
    name: str
    value: bytes
    turn: int = 0


class CustomEmitted(msgspec.Struct, frozen=True, array_like=True):
    """Something the flow wanted told to its subscribers.

    Attributes:
        turn: as of `DecisionRecorded`.
    """

    op_id: str
    topic: str
    value: bytes
    turn: int = 0


class CancelRequested(msgspec.Struct, frozen=True, array_like=True):
    """The execution is to stop; its flow is interrupted from here on (K13).

    Attributes:
        turn: see `StepCompleted`.
    """

    reason: str
    actor: str = ""
    turn: int = 0


class EffectInDoubt(msgspec.Struct, frozen=True, array_like=True):
    """An effect that must not run twice began, and nobody knows how it ended (K6)."""

    step_id: str
    name: str
    attempt: int


class VerdictTaken(msgspec.Struct, frozen=True, array_like=True):
    """An operator said how a step in doubt is to be taken (K6)."""

    step_id: str
    verdict: VerdictKind
    message: str
    verdict_id: str
    actor: str = ""


type_of_kind: dict[str, type[msgspec.Struct]] = {
    EventKind.EXECUTION_STARTED: ExecutionStarted,
    EventKind.EXECUTION_RECOVERED: ExecutionRecovered,
    EventKind.EXECUTION_SUSPENDED: ExecutionSuspended,
    EventKind.EXECUTION_RESUMED: ExecutionResumed,
    EventKind.EXECUTION_COMPLETED: ExecutionCompleted,
    EventKind.EXECUTION_FAILED: ExecutionFailed,
    EventKind.EXECUTION_CANCELLED: ExecutionCancelled,
    EventKind.STEP_STARTED: StepStarted,
    EventKind.STEP_COMPLETED: StepCompleted,
    EventKind.STEP_FAILED: StepFailed,
    EventKind.STEP_CANCELLED: StepCancelled,
    EventKind.STEP_RETRYING: StepRetrying,
    EventKind.STEP_TOLD: StepTold,
    EventKind.DECISION_RECORDED: DecisionRecorded,
    EventKind.ANSWER_TAKEN: AnswerTaken,
    EventKind.CUSTOM_EMITTED: CustomEmitted,
    EventKind.CANCEL_REQUESTED: CancelRequested,
    EventKind.EFFECT_IN_DOUBT: EffectInDoubt,
    EventKind.VERDICT_TAKEN: VerdictTaken,
}

kind_of_type: dict[type[msgspec.Struct], EventKind] = {
    payload: EventKind(kind) for kind, payload in type_of_kind.items()
}
