"""What is told about an execution: one place that makes reply items. Pure."""

from __future__ import annotations

from loom_mq.errors import LoomError, ResumeRefusedError
from loom_mq.kernel.fold import decode_payload
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope
from loom_mq.model.execution import ExecutionKey, ExecutionRow, Status
from loom_mq.model.failures import Failure
from loom_mq.model.messages import ReplyItem, ReplyKind


def outcome_reply(
    key: ExecutionKey,
    correlation: str,
    status: Status,
    *,
    result: bytes | None = None,
    failure: Failure | None = None,
    reason: str = "",
) -> ReplyItem:
    """How an execution ended."""
    return ReplyItem(
        kind=ReplyKind.OUTCOME,
        id=key.execution_id,
        tenant=key.tenant,
        correlation=correlation,
        status=status,
        result=result,
        failure=failure,
        reason=reason,
    )


def outcome_from_event(key: ExecutionKey, correlation: str, envelope: Envelope) -> ReplyItem | None:
    """The outcome that a terminal event tells; None for any other event."""
    match decode_payload(envelope):
        case ev.ExecutionCompleted(result=result):
            return outcome_reply(key, correlation, Status.COMPLETED, result=result)
        case ev.ExecutionFailed(failure=failure):
            return outcome_reply(key, correlation, Status.FAILED, failure=failure)
        case ev.ExecutionCancelled(reason=reason):
            return outcome_reply(key, correlation, Status.CANCELLED, reason=reason)
    return None


def state_reply(
    row: ExecutionRow,
    correlation: str,
    kind: ReplyKind = ReplyKind.STATE,
    *,
    created: bool | None = None,
) -> ReplyItem:
    """How an execution stands."""
    return ReplyItem(
        kind=kind,
        id=row.execution_id,
        tenant=row.tenant,
        correlation=correlation,
        status=row.status,
        created=created,
        flow=row.flow,
        version=row.version,
        queue=row.queue,
        gates=row.gates,
        in_doubt=row.in_doubt,
        wake_at=row.wake_at,
        owner=row.owner,
        attempt=row.attempt,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def error_reply(key: ExecutionKey, correlation: str, error: LoomError) -> ReplyItem:
    """Why a request was refused."""
    return ReplyItem(
        kind=ReplyKind.ERROR,
        id=key.execution_id,
        tenant=key.tenant,
        correlation=correlation,
        code=error.code,
        message=error.message,
        reason=error.reason if isinstance(error, ResumeRefusedError) else "",
    )
