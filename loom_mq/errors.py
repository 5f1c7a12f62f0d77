"""Every error that loom-mq raises, one tree, each with a stable code.

::

    LoomError
    ├── ConfigurationError
    │   └── SettingsError
    ├── InputError                      the caller can mend it
    │   ├── InvalidIdError
    │   ├── CodecError
    │   ├── PayloadTooLargeError
    │   ├── MalformedMessageError
    │   ├── UnknownMessageVersionError
    │   ├── UnknownFlowError
    │   ├── StartConflictError
    │   ├── UnknownExecutionError
    │   ├── ExecutionEndedError
    │   ├── ExecutionNotEndedError
    │   ├── ArchiveError
    │   ├── ResumeRefusedError
    │   ├── InvalidScheduleError
    │   ├── ScheduleExistsError
    │   ├── UnknownScheduleError
    │   └── StaleScheduleError
    ├── JournalError                    names the execution it refused
    │   ├── StaleFenceError
    │   ├── DuplicateSequenceError
    │   ├── DuplicateEnvelopeIdError
    │   ├── ExecutionAlreadyExistsError
    │   ├── StartFencedOutError
    │   ├── HeldByLiveOwnerError
    │   ├── ExecutionSupersededError    told by another process
    │   └── StorageWriteError           the storage's own error is its cause
    │       └── CommitOutcomeUnknownError
    ├── JournalUnreachableError
    ├── SchemaVersionError
    ├── DispatchError                   an attempt that somebody awaits
    │   ├── AttemptFailedError
    │   ├── AttemptTimeoutError         also a TimeoutError
    │   └── CircuitOpenError
    ├── BrokerError
    │   ├── BrokerUnreachableError
    │   ├── UnroutableError
    │   ├── PublishRefusedError
    │   ├── PublishTimeoutError
    │   └── TopologyMismatchError
    ├── FlowError
    │   ├── FlowCodeMismatchError
    │   ├── CompensationFailedError
    │   ├── StepInDoubtError
    │   ├── StepTimeoutError            also a TimeoutError
    │   ├── GateTimeoutError            also a TimeoutError
    │   ├── ConditionTimeoutError       also a TimeoutError
    │   ├── StepFailedError
    │   └── UnsupportedInFlowError
    ├── OutcomeError                    how an execution ended, told to who waits
    │   ├── ExecutionFailedError
    │   └── ExecutionCancelledError
    └── WaitTimeoutError                also a TimeoutError

Codes never change once released; messages may.
"""

from __future__ import annotations

from typing import ClassVar


class LoomError(Exception):
    """Base of every error of this package.

    Attributes:
        code: stable, kebab-case identifier for programs.
        execution_id: the execution concerned, when there is one.
    """

    code: ClassVar[str] = "loom-error"

    def __init__(self, message: str, *, execution_id: str | None = None) -> None:
        super().__init__(message)
        self.execution_id = execution_id

    @property
    def message(self) -> str:
        """The sentence for people."""
        return str(self.args[0]) if self.args else ""


class ConfigurationError(LoomError):
    """The program is set up in a way that cannot work."""

    code = "configuration"


class SettingsError(ConfigurationError):
    """A setting has a value that cannot be used."""

    code = "settings"


class InputError(LoomError):
    """What the caller gave cannot be accepted; the caller can mend it."""

    code = "input"


class InvalidIdError(InputError):
    """An id or name breaks the rule of J10."""

    code = "invalid-id"


class CodecError(InputError):
    """A value cannot be encoded or decoded.

    Args:
        what: who owns the value, such as ``step charge``.
        where: the place inside the value, such as ``$.items[3].price``.
        reason: what is wrong there and what to do.
    """

    code = "codec"

    def __init__(self, what: str, where: str, reason: str) -> None:
        super().__init__(f"{what}: value at {where}: {reason}")
        self.what = what
        self.where = where
        self.reason = reason


class PayloadTooLargeError(InputError):
    """A payload is larger than the configured limit (J10).

    Args:
        what: who owns the payload.
        size: its size in bytes.
        limit: the limit in bytes.
    """

    code = "payload-too-large"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what}: payload of {size} bytes is over the limit of {limit} bytes; "
            "store it elsewhere and pass a reference, or raise LOOM_PAYLOAD_LIMIT on every service"
        )
        self.what = what
        self.size = size
        self.limit = limit


class MalformedMessageError(InputError):
    """Bytes on a queue are not a message of this protocol (F2)."""

    code = "malformed-message"


class UnknownMessageVersionError(InputError):
    """A message says a version newer than this process reads (F2)."""

    code = "unknown-message-version"


