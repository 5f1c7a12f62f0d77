"""Somebody who does to a journal what he likes, and who may lie about it, before the observers.

What the observers hold must be seen to be broken: each rule is tried with a history that breaks it
and one that does not (`stories`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from loom_mq.clock import MICROS
from loom_mq.journal.memory_fleet import MemoryLease
from loom_mq.journal.memory_store import Entry
from loom_mq.journal.protocol import Admission, Append, Claim, ClaimIntent, IndexUpdate
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.model import events as ev
from loom_mq.model.events import EVENT_SCHEMA, Envelope, Wait, WaitKind, kind_of_type
from loom_mq.model.execution import ExecutionKey, InboxItem, InboxKind, WorkerRecord
from tests.simulation.rig.eyes import Eyes
from tests.simulation.rig.jobs import Answer, Job, Node, Work
from tests.simulation.rig.journal import SessionJournal, run_now
from tests.simulation.rig.known import Known
from tests.simulation.rig.observer import Acked, Applied, Effect, Happened, Told, Violation
from tests.simulation.rig.player import simulated

KEY: Final = ExecutionKey("default", "e1")
NAME: Final = "default/e1"
NOON: Final = 1_700_000_000 * MICROS
INPUT: Final = simulated.input_codec.encode(False, what="input")
RESULT: Final = simulated.result_codec.encode([10], what="result")


class BenchClock:
    """A journal's clock, set by hand."""

    def __init__(self) -> None:
        self.at = NOON

    def now(self) -> int:
        """Microseconds."""
        return self.at

    def monotonic(self) -> float:
        """Seconds."""
        return self.at / MICROS

    def synchronise(self, journal_now: int) -> float:
        """It is the journal's own."""
        return 0.0


