"""loom-mq: plain ``async`` Python functions that survive any crash.

This module is the whole of what an author of flows needs::

    import loom_mq as loom

    @loom.step
    async def charge(order: Order) -> Receipt: ...

    @loom.flow
    async def fulfil(ctx: loom.Context, order: Order) -> Receipt:
        return await ctx.run(charge, order)
"""

from loom_mq.client.client import Client
from loom_mq.client.handle import Answered, ExecutionState, Handle
from loom_mq.client.schedules import ScheduleOptions, Schedules
from loom_mq.codec.own import StepCodec
from loom_mq.errors import (
    BrokerError,
    CodecError,
    CompensationFailedError,
    ConditionTimeoutError,
    ConfigurationError,
    ExecutionCancelledError,
    ExecutionEndedError,
    ExecutionFailedError,
    FlowCodeMismatchError,
    GateTimeoutError,
    InputError,
    InvalidIdError,
    InvalidScheduleError,
    LoomError,
    PayloadTooLargeError,
    ResumeRefusedError,
    ScheduleExistsError,
    StaleScheduleError,
    StartConflictError,
    StepFailedError,
    StepInDoubtError,
    StepTimeoutError,
    UnknownExecutionError,
    UnknownFlowError,
    UnknownScheduleError,
    UnsupportedInFlowError,
    WaitTimeoutError,
)
from loom_mq.flows.context import Context
from loom_mq.flows.definition import Flow, flow
from loom_mq.flows.failure import TypedFailure
from loom_mq.flows.polling import Backoff
from loom_mq.flows.saga import Saga
from loom_mq.flows.step import Step, step
from loom_mq.flows.stepping import StepInfo, current_step
from loom_mq.model.execution import Status
from loom_mq.model.policies import NO_RETRY, Retry, StartPolicy
from loom_mq.model.schedules import MissedRuns, Overlap, Schedule, ScheduleInfo

__all__ = [
    "NO_RETRY",
    "Answered",
    "Backoff",
    "BrokerError",
    "Client",
    "CodecError",
    "CompensationFailedError",
    "ConditionTimeoutError",
    "ConfigurationError",
    "Context",
    "ExecutionCancelledError",
    "ExecutionEndedError",
    "ExecutionFailedError",
    "ExecutionState",
    "Flow",
    "FlowCodeMismatchError",
    "GateTimeoutError",
    "Handle",
    "InputError",
    "InvalidIdError",
    "InvalidScheduleError",
    "LoomError",
    "MissedRuns",
    "Overlap",
    "PayloadTooLargeError",
    "ResumeRefusedError",
    "Retry",
    "Saga",
    "Schedule",
    "ScheduleExistsError",
    "ScheduleInfo",
    "ScheduleOptions",
    "Schedules",
    "StaleScheduleError",
    "StartConflictError",
    "StartPolicy",
    "Status",
    "Step",
    "StepCodec",
    "StepFailedError",
    "StepInDoubtError",
    "StepInfo",
    "StepTimeoutError",
    "TypedFailure",
    "UnknownExecutionError",
    "UnknownFlowError",
    "UnknownScheduleError",
    "UnsupportedInFlowError",
    "WaitTimeoutError",
    "current_step",
    "flow",
    "step",
]