class UnknownFlowError(InputError):
    """No worker has ever registered this flow (F2)."""

    code = "unknown-flow"


class StartConflictError(InputError):
    """The id exists already with another flow or input (K16)."""

    code = "start-conflict"


class UnknownExecutionError(InputError):
    """No execution has this id."""

    code = "unknown-execution"


class ExecutionEndedError(InputError):
    """The execution has ended; the request came too late."""

    code = "execution-ended"


class ExecutionNotEndedError(InputError):
    """Only an execution that has ended can be archived, cut, erased or deleted (J8)."""

    code = "execution-not-ended"


class ArchiveError(InputError):
    """An archive cannot be read: cut off, of a newer release, or no archive at all (J8)."""

    code = "archive"


class ResumeRefusedError(InputError):
    """An answer to a gate was refused (K7).

    Attributes:
        reason: one of `model.messages.RefusalReason`'s values.
    """

    code = "resume-refused"

    def __init__(self, message: str, *, reason: str, execution_id: str | None = None) -> None:
        super().__init__(message, execution_id=execution_id)
        self.reason = reason


class InvalidScheduleError(InputError):
    """A schedule's definition, or a request about it, cannot be used (F9)."""

    code = "invalid-schedule"


class ScheduleExistsError(InputError):
    """The id belongs to a schedule that is there already (F9)."""

    code = "schedule-exists"


class UnknownScheduleError(InputError):
    """No schedule has this id (F9)."""

    code = "unknown-schedule"


class StaleScheduleError(InputError):
    """Somebody else changed the schedule meanwhile (F9)."""

    code = "stale-schedule"


class JournalError(LoomError):
    """The journal refused or could not do a write."""

    code = "journal"


class StaleFenceError(JournalError):
    """A newer holder owns the execution (J2, F5)."""

    code = "stale-fence"

    def __init__(self, execution_id: str, *, held: int, current: int) -> None:
        super().__init__(
            f"execution {execution_id!r}: fence {held} was superseded by fence {current}",
            execution_id=execution_id,
        )
        self.held = held
        self.current = current


class DuplicateSequenceError(JournalError):
    """Another event already stands at this sequence (J2)."""

    code = "duplicate-sequence"

    def __init__(self, execution_id: str, *, seq: int, next_seq: int) -> None:
        super().__init__(
            f"execution {execution_id!r}: sequence {seq} is not the next one ({next_seq})",
            execution_id=execution_id,
        )
        self.seq = seq
        self.next_seq = next_seq


class DuplicateEnvelopeIdError(JournalError):
    """The envelope id is already recorded at another sequence (J2)."""

    code = "duplicate-envelope-id"

    def __init__(self, execution_id: str, *, envelope_id: str) -> None:
        super().__init__(
            f"execution {execution_id!r}: envelope {envelope_id} is already recorded",
            execution_id=execution_id,
        )
        self.envelope_id = envelope_id


class ExecutionAlreadyExistsError(JournalError):
    """A start lost the race for sequence 0 (J2, F5)."""

    code = "execution-already-exists"

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            f"execution {execution_id!r} was already started by another holder",
            execution_id=execution_id,
        )


class StartFencedOutError(JournalError):
    """A start was fenced out by a holder that has written nothing (F6)."""

    code = "start-fenced-out"

    def __init__(self, execution_id: str, *, current: int) -> None:
        super().__init__(
            f"execution {execution_id!r}: fence {current} was taken by a holder that never "
            "wrote; start again",
            execution_id=execution_id,
        )
        self.current = current


class HeldByLiveOwnerError(JournalError):
    """The execution's holder is alive, so it is left to it (F7)."""

    code = "held-by-live-owner"

    def __init__(self, execution_id: str, *, owner: str) -> None:
        super().__init__(
            f"execution {execution_id!r} is held by {owner}, which is alive",
            execution_id=execution_id,
        )
        self.owner = owner


class ExecutionSupersededError(JournalError):
    """A newer holder owns the execution: a refusal as another process tells it (F5)."""

    code = "superseded"

    def __init__(self, message: str, *, execution_id: str) -> None:
        super().__init__(message, execution_id=execution_id)


class StorageWriteError(JournalError):
    """The storage could not make a write durable; its own error is the cause (J2, K9)."""

    code = "storage-write"


class CommitOutcomeUnknownError(StorageWriteError):
    """The connection died during a commit: it may or may not have happened (J4).

    Writing the same again is safe.
    """

    code = "commit-outcome-unknown"


class JournalUnreachableError(LoomError):
    """The journal does not answer."""

    code = "journal-unreachable"


class SchemaVersionError(LoomError):
    """The journal's schema is newer or older than this program knows."""

    code = "schema-version"


