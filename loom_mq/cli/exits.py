"""How `loom` ends, in one place: scripts rely on these numbers."""

from __future__ import annotations

import enum
from typing import Final

from loom_mq.errors import (
    BrokerError,
    ConfigurationError,
    ExecutionAlreadyExistsError,
    ExecutionCancelledError,
    ExecutionEndedError,
    ExecutionFailedError,
    ExecutionNotEndedError,
    HeldByLiveOwnerError,
    InputError,
    JournalError,
    JournalUnreachableError,
    LoomError,
    ResumeRefusedError,
    ScheduleExistsError,
    SchemaVersionError,
    StaleFenceError,
    StaleScheduleError,
    StartConflictError,
    TopologyMismatchError,
    UnknownExecutionError,
    UnknownFlowError,
    UnknownScheduleError,
    WaitTimeoutError,
)
from loom_mq.model.messages import RefusalReason


class Exit(enum.IntEnum):
    """Exit codes. That something waits is no failure."""

    DONE = 0
    FAILED = 1
    """The execution ended failed."""
    USAGE = 2
    """The command line or a setting cannot be used."""
    NOT_FOUND = 3
    REFUSED = 4
    """By a rule: ended already, another input under the same id, an answer of another type, a
    holder that is alive."""
    UNREACHABLE = 5
    """Journal or broker."""
    TIMED_OUT = 6
    """The execution goes on."""
    FOUND = 7
    """`doctor` or a `--check` found something."""
    CANCELLED = 8
    """The execution ended cancelled."""
    BROKEN = 70
    """An error in `loom` itself."""
    INTERRUPTED = 130


# the first class that fits counts
_BY_CLASS: Final[tuple[tuple[type[LoomError], Exit], ...]] = (
    (UnknownExecutionError, Exit.NOT_FOUND),
    (UnknownFlowError, Exit.NOT_FOUND),
    (UnknownScheduleError, Exit.NOT_FOUND),
    (ScheduleExistsError, Exit.REFUSED),
    (StaleScheduleError, Exit.REFUSED),
    (StartConflictError, Exit.REFUSED),
    (ExecutionEndedError, Exit.REFUSED),
    (ExecutionNotEndedError, Exit.REFUSED),
    (ExecutionAlreadyExistsError, Exit.REFUSED),
    (ResumeRefusedError, Exit.REFUSED),
    (HeldByLiveOwnerError, Exit.REFUSED),
    (StaleFenceError, Exit.REFUSED),
    (InputError, Exit.USAGE),
    (ConfigurationError, Exit.USAGE),
    (SchemaVersionError, Exit.USAGE),
    (TopologyMismatchError, Exit.USAGE),
    (JournalUnreachableError, Exit.UNREACHABLE),
    (JournalError, Exit.UNREACHABLE),
    (BrokerError, Exit.UNREACHABLE),
    (WaitTimeoutError, Exit.TIMED_OUT),
    (ExecutionFailedError, Exit.FAILED),
    (ExecutionCancelledError, Exit.CANCELLED),
)

_HINTS: Final = {
    Exit.NOT_FOUND: "`loom list` and `loom flows` show what there is",
    Exit.UNREACHABLE: "check the address, and whether the server runs",
    Exit.TIMED_OUT: "`loom why ID` says what it waits for",
}


def exit_of(error: LoomError) -> Exit:
    """The exit code for an error."""
    if isinstance(error, ResumeRefusedError) and error.reason == RefusalReason.UNKNOWN_EXECUTION:
        return Exit.NOT_FOUND
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), Exit.BROKEN)


def hint_of(error: LoomError) -> str:
    """What to do next, for `--json`; empty when the error itself says it."""
    return _HINTS.get(exit_of(error), "")
