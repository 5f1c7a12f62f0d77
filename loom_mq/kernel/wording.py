"""Durations and commands in sentences for people. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final


def command(name: str, *arguments: str, options: Sequence[str] = ()) -> str:
    """A command line that can be copied, whatever characters the names hold."""
    if any(each.startswith("-") for each in arguments):
        return shlex.join(["loom", name, *options, "--", *arguments])
    return shlex.join(["loom", name, *arguments, *options])


def names(noun: str, each: Sequence[str]) -> str:
    """A noun with one name or several: ``gate 'A'``, ``gates 'A' and 'B'``."""
    different = list(dict.fromkeys(each))
    return f"{noun}{'s' if len(different) > 1 else ''} {' and '.join(map(repr, different))}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 event``, ``3 events``, ``2 histories``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


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
