"""The messages between clients and services (F2), as `docs/reference/messages.md` tells it.

Requests and replies are maps with a version and a type, so that any language can
write them. Packages, hints and tokens travel between services of one product and are
arrays. Fields may be added with a default; unknown ones are ignored.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from loom_mq.model.execution import DEFAULT_TENANT, Status
from loom_mq.model.failures import Failure
from loom_mq.model.policies import StartPolicy
from loom_mq.model.schedules import ScheduleInfo, ScheduleItem
from loom_mq.model.verdicts import VerdictKind

MESSAGE_VERSION = 1
"""The message version that this release writes, unless a message needs a newer one."""
SCHEDULES_VERSION = 2
"""The version of a control message with requests about schedules: an older dispatcher would
leave them out without a word, so it is to refuse them."""
NEWEST_VERSION = SCHEDULES_VERSION
"""Newest message version that this release reads."""


class Notify(enum.StrEnum):
    """What a starter wants to be told at its reply address."""

    NOTHING = "nothing"
    ADMITTED = "admitted"
    RESULT = "result"
    BOTH = "both"

    @property
    def of_admission(self) -> bool:
        """Whether to tell that the start was admitted; refusals are always told."""
        return self in (Notify.ADMITTED, Notify.BOTH)

    @property
    def of_result(self) -> bool:
        """Whether to tell how the execution ended."""
        return self in (Notify.RESULT, Notify.BOTH)


class StartItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution to start.

    Attributes:
        id: the execution's id; the same id twice is one execution.
        flow: registered name of the flow.
        version: flow version; empty for the newest that is registered.
        queue: where its workers listen; empty for the flow's own queue.
        input: the flow's argument as plain data of the message's own format.
        payload: the argument in this product's stored form instead of `input`.
        policy: what to do when the id is taken.
        notify: what to tell the reply address.
        correlation: the sender's name for this request; the reply repeats it. Empty
            means the message's correlation id.
    """

    id: str
    flow: str
    version: str = ""
    queue: str = ""
    tenant: str = DEFAULT_TENANT
    input: msgspec.Raw = msgspec.Raw(b"")
    payload: bytes | None = None
    labels: dict[str, str] = {}
    policy: StartPolicy = StartPolicy.EXISTING
    notify: Notify = Notify.BOTH
    correlation: str = ""


MAX_ITEMS = 1000
"""Items per message at most: each may cost an answer and a row."""


class StartMessage(msgspec.Struct, frozen=True, kw_only=True, tag="start", tag_field="type"):
    """Executions to start, on the start queue."""

    items: Annotated[tuple[StartItem, ...], Meta(max_length=MAX_ITEMS)]
    v: int = MESSAGE_VERSION


class ControlOp(enum.StrEnum):
    """What a control message asks."""

    STATE = "state"
    WATCH = "watch"
    """The state, and the outcome when it ends."""
    RESUME = "resume"
    CANCEL = "cancel"
    VERDICT = "verdict"
    """Say how a step in doubt ended."""


class ControlItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request about an existing execution.

    Attributes:
        gate: the gate to answer (resume).
        wait_id: the very wait to answer; empty for whichever opens first (resume).
        input: the answer as plain data (resume).
        payload: the answer in stored form instead of `input` (resume).
        step: the step in doubt, by its name or its place (verdict).
        verdict: how it ended (verdict); `input` or `payload` is what it returned.
        item_id: the request's own id; the same id twice counts once.
        reason: why (cancel, verdict).
        actor: on whose behalf, for the log.
    """

    op: ControlOp
    id: str
    tenant: str = DEFAULT_TENANT
    gate: str = ""
    wait_id: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")
    payload: bytes | None = None
    step: str = ""
    verdict: VerdictKind | None = None
    item_id: str = ""
    reason: str = ""
    actor: str = ""
    correlation: str = ""


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True, tag="control", tag_field="type"):
    """Requests about existing executions, and about schedules, on the control queue."""

    items: Annotated[tuple[ControlItem, ...], Meta(max_length=MAX_ITEMS)]
    schedules: Annotated[tuple[ScheduleItem, ...], Meta(max_length=MAX_ITEMS)] = ()
    v: int = MESSAGE_VERSION


class RefusalReason(enum.StrEnum):
    """Why an answer was refused (K7)."""

    UNKNOWN_EXECUTION = "unknown-execution"
    TERMINAL = "terminal"
    WRONG_TYPE = "wrong-type"
    NOT_SUSPENDED = "not-suspended"
    """A verdict on a step that is not in doubt, or a recovery of what is not parked."""
    IN_DOUBT = "in-doubt"
    """It waits for a verdict on a step, not for answers."""
    NULL_AFTER_FAILURE = "null-answer-after-parked-failure"


class ReplyKind(enum.StrEnum):
    """What a reply item tells."""

    ADMITTED = "admitted"
    """The execution's row exists; `created` says whether this start made it."""
    STATE = "state"
    STORED = "stored"
    """The answer or cancel is durable; `gates` says what the execution waits for."""
    TAKEN = "taken"
    """The answer was taken by its gate."""
    OUTCOME = "outcome"
    """The execution has ended: `status`, and `result` or `failure` or `reason`."""
    SCHEDULE = "schedule"
    """How the schedules stand that a request was about: `schedules`."""
    ERROR = "error"
    """The request was refused: `code`, `message`."""


class ReplyItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer.

    Attributes:
        correlation: repeats the request's.
        id: the execution; of a request about a schedule, the schedule.
        result: a completed flow's return value in stored form.
        failure: what ended a failed one.
        reason: why it was cancelled, or the refusal's reason.
        schedules: those that were asked for, or the one that was changed.
        runs: how many runs a request about a schedule will start.
        run: the execution that a trigger will start.
    """

    kind: ReplyKind
    id: str
    tenant: str = DEFAULT_TENANT
    correlation: str = ""
    status: Status | None = None
    created: bool | None = None
    flow: str = ""
    version: str = ""
    queue: str = ""
    gates: tuple[str, ...] = ()
    in_doubt: tuple[str, ...] = ()
    wake_at: int | None = None
    owner: str | None = None
    attempt: int = 0
    created_at: int = 0
    updated_at: int = 0
    result: bytes | None = None
    failure: Failure | None = None
    reason: str = ""
    code: str = ""
    message: str = ""
    schedules: tuple[ScheduleInfo, ...] = ()
    runs: int = 0
    run: str = ""


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True, tag="reply", tag_field="type"):
    """Answers to one reply address."""

    items: tuple[ReplyItem, ...]
    v: int = MESSAGE_VERSION


class Cause(enum.StrEnum):
    """Why a package was sent."""

    START = "start"
    WAKE = "wake"
    RECOVER = "recover"
    RESEND = "resend"


class Package(msgspec.Struct, frozen=True, array_like=True):
    """Asks a worker to drive one execution.

    Attributes:
        fence: the fence that the claim will supersede; a stale one is refused.
        start: the start payload while the log is empty, so that the worker need read
            nothing; None otherwise.
    """

    tenant: str
    execution_id: str
    flow: str
    version: str
    fence: int
    cause: Cause
    start: bytes | None = None


class PackageMessage(
    msgspec.Struct, frozen=True, array_like=True, tag="packages", tag_field="type"
):
    """Packages for the workers of one queue."""

    v: int
    items: tuple[Package, ...]


class Hint(msgspec.Struct, frozen=True, array_like=True):
    """There is mail in the inbox of an execution that this process holds."""

    tenant: str
    execution_id: str


class HintMessage(msgspec.Struct, frozen=True, array_like=True, tag="hints", tag_field="type"):
    """Hints to one process."""

    v: int
    items: tuple[Hint, ...]


class TokenMessage(msgspec.Struct, frozen=True, array_like=True, tag="token", tag_field="type"):
    """A process's presence token; seen on the presence queue it says: perhaps dead."""

    v: int
    owner: str
