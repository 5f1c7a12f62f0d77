"""What a parked execution cannot take, told before anything is appended (K6, K7, K8). Pure."""

from __future__ import annotations

from typing import Any

from loom_mq.codec.values import codec_for
from loom_mq.errors import CodecError, ResumeRefusedError
from loom_mq.kernel.fold import ExecutionState
from loom_mq.model.events import WaitKind
from loom_mq.model.execution import InboxItem, InboxKind
from loom_mq.model.messages import RefusalReason


def verdict_place(wait_id: str) -> str:
    """The place of the step that a wait for a verdict is about."""
    return wait_id.rpartition("?")[0]


def refusal_of(state: ExecutionState, item: InboxItem) -> ResumeRefusedError | None:
    """Why an inbox item cannot be taken, or None.

    Args:
        state: a suspended execution.
        item: an answer or a verdict. An answer to a gate that is not open yet is kept.
    """
    if item.kind is InboxKind.VERDICT:
        return _refused_verdict(state, item)
    parked = next(
        (
            wait
            for wait in state.parked_on
            if wait.kind is WaitKind.GATE
            and wait.name == item.gate
            and item.wait_id in (None, wait.id)
        ),
        None,
    )
    if parked is None or not state.failed_while_parked or not _is_none(item.payload):
        return None
    return ResumeRefusedError(
        f"execution {item.execution_id!r}: an empty answer to gate {item.gate!r} cannot be told "
        "from a mere change of status, because a step failed since the gate opened; answer with "
        "a value",
        reason=RefusalReason.NULL_AFTER_FAILURE.value,
        execution_id=item.execution_id,
    )


def _refused_verdict(state: ExecutionState, item: InboxItem) -> ResumeRefusedError | None:
    steps = [wait for wait in state.parked_on if wait.kind is WaitKind.VERDICT]
    if any(item.gate in (wait.name, verdict_place(wait.id)) for wait in steps):
        return None
    names = ", ".join(f"{wait.name!r} ({verdict_place(wait.id)})" for wait in steps)
    return ResumeRefusedError(
        f"execution {item.execution_id!r} waits for no verdict on step {item.gate!r}; "
        + (f"in doubt: {names}" if names else "none of its steps is in doubt"),
        reason=RefusalReason.NOT_SUSPENDED.value,
        execution_id=item.execution_id,
    )


def _is_none(payload: bytes) -> bool:
    try:
        return codec_for(Any).decode(payload) is None
    except CodecError:
        return False
