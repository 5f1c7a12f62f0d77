"""What becomes of an attempt that failed: recorded, tried again, or raised (K4, K5)."""

from __future__ import annotations

from typing import Any

import msgspec

from loom_mq.clock import MICROS
from loom_mq.codec.failures import describe_exception
from loom_mq.errors import StepFailedError
from loom_mq.flows.failure import TypedFailure
from loom_mq.flows.step import Step
from loom_mq.flows.surroundings import Surroundings
from loom_mq.journal.log import ExecutionLog
from loom_mq.kernel.fold import Frame
from loom_mq.kernel.retry import next_delay
from loom_mq.model import events as ev
from loom_mq.model.failures import Failure


def settle_failure(
    log: ExecutionLog,
    around: Surroundings,
    place: str,
    step: Step[..., Any],
    frame: Frame,
    error: BaseException,
) -> str:
    """Record a failed attempt; ``retrying`` or ``failed``."""
    failure = describe_exception(error)
    if isinstance(error, TypedFailure) and step.failures.get(error.channel) is type(error):
        payload = error.payload_codec.encode(
            error.payload,
            what=f"failure {error.channel} of step {step.name}",
            limit=around.payload_limit,
        )
        log.emit(
            ev.StepFailed(
                place, msgspec.structs.replace(failure, channel=error.channel, payload=payload)
            )
        )
        return "failed"
    failures = frame.failures + 1
    delay = next_delay(step.retry, failures, error, around.ids.fraction())
    if delay is None:
        log.emit(ev.StepFailed(place, failure))
        return "failed"
    due = around.clock.now() + int(delay * MICROS)
    log.emit(ev.StepRetrying(place, failure, failures, due))
    around.metrics.step_retried(log.state.flow, step.name, type(error).__name__)
    return "retrying"


def recorded_failure(step: Step[..., Any], failure: Failure, execution_id: str) -> Exception:
    """The typed failure that the log holds, as the class that the step declares (K5)."""
    kind = step.failures.get(failure.channel or "")
    if kind is None or failure.payload is None:
        return StepFailedError(
            f"step {step.name!r} failed with {failure.headline}, recorded on channel "
            f"{failure.channel!r}, which it no longer declares",
            execution_id=execution_id,
        )
    return kind.rebuild(failure.payload)
