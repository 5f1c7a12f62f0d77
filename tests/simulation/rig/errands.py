"""What wakes executions: their timers and their mail. None of it comes early, twice, or not at all.

S14 holds of mail, S22 of timers, and L2 says of both, at every commit, that somebody will come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from loom_mq.clock import MICROS
from loom_mq.journal.protocol import Append, DeliverVerdict, DueTimer
from loom_mq.kernel.fold import decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import EventKind, Wait, WaitKind
from loom_mq.model.execution import ExecutionKey, ExecutionRow, InboxItem, InboxKind, Status
from tests.simulation.rig.answers import Yes, to_delivery
from tests.simulation.rig.known import Known
from tests.simulation.rig.observer import Applied

_TELLING: Final = frozenset(
    {
        EventKind.EXECUTION_SUSPENDED,
        EventKind.EXECUTION_RESUMED,
        EventKind.ANSWER_TAKEN,
        EventKind.VERDICT_TAKEN,
        EventKind.CANCEL_REQUESTED,
    }
)


class Errands:
    """See the module's docstring.

    Args:
        of: finds an execution.
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.

    Attributes:
        slowest_cancel: microseconds until a holder took a cancel, at most.
    """

    def __init__(
        self,
        of: Callable[[ExecutionKey], Known | None],
        complain: Callable[[str, str, str], None],
        reached: Callable[[str], None],
    ) -> None:
        self.slowest_cancel = 0
        self._of = of
        self._complain = complain
        self._reached = reached

    # ---- logs ----------------------------------------------------------------------------

    def appended(self, known: Known, append: Append, at: int) -> None:
        """An append was carried out."""
        for event in append.events:
            if event.kind in _TELLING:
                self._take(known, append, decode_payload(event), at)
        for item_id in append.consume:
            if known.mail.pop(item_id, None) is None:
                self._wrong("S14", known, f"it takes {item_id}, which is not there")
            known.taken[item_id] = None
        for due in append.timers:
            if known.status is not Status.SUSPENDED:
                self._wrong("S22", known, f"a timer of {due}, and it is {known.status}")
            known.timers[due] = 0
        if known.ended:
            known.mail.clear()
            known.timers.clear()
        elif known.status is Status.SUSPENDED:
            known.calls += bool(known.mail)  # who parked it sees to that himself
            for wait in known.waits.values():
                if wait.due is not None and wait.due not in known.timers:
                    self._wrong("S22", known, f"it waits until {wait.due} without a timer")

    def _take(self, known: Known, append: Append, event: object, at: int) -> None:
        match event:
            case ev.ExecutionSuspended(waits=waits):
                known.waits = {wait.id: wait for wait in waits}
                if any(wait.kind is WaitKind.VERDICT for wait in waits):
                    self._reached("parked in doubt")
            case ev.ExecutionResumed(ended=ended):
                for wait_id in ended:
                    self._come_due(known, wait_id, at)
            case ev.AnswerTaken(wait_id=wait_id, answer_id=item_id, gate=gate, answer=answer):
                item = self._consumed(known, append, item_id, InboxKind.ANSWER)
                self._is_over(known, wait_id)
                if item is not None and (
                    item.gate != gate
                    or item.wait_id not in (None, wait_id)
                    or item.payload != answer
                ):
                    self._wrong("S14", known, f"{gate} at {wait_id} takes {item_id}: {item}")
            case ev.VerdictTaken(verdict_id=item_id):
                self._consumed(known, append, item_id, InboxKind.VERDICT)
                self._reached("verdict")
            case ev.CancelRequested():
                if not any(item.kind is InboxKind.CANCEL for item in known.mail.values()):
                    self._wrong("S14", known, "it is cancelled, and nobody asked for it")
                if known.cancelled_at:
                    self.slowest_cancel = max(self.slowest_cancel, at - known.cancelled_at)

    def _consumed(
        self, known: Known, append: Append, item_id: str, kind: InboxKind
    ) -> InboxItem | None:
        """An item that an event takes: it goes in the same commit, or it would come again."""
        item = known.mail.get(item_id)
        if item_id not in append.consume:
            self._wrong("S14", known, f"{item_id} is taken and stays in the inbox")
        if item is not None and item.kind is not kind:
            self._wrong("S14", known, f"{item_id} is taken as {kind} and is {item.kind}")
        return item

    def _come_due(self, known: Known, wait_id: str, at: int) -> None:
        wait = known.waits.get(wait_id)
        if wait is None or wait.due is None or wait.due > at:
            due = None if wait is None else wait.due
            self._wrong("S22", known, f"{wait_id}, due {due}, is over at {at}")
            return
        self._is_over(known, wait_id)
        if wait.kind is WaitKind.GATE:
            self._reached("gate timed out")

    def _is_over(self, known: Known, wait_id: str) -> None:
        """S14, S22: a wait ends once, whatever ends it."""
        if wait_id in known.over:
            self._wrong("S14", known, f"{wait_id} is over for the second time")
        known.over[wait_id] = None

    # ---- mail ----------------------------------------------------------------------------

    def delivered(self, call: Applied) -> list[Known]:
        """`Journal.deliver`."""
        items: Sequence[InboxItem] = call.args[0]
        verdicts: Sequence[DeliverVerdict] = call.answer
        touched: list[Known] = []
        for item, verdict in zip(items, verdicts, strict=True):
            known = self._of(item.key)
            right = to_delivery(known, item)
            again = Yes.AGAIN if verdict.duplicate else Yes.NEW
            answer = again if verdict.error is None else type(verdict.error)
            if answer is not right:
                name = f"{item.tenant}/{item.execution_id}"
                self._complain("S4", name, f"{item.item_id}: {answer}, not {right}")
            if known is None:
                continue
            touched.append(known)
            if answer is Yes.AGAIN and item.kind is InboxKind.ANSWER:
                self._reached("answer sent twice")
            if answer is Yes.NEW:
                self._put(known, item, call.at)
        return touched

    def _put(self, known: Known, item: InboxItem, at: int) -> None:
        if item.kind is InboxKind.CANCEL and known.owner:
            known.cancelled_at = at
        known.mail[item.item_id] = item
        known.received[item.item_id] = None
        known.calls += 1
        fits = any(_fits(item, wait) for wait in known.waits.values())
        if item.kind is InboxKind.ANSWER and not (known.status is Status.SUSPENDED and fits):
            self._reached("answer before its gate")

    def discarded(self, call: Applied) -> list[Known]:
        """`Journal.discard`."""
        touched = [(self._of(key), item_id) for key, item_id in call.args[0]]
        for known, item_id in touched:
            if known is not None:
                known.mail.pop(item_id, None)
        return [known for known, _ in touched if known is not None]

    # ---- timers --------------------------------------------------------------------------

    def due(self, call: Applied) -> list[Known]:
        """`Journal.due_timers`: never early, and each for one who asks at a time."""
        timers: Sequence[DueTimer] = call.answer
        touched: list[Known] = []
        for timer in timers:
            known = self._of(timer.row.key)
            held = None if known is None else known.timers.get(timer.due)
            if known is None or held is None:
                name = f"{timer.row.tenant}/{timer.row.execution_id}"
                self._complain("S22", name, f"a timer of {timer.due}, which nobody armed")
                continue
            if timer.due > call.at or held > call.at:
                text = f"a timer of {timer.due}, held until {held}, fired at {call.at}"
                self._wrong("S22", known, text)
            if held:
                self._reached("timer fired twice")
            known.timers[timer.due] = call.at + int(call.kwargs["hold"] * MICROS)
            known.calls += 1
            touched.append(known)
        return touched

    def dropped(self, call: Applied) -> list[Known]:
        """`Journal.drop_timers`: those that fired; who armed one anew meanwhile keeps it."""
        touched = []
        for key, due in call.args[0]:
            known = self._of(key)
            if known is not None:
                touched.append(known)
                if known.timers.get(due):
                    del known.timers[due]
        return touched

    def armed(self, call: Applied) -> list[Known]:
        """`Journal.arm_timers`."""
        touched = []
        for (key, due), missing in zip(call.args[0], call.answer, strict=True):
            known = self._of(key)
            if known is not None:
                touched.append(known)
                right = known.status is Status.SUSPENDED and due not in known.timers
                if missing is not right:
                    self._wrong("S22", known, f"a timer of {due} was missing: {missing}")
                if missing:
                    known.timers[due] = 0
        return touched

    # ---- nobody is forgotten ---------------------------------------------------------------

    def look(self, known: Known, row: ExecutionRow) -> None:
        """L2, S22: what the row says of timers and mail, and that somebody will come."""
        if row.inbox != len(known.mail):
            self._wrong("S14", known, f"{row.inbox} items in its inbox, not {list(known.mail)}")
        if not (known.ended or known.owner) and row.hint_at is None:
            why = _forgotten(known)
            if why:
                self._wrong("L2", known, f"nobody has it, and nobody will be sent: {why}")

    def _wrong(self, rule: str, known: Known, text: str) -> None:
        self._complain(rule, known.name, text)


def _forgotten(known: Known) -> str:
    """Why an execution that nobody has should go on; empty when it need not."""
    if known.status is not Status.SUSPENDED:
        return f"it is {known.status}"
    for wait in known.waits.values():
        if wait.due is not None and wait.due not in known.timers:
            return f"it waits until {wait.due}, and has no timer"
    for item in known.mail.values():
        if item.kind is InboxKind.CANCEL:
            return "it is cancelled"
        if any(_fits(item, wait) for wait in known.waits.values()):
            return f"{item.item_id} is what it waits for"
    return ""


def _fits(item: InboxItem, wait: Wait) -> bool:
    """Whether a wait would take an item (K6, K7)."""
    if wait.kind is WaitKind.VERDICT:
        place = wait.id.rpartition("?")[0]
        return item.kind is InboxKind.VERDICT and item.gate in (wait.name, place)
    answer = item.kind is InboxKind.ANSWER and wait.kind is WaitKind.GATE
    return answer and item.gate == wait.name and item.wait_id in (None, wait.id)
