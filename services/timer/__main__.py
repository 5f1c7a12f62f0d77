"""``python -m services.timer``"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.runtime.part import Part, Ports
from loom_mq.runtime.process import leave, read_or_leave, run_service
from loom_mq.runtime.settings import TimerSettings

ROLE: Final = "timer"
ABOUT: Final = """\
Wakes executions whose time has come: sleeps, timeouts of gates, pauses between retries.
Run as many as you like; they share the table of timers."""


def main() -> NoReturn:
    """Run a timer service until it is told to stop."""
    settings = read_or_leave(ROLE, ABOUT, TimerSettings, sys.argv[1:], os.environ)

    async def build(ports: Ports) -> Part:
        return TimerService(
            ports.journal,
            ports.broker,
            options=TimerOptions(poll=settings.timer_poll, batch=settings.timer_batch),
            clock=ports.clock,
            metrics=ports.metrics,
        )

    leave(run_service(ROLE, settings, build))


if __name__ == "__main__":
    main()
