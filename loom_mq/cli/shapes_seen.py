"""What commands that look answer a program, item by item; see `schemas`."""

from __future__ import annotations

from msgspec import Struct


class Execution(Struct, forbid_unknown_fields=True):
    """`loom list`."""

    id: str
    tenant: str
    flow: str
    version: str
    queue: str
    status: str
    age_seconds: float
    step: str | None
    attempt: int
    recoveries: int
    owner: str | None
    gates: list[str]
    in_doubt: list[str]
    trouble: str | None
    wake_at: str | None
    waiting_for: str | None
    error: str | None
    inbox: int
    events: int
    parent: str | None
    labels: dict[str, str]
    created_at: str
    updated_at: str
    started_at: str | None
    ended_at: str | None


class Reason(Struct, forbid_unknown_fields=True):
    """`loom why` and `loom stuck`."""

    id: str
    tenant: str
    flow: str
    queue: str
    status: str
    code: str
    stuck: bool
    sentence: str
    since: str | None
    since_seconds: float | None
    next: str | None
    evidence: list[str]


class Step(Struct, forbid_unknown_fields=True):
    """A step of `loom show`."""

    place: str
    name: str
    status: str
    attempts: int
    failures: int
    error: str | None


class Shown(Execution):
    """`loom show`."""

    reason: Reason
    steps: list[Step]
    result: object
    traceback: str | None


class Event(Struct, forbid_unknown_fields=True):
    """`loom history`."""

    seq: int
    at: str
    after_seconds: float
    kind: str
    place: str | None
    name: str | None
    fence: int
    worker: str | None
    detail: str | None
    payload: object


class Count(Struct, forbid_unknown_fields=True):
    """`loom list --count`."""

    count: int


class Queue(Struct, forbid_unknown_fields=True):
    """`loom queues`."""

    queue: str
    broker_queue: str
    service: bool
    ready: int | None
    consumers: int | None
    workers: int
    slots: int
    running: int
    waiting: int
    oldest_seconds: float | None
    unsent: int
    dead: int
    state: str


class Worker(Struct, forbid_unknown_fields=True):
    """`loom workers`."""

    owner: str
    role: str
    host: str
    queues: list[str]
    slots: int
    executions: int
    lease_left_seconds: float
    release: str
    up_seconds: float
    draining: bool


class Flow(Struct, forbid_unknown_fields=True):
    """`loom flows`."""

    flow: str
    version: str
    queue: str
    queue_workers: int
    running: int
    parked: int
    stuck: int


class Timer(Struct, forbid_unknown_fields=True, rename={"purpose": "for"}):
    """`loom timers`."""

    execution_id: str
    tenant: str
    flow: str
    queue: str
    due: str
    left_seconds: float
    late_seconds: float
    kind: str
    purpose: str | None
    held: bool
    held_until: str | None


class Named(Struct, forbid_unknown_fields=True):
    """The whole name of an execution."""

    tenant: str
    id: str


class Letter(Struct, forbid_unknown_fields=True):
    """`loom dlq`; `body` is base64."""

    id: str
    queue: str
    reason: str
    deliveries: str | None
    at: str
    since_seconds: float
    executions: list[Named]
    headers: dict[str, str]
    body: str


class ReadLetter(Letter):
    """`loom dlq show`; `message` is null where the body cannot be read."""

    message: object


class Check(Struct, forbid_unknown_fields=True):
    """`loom doctor`; `status` is ok, warn, fail or skipped."""

    check: str
    status: str
    detail: str
    remedy: str | None


class Census(Struct, forbid_unknown_fields=True):
    """`loom census`."""

    flow: str
    held: int
    waiting: int
    lapsed: int
    given_up: int
    forgotten: int
    orphaned: int


class Orphan(Struct, forbid_unknown_fields=True):
    """`loom census --ids`."""

    id: str
    flow: str
    status: str
    keeping: str
    owner: str | None
    recoveries: int


class StepProfile(Struct, forbid_unknown_fields=True):
    """A step of `loom profile`."""

    name: str
    count: int
    attempts: int
    retries: int
    outcomes: dict[str, int]
    failures: dict[str, int]
    p50_seconds: float | None
    p99_seconds: float | None


class Profile(Struct, forbid_unknown_fields=True):
    """`loom profile`."""

    flow: str
    executions: int
    cut: int
    outcomes: dict[str, int]
    p50_seconds: float | None
    p99_seconds: float | None
    active_p50_seconds: float | None
    active_p99_seconds: float | None
    recoveries: int
    steps: list[StepProfile]


class StepTime(Struct, forbid_unknown_fields=True):
    """A step of `loom introspect`."""

    place: str
    name: str
    outcome: str
    attempts: int
    retries: int
    started_at: str
    ended_at: str | None
    seconds: float | None
    failures: list[str]
    error: str | None


class WaitOf(Struct, forbid_unknown_fields=True):
    """What a park waited for."""

    kind: str
    name: str


class ParkTime(Struct, forbid_unknown_fields=True):
    """A park of `loom introspect`."""

    at: str
    until: str | None
    waits: list[WaitOf]


class AnswerTime(Struct, forbid_unknown_fields=True):
    """An answer of `loom introspect`."""

    gate: str
    place: str
    asked_at: str | None
    taken_at: str
    waited_seconds: float | None


class Introspection(Struct, forbid_unknown_fields=True):
    """`loom introspect`."""

    id: str
    flow: str
    version: str
    outcome: str
    error: str | None
    whole: bool
    started_at: str | None
    ended_at: str | None
    total_seconds: float | None
    parked_seconds: float | None
    active_seconds: float | None
    recoveries: int
    steps: list[StepTime]
    parks: list[ParkTime]
    answers: list[AnswerTime]


class Stray(Struct, forbid_unknown_fields=True):
    """`loom audit`."""

    seq: int | None
    gate: str
    wait_id: str | None
    answer_id: str
    actor: str | None
    reason: str
    sentence: str


class Replayed(Struct, forbid_unknown_fields=True):
    """`loom replay`."""

    id: str
    flow: str
    version: str
    status: str
    events: int
    fit: str
    why: str | None
    reached: str | None
