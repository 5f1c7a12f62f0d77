"""Failures from the field that concern the kernel: C39, C47, C74, C92."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator

import pytest

import loom_mq as loom
from tests.support.house import House, until

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


# ---- C39: a flow that an old worker does not know ---------------------------------------


@loom.step
async def note(what: str) -> str:
    return what


@loom.flow
async def known(ctx: loom.Context) -> str:
    return await ctx.run(note, "f")


@loom.flow
async def fresh(ctx: loom.Context) -> str:
    return await ctx.run(note, "g")


async def test_c39_an_old_worker_drops_nothing_and_does_not_spin() -> None:
    """C39: what an old worker does not know waits for one that does; the old one lets go of
    it, at most about once a second per package, and fails nothing.
    """
    async with House([known, fresh], workers=0) as house:
        await house.worker([known])
        new = await house.worker([known, fresh])
        handles = [await house.client.start(fresh, id=f"a{n}") for n in range(25)]
        assert [await each.result(timeout=20) for each in handles] == ["g"] * 25
        await new.drain(1)
        await new.stop()
        handles = [await house.client.start(fresh, id=f"b{n}") for n in range(25)]

        async def all_let_go() -> bool:
            rows = [await house.row(f"b{n}") for n in range(25)]
            return all(row.hint_at is not None and row.owner is None for row in rows)

        await until(all_let_go)
        assert all([(await house.row(f"b{n}")).status is loom.Status.PENDING for n in range(25)])
        before = sum([(await house.row(f"b{n}")).hints for n in range(25)])
        async with asyncio.timeout(10):
            while sum([(await house.row(f"b{n}")).hints for n in range(25)]) < before + 25:
                await asyncio.sleep(0.05)
        await house.worker([known, fresh])
        assert [await each.result(timeout=20) for each in handles] == ["g"] * 25


# ---- C47: an answer that comes first ----------------------------------------------------


@loom.flow
async def first_look(ctx: loom.Context) -> str:
    return await ctx.suspend(on="Signal", type=str)


async def test_c47_an_answer_before_the_first_activation_is_there() -> None:
    """C47 (a): no worker yet; the answer is kept, and taken at the first look."""
    async with House([first_look], workers=0) as house:
        async with House([first_look], journal=house.journal) as other:
            # the flow must be known before it can be started
            await other.workers[0].drain(0)
            await other.workers[0].stop()
        handle = await house.client.start(first_look, id="e")
        assert await handle.resume("Signal", "got") is loom.Answered.STORED
        await house.worker()
        assert await handle.result(timeout=10) == "got"


async def test_c47_an_answer_to_nothing_is_refused() -> None:
    """C47 (b): never a success followed by nothing."""
    async with House([first_look]) as house:
        nothing = house.client.handle("e", first_look)
        with pytest.raises(loom.ResumeRefusedError) as caught:
            await nothing.resume("Signal", "lost")
        assert caught.value.reason == "unknown-execution"
        handle = await house.client.start(first_look, id="e")
        await handle.resume("Signal", "got")
        assert await handle.result(timeout=10) == "got"


# ---- C74: context variables -------------------------------------------------------------


@loom.step
async def read_in_step() -> str:
    return TENANT.get()


@loom.step
def read_in_thread() -> str:
    return TENANT.get()


@loom.step
async def read_in_background() -> str:
    async def look() -> str:
        await asyncio.sleep(0)
        return TENANT.get()

    return await asyncio.ensure_future(look())


@loom.step
async def set_in_step(value: str) -> None:
    TENANT.set(value)


@loom.flow
async def tenants(ctx: loom.Context, own: str) -> list[str]:
    seen = [TENANT.get()]
    TENANT.set(own)
    seen.append(await ctx.run(read_in_step))
    seen.append(await ctx.run(read_in_thread))
    seen.append(await ctx.run(read_in_background))
    await ctx.run(set_in_step, "from a step")
    seen.append(TENANT.get())
    await ctx.sleep(0.05)
    seen.append(TENANT.get())
    await ctx.suspend(on="Go", type=bool)
    seen.append(await ctx.run(read_in_step))
    seen += await asyncio.gather(ctx.run(read_in_step), ctx.run(read_in_thread))
    return seen


async def test_c74_context_variables_do_not_leak() -> None:
    """C74: 200 executions side by side; each reads its own value or the default, in steps,
    in threads, after a sleep, after an answer and in a task that a step made.
    """
    TENANT.set("worker")
    async with House([tenants]) as house:
        handles = [await house.client.start(tenants, f"t{n}", id=f"t{n}") for n in range(200)]
        for handle in handles:
            await handle.resume("Go", True, timeout=30)
        for handle in handles:
            first, *seen = await handle.result(timeout=60)
            assert first in ("worker", "nobody")
            # a step has its own copy: what it sets is its own affair
            assert seen == [handle.id] * 8
    assert TENANT.get() == "worker"


# ---- C92: exceptions that mean something to Python --------------------------------------


@loom.step(retry=loom.NO_RETRY)
async def stops() -> str:
    return next(iter(()))


@loom.step(retry=loom.NO_RETRY)
def stops_in_a_thread() -> str:
    return next(iter(()))


@loom.step(retry=loom.NO_RETRY)
async def stops_async() -> str:
    raise StopAsyncIteration("async")


@loom.step(retry=loom.NO_RETRY)
async def exits() -> str:
    raise GeneratorExit("exit")


STOPPING = {
    "stops": stops,
    "stops_in_a_thread": stops_in_a_thread,
    "stops_async": stops_async,
    "exits": exits,
}


@loom.flow
async def stopping(ctx: loom.Context, name: str) -> str:
    return await ctx.run(STOPPING[name])


@loom.flow
async def stopping_caught(ctx: loom.Context, name: str) -> list[str]:
    try:
        await ctx.run(STOPPING[name])
    except Exception as error:
        first = type(error).__name__
    await ctx.suspend(on="Go", type=bool)  # what follows is told by a re-run
    return [first, await ctx.run(note, first)]


@loom.flow
async def stops_itself(ctx: loom.Context) -> str:
    await ctx.run(note, "before")
    raise StopIteration("from the flow")


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with House([stopping, stopping_caught, stops_itself]) as house:
        yield house


@pytest.mark.parametrize("name", STOPPING)
async def test_c92_a_step_that_stops_fails(house: House, name: str) -> None:
    """C92: no hang and no other meaning; the exception is named."""
    handle = await house.client.start(stopping, name)
    with pytest.raises(loom.ExecutionFailedError, match=r"Stop(Async)?Iteration|GeneratorExit"):
        await handle.result(timeout=10)


@pytest.mark.parametrize("name", STOPPING)
async def test_c92_a_rerun_gives_the_same_type(house: House, name: str) -> None:
    """C92: what the flow catches the first time it catches on the re-run."""
    handle = await house.client.start(stopping_caught, name, id=name)
    await handle.resume("Go", True)
    first, again = await handle.result(timeout=10)
    assert first == again


async def test_c92_a_flow_that_lets_one_pass_fails(house: House) -> None:
    """C92: also when it is the flow's own."""
    handle = await house.client.start(stops_itself)
    with pytest.raises(loom.ExecutionFailedError, match="StopIteration"):
        await handle.result(timeout=10)


# ---- K7: an answer for one wait and no other -------------------------------------------------


@loom.flow
async def asks_twice(ctx: loom.Context) -> list[str]:
    return [await ctx.suspend(on="Gate", type=str), await ctx.suspend(on="Gate", type=str)]


async def test_k7_an_answer_that_names_its_wait_is_taken_by_no_other() -> None:
    """K7: the second wait's answer comes first and is kept for it; one for a wait that is over
    is taken by nobody.
    """
    async with House([asks_twice]) as house:
        handle = await house.client.start(asks_twice, id="e")
        assert await handle.resume("Gate", "two", wait_id="#1", timeout=0.3)
        assert await handle.resume("Gate", "one", wait_id="#0") is loom.Answered.TAKEN
        assert await handle.result(timeout=10) == ["one", "two"]
