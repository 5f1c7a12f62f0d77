"""Text for terminals and programs: harmless, whatever users put into names and errors (C95)."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from loom_mq.clock import MICROS

_MAX_DEPTH: Final = 200
_CONTROL: Final = "\\x00-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
"""Escape codes begin with these, and the rest of them reorder or hide what follows."""
_UNSAFE: Final = re.compile(f"[{_CONTROL}\ud800-\udfff]")
_UNSAFE_BUT_LINES: Final = re.compile(f"(?![\n\t])[{_CONTROL}\ud800-\udfff]")


def visible(text: str, *, lines: bool = False) -> str:
    """Text that a terminal shows and never obeys.

    Args:
        text: from anywhere.
        lines: keep line ends and tabs, for text of several lines.
    """
    return (_UNSAFE_BUT_LINES if lines else _UNSAFE).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def json_text(value: object, *, indent: int | None = None) -> str:
    """JSON of plain data without any character that a terminal obeys."""
    return escaped(json.dumps(value, ensure_ascii=False, indent=indent))


def escaped(text: str) -> str:
    """The same JSON without any character that a terminal obeys."""
    return _UNSAFE_BUT_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(value: object, depth: int = _MAX_DEPTH) -> object:
    """Any value as JSON can hold it, as well as it can be shown."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if depth <= 0:
        return repr(value)
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else json_text(plain(key, depth - 1)): plain(
                item, depth - 1
            )
            for key, item in value.items()
        }
    if isinstance(value, Sequence | Set):
        return [plain(item, depth - 1) for item in value]
    try:
        return plain(msgspec.to_builtins(value), depth - 1)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def moment(micros: int | None) -> str | None:
    """RFC 3339 in UTC."""
    if micros is None:
        return None
    # whole microseconds: a float of seconds would lose the last digit
    seconds, rest = divmod(micros, MICROS)
    at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def clock_time(micros: int) -> str:
    """Time of day in UTC, for lists."""
    seconds, rest = divmod(micros, MICROS)
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S}.{rest // 1000:03d}"


def sqlite_address(path: Path) -> str:
    """The address of a SQLite journal."""
    return f"sqlite:///{quote(str(path))}"
