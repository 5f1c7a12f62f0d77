"""Why an execution is where it is: one reason, in words. Pure.

The first rule that fits gives the reason. What only the broker knows (messages ready in
a queue, its consumers) is not seen here, and no sentence claims it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from loom_mq.clock import MICROS
from loom_mq.kernel import parked
from loom_mq.kernel.fold import ExecutionState, FrameStatus
from loom_mq.kernel.reasons import Fleet, Reason, ReasonCode, backing_off, no_dispatcher, unheld
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
) -> Reason:
    """Why an execution is where it is.

    Args:
        row: its index row.
        workers: processes whose lease runs.
        flows: flows that any worker has ever registered.
        now: journal time.
        state: its folded log, for a sentence that names steps and types.
        mail: unread items of its inbox.
        embedded: one process is dispatcher, worker and timer at once.
        max_recoveries: what the dispatchers use (F8).
    """
    if row.status.terminal:
        return _ended(row, now)
    fleet = Fleet(workers, flows, now, embedded=embedded)
    reason = _unended(row, fleet, state, mail, max_recoveries)
    remarks = [reason.sentence, *_remarks(row, state, mail)]
    return msgspec.structs.replace(reason, sentence=" ".join(remarks))


def _unended(
    row: ExecutionRow,
    fleet: Fleet,
    state: ExecutionState | None,
    mail: Sequence[InboxItem],
    max_recoveries: int,
) -> Reason:
    if row.trouble is not None and row.owner is None:
        return _mismatch(row, row.trouble)
    match row.status:
        case Status.PENDING:
            return unheld(row, fleet, "It has not begun")
        case Status.RUNNING:
            return _running(row, fleet, state, max_recoveries)
        case _:
            return parked.explain(row, fleet, state, mail)


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
    row: ExecutionRow, fleet: Fleet, state: ExecutionState | None, max_recoveries: int
) -> Reason:
    at = row.updated_at
    if row.owner is None:
        return unheld(row, fleet, "Its last worker let go of it")
    if not fleet.lives(row.owner):
        if row.recoveries >= max_recoveries:
            return Reason(
                ReasonCode.RECOVERY_EXHAUSTED,
                f"It was recovered {row.recoveries} times without any progress since and is no "
                f"longer tried; its last worker was {row.owner}.",
                at,
                "mend what kills its workers, then "
                + command("recover", row.execution_id, options=("--again",)),
            )
        if not fleet.has("dispatcher"):
            return no_dispatcher(f"Its worker {row.owner} is gone, and", at, fleet)
        return Reason(
            ReasonCode.LEASE_EXPIRED,
            f"Its worker {row.owner} is gone; a dispatcher gives it to another one in its "
            "next pass.",
            at,
        )
    if row.deadline is not None and row.deadline <= fleet.now:
        return Reason(
            ReasonCode.ATTEMPT_OVERDUE,
            f"Its attempt on {row.owner} passed its time limit {fleet.ago(row.deadline)} ago; a "
            "dispatcher gives it to another worker in its next pass.",
            row.deadline,
        )
    return _in_hand(row, fleet, state)


def _in_hand(row: ExecutionRow, fleet: Fleet, state: ExecutionState | None) -> Reason:
    """A living worker drives it."""
    frames = [] if state is None else list(state.frames.values())
    busy = sorted({frame.name for frame in frames if frame.status is FrameStatus.RUNNING})
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
        f"{what} on {row.owner}, which is alive; the last event is {fleet.ago(row.updated_at)} "
        "old.",
        row.updated_at,
    )
