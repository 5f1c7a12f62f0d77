"""Durations and commands in sentences for people. Pure."""

from __future__ import annotations

import shlex
from typing import Final


def command(name: str, *arguments: str) -> str:
    """A command line that can be copied, whatever characters the names hold."""
    dashes = ["--"] if any(each.startswith("-") for each in arguments) else []
    return shlex.join(["loom", name, *dashes, *arguments])


def span(seconds: float) -> str:
    """A duration in one or two units: ``3 s``, ``4 m 10 s``, ``2 d 3 h``."""
    whole = max(0, int(seconds))
    if whole < 10:
        return f"{max(seconds, 0.0):.1f} s"
    for size, unit, smaller, small_unit in _UNITS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


_UNITS: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
