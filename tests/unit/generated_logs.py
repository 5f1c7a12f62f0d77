"""Generated logs: lawful ones, as engines may write them, and logs of any order at all.

Both are made from one short string of bytes, which hypothesis draws and shrinks quickly;
each byte chooses what happens next.

Tests of laws run under the settings `LAWS`; ``LOOM_TEST_PROFILE=thorough`` makes them look
for a long time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from loom_mq.kernel.fold import ExecutionState, Frame, FrameStatus, apply
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, Wait, WaitKind, kind_of_type
from loom_mq.model.execution import Status
from loom_mq.model.failures import CauseLine, Failure
from loom_mq.model.verdicts import VerdictKind

T = TypeVar("T")

Payloads = list[msgspec.Struct | None]
"""None stands for an event of a kind that this release does not know."""

_PROFILES: Final = {
    "default": settings(max_examples=2_000, deadline=None),
    "thorough": settings(max_examples=100_000, deadline=None),
}
LAWS: Final = _PROFILES[os.environ.get("LOOM_TEST_PROFILE", "default")]

NEWER_KIND: Final = "OF_A_NEWER_RELEASE"
GATES: Final = ("Approval", "Größe")
PLAIN: Final = Failure("ValueError", "builtins", "nein\x00", "line 1", (CauseLine("OSError", ""),))
TYPED: Final = Failure("Declined", "app", "no", channel="declined", payload=b"\x00\x01")
PLACES: Final = ("#0", "#1", "~0#0", "~0~1#0")
NO_TURN: Final = 0
LONGEST: Final = 24
"""Moves in a log; some write two events."""


def envelope(payload: msgspec.Struct | None, seq: int) -> Envelope:
    """An event as it would stand in a log."""
    kind = NEWER_KIND if payload is None else kind_of_type[type(payload)].value
    body = b"\xc1" if payload is None else msgspec.msgpack.encode(payload)
    return Envelope(seq.to_bytes(16), seq, kind, 1_000 + seq // 2, 1, True, ev.EVENT_SCHEMA, body)


def as_log(payloads: Payloads) -> list[Envelope]:
    """Envelopes with dense sequences from 0."""
    return [envelope(payload, seq) for seq, payload in enumerate(payloads)]


class Scribe:
    """Writes what an engine may write next, as bytes choose.

    It knows what is lawful from its own fold of what it has written, and from what the
    original engine did too: a failure that comes in behind a park, or behind the end.
    """

    def __init__(self, choices: bytes, *, recovers_failed: bool = True) -> None:
        self.payloads: Payloads = []
        self._state = ExecutionState()
        self._choices = iter(choices)
        self._recovers_failed = recovers_failed
        self._ids = 0
        self._write(ev.ExecutionStarted("flow", "1", b"\x00\x01", ("a", "b"), "parent", {"k": "v"}))

    def log(self) -> Payloads:
        """Everything that the choices lead to."""
        for _ in range(self._byte() % LONGEST):
            if self._state.status is Status.SUSPENDED:
                moves = self._while_parked()
            elif self._state.status.terminal:
                if not self._where(FrameStatus.RUNNING):
                    break
                moves = [self._fail, self._newer]
            else:
                moves = self._while_running()
            self._pick(moves)()
        return self.payloads

    # ---- what may happen ------------------------------------------------------------

    def _while_running(self) -> list[Callable[[], None]]:
        moves = [self._start_step, self._park, self._decide, self._answer, self._newer, self._end]
        moves += [self._start_step] * 3
        if self._where(FrameStatus.RUNNING):
            moves += [self._complete, self._fail, self._retry, self._cancel_step, self._doubt]
            moves += [self._park] * 3
        if self._where(FrameStatus.COMPLETED, FrameStatus.FAILED):
            moves += [self._tell]
        if self._state.cancelling is None:
            moves += [self._ask_to_cancel]
        if self._recovers_failed or not self._where(FrameStatus.FAILED):
            moves += [self._recover]
        return moves

    def _while_parked(self) -> list[Callable[[], None]]:
        moves = [self._wake, self._wake, self._newer, self._end]
        if self._where(FrameStatus.RUNNING):
            # what comes in behind the park is what this is about, so it is likely
            moves += [self._fail, self._fail, self._complete]
        if self._state.in_doubt:
            moves += [self._judge, self._judge]
        return moves

    def _start_step(self) -> None:
        place = self._pick(PLACES)
        frame = self._state.frames.get(place)
        if frame is None:
            self._write(ev.StepStarted(place, "s" + place, 1, self._byte(), bool(self._byte() % 2)))
        elif frame.status is FrameStatus.RETRYING:
            self._write(ev.StepStarted(place, frame.name, frame.attempts + 1, self._byte()))

    def _complete(self) -> None:
        if (place := self._in(FrameStatus.RUNNING)) is not None:
            self._write(ev.StepCompleted(place, bytes([self._byte()]), self._turn()))

    def _fail(self) -> None:
        if (place := self._in(FrameStatus.RUNNING, FrameStatus.RETRYING)) is not None:
            failure = TYPED if self._byte() % 2 else PLAIN
            self._write(ev.StepFailed(place, failure, self._turn()))

    def _retry(self) -> None:
        if (place := self._in(FrameStatus.RUNNING)) is not None:
            failures = self._state.frames[place].failures + 1
            self._write(ev.StepRetrying(place, PLAIN, failures, 5_000 + self._byte()))

    def _cancel_step(self) -> None:
        if (place := self._in(FrameStatus.RUNNING)) is not None:
            self._write(ev.StepCancelled(place, self._turn()))

    def _tell(self) -> None:
        if (place := self._in(FrameStatus.COMPLETED, FrameStatus.FAILED)) is not None:
            self._write(ev.StepTold(place, self._turn() or self._state.turn + 1))

    def _doubt(self) -> None:
        if (place := self._in(FrameStatus.RUNNING)) is not None:
            frame = self._state.frames[place]
            self._write(ev.EffectInDoubt(place, frame.name, frame.attempts))
            self._write(ev.ExecutionSuspended((self._verdict_wait(place, frame),)))

    def _judge(self) -> None:
        if (place := self._in(FrameStatus.IN_DOUBT)) is None:
            return
        verdict = self._pick(tuple(VerdictKind))
        self._write(ev.ExecutionResumed((), self._turn()))
        self._write(ev.VerdictTaken(place, verdict, "seen", self._id(), "operator"))
        if verdict is VerdictKind.COMPLETED:
            self._write(ev.StepCompleted(place, b"v", self._turn()))
        elif verdict is VerdictKind.FAILED:
            self._write(ev.StepFailed(place, PLAIN, self._turn()))

    def _decide(self) -> None:
        place = f"#{10 + self._byte() % 3}"
        if place not in self._state.ops:
            if self._byte() % 2:
                self._write(ev.CustomEmitted(place, "progress", b""))
            else:
                self._write(ev.DecisionRecorded(place, "choice", b"\x00"))

    def _park(self) -> None:
        ids = [f"#{20 + number}" for number in range(1 + self._byte() % 3)]
        waits = [
            self._state.waits.get(wait_id)
            or Wait(wait_id, WaitKind.GATE, self._pick(GATES), self._pick((None, 90)), "bool")
            for wait_id in ids
            if wait_id not in self._state.answers
        ]
        if (place := self._in(FrameStatus.RETRYING)) is not None:
            frame = self._state.frames[place]
            waits.append(Wait(f"{place}!{frame.failures}", WaitKind.BACKOFF, frame.name, frame.due))
        if (place := self._in(FrameStatus.IN_DOUBT)) is not None:
            waits.append(self._verdict_wait(place, self._state.frames[place]))
        if "#30" not in self._state.answers and self._byte() % 2:
            waits.append(Wait("#30", WaitKind.TIMER, "", 77))
        if waits:
            self._write(ev.ExecutionSuspended(tuple(waits)))

    def _wake(self) -> None:
        """By time, by an answer, or with nothing: a mere change of status."""
        parked = self._state.parked_on
        timed = tuple(wait.id for wait in parked if wait.due is not None)
        gates = [wait for wait in parked if wait.kind is WaitKind.GATE]
        how = self._byte() % 3
        ended = timed if how == 1 else ()
        taken = gates if how == 2 else []
        if self._state.in_doubt and not (ended or taken):
            return  # nothing else but a verdict leads out of that
        self._write(ev.ExecutionResumed(ended, self._turn()))
        if taken:
            gate = self._pick(taken)
            self._take(gate.id, gate.name)

    def _answer(self) -> None:
        """A gate that finds its answer there already opens and takes it without a park."""
        wait_id = f"#{40 + self._byte() % 2}"
        if wait_id not in self._state.ops:
            self._take(wait_id, self._pick(GATES))

    def _take(self, wait_id: str, gate: str) -> None:
        answer = self._pick((b"\x00\xc3", b"\x01\xc0"))
        self._write(ev.AnswerTaken(wait_id, gate, answer, self._id(), self._turn(), "someone"))

    def _recover(self) -> None:
        self._write(ev.ExecutionRecovered("worker", 2))
        for place, frame in tuple(self._state.frames.items()):
            again = frame.status is FrameStatus.FAILED and not self._state.serves(place)
            if frame.status is FrameStatus.RUNNING or again:
                self._write(ev.StepStarted(place, frame.name, frame.attempts + 1))

    def _ask_to_cancel(self) -> None:
        self._write(ev.CancelRequested("enough", "someone", self._turn()))

    def _newer(self) -> None:
        self._write(None)

    def _end(self) -> None:
        how = self._byte() % 6  # not too often, or logs stay short
        if how == 0:
            self._write(ev.ExecutionCompleted(b"\x00\x05"))
        elif how == 1:
            self._write(ev.ExecutionFailed(TYPED))
        elif how == 2:
            self._write(ev.ExecutionCancelled("enough"))

    # ---- helpers ------------------------------------------------------------------------

    def _write(self, payload: msgspec.Struct | None) -> None:
        seq = len(self.payloads)
        self.payloads.append(payload)
        apply(self._state, payload, seq, 1_000 + seq // 2)

    def _byte(self) -> int:
        return next(self._choices, 0)

    def _pick(self, options: Sequence[T]) -> T:
        return options[self._byte() % len(options)]

    def _where(self, *statuses: FrameStatus) -> list[str]:
        """The steps that stand so."""
        frames = self._state.frames
        return [place for place, frame in frames.items() if frame.status in statuses]

    def _in(self, *statuses: FrameStatus) -> str | None:
        """One of them."""
        found = self._where(*statuses)
        return self._pick(found) if found else None

    def _turn(self) -> int:
        """Untold, a turn of its own, in the newest turn, or in the next one."""
        return self._pick((ev.UNTOLD, NO_TURN, self._state.turn, self._state.turn + 1))

    def _id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    @staticmethod
    def _verdict_wait(place: str, frame: Frame) -> Wait:
        return Wait(f"{place}?{frame.attempts}", WaitKind.VERDICT, frame.name)


def lawful(choices: bytes) -> Payloads:
    """What these choices lead to, under the present rules."""
    return Scribe(choices).log()


def lawful_before(choices: bytes) -> Payloads:
    """As `lawful`, of a time when an execution of which a step had failed was taken for
    one that had failed, and was not recovered.
    """
    return Scribe(choices, recovers_failed=False).log()


_PLACES_AT_ODDS: Final = ("#0", "~0#0")
_WAITS_AT_ODDS: Final = tuple(
    Wait(place, kind, gate, due)
    for place in _PLACES_AT_ODDS
    for kind, due in ((WaitKind.GATE, None), (WaitKind.TIMER, 9), (WaitKind.VERDICT, None))
    for gate in GATES
)

ANY_EVENT: Final[Payloads] = [
    None,
    ev.ExecutionStarted("flow", "1", b"i"),
    ev.ExecutionRecovered("worker", 2),
    ev.ExecutionSuspended(()),
    *(ev.ExecutionSuspended((wait,)) for wait in _WAITS_AT_ODDS),
    ev.ExecutionSuspended(_WAITS_AT_ODDS[:3]),
    ev.ExecutionResumed(),
    *(ev.ExecutionResumed((place,), turn) for place in _PLACES_AT_ODDS for turn in (0, 1, 3)),
    ev.ExecutionCompleted(b"r"),
    ev.ExecutionFailed(PLAIN),
    ev.ExecutionCancelled("enough"),
    *(
        event
        for place in _PLACES_AT_ODDS
        for event in (
            ev.StepStarted(place, "s", 1),
            ev.StepStarted(place, "s", 2, 7, True),
            ev.StepRetrying(place, PLAIN, 1, 9),
            ev.DecisionRecorded(place, "d", b""),
            ev.CustomEmitted(place, "t", b""),
            ev.EffectInDoubt(place, "s", 1),
            *(ev.VerdictTaken(place, verdict, "", "id") for verdict in VerdictKind),
        )
    ),
    *(
        event
        for place in _PLACES_AT_ODDS
        for turn in (ev.UNTOLD, 0, 1, 2)
        for event in (
            ev.StepCompleted(place, b"r", turn),
            ev.StepFailed(place, PLAIN, turn),
            ev.StepFailed(place, TYPED, turn),
            ev.StepCancelled(place, turn),
            ev.StepTold(place, turn),
            ev.AnswerTaken(place, GATES[0], b"\x01\xc0", "id", turn),
            ev.AnswerTaken(place, GATES[1], b"\x00\xc3", "id", turn),
        )
    ),
    ev.CancelRequested("enough", "", 1),
]
"""Events of every kind, to be put in any order."""

STEP_SAMPLES: Final[tuple[msgspec.Struct, ...]] = (
    ev.StepStarted("#0", "s", 1),
    ev.StepCompleted("#0", b"r"),
    ev.StepFailed("#0", PLAIN),
    ev.StepFailed("#0", TYPED),
    ev.StepCancelled("#0"),
    ev.StepRetrying("#0", PLAIN, 1, 99),
    ev.StepTold("#0", 1),
)
"""At least one event of each kind of step event."""

choices: st.SearchStrategy[bytes] = st.binary(min_size=96, max_size=96)
"""What `lawful` makes a log of."""
lawful_logs: st.SearchStrategy[Payloads] = choices.map(lawful)
any_logs: st.SearchStrategy[Payloads] = st.binary(max_size=24).map(
    lambda drawn: [ANY_EVENT[byte % len(ANY_EVENT)] for byte in drawn]
)
"""Logs of any order, which no engine would write."""
