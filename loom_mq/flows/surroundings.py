"""What every activation of a process shares."""

from __future__ import annotations

import msgspec

from loom_mq.clock import Clock
from loom_mq.flows.stepping import Threads
from loom_mq.ids import Ids
from loom_mq.observe.metrics import Metrics


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Clock, threads, chance and limits.

    Attributes:
        payload_limit: bytes (J10).
        backoff_park: seconds; a longer pause between attempts parks (K4).
    """

    clock: Clock
    threads: Threads
    ids: Ids
    metrics: Metrics
    payload_limit: int
    backoff_park: float
