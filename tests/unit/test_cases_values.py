"""Failures from the field about values that cannot be kept: C20, C85."""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import loom_mq as loom
from loom_mq.errors import ConfigurationError
from loom_mq.kernel.fold import fold
from tests.support.house import House
from tests.support.value_flows import UNFIT

ROOT = Path(__file__).parents[2]
ran: list[str] = []
TWICE = loom.Retry(attempts=2, initial=0.001)


# ---- C20: results that cannot be stored ------------------------------------------------------


@loom.step(retry=loom.Retry(attempts=5, initial=0.001))
async def unfit(what: tuple[str, str]) -> Any:
    path, name = what
    with open(path, "a") as file:
        file.write("line\n")
    return UNFIT[name]()


@loom.step(retry=loom.Retry(attempts=5, initial=0.001))
def unfit_in_thread(what: tuple[str, str]) -> Any:
    with open(what[0], "a") as file:
        file.write("line\n")
    return {"items": [1, UNFIT[what[1]]()]}


@loom.flow
async def keeps(ctx: loom.Context, what: tuple[str, str]) -> None:
    await ctx.run(unfit, what)


@loom.flow
async def keeps_from_thread(ctx: loom.Context, what: tuple[str, str]) -> None:
    await ctx.run(unfit_in_thread, what)


@loom.flow
async def counts(ctx: loom.Context, number: int) -> int:
    return number + 1


@pytest.mark.parametrize("name", ["lock", "generator", "contains itself", "far too deep"])
@pytest.mark.parametrize("flow", [keeps, keeps_from_thread], ids=["async", "thread"])
async def test_c20_an_effect_whose_result_cannot_be_stored_runs_once(
    tmp_path: Path, flow: loom.Flow[tuple[str, str], None], name: str
) -> None:
    """C20: one codec error with step and place, no second attempt, and the worker lives on."""
    file = tmp_path / "lines"
    step, place = ("unfit", r"\$") if flow is keeps else ("unfit_in_thread", r"\$\.items\[1\]")
    async with House([flow, counts]) as house:
        handle = await house.client.start(flow, (str(file), name), id="e")
        with pytest.raises(loom.ExecutionFailedError, match=f"step {step}: value at {place}") as e:
            await handle.result(timeout=5)
        assert e.value.error_type == "CodecError"
        assert (await house.kinds("e")).count("STEP_STARTED") == 1
        assert await house.client.execute(counts, 1, timeout=5) == 2
    assert file.read_text() == "line\n"


# ---- C85: odd return values --------------------------------------------------------------------


async def coroutine() -> int:
    return 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@loom.step
async def nothing() -> int | None:
    ran.append("nothing")
    return None


ODD: dict[str, tuple[Callable[[], object], str]] = {
    "NotImplemented": (lambda: NotImplemented, "cannot be stored"),
    "Ellipsis": (lambda: ..., "cannot be stored"),
    "an error": (lambda: ValueError("x"), "raise it"),
    "a group": (lambda: ExceptionGroup("x", [ValueError("y")]), "raise it"),
    "an exit": (lambda: SystemExit(3), "raise it"),
    "a coroutine": (coroutine, "await it"),
    "a task": (lambda: asyncio.ensure_future(asyncio.sleep(0)), "await it"),
    "a generator": (lambda: (each for each in "ab"), "return a list"),
    "an async generator": (async_generator, "return a list"),
    "a partial": (lambda: functools.partial(print, "x"), "code"),
    "a class": (lambda: Path, "class `Path`"),
    "a function": (lambda: coroutine, "code"),
    "a step": (lambda: nothing, "cannot be stored|code"),
    "a response": (lambda: subprocess.CompletedProcess("x", 0), "cannot be stored"),
}


@loom.step(retry=TWICE)
async def odd(name: str) -> Any:
    ran.append(name)
    return ODD[name][0]()


@loom.step(retry=TWICE)
def odd_from_thread(name: str) -> Any:
    ran.append(name)
    if name == "a task":
        return ODD["a coroutine"][0]()
    return ODD[name][0]()


@loom.flow
async def returns_odd(ctx: loom.Context, what: tuple[str, str]) -> Any:
    how, name = what
    match how:
        case "step":
            return await ctx.run(odd, name)
        case "thread":
            return await ctx.run(odd_from_thread, name)
        case "decision":
            return await ctx.decide("odd", ODD[name][0])
        case "emit":
            await ctx.emit("odd", ODD[name][0]())
    return ODD[name][0]()


@loom.flow
async def returns_nothing(ctx: loom.Context) -> int | None:
    first = await ctx.run(nothing)
    await ctx.sleep(0.001)
    return await ctx.run(nothing) if first is None else first


@pytest.mark.parametrize("how", ["step", "thread", "decision", "emit", "flow"])
@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_c85_an_odd_value_is_refused_with_what_to_do(how: str, name: str) -> None:
    """C85: one error that says it, not only a warning; nothing that was returned is raised."""
    ran.clear()
    async with House([returns_odd]) as house:
        handle = await house.client.start(returns_odd, (how, name), id="e")
        hint = "await it" if (how, name) == ("thread", "a task") else ODD[name][1]
        with pytest.raises(loom.ExecutionFailedError, match=hint) as caught:
            await handle.result(timeout=5)
        assert caught.value.error_type == "CodecError"
    assert ran == ([name] if how in ("step", "thread") else [])


async def test_c85_none_is_a_result(tmp_path: Path) -> None:
    """C85: a step that returned None does not run again on a re-run."""
    ran.clear()
    async with House([returns_nothing]) as house:
        handle = await house.client.start(returns_nothing, id="e")
        assert await handle.result(timeout=5) is None
        assert len(fold(await house.log("e")).frames) == 2
    assert ran == ["nothing", "nothing"]


def test_c85_generators_are_no_steps_and_no_flows() -> None:
    """C85: refused at registration, with the reason."""

    def plain() -> Any:
        yield 1

    async def flowing(ctx: loom.Context) -> AsyncIterator[int]:
        yield 1

    for function in (plain, async_generator):
        with pytest.raises(ConfigurationError, match="is a generator"):
            loom.step(function)
    with pytest.raises(ConfigurationError, match="async def"):
        loom.flow(flowing)  # type: ignore[arg-type]  # the point


def test_c85_a_partial_without_a_name_is_refused_in_one_sentence() -> None:
    """C85: not by an AttributeError of ours."""
    with pytest.raises(ConfigurationError):
        loom.step(functools.partial(coroutine))  # it has no name of its own
    with pytest.raises(ConfigurationError):
        loom.flow(functools.partial(flow_of_two, 1))


async def flow_of_two(_number: int, ctx: loom.Context) -> None:
    """For a partial."""
