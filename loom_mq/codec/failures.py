"""Exceptions as text: bounded, whatever they are (C16, C18, C72).

Nothing of an exception is kept but text, so reading a failure needs no class of the
program that failed. Limits are bytes of UTF-8; all parts together stay under 64 KiB.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from loom_mq.model.failures import CauseLine, Failure

MESSAGE_LIMIT: Final = 4096
TRACEBACK_LIMIT: Final = 16384
CAUSE_LIMIT: Final = 1024
NAME_LIMIT: Final = 255
MAX_CAUSES: Final = 8
MAX_GROUP_MEMBERS: Final = 16
MAX_GROUPS: Final = 32

_FRAMES: Final = 50
_CAUSE_FRAMES: Final = 10
_NOTES: Final = 8

T = TypeVar("T")


def describe_exception(error: BaseException, *, limit: int = MESSAGE_LIMIT) -> Failure:
    """The failure that describes `error`. Never raises and never loops.

    Args:
        error: any exception, broken ones included.
        limit: bytes of the message.
    """
    causes = list(_causes(error))
    members = list(_members(error))
    return Failure(
        type=_type_name(error),
        module=_module(error),
        message=_message(error, limit),
        traceback=_traceback(error, causes),
        causes=tuple(
            CauseLine(_type_name(cause), _message(cause, CAUSE_LIMIT))
            for cause in (*causes, *members)
        ),
    )


def safe_text(text: str, limit: int) -> str:
    r"""Text that any column can hold: lone surrogates and NUL as ``\x..`` escapes.

    Args:
        text: any text.
        limit: bytes of UTF-8; at least 3. What is cut off leaves an ellipsis.
    """
    # unbound methods, because a subclass of str may have others
    head = str.__getitem__(text, slice(limit + 1))
    data = head.encode("utf-8", "backslashreplace").replace(b"\x00", b"\\x00")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 3].decode("utf-8", "ignore") + "…"


def _end_of(text: str, limit: int) -> str:
    """The last bytes of a text that is safe already."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return "…" + data[3 - limit :].decode("utf-8", "ignore")


def _guarded(read: Callable[[], T], otherwise: T) -> T:
    """What `read` gives; `otherwise` when the exception's own code fails in any way."""
    try:
        return read()
    except BaseException:  # a broken __str__ may even raise SystemExit
        return otherwise


def _type_name(error: BaseException) -> str:
    return _guarded(lambda: safe_text(type(error).__name__, NAME_LIMIT), "<unnamed>")


def _module(error: BaseException) -> str:
    return _guarded(lambda: safe_text(type(error).__module__, NAME_LIMIT), "")


def _message(error: BaseException, limit: int) -> str:
    return _guarded(lambda: safe_text(str(error), limit), "<its message cannot be shown>")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What led to it, nearest first, by the rules of Python's own tracebacks."""
    seen = {id(error)}
    at = _cause(error)
    while at is not None and id(at) not in seen and len(seen) <= MAX_CAUSES:
        seen.add(id(at))
        yield at
        at = _cause(at)


def _cause(error: BaseException) -> BaseException | None:
    def read() -> BaseException | None:
        if error.__cause__ is not None:
            return error.__cause__
        return None if error.__suppress_context__ else error.__context__

    found = _guarded(read, None)
    # not isinstance, which asks the object
    return found if found is not None and issubclass(type(found), BaseException) else None


def _members(error: BaseException) -> Iterator[BaseException]:
    """The members of an exception group, groups inside it opened, outermost first."""
    waiting = [error]
    seen: set[int] = set()
    given = groups = 0
    while waiting and given < MAX_GROUP_MEMBERS and groups < MAX_GROUPS:
        at = waiting.pop(0)
        if id(at) in seen:
            continue
        seen.add(id(at))
        if issubclass(type(at), BaseExceptionGroup):
            groups += 1
            waiting.extend(_opened(at))
        elif at is not error:
            given += 1
            yield at


def _opened(group: BaseException) -> list[BaseException]:
    def read() -> list[BaseException]:
        # past the class's own attributes, which may be anything
        members = BaseExceptionGroup.exceptions.__get__(group)
        return list(members[:MAX_GROUP_MEMBERS])

    return _guarded(read, [])


def _traceback(error: BaseException, causes: list[BaseException]) -> str:
    """Where it was raised, then where each cause was; the innermost frames count most."""
    text = _end_of(_frames(error, _FRAMES), TRACEBACK_LIMIT * 3 // 4) + _notes(error)
    for cause in causes:
        text += f"\nAfter {_type_name(cause)}: {_message(cause, CAUSE_LIMIT)}\n"
        text += _end_of(_frames(cause, _CAUSE_FRAMES), CAUSE_LIMIT * 2)
    return safe_text(text, TRACEBACK_LIMIT)


def _frames(error: BaseException, limit: int) -> str:
    def read() -> str:
        frames = traceback.StackSummary.extract(
            traceback.walk_tb(error.__traceback__), limit=-limit
        )
        text = "".join(frames.format())
        return safe_text(text, len(text) * 6 + 3)

    return _guarded(read, "")


def _notes(error: BaseException) -> str:
    def read() -> str:
        notes = getattr(error, "__notes__", None)
        if not isinstance(notes, list | tuple):
            return ""
        return "".join(
            safe_text(note, CAUSE_LIMIT) + "\n" for note in notes[:_NOTES] if isinstance(note, str)
        )

    return _guarded(read, "")
