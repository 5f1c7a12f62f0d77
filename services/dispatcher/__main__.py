"""``python -m services.dispatcher``"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.sweep import SweepOptions
from loom_mq.runtime.part import Part, Ports
from loom_mq.runtime.process import leave, read_or_leave, run_service
from loom_mq.runtime.settings import DispatcherSettings

ROLE: Final = "dispatcher"
ABOUT: Final = """\
Admits starts, takes answers and cancellations, and sends out again whatever got lost.
Run as many as you like; they share nothing but the journal and the broker."""


def main() -> NoReturn:
    """Run a dispatcher until it is told to stop."""
    settings = read_or_leave(ROLE, ABOUT, DispatcherSettings, sys.argv[1:], os.environ)

    async def build(ports: Ports) -> Part:
        return Dispatcher(
            ports.journal,
            ports.broker,
            options=DispatcherOptions(
                prefetch=settings.prefetch,
                payload_limit=settings.payload_limit,
                sweep=SweepOptions(
                    interval=settings.sweep_interval,
                    resend_after=settings.resend_after,
                    resend_limit=settings.resend_limit,
                    max_recoveries=settings.max_recoveries,
                ),
            ),
            clock=ports.clock,
            ids=ports.ids,
            metrics=ports.metrics,
        )

    leave(run_service(ROLE, settings, build))


if __name__ == "__main__":
    main()
