"""Failures from the field about errors that cannot be kept as they are: C18, C72."""

from __future__ import annotations

import asyncio
import functools
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import loom_mq as loom
from loom_mq.codec.failures import MAX_CAUSES, MAX_GROUP_MEMBERS
from loom_mq.flows.registry import Registry
from loom_mq.kernel.fold import fold
from loom_mq.runtime.embedded import Embedded
from tests.support.house import House, until

ROOT = Path(__file__).parents[2]
ran: list[str] = []
TWICE = loom.Retry(attempts=2, initial=0.001)


# ---- C18: errors that a re-run must meet again -----------------------------------------------


class Handmade(Exception):
    """Its constructor wants three arguments, and it holds what no log can."""

    def __init__(self, what: str, where: str, how: str) -> None:
        super().__init__(f"{what} in {where} by {how}")
        self.what = what
        self.socket = threading.Lock()


class Demanding(Exception):
    """Not even `__new__` does without arguments."""

    def __new__(cls, what: str, where: str) -> Demanding:
        return super().__new__(cls, what, where)

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


class Telling(Exception):
    """Its text comes from an attribute."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __str__(self) -> str:
        return f"it was {self.what}"


class Holder:
    """A class that only its owner can name."""

    class Inner(Exception):
        """Known as an attribute."""


def hidden() -> type[Exception]:
    class Hidden(Exception):
        """Nobody else can name it."""

    return Hidden


ERRORS: dict[str, Callable[[], Exception]] = {
    "three arguments": lambda: Handmade("a", "b", "c"),
    "arguments of __new__": lambda: Demanding("a", "b"),
    "text of an attribute": lambda: Telling("me"),
    "nested class": lambda: Holder.Inner("x"),
    "local class": lambda: hidden()("x"),
    "KeyError": lambda: KeyError("x"),
    "several arguments": lambda: ValueError("a", "b"),
    "no argument": TimeoutError,
    "OSError": lambda: FileNotFoundError(2, "not here", "x"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
    "SyntaxError": lambda: SyntaxError("no", ("x", 1, 2, "y")),
    "group": lambda: ExceptionGroup("all", [ValueError("a"), KeyError("b")]),
    "from another module": lambda: json.JSONDecodeError("no", "x", 0),
    "from a package": lambda: subprocess.CalledProcessError(1, "x"),
    "from C": lambda: sqlite3.OperationalError("x"),
    "an empty queue": asyncio.QueueEmpty,
    "a long text": lambda: ValueError("x" * 100_000),
    "a lone surrogate": lambda: ValueError("x\ud800"),
}


@loom.step(retry=loom.NO_RETRY)
async def fails(name: str) -> None:
    ran.append(name)
    raise ERRORS[name]()


@loom.step(retry=loom.NO_RETRY)
def fails_in_thread(name: str) -> None:
    ran.append(name)
    raise ERRORS[name]()


def _fails(why: str, name: str) -> None:
    ran.append(name)
    raise ERRORS[name]()


fails_partly: loom.Step[[str], None] = loom.step(name="partly", retry=loom.NO_RETRY)(
    functools.partial(_fails, "partly")
)
FAILING: dict[str, loom.Step[[str], None]] = {
    "async": fails,
    "thread": fails_in_thread,
    "partial": fails_partly,
}


UNSEEN = "its text cannot be had"


def sight(error: BaseException) -> str:
    """What flow code can see of an error, and act upon."""
    kinds = [kind.__qualname__ for kind in type(error).__mro__]
    try:
        text = str(error)
    except Exception as broken:
        return f"{UNSEEN}: {broken!r}"
    return f"{kinds} {text[:200]!r} {len(text)} {str(error.args)[:200]}"


@loom.flow
async def meets(ctx: loom.Context, what: tuple[str, str]) -> list[str]:
    how, name = what
    try:
        await ctx.run(FAILING[how], name)
    except Exception as error:
        caught = sight(error)
    first = await ctx.decide("first", lambda: caught)
    await ctx.suspend(on="Go", type=bool)
    return [first, caught]


async def is_parked(house: House) -> bool:
    return (await house.row("e")).status is loom.Status.SUSPENDED


@pytest.mark.parametrize("how", FAILING)
@pytest.mark.parametrize("name", ERRORS)
async def test_c18_a_rerun_elsewhere_meets_the_same_error(how: str, name: str) -> None:
    """C18: class, text and arguments, the first time and on another worker after a park."""
    ran.clear()
    async with House([meets]) as house:
        handle = await house.client.start(meets, (how, name), id="e")
        await until(lambda: is_parked(house))
        await house.workers[0].drain(1)
        await house.workers[0].stop()
        await house.worker()
        await handle.resume("Go", True, timeout=3)
        first, again = await handle.result(timeout=5)
    assert first == again
    assert UNSEEN not in first
    assert ran == [name]


@loom.flow
async def lets_any_pass(ctx: loom.Context, name: str) -> None:
    await ctx.run(fails, name)


@pytest.mark.parametrize("name", ERRORS)
async def test_c18_an_error_that_passes_keeps_its_name_and_its_text(name: str) -> None:
    """C18: whoever waits for the result reads what the step raised."""
    original = ERRORS[name]()
    text = str(original)[:40].encode("utf-8", "backslashreplace").decode()
    async with House([lets_any_pass]) as house:
        handle = await house.client.start(lets_any_pass, name, id="e")
        with pytest.raises(loom.ExecutionFailedError) as failed:
            await handle.result(timeout=5)
    assert type(original).__name__ in failed.value.message
    assert text in failed.value.message


@loom.flow
async def lets_pass(ctx: loom.Context) -> None:
    await ctx.run(fails, "three arguments")


READER = """
import asyncio, json, sys
from loom_mq import ExecutionFailedError
from loom_mq.flows.registry import Registry
from loom_mq.runtime.embedded import Embedded

