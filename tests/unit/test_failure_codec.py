"""Exceptions as text: bounded, whatever they are (C16, C18, C72)."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom_mq.codec import failures
from loom_mq.codec.failures import describe_exception, safe_text
from loom_mq.model.failures import CauseLine, Failure

BOUND = 64 * 1024


def stored(failure: Failure) -> bytes:
    """What stands in the log; checks what must hold for every failure."""
    data = msgspec.msgpack.encode(failure)
    assert len(data) < BOUND
    assert msgspec.msgpack.decode(data, type=Failure) == failure
    assert b"\x00" not in failure.headline.encode()
    for text in (failure.type, failure.module, failure.message, failure.traceback):
        assert "\x00" not in text
        text.encode()
    assert len(failure.message.encode()) <= failures.MESSAGE_LIMIT
    assert len(failure.traceback.encode()) <= failures.TRACEBACK_LIMIT
    assert len(failure.causes) <= failures.MAX_CAUSES + failures.MAX_GROUP_MEMBERS
    return data


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_is_told_with_its_place() -> None:
    def charge() -> None:
        raise ValueError("no funds")

    failure = describe_exception(caught(charge))
    assert (failure.type, failure.module, failure.message) == ("ValueError", "builtins", "no funds")
    assert "in charge" in failure.traceback
    assert 'raise ValueError("no funds")' in failure.traceback
    assert failure.causes == ()
    assert (failure.channel, failure.payload) == (None, None)
    assert failure.headline == "ValueError: no funds"
    stored(failure)


def test_causes_are_told_nearest_first_with_their_places() -> None:
    def dial() -> None:
        raise OSError("down")

    def fetch() -> None:
        try:
            dial()
        except OSError:
            raise LookupError("no rate") from None

    def charge() -> None:
        try:
            fetch()
        except LookupError as error:
            raise ValueError("no price") from error

    failure = describe_exception(caught(charge))
    # the OSError was left out on purpose by `from None`
    assert failure.causes == (CauseLine("LookupError", "no rate"),)
    assert "After LookupError: no rate" in failure.traceback
    assert "in fetch" in failure.traceback
    stored(failure)


def test_what_was_handled_meanwhile_counts_as_a_cause() -> None:
    def charge() -> None:
        try:
            raise OSError("down")
        except OSError:
            raise ValueError("v")  # noqa: B904  # the implicit context is the point

    assert describe_exception(caught(charge)).causes == (CauseLine("OSError", "down"),)


def test_an_error_that_is_its_own_cause() -> None:
    """C72."""
    error = ValueError("v")
    error.__cause__ = error
    failure = describe_exception(error)
    assert failure.headline == "ValueError: v"
    assert failure.causes == ()
    stored(failure)


def test_two_errors_in_a_ring() -> None:
    """C72."""
    one, two = ValueError("1"), KeyError("2")
    one.__context__, two.__context__ = two, one
    failure = describe_exception(one)
    assert failure.causes == (CauseLine("KeyError", "'2'"),)
    stored(failure)


def test_a_chain_of_two_thousand_causes_is_cut() -> None:
    """C72."""
    error: BaseException = ValueError("0")
    for number in range(1, 2000):
        after = ValueError(str(number))
        after.__cause__ = error
        error = after
    failure = describe_exception(error)
    assert [cause.message for cause in failure.causes] == [
        str(number) for number in range(1998, 1998 - failures.MAX_CAUSES, -1)
    ]
    stored(failure)


def test_a_group_of_a_thousand_is_cut() -> None:
    """C72."""
    group = ExceptionGroup(
        "many", [ValueError(f"{number} " + "x" * 5000) for number in range(1000)]
    )
    group.__cause__ = OSError("first")
    failure = describe_exception(caught(lambda: _raise(group)))
    assert failure.headline == "ExceptionGroup: many (1000 sub-exceptions)"
    assert failure.causes[0] == CauseLine("OSError", "first")
    assert len(failure.causes) == 1 + failures.MAX_GROUP_MEMBERS
    assert failure.causes[1].message.startswith("0 xxx")
    stored(failure)


def test_groups_in_groups_are_opened() -> None:
    """C72: what a TaskGroup inside a TaskGroup raises."""
    error: Exception = ValueError("innermost")
    for _ in range(5000):
        error = ExceptionGroup("outer", [error])
    assert describe_exception(error).causes == ()  # too far down to be looked for
    shallow = ExceptionGroup("a", [ExceptionGroup("b", [ValueError("v")]), KeyError("k")])
    assert describe_exception(shallow).causes == (
        CauseLine("KeyError", "'k'"),
        CauseLine("ValueError", "v"),
    )


def _raise(error: BaseException) -> None:
    raise error


class Declined(Exception):
    def __init__(self, account: str, amount: int, code: str) -> None:
        super().__init__(account, amount, code)
        self.socket = socket.socket()


def test_a_class_that_cannot_be_rebuilt_is_told_all_the_same() -> None:
    """C18: nothing is kept but text, so the reader needs no class."""
    error = Declined("acc", 5, "51")
    error.socket.close()
    failure = describe_exception(error)
    assert failure.headline == "Declined: ('acc', 5, '51')"
    assert failure.module == __name__
    stored(failure)


class Rude(Exception):
    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def __str__(self) -> str:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # the point


class Sly(str):
    """A text whose every method lies."""

    __slots__ = ()

    def encode(self, *_args: object, **_kwargs: object) -> bytes:
        raise ValueError("no")

    def __getitem__(self, _key: object) -> str:
        raise ValueError("no")

    def __len__(self) -> int:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ValueError("again"), "<its message cannot be shown>"),
        (SystemExit(3), "<its message cannot be shown>"),
        (KeyboardInterrupt(), "<its message cannot be shown>"),
        (RecursionError(), "<its message cannot be shown>"),
        (5, "<its message cannot be shown>"),
        (Sly("hello"), "hello"),
        ("x\x00y", "x\\x00y"),
        ("a\ud800b", "a\\ud800b"),
        ("", ""),
    ],
    ids=repr,
)
def test_messages_of_any_kind(answer: object, message: str) -> None:
    """C16."""
    failure = describe_exception(Rude(answer))
    assert failure.message == message
    assert failure.headline == (f"Rude: {message}" if message else "Rude")
    stored(failure)


def test_long_messages_are_cut_with_an_ellipsis() -> None:
    for text in ("x" * 10_000_000, "日" * 100_000, "\x00" * 100_000, "\ud800" * 100_000):
        failure = describe_exception(ValueError(text))
        assert failure.message.endswith("…")
        assert len(failure.message.encode()) > failures.MESSAGE_LIMIT - 10
        stored(failure)
    assert describe_exception(ValueError("x" * 500), limit=100).message == "x" * 97 + "…"


def test_classes_with_odd_names() -> None:
    """C16."""
    odd = type("日" * 1000, (Exception,), {"__module__": 5})
    failure = describe_exception(odd("v"))
    assert failure.type.startswith("日日")
    assert failure.type.endswith("…")
    assert failure.module == ""
    stored(failure)


class Hiding(Exception):
    """Every attribute that a reporter might read raises."""

    def __getattribute__(self, name: str) -> object:
        raise SystemExit(name)


def test_errors_that_cannot_be_looked_at() -> None:
    failure = describe_exception(Hiding("v"))
    assert failure.type == "Hiding"
    stored(failure)


def test_a_runaway_recursion_is_told_by_its_innermost_frames() -> None:
    def recurse(depth: int) -> int:
        return recurse(depth + 1) if depth % 2 else again(depth)

    def again(depth: int) -> int:
        return recurse(depth + 1)

    failure = describe_exception(caught(lambda: recurse(0)))
    assert failure.type == "RecursionError"
    assert "in again" in failure.traceback
    stored(failure)


def test_sources_of_any_kind_do_not_disturb() -> None:
    """Frames of code that has no file, and long lines."""
    scope: dict[str, Callable[[], object]] = {}
    line = "def run():\n    raise ValueError('v'" + " or 'x'" * 20_000 + ")\n"
    exec(compile(line, "/nowhere/<日>.py", "exec"), scope)
    failure = describe_exception(caught(scope["run"]))
    assert failure.message == "v"
    stored(failure)


def test_notes_are_told() -> None:
    error = caught(lambda: _raise(ValueError("v")))
    error.add_note("try\x00 again")
    assert "try\\x00 again" in describe_exception(error).traceback
    error.__notes__ = [5, "x" * 100_000]  # type: ignore[list-item]  # somebody did
    stored(describe_exception(error))


def test_the_worst_of_everything_stays_under_the_bound() -> None:
    """C72: far below 256 KiB."""
    worst: BaseException = ExceptionGroup(
        "日" * 10_000, [type("日" * 500, (Exception,), {})("日" * 10_000) for _ in range(100)]
    )
    for _ in range(50):
        after = (
            type("日" * 500, (ExceptionGroup,), {})("日" * 10_000, list(worst.exceptions))
            if isinstance(worst, ExceptionGroup)
            else worst
        )
        after.__cause__ = worst
        worst = after
    data = stored(describe_exception(worst))
    assert len(data) > BOUND // 2


def test_exits_are_told_too() -> None:
    """C70."""
    for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit()):
        failure = describe_exception(caught(lambda error=error: _raise(error)))  # type: ignore[misc]  # a lambda with a default
        assert failure.type == type(error).__name__
        stored(failure)
    assert sys.exc_info() == (None, None, None)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.integers(3, 80))
def test_safe_text_is_safe_and_bounded(text: str, limit: int) -> None:
    """C16."""
    safe = safe_text(text, limit)
    assert len(safe.encode()) <= limit
    assert "\x00" not in safe
    plain = text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    if len(plain.encode()) <= limit:
        assert safe == plain
    else:
        assert safe.endswith("…")
        assert plain.startswith(safe[:-1])
