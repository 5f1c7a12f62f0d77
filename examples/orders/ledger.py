"""A ledger of effects, outside loom-mq: what the outside world saw happen.

Every effect of the example writes one line here before it returns, on disk before the
step can be remembered as done. Comparing it with the journal proves that no completed
step ran twice.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from loom_mq import current_step

VARIABLE = "ORDERS_LEDGER"


def record(what: str) -> str:
    """Write that the running step's effect happened; returns its idempotency key.

    One `write` of one line to a file opened for appending, so that several processes
    may share the ledger and a kill can leave no half of a line behind others.
    """
    step = current_step()
    line = {
        "key": step.idempotency_key,
        "step": step.name,
        "attempt": step.attempt,
        "what": what,
        "pid": os.getpid(),
    }
    path = os.environ.get(VARIABLE)
    if path:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, json.dumps(line).encode() + b"\n")
        finally:
            os.close(handle)
    return step.idempotency_key


def calls(path: Path) -> Counter[str]:
    """How often each effect was seen, by idempotency key."""
    if not path.exists():
        return Counter()
    with path.open() as lines:
        return Counter(json.loads(line)["key"] for line in lines)
