"""What a process counts, in a registry of its own.

Every part takes a `Metrics`; there is no global one and no empty stand-in. Calls are
cheap: labels are bound once, and values of labels are bounded (no ids).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)

from loom_mq.errors import (
    CommitOutcomeUnknownError,
    DuplicateEnvelopeIdError,
    DuplicateSequenceError,
    LoomError,
    StaleFenceError,
)
from loom_mq.observe.families import OTHER, Distribution, Families, Level, Tally

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_CODE: Final = re.compile(r"^[a-z]+(-[a-z]+){0,6}$")
_FAST: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WORK: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)
_LATENESS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Answer(Protocol):
    """What became of an append, as far as counting it goes."""

    @property
    def error(self) -> LoomError | None:
        """Why it was refused, None when it was taken."""


class Metrics:
    """All metrics of one process.

    Args:
        version: release of loom-mq.
        schema: version of the journal's schema, as text.
    """

    def __init__(self, *, version: str = "", schema: str = "") -> None:
        self._started = Tally("loom_executions_started", "Executions started.", "flow")
        self._finished = Tally("loom_executions_finished", "Executions ended.", "flow", "status")
        self._duration = Distribution(
            "loom_execution_duration_seconds",
            "From the first event to the end.",
            _WORK,
            "flow",
            "status",
        )
        self._steps = Tally("loom_steps", "Step attempts that ended.", "flow", "step", "outcome")
        self._step_seconds = Distribution(
            "loom_step_duration_seconds", "One attempt of a step.", _WORK, "flow", "step"
        )
        self._retries = Tally(
            "loom_step_retries", "Attempts that will be made again.", "flow", "step", "error"
        )
        self._reexecuted = Tally(
            "loom_effects_reexecuted", "Effects run again after a recovery.", "flow", "step"
        )
        self._superseded = Tally(
            "loom_superseded", "Attempts that a newer holder superseded.", "at"
        )
        self._recoveries = Tally("loom_recoveries", "Executions recovered.", "outcome")
        self._slots = Level("loom_worker_slots", "Slots of a worker.", "state")

        self._published = Tally(
            "loom_packages_published", "Messages published.", "queue", "outcome"
        )
        self._returned = Tally("loom_packages_returned", "Messages that no queue took.", "queue")
        self._received = Tally(
            "loom_packages_received", "Messages received.", "queue", "redelivered"
        )
        self._dead_lettered = Tally(
            "loom_packages_dead_lettered", "Messages that nobody could use.", "queue", "reason"
        )
        self._connected = Level("loom_broker_connected", "1 while connected to the broker.")
        self._blocked = Level("loom_broker_blocked", "1 while the broker takes no messages.")

        self._appends = Tally("loom_journal_appends", "Appends answered.", "outcome")
        self._append_seconds = Distribution(
            "loom_journal_append_seconds", "One group commit.", _FAST
        )
        self._batch_size = Distribution(
            "loom_journal_batch_size", "Executions in one group commit.", _SIZES
        )
        self._renewals = Tally("loom_lease_renewals", "Renewals of the lease.", "outcome")
        self._lease_left = Level("loom_lease_seconds_to_expiry", "Time left on the lease.")
        self._clock_offset = Level(
            "loom_clock_offset_seconds", "How far this host's clock is ahead of the journal's."
        )
        self._loop_lag = Level(
            "loom_event_loop_lag_seconds", "How late the event loop ran what was due."
        )
        self._lateness = Distribution(
            "loom_timer_lateness_seconds", "How long after its time a timer fired.", _LATENESS
        )
        self._scheduled = Tally(
            "loom_schedule_moments", "What became of moments of schedules.", "outcome"
        )
        build = Level("loom_build_info", "1.", "version", "schema")
        build.set(1, (version, schema))

        families = [
            part for part in vars(self).values() if isinstance(part, Tally | Distribution | Level)
        ]
        self._registry = CollectorRegistry()
        self._registry.register(Families([*families, build]))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Everything in Prometheus's text format; its type is `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def value(self, sample: str, **labels: str) -> float | None:
        """One sample by its full name, such as ``loom_steps_total``; None when absent."""
        return self._registry.get_sample_value(sample, labels)

    # executions and steps

    def execution_started(self, flow: str) -> None:
        """An execution is driven for the first time."""
        self._started.add((flow,))

    def execution_finished(self, flow: str, status: str, seconds: float) -> None:
        """An execution ended, `seconds` after its first event."""
        self._finished.add((flow, status))
        self._duration.observe(seconds, (flow, status))

    def step_finished(self, flow: str, step: str, outcome: str, seconds: float) -> None:
        """An attempt of a step's effect ended: completed, failed, retrying or cancelled."""
        self._steps.add((flow, step, outcome))
        self._step_seconds.observe(seconds, (flow, step))

    def step_retried(self, flow: str, step: str, error: str) -> None:
        """An attempt failed and another will be made; `error` is its class name."""
        self._retries.add((flow, step, error))

    def effect_reexecuted(self, flow: str, step: str) -> None:
        """An effect that an earlier attempt had begun is started again."""
        self._reexecuted.add((flow, step))

    def superseded(self, at: str) -> None:
        """A newer holder refused us; `at` says at what: claim or append."""
        self._superseded.add((at,))

    def recovered(self, outcome: str) -> None:
        """What became of an abandoned execution: resent, claimed or exhausted."""
        self._recoveries.add((outcome,))

    def slots(self, busy: int, free: int) -> None:
        """How many slots of the worker are taken."""
        self._slots.set(busy, ("busy",))
        self._slots.set(free, ("free",))

    # messages

    def published(self, queue: str, outcome: str, count: int = 1) -> None:
        """Messages answered by the broker: ``confirmed``, or the code of the error."""
        self._published.add((queue, outcome), count)

    def returned(self, queue: str, count: int = 1) -> None:
        """No queue took them."""
        self._returned.add((queue,), count)

    def received(self, queue: str, redelivered: bool) -> None:
        """A message came."""
        self._received.add((queue, "true" if redelivered else "false"))

    def dead_lettered(self, queue: str, reason: str) -> None:
        """A message went to the dead letters.

        `reason` is an error's stable code; any other text counts as ``other``.
        """
        label = reason if _CODE.match(reason) else OTHER
        self._dead_lettered.add((queue, label))

    def broker(self, connected: bool, blocked: bool) -> None:
        """The present state of the connection."""
        self._connected.set(connected)
        self._blocked.set(blocked)

    # journal, lease, clock

    def append_batch(self, size: int, seconds: float, verdicts: Sequence[Answer]) -> None:
        """A group commit was answered; see `journal.log.AppendObserver`."""
        self._batch_size.observe(size)
        self._append_seconds.observe(seconds)
        committed = 0
        for verdict in verdicts:
            if verdict.error is None:
                committed += 1
            else:
                self._appends.add((_outcome(verdict.error),))
        if committed:
            self._appends.add(("committed",), committed)

    def lease_renewed(self, outcome: str) -> None:
        """The lease's renewal was answered: renewed, failed or lost."""
        self._renewals.add((outcome,))

    def watch_lease(self, seconds_left: Callable[[], float]) -> None:
        """Ask this for the time left on the lease whenever somebody looks."""
        self._lease_left.ask(seconds_left)

    def clock_offset(self, seconds: float) -> None:
        """How far this host's wall clock is ahead of the journal's."""
        self._clock_offset.set(seconds)

    def loop_lag(self, seconds: float) -> None:
        """How late the event loop ran what was due."""
        self._loop_lag.set(seconds)

    # timers

    def timer_fired(self, lateness: float) -> None:
        """A timer's wake was confirmed, `lateness` seconds after its time."""
        self._lateness.observe(max(lateness, 0.0))

    def scheduled(self, outcome: str, count: int) -> None:
        """Moments of schedules: started, missed or skipped; and looks at an unreadable one."""
        if count:
            self._scheduled.add((outcome,), count)


def _outcome(error: LoomError) -> str:
    reason = error.__cause__ if isinstance(error.__cause__, StaleFenceError) else error
    match reason:
        case StaleFenceError():
            return "stale_fence"
        case DuplicateSequenceError() | DuplicateEnvelopeIdError():
            return "duplicate"
        case CommitOutcomeUnknownError():
            return "unknown"
        case _:
            return "error"
