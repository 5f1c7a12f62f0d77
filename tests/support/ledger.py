"""Effects as the outside world saw them: one line each, beside the system under test."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from loom_mq import current_step

VARIABLE = "FLEET_LEDGER"


class Effect(msgspec.Struct, frozen=True):
    """One call of one step's effect."""

    key: str
    execution: str
    step: str
    attempt: int
    pid: int
    what: str


def record(what: str = "done") -> None:
    """Note that the running step's effect happened here and now."""
    step = current_step()
    effect = Effect(
        step.idempotency_key, step.execution_id, step.name, step.attempt, os.getpid(), what
    )
    handle = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, msgspec.json.encode(effect) + b"\n")
    finally:
        os.close(handle)


def effects(path: Path) -> list[Effect]:
    """Everything that happened, in order."""
    if not path.exists():
        return []
    return [
        msgspec.convert(json.loads(line), Effect) for line in path.read_text().splitlines() if line
    ]
