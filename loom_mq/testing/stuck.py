"""What a test is told when nothing will happen any more."""

from __future__ import annotations

from collections.abc import Iterable

from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.model.events import Envelope, WaitKind
from loom_mq.model.execution import ExecutionRow, Status


class StuckError(AssertionError):
    """Waiting is of no use: the message says what the execution waits for.

    Attributes:
        execution_id: the execution.
    """

    def __init__(self, message: str, execution_id: str) -> None:
        super().__init__(message)
        self.execution_id = execution_id


def why_stuck(row: ExecutionRow, log: Iterable[Envelope], wanted: str) -> StuckError:
    """Nothing is under way and nothing is due.

    Args:
        row: the execution that somebody waits for.
        log: its log.
        wanted: what it should do, such as ``end``.
    """
    name = row.execution_id
    state = fold(log)
    gates = [wait for wait in state.parked_on if wait.kind is WaitKind.GATE]
    if row.trouble:
        why = f"nobody can go on with it: {row.trouble}"
    elif row.in_doubt:
        why = (
            f"it waits for a verdict on step {row.in_doubt[0]!r}, which was interrupted and must "
            "not run twice; say how it ended with handle.verdict"
        )
    elif row.status is Status.SUSPENDED and gates:
        told = " and ".join(
            f"{gate.name!r}" + (f" ({gate.answer_type})" if gate.answer_type else "")
            for gate in gates
        )
        why = (
            f"it waits at gate {told} and nobody has answered; call "
            f"resume({gates[0].name!r}, ...) before you wait for it"
        )
    elif row.status is Status.SUSPENDED:
        why = "it is parked, and nothing is due that would wake it"
    elif row.status.terminal:
        why = f"it has ended {row.status.value}" + (f": {row.error}" if row.error else "")
    elif row.owner is None:
        why = (
            f"it is {row.status.value} and no worker takes it: its code does not fit its log "
            f"(see execution.code_mismatch in the log), or nobody serves queue {row.queue!r}"
        )
    else:
        why = f"it is {row.status.value}, and its worker does nothing with it"
    return StuckError(f"execution {name!r} will not {wanted}: {why}", name)


def still_at_work(row: ExecutionRow, log: Iterable[Envelope], patience: float) -> StuckError:
    """Something has been under way for too long.

    Args:
        row: an execution that somebody drives.
        log: its log.
        patience: real seconds without any event.
    """
    frames = fold(log).frames.values()
    busy = sorted({frame.name for frame in frames if frame.status is FrameStatus.RUNNING})
    what = f"step {' and '.join(map(repr, busy))}" if busy else "its flow's own code"
    return StuckError(
        f"execution {row.execution_id!r}: {what} is still at work after {patience:g} s of real "
        "time; time is not skipped while code runs. Replace what it waits for, or give the "
        "environment more patience",
        row.execution_id,
    )
