"""A host whose clock is wrong: a process that has this folder on its path believes it (C54)."""

import os
import time

_ahead = float(os.environ.get("FLEET_CLOCK_AHEAD", "0"))
_right = time.time


def _wrong() -> float:
    return _right() + _ahead


time.time = _wrong
time.time_ns = lambda: int(_wrong() * 1_000_000_000)
