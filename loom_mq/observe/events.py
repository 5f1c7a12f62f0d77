"""The names of everything that is logged; `docs/reference/log-events.md` is made of them.

A name is dotted and says what happened. Rooms below this one write the names as plain
text; a test compares what they write with this table.
"""

from __future__ import annotations

import enum
from typing import Final, Self

_INTRODUCTION: Final = """\
# Log events

Each line of the log is one JSON object (or text with `LOOM_LOG_FORMAT=console`) with
`timestamp`, `level`, `event`, `service` and `worker`; lines about an execution add
`execution_id`, and `tenant`, `flow`, `fence` or `attempt` where they matter. Warnings that
repeat are written once per cause and minute; `held_back` counts those left out.
Passwords and tokens of addresses are shown as `***`.

| event | meaning |
| --- | --- |
"""


class LogEvent(enum.StrEnum):
    """What may stand in the field ``event``.

    Attributes:
        meaning: what happened and, where somebody should act, what to do.
    """

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        """A name with its meaning."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member

    # a process
    SERVICE_STARTED = "service.started", "The process runs; its settings follow."
    SERVICE_WAITING = (
        "service.waiting",
        "Journal or broker do not answer yet; tried again until `LOOM_STARTUP_TIMEOUT`.",
    )
    SERVICE_READY = "service.ready", "Connected, and taking work."
    SERVICE_REFUSED = "service.refused", "It could not start; `error` says what to change."
    SERVICE_DRAINING = "service.draining", "Asked to stop: it takes no more work."
    SERVICE_DRAINED = "service.drained", "Everything in hand was finished."
    SERVICE_DRAIN_CUT = (
        "service.drain_cut",
        "The drain ended early, by time or by a second signal; the rest goes on elsewhere.",
    )
    SERVICE_STOP_CUT = "service.stop_cut", "Letting go took too long and was cut short."
    SERVICE_STOP_FAILED = "service.stop_failed", "Letting go raised an error."
    SERVICE_GOODBYE_FAILED = (
        "service.goodbye_failed",
        "A connection could not be closed in good order; the other side will notice.",
    )
    SERVICE_GIVEN_UP = (
        "service.given_up",
        "The time to stop was over, and the process left by force.",
    )
    SERVICE_STOPPED = "service.stopped", "The end of the process."
    SERVICE_CRASHED = "service.crashed", "An error that nobody expected; the process stops."
    PROCESS_CRASHED = "process.crashed", "An error escaped from the main thread."
    THREAD_CRASHED = "thread.crashed", "An error escaped from a thread."
    CLEANUP_FAILED = "cleanup.failed", "An error was raised where it could not be handled."
    SETTINGS_UNKNOWN = "settings.unknown", "A `LOOM_*` variable that nothing reads; a typo?"
    HEALTH_SERVED = "health.served", "Health and metrics are served at this port."
    HEALTH_PAGE_FAILED = "health.page_failed", "A check raised an error."
    LOOP_BLOCKED = (
        "loop.blocked",
        "User code blocks the event loop; `stack` shows where. Make it a plain `def` step.",
    )
    LIBRARY_SPOKE = "library.spoke", "A line of a library; `logger` names it."

    # lease and clock
    LEASE_LATE = "lease.late", "The lease could not be renewed; tried again."
    LEASE_LOST = (
        "lease.lost",
        "The lease lapsed or was taken away; others may take this process's executions.",
    )
    LEASE_REGAINED = "lease.regained", "The lease runs again."
    LEASE_RETIRED = "lease.retired", "The lease was ended in good order."
    LEASE_NOT_RETIRED = "lease.not_retired", "The lease will lapse by itself."
    LEASE_GOODBYE_FAILED = "lease.goodbye_failed", "The lease's connection broke at its end."
    CLOCK_CORRECTED = (
        "clock.corrected",
        "This host's clock differs from the journal's, which counts. Check the host's clock.",
    )

    # journal
    JOURNAL_UNREACHABLE = "journal.unreachable", "The journal does not answer."
    JOURNAL_WRITE_RETRYING = "journal.write.retrying", "A write failed; it is sent again."
    JOURNAL_MIGRATED = "journal.migrated", "The journal's schema was brought up to date."
    JOURNAL_CONFLICT = "journal.conflict", "Two writes met in the database; made again."
    JOURNAL_GOODBYE_FAILED = "journal.goodbye_failed", "A database connection broke at its end."
    JOURNAL_APPEND_DROPPED = (
        "journal.append.dropped",
        "An event came after the end of its execution, or after a newer holder took over.",
    )
    BACKGROUND_FAILED = "background.failed", "Work beside an execution failed; it is made up for."

    # broker
    BROKER_CONNECTED = "broker.connected", "Connected to the broker."
    BROKER_CONNECTION_LOST = "broker.connection_lost", "The connection is gone; it is made anew."
    BROKER_UNREACHABLE = "broker.unreachable", "The broker does not answer; tried again."
    CONSUMER_LOST = "consumer.lost", "A consumer is gone; it is registered again."
    CONSUMER_NOT_REGISTERED = "consumer.not_registered", "A queue could not be consumed."
    CONSUMER_NOT_VERIFIED = "consumer.not_verified", "Could not see whether a consumer is there."
    QUEUE_NOT_DECLARED = "queue.not_declared", "A queue could not be made."
    PRESENCE_NOT_HELD = (
        "presence.not_held",
        "No presence token is held: a death of this process is noticed by its lease only.",
    )
    PRESENCE_NOT_REFRESHED = (
        "presence.not_refreshed",
        "The token could not be held anew; tried again.",
    )
    PUBLISH_CHANNEL_FAILED = "publish.channel_failed", "The channel for publishing failed."
    PUBLISH_RETURNED = "publish.returned", "No queue took a message."
    PUBLISH_REFUSED = "publish.refused", "The broker refused a message, such as for a full queue."
    DELIVERY_DROPPED = "delivery.dropped", "A message could not be kept as a dead letter."
    DELIVERY_BURIED_WITHOUT_REASON = (
        "delivery.buried_without_reason",
        "A message became a dead letter, but its reason could not be attached.",
    )
    DELIVERY_HANDLER_RAISED = "delivery.handler_raised", "A handler raised; the message goes back."

    # messages
    MESSAGE_REJECTED = "message.rejected", "A message cannot be read; it is a dead letter now."
    START_REFUSED = "start.refused", "A start was refused; `code` says why."
    START_NOT_ADMITTED = "start.not_admitted", "The journal was away; the start is taken again."
    CONTROL_NOT_ANSWERED = "control.not_answered", "A request failed; it is taken again."
    PACKAGE_REJECTED = "package.rejected", "A package cannot be read."
    PACKAGE_CRASHED = "package.crashed", "Driving a package raised an error; it goes back."
    PACKAGE_FLOW_NOT_SERVED = (
        "package.flow_not_served",
        "This worker does not know the flow; another gets it. Deploy the flow or its version.",
    )
    PACKAGE_NOT_PUBLISHED = "package.not_published", "A package was not sent; a sweep sends it."
    PACKAGE_DEAD_LETTERED = "package.dead_lettered", "A message went to the dead letters."
    DEAD_LETTER_NOT_RECORDED = "dead_letter.not_recorded", "The journal was away; tried again."
    HINT_REJECTED = "hint.rejected", "A hint cannot be read; the next renewal makes up for it."
    REPLY_REJECTED = "reply.rejected", "A client got a reply that it cannot read."
    SAGA_NOT_UNDONE = (
        "saga.not_undone",
        "A step that undoes another failed for good while the execution was being cancelled.",
    )
    ATTEMPT_FAILED = "attempt.failed", "An attempt that somebody awaits failed; they are told."
    DISPATCH_ATTEMPT_FAILED = (
        "dispatch.attempt_failed",
        "An attempt of a dispatch failed; it is made again while there are attempts left.",
    )
    DISPATCH_GIVEN_UP = "dispatch.given_up", "A dispatch has used up its attempts."
    DISPATCH_RESTARTED = "dispatch.restarted", "A supervised dispatch failed and begins anew."
    STEP_OTHER_ARGUMENTS = (
        "step.other_arguments",
        "A re-run calls a step with other arguments than its log; the recorded result is served.",
    )
    ANSWER_REFUSED = "answer.refused", "An answer does not fit its gate; the gate stays open."
    CLIENT_WATCH_FAILED = "client.watch_failed", "A client could not ask for an outcome."
    CLIENT_START_FAILED = (
        "client.start_failed",
        "A start could not be sent again yet.",
    )

    # executions
    EXECUTION_TAKEN_OVER = "execution.taken_over", "A dead or wedged holder lost an execution."
    EXECUTION_GIVEN_UP = (
        "execution.given_up",
        "It was recovered too often without progress; mend it, then `loom recover ID --again`.",
    )
    EXECUTION_CLAIM_FAILED = "execution.claim_failed", "A claim failed; it is made again."
    EXECUTION_GIVE_BACK_FAILED = "execution.give_back_failed", "Giving back is tried again."
    EXECUTION_UNREADABLE = (
        "execution.unreadable",
        "A sweep met a damaged index row and left it out; nobody drives it.",
    )
    EXECUTION_WRITE_FAILED = "execution.write_failed", "The journal refused a write."
    EXECUTION_CODE_MISMATCH = (
        "execution.code_mismatch",
        "The flow's code does not fit the log. Deploy the version that wrote it.",
    )
    ATTEMPT_SUPERSEDED = "attempt.superseded", "A newer holder owns the execution; no error."

    # sweeps and timers
    DISPATCHER_STARTS_NOT_CONSUMED = (
        "dispatcher.starts_not_consumed",
        "Starts cannot be taken yet; it is tried again.",
    )
    SWEEP_FAILED = "sweep.failed", "A look for lost work failed; the next one makes up for it."
    RECOVERY_LISTENER_FAILED = (
        "recovery.listener_failed",
        "Whoever is told of what was given up raised an error.",
    )
    SWEEP_CRASHED = "sweep.crashed", "A fault of ours ended a look for lost work; report it."
    SCHEDULE_CHANGED = (
        "schedule.changed",
        "A schedule was created, changed, paused, resumed, triggered, backfilled or deleted.",
    )
    SCHEDULE_FIRED = "schedule.fired", "Runs of a schedule were started, or sent once more."
    SCHEDULE_LOOK_CRASHED = (
        "schedule.look_crashed",
        "A fault of ours about one schedule; it is looked at again. Report it.",
    )
    SCHEDULE_LOOK_FAILED = "schedule.look_failed", "A schedule is looked at again in a moment."
    SCHEDULE_MISSED = (
        "schedule.missed",
        "Moments of a schedule passed while no timer service was there, and are not made up for.",
    )
    SCHEDULE_NOT_PUBLISHED = (
        "schedule.not_published",
        "The broker did not take a scheduled start; it is sent again.",
    )
    SCHEDULE_REQUEST_RETRIED = (
        "schedule.request_retried",
        "The journal is away; a request about a schedule waits for it.",
    )
    SCHEDULE_UNREADABLE = (
        "schedule.unreadable",
        "A schedule cannot be read here and starts nothing; `error` says why.",
    )
    TIMERS_ROUND_CRASHED = "timers.round_crashed", "A fault of ours ended a look; report it."
    TIMERS_ROUND_FAILED = "timers.round_failed", "A look for due timers failed; tried again."
    WORKER_LOST = "worker.lost", "A process is gone; its executions are taken over."
    WORKER_PROBE_FAILED = "worker.probe_failed", "Could not see whether a process is gone."


def log_events_table() -> str:
    """The whole text of `docs/reference/log-events.md`."""
    rows = [f"| `{event.value}` | {event.meaning} |" for event in sorted(LogEvent)]
    return _INTRODUCTION + "\n".join(rows) + "\n"
