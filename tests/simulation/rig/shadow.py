"""What the journal must be, kept by somebody who trusts it in nothing.

Each call is judged at the instant at which it is carried out, by fences, owners, leases, logs,
timers and mail of the shadow's own; then the rows that it touched are held against those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loom_mq.errors import StartFencedOutError
from loom_mq.journal.memory_store import Entry
from loom_mq.journal.protocol import Admission, AdmitVerdict, Append, AppendVerdict
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from loom_mq.model.snapshots import Snapshot
from tests.simulation.rig.answers import Yes, to_append
from tests.simulation.rig.errands import Errands
from tests.simulation.rig.grants import Grants
from tests.simulation.rig.journal import SessionJournal
from tests.simulation.rig.known import MOVES, Known, Parting
from tests.simulation.rig.leases import Leases
from tests.simulation.rig.observer import Applied, Happened
from tests.simulation.rig.owners import Owners


class JournalShadow:
    """See the module's docstring.

    Args:
        store: the journal, to compare with.
        complain: called with a broken rule, an execution and what is wrong.
        reached: called with each rare thing that happened.

    Attributes:
        known: every execution.
        recoveries: how often an attempt has begun with a recovery.
    """

    def __init__(
        self,
        store: SessionJournal,
        complain: Callable[[str, str, str], None],
        reached: Callable[[str], None],
    ) -> None:
        self.known: dict[ExecutionKey, Known] = {}
        self.recoveries = 0
        self._ids: dict[bytes, str] = {}
        self._store = store
        self._complain = complain
        self._reached = reached
        self._leases = Leases(complain, reached)
        self._grants = Grants(complain, reached)
        self._owners = owners = Owners(self.known, self._leases, self._grants, complain, reached)
        self._errands = errands = Errands(self.known.get, complain, reached)
        self._alone: dict[str, Callable[[Applied], None]] = {
            "lease": self._leases.opened,
            "renew": self._leases.renewed,
            "lapse_if_gone": self._leases.lapsed,
            "save_snapshots": self._on_save_snapshots,
        }
        self._judges: dict[str, Callable[[Applied], list[Known]]] = {
            "admit": self._on_admit,
            "append": self._on_append,
            "claim": owners.claim,
            "acquire_fence": owners.acquire_fence,
            "defer": owners.defer,
            "retire": owners.retire,
            "take_abandoned": owners.take_abandoned,
            "take_unsent": owners.take_unsent,
            "deliver": errands.delivered,
            "discard": errands.discarded,
            "due_timers": errands.due,
            "drop_timers": errands.dropped,
            "arm_timers": errands.armed,
        }

    def applied(self, call: Applied) -> None:
        """Judge a call."""
        if isinstance(call.answer, Exception):
            return
        judge = self._judges.get(call.method)
        if judge is not None:
            for known in judge(call):
                self._compare(known)
        elif call.method in self._alone:
            self._alone[call.method](call)

    @property
    def abandoned(self) -> int:
        """How often an execution was taken from a dead or wedged holder."""
        return self._owners.abandoned

    @property
    def slowest_cancel(self) -> int:
        """Microseconds until a holder took a cancel, at most."""
        return self._errands.slowest_cancel

    def befell(self, happened: Happened) -> None:
        """Somebody was killed, or has left."""
        self._leases.befell(happened)

    def check(self) -> None:
        """Hold everything against the journal once more: whole logs, and rows long untouched."""
        for key, known in self.known.items():
            self._compare(known)
            entry = self._store._store.entries.get(key)
            if entry is not None and entry.events != known.log:
                self._wrong("S3", known, "its log is not what was appended")

    # ---- starts --------------------------------------------------------------------------

    def _on_admit(self, call: Applied) -> list[Known]:
        admissions: Sequence[Admission] = call.args[0]
        verdicts: Sequence[AdmitVerdict] = call.answer
        for admission, verdict in zip(admissions, verdicts, strict=True):
            key = admission.key
            if verdict.created is (key in self.known):
                how = "made twice" if verdict.created else "found and never made"
                self._complain("S23", f"{key.tenant}/{key.execution_id}", f"it was {how}")
            if verdict.row.key != key:
                name = f"{key.tenant}/{key.execution_id}"
                self._complain("S24", name, f"it was told of {verdict.row.key}")
            if key in self.known:
                self._reached("start sent twice")
            else:
                self.known[key] = Known(key)
                self.known[key].calls = 1
        return [self.known[admission.key] for admission in admissions]

    # ---- logs ----------------------------------------------------------------------------

    def _on_append(self, call: Applied) -> list[Known]:
        appends: Sequence[Append] = call.args[0]
        verdicts: Sequence[AppendVerdict] = call.answer
        refused = sum(verdict.error is not None for verdict in verdicts)
        if refused and refused < len(verdicts):
            self._reached("batch with mixed verdicts")
        touched: list[Known] = []
        for append, verdict in zip(appends, verdicts, strict=True):
            known = self.known.get(append.key)
            holder = "" if known is None else self._leases.holder(known, call.at)
            right = to_append(known, append, holder)
            self._grants.judge(append.key, right, verdict.error, f"{append.events[0].seq}")
            if known is None:
                continue
            touched.append(known)
            if verdict.error is not None:
                known.calls += isinstance(verdict.error, StartFencedOutError)
            elif right is Yes.AGAIN:
                self._repeated(append, known)
            else:
                self._append(append, known, call)
        return touched

    def _repeated(self, append: Append, known: Known) -> None:
        """S5: what was written before is there once, as it was."""
        self._reached("append repeated after an unknown outcome")
        if tuple(known.log[event.seq] for event in append.events) != append.events:
            self._wrong("S5", known, f"{append.events[0].kind} was written otherwise before")

    def _append(self, append: Append, known: Known, call: Applied) -> None:
        if known.ended:
            self._wrong("S7", known, f"{append.events[0].kind} after its end")
        if append.claim is not None:
            self._owners.take(known, append.claim.owner, append.fence, call, append.claim.deadline)
        if known.holders.get(append.fence) != call.by:
            self._wrong("S2", known, f"{call.by} writes under fence {append.fence}")
        for event in append.events:
            if event.fence != append.fence:
                self._wrong("S2", known, f"an event of fence {event.fence} under {append.fence}")
            self._event(known, event)
        known.openers[append.events[0].id] = None
        self._errands.appended(known, append, call.at)
        if known.ended:
            known.let_go(Parting.ENDED)
        elif append.release:
            parked = known.status is Status.SUSPENDED
            known.let_go(Parting.PARKED if parked else Parting.LEFT)

    def _event(self, known: Known, event: Envelope) -> None:
        """S2, S3, S7, S8."""
        last = known.log[-1] if known.log else None
        if event.seq != len(known.log):
            self._wrong("S3", known, f"sequence {event.seq} after {len(known.log) - 1}")
        if event.id in self._ids:
            self._wrong("S3", known, f"envelope {event.id!r} is there, in {self._ids[event.id]}")
        if last is not None and last.at > event.at:
            self._wrong("S3", known, f"{event.kind} of {event.at} after {last.at}")
        if last is not None and last.fence > event.fence:
            self._wrong("S2", known, f"fence {event.fence} after {last.fence}")
        if (event.kind == EventKind.EXECUTION_STARTED) is not (last is None):
            self._wrong("S7", known, f"{event.kind} at {len(known.log)}")
        known.log.append(event)
        known.places[event.id] = event.seq
        self._ids[event.id] = known.name
        fold((event,), known.state)
        if event.kind in MOVES:
            before, after = MOVES[event.kind]
            if known.status is not before:
                self._wrong("S8", known, f"{event.kind} while it is {known.status}")
            known.status = after
        if event.kind == EventKind.EXECUTION_RECOVERED:
            self.recoveries += 1
            self._reached("takeover")

    # ---- rows ----------------------------------------------------------------------------

    def _compare(self, known: Known) -> None:
        """S3, S6, S8, and what the errands hold of it: the row, the log and the timers of a call's
        executions are what they must be.
        """
        entry: Entry | None = self._store._store.entries.get(known.key)
        if entry is None:
            self._wrong("S23", known, "it is not there")
            return
        row, state = entry.row, known.state
        if len(entry.events) != len(known.log) or entry.events[-1:] != known.log[-1:]:
            self._wrong("S3", known, f"its log has {len(entry.events)} events, not {known.log}")
        if state.status is not known.status:
            self._wrong("S8", known, f"the fold says {state.status}, and it is {known.status}")
        said, true = _derived(row), _fold(state)
        if said != true:
            self._wrong("S6", known, f"the row says {said}, the fold {true}")
        if (row.error is not None) is not (row.status is Status.FAILED):
            self._wrong("S8", known, f"it is {row.status}, with the error {row.error}")
        held = (row.fence, row.owner or "", row.deadline, row.attempt)
        if held != (known.fence, known.owner, known.deadline, known.claims):
            mine = (known.fence, known.owner, known.deadline, known.claims)
            self._wrong("S2", known, f"fence, owner, deadline and attempt are {held}, not {mine}")
        if entry.timers.keys() != known.timers.keys():
            self._wrong("S22", known, f"its timers are {entry.timers}, not {known.timers}")
        self._errands.look(known, row)

    def _on_save_snapshots(self, call: Applied) -> None:
        """S6: a snapshot is the fold of its log's beginning (J7)."""
        saved: Sequence[tuple[ExecutionKey, Snapshot]] = call.args[0]
        for key, snapshot in saved:
            known = self.known.get(key)
            log = [] if known is None else known.log
            if known is None or snapshot.seq >= len(log):
                name = f"{key.tenant}/{key.execution_id}"
                self._complain("S6", name, f"a snapshot of {snapshot.seq}, the log has {len(log)}")
                continue
            state, true = decode_snapshot(snapshot), fold(log[: snapshot.seq + 1])
            if state != true or list(state.settled) != list(true.settled):
                self._wrong("S6", known, f"its snapshot of {snapshot.seq} is not the fold")

    def _wrong(self, rule: str, known: Known, text: str) -> None:
        self._complain(rule, known.name, text)


def _derived(row: ExecutionRow) -> tuple[object, ...]:
    """What a row says that its log says too."""
    return (
        row.status, row.last_seq, row.wake_at, row.gates, row.in_doubt, row.recoveries,
        row.started_at, row.ended_at,
    )  # fmt: skip


def _fold(state: ExecutionState) -> tuple[object, ...]:
    """The same, of a folded log."""
    return (
        state.status, state.last_seq, state.wake_at, state.gates, state.in_doubt, state.recoveries,
        state.started_at, state.ended_at,
    )  # fmt: skip
