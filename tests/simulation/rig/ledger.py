"""Effects as the world saw them, against what the journal says of their steps: S9 to S11, S13, S18.

A tenure is the time from a claim of a fence to the next. Within one, an effect begins again only
for a retry after its failure; with the next, only if its end is not on the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from loom_mq.kernel.fold import FrameStatus, decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import EventKind
from loom_mq.model.execution import ExecutionKey
from loom_mq.model.verdicts import VerdictKind
from tests.simulation.rig.jobs import Job, Node
from tests.simulation.rig.known import Known, Parting
from tests.simulation.rig.observer import Effect
from tests.simulation.rig.reference import Expected

DONE: Final = "done"
ABORTED: Final = "CancelledError"
_RETRIED: Final = ("flaky#", "sluggish#")
"""Steps that have a retry policy by which they are tried again."""
_UNSTOPPABLE: Final = ("plain#",)
"""Steps in threads, whose end comes whether it is wanted any more or not."""


class Call(msgspec.Struct, eq=False):
    """One call of an effect.

    Attributes:
        fence: of the tenure in which it began.
        outcome: how it ended; empty while it runs, or when its process died meanwhile.
        late: whether its tenure was over by then.
    """

    effect: Effect
    fence: int
    outcome: str = ""
    late: bool = False


class Ledger:
    """See the module's docstring.

    Args:
        known: every execution, as the shadow knows it.
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.

    Attributes:
        calls: of each execution, in the order of their beginnings.
        repeated: calls that began although one before had come to no failure.
        stragglers: calls that began because a park had aborted the one before.
    """

    def __init__(
        self,
        known: dict[ExecutionKey, Known],
        complain: Callable[[str, str, str], None],
        reached: Callable[[str], None],
    ) -> None:
        self.calls: dict[str, list[Call]] = {}
        self.repeated: list[Call] = []
        self.stragglers: list[Call] = []
        self._known = known
        self._complain = complain
        self._reached = reached

    def began(self, effect: Effect) -> None:
        """An effect begins; it must not if its end is durable, or if another call of it runs."""
        known = self._known.get(key_of(effect.execution_id))
        if known is None:
            self._complain("S23", effect.execution_id, f"{effect.step} of nobody begins")
            return
        fence = known.tenures.get(effect.by, 0)
        if not fence:
            self._wrong("S10", effect, f"{effect.by}, who never took it, runs {effect.step}")
        calls = self.calls.setdefault(effect.execution_id, [])
        before = [call for call in calls if call.effect.place == effect.place]
        if fence == known.fence:
            # who was superseded while he was stopped may not know yet
            self._hold_against_the_log(effect, known)
        call = Call(effect, fence)
        if fence < known.fence:
            self._reached("zombie ran an effect")
        if before:
            self._again(call, before, known)
        calls.append(call)

    def _hold_against_the_log(self, effect: Effect, known: Known) -> None:
        """S9, S11: no effect begins whose end is durable, and no careful one unannounced."""
        frame = known.state.frames.get(effect.place)
        if frame is not None and frame.status is FrameStatus.COMPLETED:
            self._wrong("S9", effect, f"{effect.step} begins after its end")
        if known.ended:
            self._wrong("S9", effect, f"{effect.step} begins after the end of its execution")
        if _is_careful(effect):
            announced = frame is not None and frame.status is FrameStatus.RUNNING
            if not announced or frame is None or frame.attempts != effect.attempt:
                self._wrong("S11", effect, f"{effect.step} begins unannounced: {frame}")

    def _again(self, call: Call, before: list[Call], known: Known) -> None:
        """S10, S11: it has begun before, and there must be a reason for another time."""
        effect, last = call.effect, before[-1]
        if _is_careful(effect):
            allowed = _verdicts_to_run_again(known, effect.place)
            if len(before) > allowed:
                text = f"{effect.step} begins for time {len(before) + 1}, {allowed} more allowed"
                self._wrong("S11", effect, text)
        same = [each for each in before if each.fence == call.fence]
        if same:
            retried = effect.step.startswith(_RETRIED) and same[-1].outcome not in (DONE, ABORTED)
            follows = effect.attempt == same[-1].effect.attempt + 1
            if not (same[-1].outcome and retried and follows):
                text = (
                    f"{effect.by} runs {effect.step} at {effect.place}, attempt {effect.attempt}, "
                    f"after attempt {same[-1].effect.attempt}: {same[-1].outcome or 'it runs'}"
                )
                self._wrong("S10", effect, text)
            return
        self._reached("effect ran again")
        parked = known.partings.get(last.fence) is Parting.PARKED
        unstoppable = effect.step.startswith(_UNSTOPPABLE)
        if parked and (last.outcome == ABORTED or last.late or unstoppable):
            self._reached("straggler aborted at a park")
            self.stragglers.append(call)
        elif parked and last.outcome == DONE:
            # K11: a park waits for what is in flight
            self._wrong("S10", effect, f"{effect.step} had come to its end when it was parked")
        elif last.outcome in (DONE, ABORTED, ""):
            self.repeated.append(call)

    def ended(self, effect: Effect, outcome: str) -> None:
        """An effect has come to its end."""
        known = self._known.get(key_of(effect.execution_id))
        for call in reversed(self.calls.get(effect.execution_id, ())):
            if call.effect is effect:
                call.outcome = outcome
                call.late = known is None or call.fence in known.partings
                return

    # ---- in the end ----------------------------------------------------------------------

    def check(self, job: Job, known: Known, wanted: Expected) -> Iterator[tuple[str, str]]:
        """What must be so of a job's effects once it has ended."""
        calls = self.calls.get(known.name, [])
        yield from self._check_log(known)
        done = _nodes(call for call in calls if call.outcome == DONE)
        begun = _nodes(calls)
        judged = _judged(known)
        if wrongly := begun & wanted.never:
            yield "S13", f"the effects of {sorted(wrongly)} began, and never should"
        undone = _undone(calls)
        yield from _check_order(job.program, undone)
        if known.log and known.log[-1].kind == EventKind.EXECUTION_CANCELLED:
            return
        if missing := wanted.done - done - judged:
            yield "S13", f"the effects of {sorted(missing)} never came to their end"
        if missing := wanted.tried - begun - judged:
            yield "S13", f"the effects of {sorted(missing)} never began"
        if set(undone) != set(wanted.undone):
            yield "S18", f"undone were {undone}, not {list(wanted.undone)}"
        if wanted.undone:
            self._reached("compensated")

    def _check_log(self, known: Known) -> Iterator[tuple[str, str]]:
        completed: Counter[str] = Counter()
        for envelope in known.log:
            if envelope.kind == EventKind.STEP_COMPLETED:
                event = decode_payload(envelope)
                if isinstance(event, ev.StepCompleted):
                    completed[event.step_id] += 1
        for place, count in completed.items():
            if count > 1:
                yield "S9", f"{place} completed {count} times"

    def _wrong(self, rule: str, effect: Effect, text: str) -> None:
        self._complain(rule, effect.execution_id, text)


