"""What a folded log holds: steps, waits, answers, and what a re-run is served (K2, K3). Pure."""

from __future__ import annotations

import enum

import msgspec

from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import Status
from loom_mq.model.failures import Failure

TOLD = (WaitKind.GATE, WaitKind.TIMER)
"""The waits whose end the flow is told; the others are the engine's own."""


CANCEL_PLACE = "!cancel"
"""Stands for the cancellation among what a flow is told; no place of a flow reads so."""


class FrameStatus(enum.StrEnum):
    """Where a step stands."""

    RUNNING = "running"
    RETRYING = "retrying"
    IN_DOUBT = "in-doubt"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Frame(msgspec.Struct, gc=False):
    """The folded record of one step.

    Attributes:
        attempts: how often its effect was started.
        failures: how many attempts failed.
        due: journal time of the next attempt while retrying.
        failed_at: sequence of the failure that ended it, -1 before one.
        arguments: checksum of the arguments of its newest start, 0 for none.
        once: its effect must not run twice (K6).
        withdrawn: it ended, and the flow, which had cancelled it meanwhile, was told that.
    """

    name: str
    status: FrameStatus
    attempts: int = 0
    failures: int = 0
    result: bytes | None = None
    failure: Failure | None = None
    due: int = 0
    failed_at: int = -1
    arguments: int = 0
    once: bool = False
    withdrawn: bool = False


class Answer(msgspec.Struct, frozen=True, gc=False):
    """How a wait ended: with an answer, or (None) by its time."""

    payload: bytes | None


class OpKind(enum.StrEnum):
    """The kinds of operation that take a place in a flow's control flow (K3)."""

    STEP = "step"
    DECISION = "decision"
    WAIT = "wait"
    EMIT = "emit"


class ExecutionState(msgspec.Struct):
    """A folded log. Times are microseconds of journal time.

    Attributes:
        run: tells executions apart that have been started under the same id.
        ops: what stands at each place of the control flow, to tell a changed flow (K3).
        waits: every wait that a park has named, by wait id.
        parked_on: the waits of the present park.
        answers: ended waits, by wait id.
        newest_place: sequence at which the newest place was taken.
        told_at: sequence at which the newest turn began.
        parked_at: sequence of the newest park, -1 before one.
        turn: number of the newest turn, 0 before the first.
        settled: in which turn the flow was told of each place, in the order of telling.
        recoveries: recoveries since the last progress (F8).
        cancelling: why it is being cancelled, None when it is not (K13).
        failed_while_parked: the mark of K8.
    """

    status: Status = Status.PENDING
    last_seq: int = -1
    flow: str = ""
    version: str = ""
    input: bytes = b""
    features: tuple[str, ...] = ()
    parent: str | None = None
    labels: dict[str, str] = {}
    run: str = ""
    ops: dict[str, tuple[OpKind, str]] = {}
    frames: dict[str, Frame] = {}
    decisions: dict[str, bytes] = {}
    waits: dict[str, Wait] = {}
    parked_on: tuple[Wait, ...] = ()
    answers: dict[str, Answer] = {}
    newest_place: int = -1
    told_at: int = -1
    parked_at: int = -1
    turn: int = 0
    settled: dict[str, int] = {}
    recoveries: int = 0
    cancelling: str | None = None
    failed_while_parked: bool = False
    result: bytes | None = None
    failure: Failure | None = None
    reason: str = ""
    started_at: int | None = None
    updated_at: int = 0
    ended_at: int | None = None

    def went_past(self, frame: Frame) -> bool:
        """Whether the log shows that the flow has seen this failure and gone on.

        It has when anything was called or told since, or the execution has parked or
        ended. What the flow then did may belong to the failure, so a re-run must meet the
        failure again (K3).
        """
        return self.status.terminal or max(self.newest_place, self.told_at, self.parked_at) > (
            frame.failed_at
        )

    def serves(self, place: str) -> bool:
        """Whether a re-run is told what the log holds for this place, rather than finding
        out anew (K2, K5).
        """
        frame = self.frames.get(place)
        if frame is None:
            return True  # an answer, a decision, a cancellation: nothing could be found out anew
        if frame.status is FrameStatus.FAILED:
            known = frame.once or (frame.failure is not None and frame.failure.channel)
            return bool(known) or frame.withdrawn or self.went_past(frame)
        return frame.status in (FrameStatus.COMPLETED, FrameStatus.CANCELLED)

    def script(self) -> list[tuple[int, list[str]]]:
        """What a re-run has to be told before anything new begins: per turn, the places in
        the order of telling (K3).
        """
        turns: list[tuple[int, list[str]]] = []
        for place, turn in self.settled.items():
            if not self.serves(place):
                continue
            if turns and turns[-1][0] == turn:
                turns[-1][1].append(place)
            else:
                turns.append((turn, [place]))
        return turns

    def take_place(self, place: str, kind: OpKind, name: str) -> None:
        """Note what stands at a place; called in the order of the log."""
        if place not in self.ops:
            self.newest_place = self.last_seq
        self.ops[place] = (kind, name)

    def settle(self, place: str, turn: int) -> None:
        """Note that the flow was told of a place; called in the order of telling."""
        if turn == ev.UNTOLD:
            return
        if turn != self.turn or not turn:
            self.told_at = self.last_seq
            self.turn = turn = turn or self.turn + 1
        self.settled.pop(place, None)
        self.settled[place] = turn

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """Names of the steps for which the present park waits for a verdict (K6)."""
        return tuple(wait.name for wait in self.parked_on if wait.kind is WaitKind.VERDICT)

    @property
    def gates(self) -> tuple[str, ...]:
        """Names of the gates that the present park waits at."""
        return tuple(wait.name for wait in self.parked_on if wait.kind is WaitKind.GATE)

    @property
    def wake_at(self) -> int | None:
        """Earliest due time of the present park."""
        return min((wait.due for wait in self.parked_on if wait.due is not None), default=None)
