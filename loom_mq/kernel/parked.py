"""Why an execution is parked: what it waits for, and whether it should still wait. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loom_mq.clock import MICROS
from loom_mq.kernel.facts import DeadPackage, Fleet
from loom_mq.kernel.fold import ExecutionState
from loom_mq.kernel.reasons import PATIENCE, Reason, ReasonCode, backing_off, unheld
from loom_mq.kernel.refusals import verdict_place
from loom_mq.kernel.wording import command, names
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import ExecutionRow, InboxItem, InboxKind, Status

OVERDUE: Final = 2 * MICROS
"""A timer that is later than this has been missed."""
_KINDS: Final = {
    InboxKind.ANSWER: "An answer",
    InboxKind.CANCEL: "A cancel",
    InboxKind.VERDICT: "A verdict",
}


def explain(
    row: ExecutionRow,
    fleet: Fleet,
    state: ExecutionState | None,
    mail: Sequence[InboxItem],
    dead: DeadPackage | None,
) -> Reason:
    """Why a suspended execution is where it is."""
    if row.owner is not None:
        return Reason(
            ReasonCode.DISPATCHING, f"{row.owner} is about to go on with it.", row.updated_at
        )
    news = next((item for item in mail if wanted(item, row, state)), None)
    if news is not None:
        what = _KINDS[news.kind]
        if fleet.serving(row.queue) and fleet.has("dispatcher"):
            return Reason(
                ReasonCode.ANSWER_UNTAKEN, f"{what} arrived and was not taken yet.", row.hint_at
            )
        return unheld(row, fleet, f"{what} arrived and waits to be taken", dead=dead)
    if row.in_doubt:
        return _in_doubt(row, fleet, state)
    if row.wake_at is not None and fleet.now - row.wake_at > OVERDUE:
        return _overdue(row, row.wake_at, fleet, dead)
    waits = _waits(row, state)
    gates = [wait for wait in waits if wait.kind is WaitKind.GATE]
    if gates:
        return _at_gates(row, gates, fleet)
    backoffs = [wait for wait in waits if wait.kind is WaitKind.BACKOFF]
    if backoffs and backoffs[0].due is not None:
        return backing_off(row, fleet, backoffs[0].name, backoffs[0].due, state)
    if row.wake_at is None:
        return Reason(ReasonCode.DISPATCHING, "It is about to go on.", row.updated_at)
    return Reason(
        ReasonCode.TIMER_WAITING,
        f"It sleeps since {fleet.ago(row.updated_at)} and wakes in {fleet.ahead(row.wake_at)}.",
        row.updated_at,
    )


def wanted(item: InboxItem, row: ExecutionRow, state: ExecutionState | None) -> bool:
    """Whether a parked execution waits for this very item."""
    if row.status is not Status.SUSPENDED:
        return False
    match item.kind:
        case InboxKind.CANCEL:
            return True
        case InboxKind.VERDICT:
            doubted = {verdict_place(wait.id) for wait in _in_question(state)}
            return item.gate in row.in_doubt or item.gate in doubted
        case _:
            addressed = item.wait_id in {None, *(wait.id for wait in _waits(row, state))}
            return item.gate in row.gates and (addressed or state is None)


def _waits(row: ExecutionRow, state: ExecutionState | None) -> tuple[Wait, ...]:
    if state is not None:
        return state.parked_on
    return tuple(Wait("", WaitKind.GATE, name) for name in row.gates)


def _in_question(state: ExecutionState | None) -> list[Wait]:
    waits = () if state is None else state.parked_on
    return [wait for wait in waits if wait.kind is WaitKind.VERDICT]


def _in_doubt(row: ExecutionRow, fleet: Fleet, state: ExecutionState | None) -> Reason:
    """A step that must not run twice began, and nobody knows how it ended (K6)."""
    step = row.in_doubt[0]
    if row.in_doubt.count(step) > 1:  # its place tells it from its namesakes
        places = [verdict_place(wait.id) for wait in _in_question(state) if wait.name == step]
        step = next(iter(places), step)
    several = len(row.in_doubt) > 1
    return Reason(
        ReasonCode.IN_DOUBT,
        f"{names('Step', row.in_doubt)} began and nobody knows how "
        f"{'they' if several else 'it'} ended; {'they' if several else 'it'} must not run twice, "
        f"so it waits since {fleet.ago(row.updated_at)} to be told: completed, failed or "
        "run-again.",
        row.updated_at,
        command("verdict", row.execution_id, step, "completed", options=("--value", "JSON")),
    )


def _overdue(row: ExecutionRow, wake_at: int, fleet: Fleet, dead: DeadPackage | None) -> Reason:
    late = f"It was due {fleet.ago(wake_at)} ago"
    if not fleet.has("timer"):
        return Reason(
            ReasonCode.NO_TIMER,
            f"{late}, and no timer service is alive that would wake it.",
            wake_at,
            fleet.start("timer"),
        )
    if row.hint_at is None and fleet.now - wake_at > PATIENCE:
        # whoever fires a timer leaves a hint, so this one was never seen
        return Reason(
            ReasonCode.TIMER_ROW_MISSING,
            f"{late}, a timer service is alive and has not seen it: its timer is lost.",
            wake_at,
            "loom timers reconcile",
        )
    if not fleet.serving(row.queue) or dead is not None:
        return unheld(row, fleet, late, dead=dead)
    again = ""
    if row.hint_at is not None and row.hint_at > fleet.now:
        again = f"; it is sent to a worker again in {fleet.ahead(row.hint_at)}"
    return Reason(
        ReasonCode.TIMER_OVERDUE,
        f"{late} and has not gone on yet{again}.",
        wake_at,
        "loom timers --overdue",
    )


def _at_gates(row: ExecutionRow, gates: Sequence[Wait], fleet: Fleet) -> Reason:
    several = " and ".join(
        f"{gate.name!r}" + (f" ({gate.answer_type})" if gate.answer_type else "") for gate in gates
    )
    until = "" if row.wake_at is None else f"; it goes on by itself in {fleet.ahead(row.wake_at)}"
    example = _EXAMPLES.get(gates[0].answer_type, "JSON")
    return Reason(
        ReasonCode.GATE_WAITING,
        f"It waits at gate{'s' if len(gates) > 1 else ''} {several} since "
        f"{fleet.ago(row.updated_at)}{until}.",
        row.updated_at,
        command("resume", row.execution_id, gates[0].name, example),
    )


_EXAMPLES: Final = {"bool": "true", "int": "1", "float": "1.5", "str": '"text"'}
