"""What the journal must be, kept by somebody who trusts it in nothing.

Each call is judged at the instant at which it is carried out, by fences, owners, leases, logs
and timers of the shadow's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from loom_mq.clock import MICROS
from loom_mq.errors import LoomError, StaleFenceError, StartFencedOutError
from loom_mq.journal.protocol import (
    Admission,
    AdmitVerdict,
    Append,
    AppendVerdict,
    Claim,
    ClaimVerdict,
    DueTimer,
    Renewal,
    Runnable,
)
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import ExecutionKey, Status
from tests.simulation.rig.journal import SessionJournal
from tests.simulation.rig.observer import Applied, Happened, Violation

ENDS: Final = frozenset(
    {
        EventKind.EXECUTION_COMPLETED,
        EventKind.EXECUTION_FAILED,
        EventKind.EXECUTION_CANCELLED,
    }
)


class Known:
    """What the shadow knows of one execution.

    Attributes:
        fence: the newest.
        owner: who drives it; empty for nobody.
        deadline: journal time after which its owner counts as wedged.
        log: its events.
        ids: of them.
        state: their fold.
        claims: journal times at which somebody took it.
        attempts: by fence, who took it.
        timers: due times that are armed.
    """

    def __init__(self) -> None:
        self.fence = 0
        self.owner = ""
        self.deadline: int | None = None
        self.log: list[Envelope] = []
        self.ids: dict[bytes, int] = {}
        self.state: ExecutionState = ExecutionState()
        self.claims: list[int] = []
        self.holders: dict[int, str] = {}

    @property
    def ended(self) -> bool:
        """Whether its log has come to its end."""
        return self.state.status.terminal


class JournalShadow:
    """See the module's docstring.

    Args:
        store: the journal, to compare with.
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.
    """

    def __init__(
        self,
        store: SessionJournal,
        complain: Callable[[str, str, str], None],
        reached: Callable[[str], None],
    ) -> None:
        self.known: dict[ExecutionKey, Known] = {}
        self.leases: dict[str, int] = {}
        self.gone: dict[str, None] = {}
        self.recoveries = 0
        self.abandoned = 0
        self._store = store
        self._complain = complain
        self._reached = reached

    def applied(self, call: Applied) -> None:
        """Judge a call."""
        judge = getattr(self, f"_on_{call.method}", None)
        if judge is None:
            return
        if isinstance(call.answer, Exception):
            return
        judge(call)

    def befell(self, happened: Happened) -> None:
        """Somebody was killed, or has left."""
        if happened.what in ("killed", "drained"):
            self.gone[happened.who] = None

    def _of(self, key: ExecutionKey) -> Known:
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = Known()
        return known

    # ---- starts --------------------------------------------------------------------------

    def _on_admit(self, call: Applied) -> None:
        admissions: Sequence[Admission] = call.args[0]
        verdicts: Sequence[AdmitVerdict] = call.answer
        for admission, verdict in zip(admissions, verdicts, strict=True):
            key = admission.key
            if verdict.created == (key in self.known):
                how = "made twice" if verdict.created else "found and never made"
                self._wrong("S23", key, f"it was {how}")
            self._of(key)

    # ---- logs ----------------------------------------------------------------------------

    def _on_append(self, call: Applied) -> None:
        appends: Sequence[Append] = call.args[0]
        verdicts: Sequence[AppendVerdict] = call.answer
        refused = sum(verdict.error is not None for verdict in verdicts)
        if refused and refused < len(verdicts):
            self._reached("batch with mixed verdicts")
        for append, verdict in zip(appends, verdicts, strict=True):
            known = self._of(append.key)
            if verdict.error is not None:
                self._refused(append, known, verdict.error)
            elif append.events[0].id in known.ids:
                self._repeated(append, known)
            else:
                self._append(append, known, call)

    def _refused(self, append: Append, known: Known, error: LoomError) -> None:
        """J3, F5: a refusal must be true, and name the execution that it is about."""
        if isinstance(error, StaleFenceError):
            self._reached("stale fence refused")
            held = append.fence if append.claim is None else append.claim.expected_fence
            if held == known.fence and not isinstance(error, StartFencedOutError):
                self._wrong("S4", append.key, f"fence {held} is current and was refused: {error}")
        if isinstance(error, StartFencedOutError):
            self._reached("start fenced out by a silent holder")
        named = getattr(error, "execution_id", append.key.execution_id)
        if named not in (None, append.key.execution_id):
            self._wrong("S24", append.key, f"the refusal names {named!r}")

    def _repeated(self, append: Append, known: Known) -> None:
        """S5: what was written before is there once, and where it was."""
        self._reached("append repeated after an unknown outcome")
        for event in append.events:
            if known.ids.get(event.id) != event.seq:
                self._wrong("S5", append.key, f"{event.kind} stands elsewhere than at {event.seq}")

    def _append(self, append: Append, known: Known, call: Applied) -> None:
        key = append.key
        if known.ended:
            self._wrong("S7", key, f"{append.events[0].kind} after its end")
        if append.claim is not None:
            expected = append.claim.expected_fence
            self._take(key, known, append.claim.owner, expected, call, append.claim.deadline)
            if append.fence != expected + 1:
                self._wrong("S1", key, f"claims {expected + 1} and writes under {append.fence}")
        elif append.fence != known.fence:
            self._wrong("S1", key, f"fence {append.fence} was accepted, {known.fence} is current")
        for event in append.events:
            if event.seq != len(known.log):
                self._wrong("S3", key, f"sequence {event.seq} after {len(known.log) - 1}")
            if event.id in known.ids:
                self._wrong("S3", key, f"envelope {event.id!r} is there twice")
            if event.fence != append.fence:
                self._wrong("S2", key, f"an event of fence {event.fence} under {append.fence}")
            self._event(key, known, event)
        self._compare(append, known, call)
        if append.release or known.ended:
            known.owner, known.deadline = "", None

    def _event(self, key: ExecutionKey, known: Known, event: Envelope) -> None:
        if (event.kind == EventKind.EXECUTION_STARTED) != (not known.log):
            self._wrong("S7", key, f"{event.kind} at {len(known.log)}")
        before = known.state.status
        known.log.append(event)
        known.ids[event.id] = event.seq
        known.state = fold([event], known.state)
        after = known.state.status
        if before is not after and not event.kind.startswith("EXECUTION_"):
            self._wrong("S8", key, f"{event.kind} moved it from {before} to {after}")
        if (after is Status.FAILED) != (event.kind == EventKind.EXECUTION_FAILED):
            self._wrong("S8", key, f"it is {after} after {event.kind}")
        if event.kind == EventKind.EXECUTION_RECOVERED:
            self.recoveries += 1
            self._reached("takeover")

    def _compare(self, append: Append, known: Known, call: Applied) -> None:
        """S6, S22: the row is the fold, and whoever waits for a time has a timer for it."""
        key, state = append.key, known.state
        entry = self._store._store.entries[key]
        row = entry.row
        said = (row.status, row.last_seq, row.wake_at, row.gates, row.in_doubt, row.recoveries)
        true = (
            state.status,
            state.last_seq,
            state.wake_at,
            state.gates,
            state.in_doubt,
            state.recoveries,
        )
        if said != true:
            self._wrong("S6", key, f"the row says {said}, the fold {true}")
        parked = state.status is Status.SUSPENDED and state.wake_at is not None
        if parked and state.wake_at not in entry.timers:
            self._wrong("S22", key, f"it waits until {state.wake_at} without a timer")
        if state.in_doubt:
            self._reached("parked in doubt")
        if row.fence != known.fence or (row.owner or "") not in ("", known.owner):
            self._wrong(
                "S2", key, f"fence {row.fence} of {row.owner}, not {known.fence} of {known.owner}"
            )

    # ---- ownership -----------------------------------------------------------------------

    def _on_claim(self, call: Applied) -> None:
        claims: Sequence[Claim] = call.args[0]
        verdicts: Sequence[ClaimVerdict] = call.answer
        for claim, verdict in zip(claims, verdicts, strict=True):
            known = self._of(claim.key)
            if verdict.error is not None:
                if isinstance(verdict.error, StaleFenceError):
                    self._reached("claim superseded")
                continue
            expected = claim.expected_fence
            if known.fence == expected + 1 and known.holders.get(known.fence) == claim.owner:
                self._reached("claim repeated after an unknown outcome")
                continue
            self._take(claim.key, known, claim.owner, expected, call, claim.deadline)

    def _take(
        self,
        key: ExecutionKey,
        known: Known,
        owner: str,
        expected: int,
        call: Applied,
        deadline: float | None,
    ) -> None:
        """S1, S2, S19: by compare-and-set, and never from somebody who lives."""
        if known.ended:
            self._wrong("S7", key, f"{owner} took it after its end")
        if expected != known.fence:
            self._wrong("S1", key, f"{owner} superseded {expected}, {known.fence} is current")
        if known.owner and known.owner != owner and self._holds(known, call.at):
            self._wrong("S19", key, f"{owner} took it from {known.owner}, who is alive")
        known.fence = expected + 1
        known.owner = owner
        known.deadline = None if deadline is None else call.at + int(deadline * MICROS)
        known.claims.append(call.at)
        known.holders[known.fence] = owner

    def _holds(self, known: Known, at: int) -> bool:
        if known.deadline is not None and known.deadline <= at:
            return False
        return self.leases.get(known.owner, 0) > at

    def _on_defer(self, call: Applied) -> None:
        keys, owner = call.args[0], call.args[1]
        fences = call.args[3] if len(call.args) > 3 else call.kwargs.get("fences")
        for index, key in enumerate(keys):
            known = self.known.get(key)
            fence = None if fences is None else fences[index]
            if known is None or known.owner != owner or fence not in (None, known.fence):
                continue
            known.owner, known.deadline = "", None

    def _on_take_abandoned(self, call: Applied) -> None:
        taken: Sequence[Runnable] = call.answer
        for each in taken:
            key = each.row.key
            known = self.known[key]
            self.abandoned += 1
            if known.owner and self._holds(known, call.at):
                self._wrong("S19", key, f"it was taken from {known.owner}, who is alive")
            known.owner, known.deadline = "", None

    # ---- leases --------------------------------------------------------------------------

    def _on_lease(self, call: Applied) -> None:
        worker, ttl = call.args[0], call.args[1]
        self.leases[worker.owner] = call.at + int(ttl * MICROS)

    def _on_renew(self, call: Applied) -> None:
        renewal: Renewal = call.answer
        lapsed = self.leases.get(call.by, 0) <= call.at
        if renewal.held and lapsed:
            self._complain("S19", "", f"{call.by} renewed a lease that had lapsed")
        if renewal.held:
            self.leases[call.by] = call.at + int(call.args[0] * MICROS)
        else:
            self._reached("zombie found its lease lost")

    def _on_retire(self, call: Applied) -> None:
        self.leases[call.by] = 0
        for known in self.known.values():
            if known.owner == call.by:
                known.owner, known.deadline = "", None

    def _on_lapse_if_gone(self, call: Applied) -> None:
        owner = call.args[0]
        if not call.answer:
            return
        if self.leases.get(owner, 0) > call.at and owner not in self.gone:
            self._complain("S19", "", f"the lease of {owner}, who lives, was ended")
        self.leases[owner] = 0

    # ---- timers --------------------------------------------------------------------------

    def _on_due_timers(self, call: Applied) -> None:
        due: Sequence[DueTimer] = call.answer
        for timer in due:
            if timer.due > call.at:
                self._wrong("S22", timer.row.key, f"a timer of {timer.due} fired at {call.at}")

    def _wrong(self, rule: str, key: ExecutionKey, text: str) -> None:
        self._complain(rule, f"{key.tenant}/{key.execution_id}", text)


class Book:
    """Broken rules, and rare things that happened.

    Attributes:
        violations: the first hundred.
        first: called with the first of them.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.goals: Counter[str] = Counter()
        self.first: Callable[[], None] = lambda: None

    def complain(self, rule: str, execution_id: str, text: str) -> None:
        """A rule was broken."""
        if not self.violations:
            self.first()
        if len(self.violations) < 100:
            self.violations.append(
                Violation(rule=rule, execution_id=execution_id, text=text[:3000])
            )

    def reached(self, goal: str) -> None:
        """Something rare has happened."""
        self.goals[goal] += 1
