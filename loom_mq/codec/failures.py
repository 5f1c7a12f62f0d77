"""Exceptions as text: bounded, whatever they are (C16, C18, C72)."""

from __future__ import annotations

import traceback
from typing import Final

from loom_mq.model.failures import CauseLine, Failure

MESSAGE_LIMIT: Final = 4096
TRACEBACK_LIMIT: Final = 16384
CAUSE_MESSAGE_LIMIT: Final = 512
MAX_CAUSES: Final = 8
MAX_GROUP_MEMBERS: Final = 16


def describe_exception(error: BaseException) -> Failure:
    """The failure that describes `error`. Never raises and never loops."""
    return Failure(
        type=safe_text(type(error).__name__, 256),
        module=safe_text(getattr(type(error), "__module__", "") or "", 256),
        message=_message(error, MESSAGE_LIMIT),
        traceback=_traceback(error),
        causes=tuple(_causes(error)),
    )


def safe_text(text: str, limit: int) -> str:
    """Text that any column can hold: no lone surrogates, no NUL, at most `limit` characters."""
    clean = text[: limit + 1].encode("utf-8", "backslashreplace").decode()
    clean = clean.replace("\x00", "\\x00")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _message(error: BaseException, limit: int) -> str:
    try:
        return safe_text(str(error), limit)
    except Exception as problem:  # its own __str__ is broken
        return f"<its message cannot be shown: {type(problem).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        lines = traceback.format_tb(error.__traceback__, limit=-30)
    except Exception:
        return ""
    # the end tells most, so that is what is kept
    text = "".join(lines)
    return safe_text(text[-TRACEBACK_LIMIT:], TRACEBACK_LIMIT)


def _causes(error: BaseException) -> list[CauseLine]:
    found: list[CauseLine] = []
    if isinstance(error, BaseExceptionGroup):
        found.extend(_line(member) for member in error.exceptions[:MAX_GROUP_MEMBERS])
    seen = {id(error)}
    at: BaseException | None = error
    while at is not None and len(seen) <= MAX_CAUSES:
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
        if at is None or id(at) in seen:
            break
        seen.add(id(at))
        found.append(_line(at))
    return found


def _line(error: BaseException) -> CauseLine:
    return CauseLine(type(error).__name__, _message(error, CAUSE_MESSAGE_LIMIT))
