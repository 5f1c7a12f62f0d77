"""Effects as the world saw them, and what clients were told, against the journal's word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import loom_mq as loom
from loom_mq.codec import wire
from loom_mq.kernel.fold import FrameStatus, decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import EventKind
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.messages import PackageMessage
from loom_mq.model.verdicts import VerdictKind
from tests.simulation.rig.jobs import Job, Work
from tests.simulation.rig.observer import Acked, Effect, Told, Violation
from tests.simulation.rig.reference import Expected, expected
from tests.simulation.rig.shadow import JournalShadow, Known

_OUTCOMES: Final = {
    "completed": EventKind.EXECUTION_COMPLETED,
    "failed": EventKind.EXECUTION_FAILED,
    "cancelled": EventKind.EXECUTION_CANCELLED,
}


class Ledger:
    """Beginnings and ends of effects, in order.

    Args:
        shadow: what is durable.
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.
        once: each package comes once, so that the first to be settled is the only one.
    """

    def __init__(
        self,
        shadow: JournalShadow,
        complain: Callable[[str, str, str], None],
        reached: Callable[[str], None],
        *,
        once: bool,
    ) -> None:
        self.begun: dict[str, list[Effect]] = {}
        self.done: dict[str, list[Effect]] = {}
        self.heard: dict[str, list[Told]] = {}
        self._shadow = shadow
        self._complain = complain
        self._reached = reached
        self._once = once

    def acked(self, acked: Acked) -> None:
        """S21: who takes a package off its queue has made something durable of it."""
        if not self._once or acked.how != "ack" or acked.type != "packages":
            return
        for package in wire.decode(PackageMessage, acked.body, acked.content_type).items:
            known = self._shadow.known.get(ExecutionKey(package.tenant, package.execution_id))
            if known is None or known.fence <= package.fence:
                name = f"{package.tenant}/{package.execution_id}"
                self._complain("S21", name, f"{acked.by} let go of it before it was claimed")

    def began(self, effect: Effect) -> None:
        """S9: no effect begins whose end is durable."""
        known = self._shadow.known.get(key_of(effect.execution_id))
        frame = None if known is None else known.state.frames.get(effect.place)
        completed = frame is not None and frame.status is FrameStatus.COMPLETED
        if completed and known is not None and known.holders.get(known.fence) == effect.by:
            # one that was superseded while it was stopped may not know yet
            self._complain("S9", effect.execution_id, f"{effect.step} begins after its end")
        if frame is None and _is_careful(effect):
            self._complain("S11", effect.execution_id, f"{effect.step} begins unannounced")
        self.begun.setdefault(effect.execution_id, []).append(effect)

    def ended(self, effect: Effect, outcome: str) -> None:
        """An effect has come to its end."""
        if outcome == "done":
            self.done.setdefault(effect.execution_id, []).append(effect)

    def told(self, told: Told) -> None:
        """S15: no client hears of an end that is not on the log."""
        self.heard.setdefault(told.execution_id, []).append(told)
        kind = _OUTCOMES.get(told.what)
        if kind is None:
            return
        known = self._shadow.known.get(key_of(told.execution_id))
        last = known.log[-1].kind if known is not None and known.log else "nothing"
        if last != kind:
            self._complain("S15", told.execution_id, f"told {told.what}, the log ends {last}")

    def check(self, work: Work) -> Iterator[Violation]:
        """What must be so of each job in the end."""
        for job in work.jobs:
            name = f"{job.tenant}/{job.id}"
            for rule, text in self._check(name, job):
                yield Violation(rule=rule, execution_id=name, text=text)

    def _check(self, name: str, job: Job) -> Iterator[tuple[str, str]]:
        known = self._shadow.known.get(key_of(name))
        if known is None:
            yield "S23", "it was accepted and is not there"
            return
        heard = self.heard.get(name, [])
        wanted = expected(job)
        ends = [told for told in heard if told.what in _OUTCOMES]
        cancelled = any(told.what == "cancelled" for told in ends)
        yield from self._check_outcome(ends, wanted)
        yield from self._check_effects(name, known, wanted, cancelled=cancelled)
        yield from self._check_bounds(name, known)
        yield from self._check_answers(known, heard, wanted)
        for told in heard:
            if told.what == "no-conflict":
                yield "S15", "another input was accepted under its id"
            if told.what in _GOALS:
                self._reached(_GOALS[told.what])

    def _check_outcome(self, ends: list[Told], wanted: Expected) -> Iterator[tuple[str, str]]:
        if not ends:
            yield "L1", "its client has heard nothing of its end"
            return
        end = ends[0]
        if end.what == "cancelled":
            if not wanted.cancellable:
                yield "S15", "it is cancelled and nobody asked for it"
        elif end.what == "completed":
            if wanted.value is None:
                yield "S12", f"it returned {end.value}, and should have failed with {wanted.error}"
            elif end.value != wanted.value:
                yield "S12", f"it returned {end.value}, not {wanted.value}"
        else:
            name = _error_name(end.value)
            if name != wanted.error:
                yield "S12", f"it failed with {name}, not {wanted.error or wanted.value}"

    def _check_effects(
        self, name: str, known: Known, wanted: Expected, *, cancelled: bool
    ) -> Iterator[tuple[str, str]]:
        done = {_node(effect) for effect in self.done.get(name, []) if not _is_undo(effect)}
        begun = {_node(effect) for effect in self.begun.get(name, []) if not _is_undo(effect)}
        judged = _judged(known)
        if wrongly := begun & wanted.never:
            yield "S13", f"the effects of {sorted(wrongly)} began, and never should"
        if cancelled:
            return
        if missing := wanted.done - done - judged:
            yield "S13", f"the effects of {sorted(missing)} never came to their end"
        if missing := wanted.tried - begun - judged:
            yield "S13", f"the effects of {sorted(missing)} never began"
        undone = [_node(each) for each in self.done.get(name, []) if _is_undo(each)]
        if set(undone) != set(wanted.undone):
            yield "S18", f"undone were {undone}, not {list(wanted.undone)}"
        if wanted.undone:
            self._reached("compensated")

    def _check_bounds(self, name: str, known: Known) -> Iterator[tuple[str, str]]:
        """S10, S11: once, and once more for each retry and each new holder meanwhile."""
        calls: dict[str, list[Effect]] = {}
        for effect in self.begun.get(name, []):
            calls.setdefault(effect.place, []).append(effect)
        word = _Word(known)
        if word.verdicts:
            self._reached("verdict")
        for place, count in word.completed.items():
            if count > 1:
                yield "S9", f"{place} completed {count} times"
        for place, effects in calls.items():
            first, times, retries = effects[0], len(effects), word.retries[place]
            began, ended = word.fences.get(place, (0, known.fence))
            if times > 1 + retries + ended - began:
                yield (
                    "S10",
                    (
                        f"{first.step} at {place} began {times} times: {retries} retries, "
                        f"{ended - began} new holders since it first began"
                    ),
                )
            if _is_careful(first) and times > 1 + word.allowed[place]:
                yield (
                    "S11",
                    (f"{first.step} began {times} times, {word.allowed[place]} more allowed"),
                )
            if times > 1 + retries:
                self._reached("effect ran again")

    def _check_answers(
        self, known: Known, heard: list[Told], wanted: Expected
    ) -> Iterator[tuple[str, str]]:
        """S14: what was accepted is taken once, where its gate was reached."""
        taken: Counter[str] = Counter()
        waits: Counter[str] = Counter()
        for envelope in known.log:
            match decode_payload(envelope):
                case ev.AnswerTaken(wait_id=wait, answer_id=answer):
                    waits[wait] += 1
                    taken[answer or ""] += bool(answer)
                case ev.ExecutionResumed():
                    pass
                case _:
                    pass
        for what, count in (*taken.items(), *waits.items()):
            if count > 1:
                yield "S14", f"{what} was taken {count} times"
        if known.log[-1].kind == EventKind.EXECUTION_CANCELLED:
            return
        accepted = {told.value[0] for told in heard if told.what == "answer-accepted"}
        for answer in sorted({f"answer {gate}" for gate in wanted.asked} & accepted):
            if not taken[answer]:
                yield "S14", f"{answer} was accepted and not taken"


class _Word:
    """What a log says of its steps, by place.

    Attributes:
        retries: failed attempts after which there is another.
        allowed: verdicts by which it is to run again.
        completed: how often it completed.
        fences: under which it first began, and under which it last began or ended.
        verdicts: of all steps.
    """

    def __init__(self, known: Known) -> None:
        self.retries: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.fences: dict[str, tuple[int, int]] = {}
        self.verdicts = 0
        for envelope in known.log:
            self._take(decode_payload(envelope), envelope.fence)

    def _take(self, event: object, fence: int) -> None:
        match event:
            case ev.StepStarted(step_id=place) | ev.StepFailed(step_id=place):
                self._under(place, fence)
            case ev.StepCompleted(step_id=place):
                self.completed[place] += 1
                self._under(place, fence)
            case ev.StepRetrying(step_id=place):
                self.retries[place] += 1
            case ev.VerdictTaken(step_id=place, verdict=verdict):
                self.verdicts += 1
                self.allowed[place] += verdict is VerdictKind.RUN_AGAIN
            case _:
                pass

    def _under(self, place: str, fence: int) -> None:
        began, _ended = self.fences.get(place, (fence, fence))
        self.fences[place] = (began, fence)


_GOALS: Final = {
    "answer-refused": "answer of another type refused",
    "conflict": "start with another input refused",
    "cancelled": "cancelled",
    "verdict-again": "verdict",
    "verdict-completed": "verdict",
}


def key_of(name: str) -> ExecutionKey:
    """The execution that an observer's record names."""
    tenant, _, execution_id = name.rpartition("/")
    return ExecutionKey(tenant, execution_id)


def _node(effect: Effect) -> int:
    return int(effect.step.rpartition("#")[2])


def _is_undo(effect: Effect) -> bool:
    return effect.step.startswith("undo#")


def _is_careful(effect: Effect) -> bool:
    return effect.step.startswith("careful")


def _judged(known: Known) -> set[int]:
    """Nodes of steps whose end an operator's word stands for."""
    places: set[int] = set()
    for envelope in known.log:
        event = decode_payload(envelope)
        if isinstance(event, ev.VerdictTaken) and event.verdict is VerdictKind.COMPLETED:
            name = known.state.frames[event.step_id].name
            places.add(int(name.removeprefix("careful")))
    return places


def _error_name(error: Any) -> str:
    return error.error_type if isinstance(error, loom.ExecutionFailedError) else repr(error)
