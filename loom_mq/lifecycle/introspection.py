"""One execution as its events tell it: how long what took, and how it went. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from loom_mq.kernel.fold import TOLD, decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, Wait
from loom_mq.model.execution import Status


class StepOutcome(enum.StrEnum):
    """How a step stands at the end of the events."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    IN_DOUBT = "in-doubt"
    OPEN = "open"
    """It began, or is to be tried again, and nothing says how it ended."""


class StepRecord(msgspec.Struct, kw_only=True):
    """One step of one execution.

    Attributes:
        place: where it stands in the flow.
        attempts: how often its effect was started.
        retries: how often it was to be tried again after a failure.
        started_at: time of its first start.
        ended_at: time of its end, None while it has none.
        failures: classes of the errors of its failed attempts, in order.
        error: what the last of them said.
    """

    place: str
    name: str
    attempts: int = 0
    retries: int = 0
    started_at: int
    ended_at: int | None = None
    outcome: StepOutcome = StepOutcome.OPEN
    failures: list[str] = []
    error: str = ""

    @property
    def duration(self) -> int | None:
        """From its first start to its end, pauses between attempts included."""
        return None if self.ended_at is None else self.ended_at - self.started_at


class Park(msgspec.Struct, kw_only=True):
    """A time in which nothing of the execution was held in memory.

    Attributes:
        until: when something went on, None while nothing does.
        waits: what it waited for.
    """

    at: int
    until: int | None = None
    waits: tuple[Wait, ...] = ()


class AnswerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that a gate took.

    Attributes:
        asked_at: when the execution first parked at the gate; None when the answer was
            there before.
    """

    gate: str
    place: str
    asked_at: int | None
    taken_at: int

    @property
    def waited(self) -> int:
        """How long the gate waited for it."""
        return 0 if self.asked_at is None else self.taken_at - self.asked_at


class Introspection(msgspec.Struct, frozen=True, kw_only=True):
    """One execution, as its events tell it.

    Attributes:
        whole: the events begin with the first one; else the log was cut, and what is
            counted is what is left of it.
        outcome: how it ended, or that it is suspended or running; pending without events.
        error: of a failed execution.
        total: from the first event to the end, or to the newest event.
        parked: how much of that it was parked.
        recoveries: how often another worker took over from one that died.
    """

    whole: bool
    flow: str
    version: str
    outcome: Status
    error: str
    started_at: int | None
    ended_at: int | None
    steps: tuple[StepRecord, ...]
    parks: tuple[Park, ...]
    answers: tuple[AnswerRecord, ...]
    total: int
    parked: int
    recoveries: int

    @property
    def active(self) -> int:
        """How much of `total` it was not parked."""
        return self.total - self.parked


def introspect(events: Sequence[Envelope]) -> Introspection:
    """What happened in one execution.

    Args:
        events: its log, in order, or the beginning of it.
    """
    reader = _Reader()
    for event in events:
        reader.read(decode_payload(event), event.at)
    return reader.told(events)


class _Reader:
    """Reads a log once."""

    def __init__(self) -> None:
        self.flow = self.version = self.error = ""
        self.outcome = Status.PENDING
        self.ended_at: int | None = None
        self.recoveries = 0
        self.steps: dict[str, StepRecord] = {}
        self.parks: list[Park] = []
        self.answers: list[AnswerRecord] = []
        self._asked: dict[str, int] = {}

    def read(self, event: msgspec.Struct | None, at: int) -> None:
        match event:
            case ev.ExecutionStarted(flow=flow, version=version):
                self.flow, self.version = flow, version
                self.outcome = Status.RUNNING
            case ev.ExecutionRecovered():
                self.recoveries += 1
            case ev.ExecutionSuspended(waits=waits):
                self._park(waits, at)
            case ev.ExecutionResumed():
                self._unpark(Status.RUNNING, at)
            case ev.ExecutionCompleted():
                self._end(Status.COMPLETED, at)
            case ev.ExecutionFailed(failure=failure):
                self.error = failure.headline
                self._end(Status.FAILED, at)
            case ev.ExecutionCancelled():
                self._end(Status.CANCELLED, at)
            case ev.AnswerTaken(wait_id=place, gate=gate):
                asked = self._asked.get(place)
                self.answers.append(
                    AnswerRecord(gate=gate, place=place, asked_at=asked, taken_at=at)
                )
            case _:
                self._step(event, at)

    def _step(self, event: msgspec.Struct | None, at: int) -> None:
        match event:
            case ev.StepStarted(step_id=place, name=name):
                new = StepRecord(place=place, name=name, started_at=at)
                begun = self.steps.setdefault(place, new)
                begun.attempts += 1
                begun.outcome, begun.ended_at = StepOutcome.OPEN, None
            case ev.StepRetrying(step_id=place, failure=failure):
                if (step := self.steps.get(place)) is not None:
                    step.retries += 1
                    step.failures.append(failure.type)
                    step.error = failure.headline
            case ev.StepFailed(step_id=place, failure=failure):
                if (step := self._ended(place, StepOutcome.FAILED, at)) is not None:
                    step.failures.append(failure.type)
                    step.error = failure.headline
            case ev.StepCompleted(step_id=place):
                self._ended(place, StepOutcome.COMPLETED, at)
            case ev.StepCancelled(step_id=place):
                self._ended(place, StepOutcome.CANCELLED, at)
            case ev.EffectInDoubt(step_id=place):
                if (step := self.steps.get(place)) is not None:
                    step.outcome = StepOutcome.IN_DOUBT

    def _ended(self, place: str, outcome: StepOutcome, at: int) -> StepRecord | None:
        step = self.steps.get(place)  # None behind the cut of a log
        if step is not None:
            step.outcome, step.ended_at = outcome, at
        return step

    def _park(self, waits: tuple[Wait, ...], at: int) -> None:
        self._unpark(Status.SUSPENDED, at)
        self.parks.append(Park(at=at, waits=waits))
        for wait in waits:
            if wait.kind in TOLD:
                self._asked.setdefault(wait.id, at)

    def _unpark(self, outcome: Status, at: int) -> None:
        self.outcome = outcome
        if self.parks and self.parks[-1].until is None:
            self.parks[-1].until = at

    def _end(self, outcome: Status, at: int) -> None:
        self._unpark(outcome, at)
        self.ended_at = at

    def told(self, events: Sequence[Envelope]) -> Introspection:
        first, last = (events[0].at, events[-1].at) if events else (0, 0)
        parked = sum((last if park.until is None else park.until) - park.at for park in self.parks)
        return Introspection(
            whole=bool(events) and events[0].seq == 0,
            flow=self.flow,
            version=self.version,
            outcome=self.outcome,
            error=self.error,
            started_at=first if events else None,
            ended_at=self.ended_at,
            steps=tuple(self.steps.values()),
            parks=tuple(self.parks),
            answers=tuple(self.answers),
            total=last - first,
            parked=parked,
            recoveries=self.recoveries,
        )