async def main():
    async with Embedded(Registry([]), sys.argv[1]) as house:
        try:
            await house.client.handle("e").result(timeout=10)
        except ExecutionFailedError as error:
            return [error.error_type, error.message, error.traceback_text]

told = asyncio.run(main())
print(json.dumps([*told, sorted(each for each in sys.modules if "test" in each)]))
"""


async def test_c18_a_reader_without_the_class_gets_it_all_as_text(tmp_path: Path) -> None:
    """C18: type, message and traceback; no user code is imported for it."""
    path = tmp_path / "loom.sqlite"
    async with Embedded(Registry([lets_pass]), path) as house:
        handle = await house.client.start(lets_pass, id="e")
        with pytest.raises(loom.ExecutionFailedError, match="a in b by c"):
            await handle.result(timeout=5)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", READER, str(path)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    said, _none = await program.communicate()
    kind, message, trace, modules = json.loads(said.splitlines()[-1])
    assert kind == "Handmade"
    assert message == "execution 'e' failed: Handmade: a in b by c"
    assert "raise ERRORS[name]()" in trace
    assert not [each for each in modules if each.startswith("tests")]


# ---- C72: errors that lead to themselves, and very long ones ---------------------------------


def own_cause() -> BaseException:
    error = ValueError("v")
    error.__cause__ = error
    return error


def circle() -> BaseException:
    first, second = ValueError("v"), KeyError("w")
    first.__context__, second.__context__ = second, first
    return first


def chain() -> BaseException:
    newest: BaseException = KeyError("the oldest")
    for number in range(2000):
        error = ValueError("v") if number == 1999 else OSError(f"{number}" * 100)
        error.__cause__ = newest
        newest = error
    return newest


def group() -> BaseException:
    return ExceptionGroup("ValueError: v", [ValueError(f"{n}" * 100) for n in range(1000)])


def deep_groups() -> BaseException:
    error: Exception = ValueError("v")
    for _ in range(1000):
        error = ExceptionGroup("ValueError: v", [error])
    return error


ENDLESS = {
    "own cause": own_cause,
    "circle": circle,
    "chain": chain,
    "group": group,
    "deep groups": deep_groups,
}


@loom.step(retry=TWICE)
async def endless(name: str) -> None:
    if name == "own cause":
        try:
            raise ValueError("v")
        except ValueError as error:
            raise error from error
    raise ENDLESS[name]()


@loom.step(retry=TWICE)
def endless_in_thread(name: str) -> None:
    raise ENDLESS[name]()


LOOPING = {"async": endless, "thread": endless_in_thread}


@loom.flow
async def loops(ctx: loom.Context, what: tuple[str, str]) -> None:
    how, name = what
    if how == "flow":
        raise ENDLESS[name]()
    await ctx.run(LOOPING[how], name)


@pytest.mark.parametrize("how", [*LOOPING, "flow"])
@pytest.mark.parametrize("name", ENDLESS)
async def test_c72_an_endless_error_is_recorded_in_bounds(how: str, name: str) -> None:
    """C72: failed at once, cut at the documented depth, and never retried for its length."""
    async with House([loops]) as house:
        handle = await house.client.start(loops, (how, name), id="e")
        with pytest.raises(loom.ExecutionFailedError, match="ValueError: v") as caught:
            await handle.result(timeout=5)
        log = await house.log("e")
    assert [event.kind for event in log].count("STEP_STARTED") == (0 if how == "flow" else 2)
    assert max(len(event.payload) for event in log) < 256 * 1024
    failure = fold(log).failure
    assert failure is not None
    assert len(failure.causes) <= MAX_CAUSES + MAX_GROUP_MEMBERS
    assert len(caught.value.traceback_text) < 64 * 1024