def key_of(name: str) -> ExecutionKey:
    """The execution that an observer's record names."""
    tenant, _, execution_id = name.rpartition("/")
    return ExecutionKey(tenant, execution_id)


def _check_order(program: Node, undone: list[int]) -> Iterator[tuple[str, str]]:
    """S18: the last one first (K15)."""
    for saga in _sagas(program):
        kids = [kid.id for kid in saga.kids]
        order = [kids.index(node) for node in undone if node in kids]
        if order != sorted(order, reverse=True):
            yield "S18", f"of {kids} were undone {[kids[index] for index in order]}"


def _sagas(node: Node) -> Iterator[Node]:
    if node.op == "saga":
        yield node
    for kid in node.kids:
        yield from _sagas(kid)


def _undone(calls: list[Call]) -> list[int]:
    """Nodes that were undone, in the order in which each was first."""
    nodes = (_node(call.effect) for call in calls if _is_undo(call.effect) and call.outcome == DONE)
    return list(dict.fromkeys(nodes))


def _nodes(calls: Iterator[Call] | list[Call]) -> set[int]:
    return {_node(call.effect) for call in calls if not _is_undo(call.effect)}


def _node(effect: Effect) -> int:
    return int(effect.step.rpartition("#")[2])


def _is_undo(effect: Effect) -> bool:
    return effect.step.startswith("undo#")


def _is_careful(effect: Effect) -> bool:
    return effect.step.startswith("careful")


def _verdicts(known: Known) -> Iterator[ev.VerdictTaken]:
    for envelope in known.log:
        if envelope.kind == EventKind.VERDICT_TAKEN:
            event = decode_payload(envelope)
            if isinstance(event, ev.VerdictTaken):
                yield event


def _verdicts_to_run_again(known: Known, place: str) -> int:
    return sum(
        event.step_id == place and event.verdict is VerdictKind.RUN_AGAIN
        for event in _verdicts(known)
    )


def _judged(known: Known) -> set[int]:
    """Nodes of steps whose end an operator's word stands for."""
    return {
        int(known.state.frames[event.step_id].name.removeprefix("careful"))
        for event in _verdicts(known)
        if event.verdict is VerdictKind.COMPLETED
    }
