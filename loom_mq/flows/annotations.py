"""Reading what decorated functions say about themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import get_type_hints

from loom_mq.errors import ConfigurationError


def positive_seconds(value: float | timedelta | None, what: str) -> float | None:
    """Seconds of a duration option; None stays None."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigurationError(f"{what} must be a positive number of seconds, not {value!r}")
    return seconds


def annotations_of(function: Callable[..., object], what: str) -> dict[str, object]:
    """The resolved annotations of a function."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ConfigurationError(
            f"{what}: its annotations cannot be resolved ({error}); import the types at run "
            "time, not under TYPE_CHECKING, and define them before the function"
        ) from error