class DispatchError(LoomError):
    """An attempt that somebody awaits did not come to an outcome (F4)."""

    code = "dispatch"


class AttemptFailedError(DispatchError):
    """The worker could not finish the attempt; the execution itself has not failed (F4).

    Attributes:
        reason: the stable code of the worker's own error, when it told one.
    """

    code = "attempt-failed"

    def __init__(self, message: str, *, execution_id: str | None = None, reason: str = "") -> None:
        super().__init__(message, execution_id=execution_id)
        self.reason = reason


class AttemptTimeoutError(DispatchError, TimeoutError):
    """The attempt was not over by its deadline; its worker counts as wedged (F4)."""

    code = "attempt-timeout"


class CircuitOpenError(DispatchError):
    """Too many dispatches to this target failed, so it is left alone for a while (F5)."""

    code = "circuit-open"


class BrokerError(LoomError):
    """The broker refused or could not do something."""

    code = "broker"


class BrokerUnreachableError(BrokerError):
    """The broker does not answer."""

    code = "broker-unreachable"


class UnroutableError(BrokerError):
    """No queue took the message; the broker returned it (F10)."""

    code = "unroutable"


class PublishRefusedError(BrokerError):
    """The broker said no (negative confirm, for instance a full queue)."""

    code = "publish-refused"


class PublishTimeoutError(BrokerError):
    """The broker did not confirm in time: the message may or may not be there."""

    code = "publish-timeout"


class TopologyMismatchError(BrokerError):
    """A queue exists already with other arguments."""

    code = "topology-mismatch"


class FlowError(LoomError):
    """Something about flow code."""

    code = "flow"


class FlowCodeMismatchError(FlowError):
    """A re-run asks for another operation than the log holds (K3)."""

    code = "flow-code-mismatch"


class StepInDoubtError(FlowError):
    """An operator's verdict on a step in doubt was that it failed (K6)."""

    code = "step-in-doubt"


class CompensationFailedError(FlowError):
    """Steps that undo others failed for good; the message names them (K15).

    Attributes:
        steps: their names, in the order in which they were tried.
    """

    code = "compensation-failed"

    def __init__(
        self, message: str, *, execution_id: str | None = None, steps: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, execution_id=execution_id)
        self.steps = steps


class StepTimeoutError(FlowError, TimeoutError):
    """One attempt of a step took longer than its timeout (K4)."""

    code = "step-timeout"


class GateTimeoutError(FlowError, TimeoutError):
    """No answer came to a gate in time (K7)."""

    code = "gate-timeout"


class ConditionTimeoutError(FlowError, TimeoutError):
    """A condition that a flow polled did not come true in time (K16)."""

    code = "condition-timeout"


class StepFailedError(FlowError):
    """A step failed with an error whose class cannot be rebuilt here."""

    code = "step-failed"


class UnsupportedInFlowError(FlowError):
    """Flow code asked for something that cannot be made durable here."""

    code = "unsupported-in-flow"


class OutcomeError(LoomError):
    """How an execution ended, raised to whoever waits for its result."""

    code = "outcome"


class ExecutionFailedError(OutcomeError):
    """The execution ended failed.

    Attributes:
        error_type: class name of the error that ended it.
        traceback_text: where it was raised, for people.
    """

    code = "execution-failed"

    def __init__(
        self,
        message: str,
        *,
        execution_id: str | None = None,
        error_type: str = "",
        traceback_text: str = "",
    ) -> None:
        super().__init__(message, execution_id=execution_id)
        self.error_type = error_type
        self.traceback_text = traceback_text


class ExecutionCancelledError(OutcomeError):
    """The execution ended cancelled."""

    code = "execution-cancelled"


class WaitTimeoutError(LoomError, TimeoutError):
    """The execution did not end within the time that the caller gave."""

    code = "wait-timeout"


def is_superseded_refusal(error: BaseException | None, execution_id: str) -> bool:
    """Whether `error` says that a newer holder owns `execution_id` (F5).

    True for `ExecutionAlreadyExistsError`, for `StaleFenceError` bare or as the cause of
    a `StorageWriteError`, and for `ExecutionSupersededError`, which is what they become
    over a wire, when it names this very execution. Everything else,
    `StartFencedOutError` included, is an ordinary failure.

    Args:
        error: what was raised.
        execution_id: the execution that the caller was driving, under its own name.
    """
    if isinstance(error, StorageWriteError):
        cause = error.__cause__
        return isinstance(cause, StaleFenceError) and cause.execution_id == execution_id
    return (
        isinstance(error, ExecutionAlreadyExistsError | StaleFenceError | ExecutionSupersededError)
        and error.execution_id == execution_id
    )
