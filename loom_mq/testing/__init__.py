"""Tools for tests.

For flows: `TestEnvironment`, in which months pass in milliseconds, `crash_everywhere`,
which kills the worker at every write, and `rehearse`, which tells whether code fits a
history. For stores and brokers of your
own: `conformance`. For tests against real ones: `servers`.
"""

from loom_mq.flows.rehearsal import Rehearsal, rehearse
from loom_mq.testing.comparing import CrashDifference
from loom_mq.testing.crashes import Crashes, crash_everywhere
from loom_mq.testing.doom import CrashPoint
from loom_mq.testing.environment import Run, TestEnvironment
from loom_mq.testing.history import Happening
from loom_mq.testing.stuck import StuckError

__all__ = [
    "CrashDifference",
    "CrashPoint",
    "Crashes",
    "Happening",
    "Rehearsal",
    "Run",
    "StuckError",
    "TestEnvironment",
    "crash_everywhere",
    "rehearse",
]
