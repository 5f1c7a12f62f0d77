"""What clients are told, against what the journal holds: S12, S14, S15, S23, L1.

Clients see nothing but answers to what they asked. Whatever a reply says must be durable by then,
and no later reply may take it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import loom_mq as loom
from loom_mq.model.events import EventKind
from loom_mq.model.execution import ExecutionKey, Status
from loom_mq.model.messages import RefusalReason
from tests.simulation.rig.known import Known
from tests.simulation.rig.ledger import key_of
from tests.simulation.rig.observer import Told
from tests.simulation.rig.player import simulated
from tests.simulation.rig.reference import Expected

OUTCOMES: Final = {
    "completed": EventKind.EXECUTION_COMPLETED,
    "failed": EventKind.EXECUTION_FAILED,
    "cancelled": EventKind.EXECUTION_CANCELLED,
}
_RARE: Final = {
    "answer-refused": "answer of another type refused",
    "conflict": "start with another input refused",
    "cancelled": "cancelled",
}


class History:
    """See the module's docstring.

    Args:
        known: every execution, as the shadow knows it.
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.

    Attributes:
        heard: what the client of each execution was told, in order.
    """

    def __init__(
        self,
        known: dict[ExecutionKey, Known],
        complain: Callable[[str, str, str], None],
        reached: Callable[[str], None],
    ) -> None:
        self.heard: dict[str, list[Told]] = {}
        self._known = known
        self._complain = complain
        self._reached = reached
        self._final: dict[str, Status] = {}

    def told(self, told: Told) -> None:
        """A client is told something, and it must be so."""
        self.heard.setdefault(told.execution_id, []).append(told)
        known = self._known.get(key_of(told.execution_id))
        if known is None:
            self._wrong("S23", told, f"told {told.what}, and it is not there")
            return
        if told.what in _RARE:
            self._reached(_RARE[told.what])
        match told.what:
            case "completed" | "failed" | "cancelled":
                self._end(told, known)
            case "saw":
                self._saw(told, known)
            case "answer-accepted":
                answer, how = told.value
                if how is loom.Answered.TAKEN and answer not in known.taken:
                    self._wrong("S15", told, f"told that {answer} was taken, and it was not")
            case "answer-refused":
                if told.value[1] is RefusalReason.TERMINAL and not known.ended:
                    self._wrong("S15", told, "told that it has ended, and it has not")
            case "cancel-refused":
                if not known.ended:
                    self._wrong("S15", told, "told that it has ended, and it has not")
            case "no-conflict":
                self._wrong("S15", told, "another input was accepted under its id")

    def _end(self, told: Told, known: Known) -> None:
        """S15: the end that a client hears of is the one on the log."""
        last = known.log[-1].kind if known.log else "nothing"
        if last != OUTCOMES[told.what]:
            self._wrong("S15", told, f"told {told.what}, the log ends with {last}")
            return
        state = known.state
        if told.what == "completed":
            true = simulated.result_codec.decode(state.result or b"")
            if told.value != true:
                self._wrong("S15", told, f"told of {told.value}, the log holds {true}")
        elif told.what == "failed":
            name = "nothing" if state.failure is None else state.failure.type
            if _error_name(told.value) != name:
                self._wrong("S15", told, f"told of {told.value!r}, the log holds {name}")
        self._settle(told, state.status)

    def _saw(self, told: Told, known: Known) -> None:
        """S15: reads never leave an end, and never run ahead of the log."""
        status: Status = told.value
        if status.terminal:
            if status is not known.status:
                self._wrong("S15", told, f"saw it {status}, and it is {known.status}")
            self._settle(told, status)
        elif told.execution_id in self._final:
            before = self._final[told.execution_id]
            self._wrong("S15", told, f"saw it {status} after it was {before}")

    def _settle(self, told: Told, status: Status) -> None:
        before = self._final.setdefault(told.execution_id, status)
        if before is not status:
            self._wrong("S15", told, f"told that it is {status} after it was {before}")

    # ---- in the end ----------------------------------------------------------------------

    def check(self, known: Known, wanted: Expected) -> Iterator[tuple[str, str]]:
        """What must be so of an execution that has ended."""
        heard = self.heard.get(known.name, [])
        ends = [told for told in heard if told.what in OUTCOMES]
        if not ends:
            yield "L1", "its client has heard nothing of its end"
            return
        yield from _check_outcome(ends[0], wanted)
        if ends[0].what == "cancelled":
            return
        accepted = {told.value[0] for told in heard if told.what == "answer-accepted"}
        for answer in sorted({f"answer {gate}" for gate in wanted.asked} & accepted):
            if answer not in known.taken:
                yield "S14", f"{answer} was accepted and not taken"

    def _wrong(self, rule: str, told: Told, text: str) -> None:
        self._complain(rule, told.execution_id, text)


def _check_outcome(end: Told, wanted: Expected) -> Iterator[tuple[str, str]]:
    """S12: what comes of it is what a sequential reader says must come of it."""
    if end.what == "cancelled":
        if not wanted.cancellable:
            yield "S12", "it is cancelled and nobody asked for it"
    elif end.what == "completed":
        if wanted.value is None:
            yield "S12", f"it returned {end.value}, and should have failed with {wanted.error}"
        elif end.value != wanted.value:
            yield "S12", f"it returned {end.value}, not {wanted.value}"
    else:
        name = _error_name(end.value)
        if name != wanted.error:
            yield "S12", f"it failed with {name}, not {wanted.error or wanted.value}"


def _error_name(error: object) -> str:
    return error.error_type if isinstance(error, loom.ExecutionFailedError) else repr(error)
