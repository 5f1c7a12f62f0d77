"""Failures from the field about exceptions that mean more than an error: C70, C92."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import fold
from tests.support import outlaws
from tests.support.house import House
from tests.support.outlawry import run_outlaws

calls: list[str] = []


@loom.step(retry=loom.NO_RETRY)
async def note(what: str) -> str:
    calls.append(what)
    return what


# ---- C70: exits and interrupts --------------------------------------------------------------


class Unusual(BaseException):
    """Of a user's own."""


EXITS: dict[str, BaseException] = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt("key"),
    "GeneratorExit": GeneratorExit("gone"),
    "Unusual": Unusual("of our own"),
    "CancelledError": asyncio.CancelledError("by itself"),
}

TWICE = loom.Retry(attempts=2, initial=0.001, retry_on=(BaseException,))


@loom.step(retry=TWICE)
async def raises(name: str) -> str:
    calls.append(name)
    raise EXITS[name]


@loom.step(retry=TWICE)
def raises_in_thread(name: str) -> str:
    calls.append(name)
    raise EXITS[name]


@loom.step(retry=loom.Retry(attempts=2, initial=0.001))
async def raises_once(name: str) -> str:
    """No ordinary failure, so not tried again unless told so."""
    calls.append(name)
    raise EXITS[name]


RAISING: dict[str, loom.Step[[str], str]] = {
    "async": raises,
    "thread": raises_in_thread,
    "once": raises_once,
}


@loom.flow
async def raising(ctx: loom.Context, what: tuple[str, str]) -> str:
    how, name = what
    return await ctx.run(RAISING[how], name)


@loom.flow
async def raises_itself(ctx: loom.Context, name: str) -> str:
    await ctx.run(note, "before")
    raise EXITS[name]


@loom.flow
async def beside(ctx: loom.Context) -> str:
    await ctx.sleep(0.01)
    return "done"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    async with House([raising, raises_itself, naming, stops_itself, beside]) as house:
        yield house


@pytest.mark.parametrize("how", RAISING)
@pytest.mark.parametrize("name", EXITS)
async def test_c70_a_step_that_exits_fails_and_its_worker_stays(
    house: House, how: str, name: str
) -> None:
    """C70: failed after its attempts, with the type named; ten others beside it complete."""
    others = [await house.client.start(beside) for _ in range(10)]
    handle = await house.client.start(raising, (how, name), id="e")
    with pytest.raises(loom.ExecutionFailedError, match=name):
        await handle.result(timeout=5)
    assert calls == [name] * (1 if how == "once" else 2)
    assert (await house.row("e")).status is loom.Status.FAILED
    assert [await each.result(timeout=5) for each in others] == ["done"] * 10
    outcome = await rehearse(raising, await house.log("e"))
    assert outcome.ok, outcome.problem


@pytest.mark.parametrize("name", EXITS)
async def test_c70_a_flow_that_exits_fails_and_its_worker_stays(house: House, name: str) -> None:
    """C70: the same in the flow's own code."""
    handle = await house.client.start(raises_itself, name, id="e")
    expected = "cancelled itself" if name == "CancelledError" else name
    with pytest.raises(loom.ExecutionFailedError, match=expected):
        await handle.result(timeout=5)
    assert await house.client.execute(beside, timeout=5) == "done"
    outcome = await rehearse(raises_itself, await house.log("e"))
    assert outcome.ok, outcome.problem


async def test_c70_an_exit_in_a_task_of_flow_or_step_is_its_failure() -> None:
    """C70: asyncio lets an exit out of a task stop the event loop; here it must not."""
    for told in await run_outlaws(outlaws.EXITS):
        assert re.search("SystemExit|KeyboardInterrupt|sub-exception", told.end), told
        assert told.others == ["b"] * outlaws.OTHERS


# ---- C92: exceptions that mean something to Python -------------------------------------------


class Halt(StopIteration):
    """A subclass has the same meaning to Python."""


STOPS: dict[str, BaseException] = {
    "StopIteration": StopIteration("value"),
    "Halt": Halt("value"),
    "StopAsyncIteration": StopAsyncIteration("value"),
    "GeneratorExit": GeneratorExit("value"),
}


@loom.step(retry=loom.NO_RETRY)
async def stops(name: str) -> str:
    raise STOPS[name]


@loom.step(retry=loom.NO_RETRY)
def stops_in_thread(name: str) -> str:
    raise STOPS[name]


@loom.step(retry=loom.NO_RETRY)
async def next_of_nothing(_name: str) -> str:
    return next(iter(()))


@loom.step(retry=loom.NO_RETRY)
def next_of_nothing_in_thread(_name: str) -> str:
    return next(iter(()))


STOPPING: dict[str, loom.Step[[str], str]] = {
    "async": stops,
    "thread": stops_in_thread,
    "next": next_of_nothing,
    "next in a thread": next_of_nothing_in_thread,
}


@loom.flow
async def naming(ctx: loom.Context, what: tuple[str, str]) -> list[str]:
    """What the flow catches: at first, and on the re-run that comes after the park."""
    how, name = what
    try:
        await ctx.run(STOPPING[how], name)
    except Exception as error:
        caught = f"{type(error).__name__}: {error} {error.args}"
    first = await ctx.decide("first", lambda: caught)
    await ctx.sleep(0.001)
    return [first, caught]


@loom.flow
async def stops_itself(ctx: loom.Context, what: tuple[str, str]) -> str:
    """In its own code, in a branch, in a decision."""
    where, name = what
    await ctx.run(note, "before")

    def stop() -> str:
        raise STOPS[name]

    async def branch() -> str:
        await ctx.run(note, "in a branch")
        return stop()

    match where:
        case "branch":
            await asyncio.gather(branch(), ctx.run(note, "beside"))
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(branch())
        case "decision":
            await ctx.decide("stop", stop)
        case _:
            stop()
    return "went on"


@pytest.mark.parametrize("how", STOPPING)
@pytest.mark.parametrize("name", STOPS)
async def test_c92_a_rerun_is_told_the_same(house: House, how: str, name: str) -> None:
    """C92: no hang; the flow catches the same type with the same text, first and again."""
    first, again = await house.client.execute(naming, (how, name), timeout=5)
    assert "StopIteration" in first or name in first
    assert first == again


@pytest.mark.parametrize("where", ["flow", "branch", "group", "decision"])
@pytest.mark.parametrize("name", STOPS)
async def test_c92_a_flow_that_lets_one_pass_fails(house: House, where: str, name: str) -> None:
    """C92: named in type or cause, wherever in the flow it was raised."""
    handle = await house.client.start(stops_itself, (where, name), id="e")
    with pytest.raises(loom.ExecutionFailedError) as failed:
        await handle.result(timeout=5)
    failure = fold(await house.log("e")).failure
    assert failure is not None
    causes = [f"{cause.type}: {cause.message}" for cause in failure.causes]
    named = [failed.value.message, *causes]
    assert any("StopIteration" in each or name in each for each in named), named
    outcome = await rehearse(stops_itself, await house.log("e"))
    assert outcome.ok, outcome.problem