class Bench:
    """See the module's docstring. Two workers, `a` and `b`, hold leases of five seconds.

    Attributes:
        state: the fold of what was written by `write`.
    """

    def __init__(self, *, once: bool = True) -> None:
        self.clock = BenchClock()
        self.store = SessionJournal(self.clock)
        self.eyes = Eyes(self.store, once=once)
        self.state = ExecutionState()
        self._made = 0
        for owner in ("a", "b"):
            record = WorkerRecord(owner=owner, role="worker", host="test")
            self.do("lease", record, 5.0, by=owner)

    # ---- calls ---------------------------------------------------------------------------

    def do(self, method: str, *args: Any, by: str = "a", lie: Any = None, **kwargs: Any) -> Any:
        """Carry out a call, and say so; where a lie is given, say that instead of the answer."""
        answer = self.secretly(method, *args, **kwargs)
        self.say(method, *args, by=by, answer=answer if lie is None else lie, **kwargs)
        return answer

    def secretly(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Carry out a call, and say nothing."""
        return run_now(getattr(self.store, method)(*args, **kwargs))

    def say(self, method: str, *args: Any, by: str = "a", answer: Any, **kwargs: Any) -> None:
        """Say that a call was carried out."""
        self.eyes.applied(
            Applied(
                by=by, method=method, args=args, kwargs=kwargs, answer=answer, at=self.clock.now()
            )
        )

    def renew(self, by: str = "a", lie: Any = None) -> None:
        """Renew a lease."""
        answer = run_now(MemoryLease(self.store._store, self.clock, by).renew(5.0))
        self.say("renew", 5.0, by=by, answer=answer if lie is None else lie)

    def put(self, **changes: Any) -> None:
        """Change the execution's row behind everybody's back."""
        self.entry.row = msgspec.structs.replace(self.entry.row, **changes)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.at += int(seconds * MICROS)

    @property
    def entry(self) -> Entry:
        """What the journal keeps of the execution."""
        return self.store._store.entries[KEY]

    @property
    def known(self) -> Known:
        """What the shadow keeps of it."""
        return self.eyes.shadow.known[KEY]

    @property
    def violations(self) -> list[Violation]:
        """What was told of broken rules."""
        return self.eyes.book.violations

    @property
    def rules(self) -> set[str]:
        """Rules that were broken."""
        return {each.rule for each in self.violations}

    # ---- executions ----------------------------------------------------------------------

    def admit(self, lie: Any = None) -> None:
        """Admit the execution."""
        admission = Admission(
            key=KEY, flow="simulated", version="1", queue="default", start=b"", input_digest=b"d"
        )
        self.do("admit", [admission], by="dispatcher", lie=lie)

    def event(self, payload: msgspec.Struct, fence: int, **changes: Any) -> Envelope:
        """The next event of its log."""
        self._made += 1
        envelope = Envelope(
            f"{self._made:016}".encode(),
            self.state.last_seq + 1,
            kind_of_type[type(payload)].value,
            self.clock.now(),
            fence,
            True,
            EVENT_SCHEMA,
            msgspec.msgpack.encode(payload),
        )
        return msgspec.structs.replace(envelope, **changes) if changes else envelope

    def entry_of(self, *payloads: msgspec.Struct, fence: int = 1, **changes: Any) -> Append:
        """An append of some events, which are folded."""
        events = []
        for payload in payloads:
            events.append(self.event(payload, fence))
            fold(events[-1:], self.state)
        state = self.state
        parked = payloads and isinstance(payloads[-1], ev.ExecutionSuspended)
        append = Append(
            key=KEY,
            fence=fence,
            events=tuple(events),
            index=IndexUpdate(
                status=state.status,
                wake_at=state.wake_at,
                gates=state.gates,
                error=None if state.failure is None else state.failure.headline,
                recoveries=state.recoveries,
                in_doubt=state.in_doubt,
            ),
            release=bool(parked or state.status.terminal),
            timers=tuple({w.due for w in state.parked_on if w.due is not None}) if parked else (),
        )
        return msgspec.structs.replace(append, **changes)

    def write(
        self, *payloads: msgspec.Struct, by: str = "a", fence: int = 1, lie: Any = None, **more: Any
    ) -> Append:
        """Append some events."""
        append = self.entry_of(*payloads, fence=fence, **more)
        self.do("append", [append], by=by, lie=lie)
        return append

    def start(self, *payloads: msgspec.Struct, by: str = "a") -> None:
        """Admit and start the execution, with more events."""
        self.admit()
        claim = ClaimIntent(owner=by, expected_fence=0)
        self.write(ev.ExecutionStarted("simulated", "1", INPUT), *payloads, by=by, claim=claim)

    def claim(self, by: str, expected: int, lie: Any = None) -> Any:
        """Take the execution over."""
        claim = Claim(key=KEY, owner=by, expected_fence=expected)
        return self.do("claim", [claim], by=by, lie=lie)[0]

    def park(self, *waits: Wait, fence: int = 1, by: str = "a", **more: Any) -> None:
        """Park the execution."""
        self.write(ev.ExecutionSuspended(waits), fence=fence, by=by, **more)

    def sleep(self, seconds: float = 10.0, place: str = "0") -> Wait:
        """A wait for some time."""
        return Wait(place, WaitKind.TIMER, "", self.clock.now() + int(seconds * MICROS))

    def deliver(self, item: InboxItem, lie: Any = None) -> None:
        """Put an item into its inbox."""
        self.do("deliver", [item], by="dispatcher", lie=lie)

    def wake(self) -> None:
        """Let a sleep come to its end, and let `a` take the execution under fence 2."""
        self.wait(10.0)
        self.do("due_timers", limit=10, hold=5.0, by="timer")
        for owner in ("a", "b"):
            record = WorkerRecord(owner=owner, role="worker", host="test")
            self.do("lease", record, 5.0, by=owner)
        self.claim("a", 1)

    # ---- what the world sees -----------------------------------------------------------------

    def effect(
        self, step: str = "work#1", *, by: str = "a", attempt: int = 1, place: str = "0"
    ) -> Effect:
        """An effect begins."""
        now = self.clock.now()
        effect = Effect(execution_id=NAME, place=place, step=step, attempt=attempt, by=by, at=now)
        self.eyes.began(effect)
        return effect

    def ran(self, step: str = "work#1", outcome: str = "done", **more: Any) -> None:
        """An effect begins and ends."""
        self.eyes.ended(self.effect(step, **more), outcome)

    def ended(self, *program: Node, answers: tuple[Answer, ...] = ()) -> None:
        """All clients have heard how it ended: look at all of it once more."""
        whole = Node(op="seq", id=0, kids=program)
        job = Job(id=KEY.execution_id, tenant=KEY.tenant, program=whole, answers=answers)
        for each in self.eyes.check(Work((job,))):
            self.eyes.book.complain(each.rule, each.execution_id, each.text)

    def told(self, what: str, value: object = None) -> None:
        """A client is told something."""
        self.eyes.told(Told(execution_id=NAME, what=what, value=value, at=self.clock.now()))

    def acked(self, message: msgspec.Struct, kind: str) -> None:
        """A delivery is settled."""
        body = msgspec.msgpack.encode(message)
        self.eyes.acked(
            Acked(
                by="a", queue="q", type=kind, body=body, content_type="application/msgpack",
                how="ack", at=self.clock.now(),
            )
        )  # fmt: skip

    def killed(self, who: str) -> None:
        """Somebody is killed."""
        self.eyes.happened(Happened("killed", who, self.clock.now()))
        self.store.gone[who] = None


def answer(gate: str = "gate 1", item_id: str = "answer 1") -> InboxItem:
    """An answer to a gate."""
    return InboxItem(
        tenant=KEY.tenant, execution_id=KEY.execution_id, item_id=item_id,
        kind=InboxKind.ANSWER, gate=gate, payload=b"7",
    )  # fmt: skip


def step(id: int = 1, kind: str = "work") -> Node:
    """A step of a program."""
    return Node(op="step", id=id, kind=kind, n=1)


def cancel() -> InboxItem:
    """A cancel."""
    return InboxItem(
        tenant=KEY.tenant, execution_id=KEY.execution_id, item_id="cancel", kind=InboxKind.CANCEL
    )


def gate(due: int | None = None) -> Wait:
    """A wait for an answer."""
    return Wait("0", WaitKind.GATE, "gate 1", due)
