"""Why an execution is where it is: one reason, in words. Pure.

The first rule that fits gives the reason. What only the broker knows (messages ready in
a queue, its consumers) is told where somebody has looked, and no sentence claims it else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from loom_mq.clock import MICROS
from loom_mq.kernel import parked
from loom_mq.kernel.evidence import evidence
from loom_mq.kernel.facts import BrokerFacts, DeadPackage, Fleet
from loom_mq.kernel.fold import ExecutionState, FrameStatus
from loom_mq.kernel.reasons import Reason, ReasonCode, backing_off, no_dispatcher, unheld
from loom_mq.kernel.wording import command, names, span
from loom_mq.model.execution import (
    ExecutionRow,
    FlowRecord,
    InboxItem,
    InboxKind,
    Status,
    WorkerRecord,
)

__all__ = ["MAX_RECOVERIES", "Reason", "ReasonCode", "explain"]

MAX_RECOVERIES: Final = 10
"""What dispatchers use unless they are told otherwise (F8)."""
SLOW: Final = 5
"""So many times its usual time, and a step is worth a look."""
SLOW_AT_LEAST: Final = 10 * MICROS


def explain(
    row: ExecutionRow,
    workers: Sequence[WorkerRecord],
    flows: Sequence[FlowRecord],
    now: int,
    *,
    state: ExecutionState | None = None,
    mail: Sequence[InboxItem] = (),
    embedded: bool = False,
    max_recoveries: int = MAX_RECOVERIES,
    broker: BrokerFacts | None = None,
    dead: DeadPackage | None = None,
    usual: Mapping[str, int] | None = None,
) -> Reason:
    """Why an execution is where it is (F11).

    Args:
        row: its index row.
        workers: processes whose lease runs.
        flows: flows that any worker has ever registered.
        now: journal time.
        state: its folded log, for a sentence that names steps and types.
        mail: unread items of its inbox.
        embedded: one process is dispatcher, worker and timer at once.
        max_recoveries: what the dispatchers use (F8).
        broker: what was seen of the broker; None when nobody looked.
        dead: the newest of its packages that nobody could use.
        usual: how long steps usually take, by name, in microseconds.
    """
    if row.status.terminal:
        return _ended(row, now)
    fleet = Fleet(workers, flows, now, embedded=embedded, broker=broker)
    reason = _unended(row, fleet, state, mail, max_recoveries, dead)
    if reason.code is ReasonCode.RUNNING and usual and state is not None:
        reason = _slow(row, fleet, state, usual) or reason
    remarks = [reason.sentence, *_remarks(row, state, mail)]
    return msgspec.structs.replace(
        reason, sentence=" ".join(remarks), evidence=evidence(row, fleet, mail)
    )


def _unended(
    row: ExecutionRow,
    fleet: Fleet,
    state: ExecutionState | None,
    mail: Sequence[InboxItem],
    max_recoveries: int,
    dead: DeadPackage | None,
) -> Reason:
    if row.trouble is not None and row.owner is None:
        return _mismatch(row, row.trouble)
    match row.status:
        case Status.PENDING:
            return unheld(row, fleet, "It has not begun", dead=dead)
        case Status.RUNNING:
            if row.owner is None:
                return unheld(row, fleet, "Its last worker let go of it", dead=dead)
            return _running(row, row.owner, fleet, state, max_recoveries)
        case _:
            return parked.explain(row, fleet, state, mail, dead)


def _ended(row: ExecutionRow, now: int) -> Reason:
    code = ReasonCode(row.status.value)
    at = row.ended_at if row.ended_at is not None else row.updated_at
    error = f": {row.error}" if row.error else ""
    verb = {Status.COMPLETED: "completed", Status.FAILED: "failed"}.get(row.status, "was cancelled")
    return Reason(code, f"It {verb} {span((now - at) / MICROS)} ago{error}.", at)


def _mismatch(row: ExecutionRow, trouble: str) -> Reason:
    """The newest attempt could do nothing; nothing was written to its log (K3).

    The sentence is the worker's own and says what to deploy; the command shows what else
    the code does not fit.
    """
    return Reason(
        ReasonCode.CODE_MISMATCH,
        f"{trouble.rstrip('.')}.",
        row.updated_at,
        command("replay", "FILE", options=("--flow", row.flow, "--live")),
    )


def _remarks(
    row: ExecutionRow, state: ExecutionState | None, mail: Sequence[InboxItem]
) -> list[str]:
    """What is on its way to it or kept for it, whatever it does now."""
    remarks = []
    if state is not None and state.cancelling is not None:
        why = f": {state.cancelling}" if state.cancelling else ""
        remarks.append(f"It is being cancelled{why}.")
    elif row.status is Status.RUNNING and any(item.kind is InboxKind.CANCEL for item in mail):
        remarks.append("A cancel arrived and was not taken yet.")
    doubted = [] if state is None else _doubted(state)
    if doubted and not row.in_doubt:
        remarks.append(f"{names('Step', doubted)} will have to wait for a verdict.")
    kept = [
        item
        for item in mail
        if item.kind is InboxKind.ANSWER and not parked.wanted(item, row, state)
    ]
    late = [item.gate for item in kept if state is not None and item.wait_id in state.answers]
    early = [item.gate for item in kept if state is None or item.wait_id not in state.answers]
    if early:
        remarks.append(
            f"{_answers(len(early))} for {names('gate', early)} "
            f"{'is' if len(early) == 1 else 'are'} kept for when "
            f"{'it opens' if len(set(early)) == 1 else 'they open'}."
        )
    if late:
        remarks.append(
            f"{_answers(len(late))} for {names('gate', late)} came after that wait had ended, and "
            f"nobody will take {'it' if len(late) == 1 else 'them'}."
        )
    return remarks


def _doubted(state: ExecutionState) -> list[str]:
    return [frame.name for frame in state.frames.values() if frame.status is FrameStatus.IN_DOUBT]


def _answers(number: int) -> str:
    return "An answer" if number == 1 else f"{number} answers"


# ---- running --------------------------------------------------------------------------------


def _running(
    row: ExecutionRow, owner: str, fleet: Fleet, state: ExecutionState | None, max_recoveries: int
) -> Reason:
    at = row.updated_at
    if not fleet.lives(owner):
        if row.recoveries >= max_recoveries:
            return Reason(
                ReasonCode.RECOVERY_EXHAUSTED,
                f"It was recovered {row.recoveries} times without any progress since and is no "
                f"longer tried; its last worker was {owner}.",
                at,
                "mend what kills its workers, then "
                + command("recover", row.execution_id, options=("--again",)),
            )
        if not fleet.has("dispatcher"):
            return no_dispatcher(f"Its worker {owner} is gone, and", at, fleet)
        return Reason(
            ReasonCode.LEASE_EXPIRED,
            f"Its worker {owner} is gone; a dispatcher gives it to another one in its next pass.",
            at,
        )
    if row.deadline is not None and row.deadline <= fleet.now:
        return Reason(
            ReasonCode.ATTEMPT_OVERDUE,
            f"Its attempt on {owner} passed its time limit {fleet.ago(row.deadline)} ago; a "
            "dispatcher gives it to another worker in its next pass.",
            row.deadline,
        )
    return _in_hand(row, owner, fleet, state)


def _in_hand(row: ExecutionRow, owner: str, fleet: Fleet, state: ExecutionState | None) -> Reason:
    """A living worker drives it."""
    frames = [] if state is None else list(state.frames.values())
    busy = _busy(state)
    if busy:
        what = f"{' and '.join(map(repr, busy))} {'run' if len(busy) > 1 else 'runs'}"
    else:
        retrying = [frame for frame in frames if frame.status is FrameStatus.RETRYING]
        if retrying:
            frame = min(retrying, key=lambda each: each.due)
            return backing_off(row, fleet, frame.name, frame.due, state)
        what = "It runs"
    return Reason(
        ReasonCode.RUNNING,
        f"{what} on {owner}, which is {_alive(owner, fleet)}; the last event is "
        f"{fleet.ago(row.updated_at)} old.",
        row.updated_at,
    )


def _alive(owner: str, fleet: Fleet) -> str:
    worker = fleet.worker(owner)
    draining = worker is not None and worker.draining
    return "alive and drains: it gives back what it does not finish" if draining else "alive"


def _busy(state: ExecutionState | None) -> list[str]:
    frames = [] if state is None else state.frames.values()
    return sorted({frame.name for frame in frames if frame.status is FrameStatus.RUNNING})


def _at_most(micros: int) -> str:
    return "less than a second" if micros < MICROS else f"{span(micros / MICROS)} at most"


def _slow(
    row: ExecutionRow, fleet: Fleet, state: ExecutionState, usual: Mapping[str, int]
) -> Reason | None:
    """A step takes far longer than such steps do. Its worker is alive, so nobody takes it over.

    It began before the newest event or with it, so it has run for that long at least.
    """
    ran = fleet.now - row.updated_at
    slow = [
        name
        for name in _busy(state)
        if name in usual and ran > max(SLOW * usual[name], SLOW_AT_LEAST)
    ]
    if not slow:
        return None
    name = slow[0]
    return Reason(
        ReasonCode.STEP_SLOW,
        f"{name!r} runs for {fleet.ago(row.updated_at)} on {row.owner}, which is alive; usually it "
        f"takes {_at_most(usual[name])}.",
        row.updated_at,
        command("introspect", row.execution_id),
    )
