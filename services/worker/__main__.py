"""``python -m services.worker``"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

from loom_mq.engine.threads import StepThreads
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.errors import ConfigurationError
from loom_mq.flows.registry import Registry, load
from loom_mq.runtime.part import Part, Ports
from loom_mq.runtime.process import leave, read_or_leave, refuse, run_service
from loom_mq.runtime.settings import WorkerSettings

ROLE: Final = "worker"
ABOUT: Final = """\
Runs flows and their steps. LOOM_APP names the modules that define the flows; a worker
takes what waits in its queues, up to LOOM_SLOTS executions at once.
Run as many as you like; when one dies, the others take its executions over."""


def main() -> NoReturn:
    """Run a worker until it is told to stop."""
    settings = read_or_leave(ROLE, ABOUT, WorkerSettings, sys.argv[1:], os.environ)
    registry = _load(settings.app)
    threads = StepThreads(settings.step_threads)

    async def build(ports: Ports) -> Part:
        return Worker(
            ports.owner,
            ports.journal,
            ports.broker,
            ports.lease,
            registry,
            options=WorkerOptions(
                queues=settings.queues,
                slots=settings.slots,
                prefetch=settings.prefetch,
                park_drain=settings.park_drain,
                backoff_park=settings.backoff_park,
                snapshot_every=settings.snapshot_every,
                payload_limit=settings.payload_limit,
            ),
            clock=ports.clock,
            ids=ports.ids,
            threads=threads,
            metrics=ports.metrics,
        )

    code = run_service(ROLE, settings, build)
    threads.close()
    leave(code)


def _load(places: tuple[str, ...]) -> Registry:
    try:
        return load(places)
    except ConfigurationError as error:
        refuse(ROLE, f"LOOM_APP: {error.message}")


if __name__ == "__main__":
    main()
