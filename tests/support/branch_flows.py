"""Flows whose branches meet by asyncio's own means; what they saw is what they return.

Each branch tells whose it is with what it got, so that a value that reached another branch
on a re-run shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import loom_mq as loom
from tests.support.timing_flows import burst, stubborn, work


async def worked(ctx: loom.Context, name: str) -> str:
    return await ctx.run(work, name)


@loom.flow
async def by_queue(ctx: loom.Context) -> list[str]:
    seen: list[str] = []
    queue: asyncio.Queue[str] = asyncio.Queue(2)

    async def producer(name: str) -> None:
        for number in range(3):
            await queue.put(await ctx.run(work, f"{name}{number}"))

    async def consumer(name: str) -> None:
        for _ in range(3):
            got = await queue.get()
            seen.append(f"{name} got {got}: {await worked(ctx, name + got)}")

    async with asyncio.TaskGroup() as group:
        for name in "ab":
            group.create_task(producer(name))
        for name in "XY":
            group.create_task(consumer(name))
    return seen


@loom.flow
async def by_lock(ctx: loom.Context) -> list[str]:
    seen: list[str] = []
    lock, few = asyncio.Lock(), asyncio.Semaphore(2)

    async def branch(name: str) -> None:
        async with few:
            first = await ctx.run(work, name)
            async with lock:
                seen.append(f"{name}: {first}, {await worked(ctx, name + '2')}")
        seen.append(await ctx.run(work, f"{name} after {len(seen)}"))

    await asyncio.gather(*(branch(name) for name in "abcde"))
    return seen


@loom.flow
async def by_event(ctx: loom.Context) -> list[str]:
    seen: list[str] = []
    event, condition = asyncio.Event(), asyncio.Condition()
    barrier = asyncio.Barrier(3)

    async def waiter(name: str) -> None:
        await event.wait()
        seen.append(f"{name}: {await worked(ctx, name)}")
        async with condition:
            condition.notify()
        await barrier.wait()
        seen.append(f"{name} through: {await worked(ctx, name + ' through')}")

    async def setter() -> None:
        seen.append(await ctx.run(work, "set"))
        async with condition:
            event.set()
            await condition.wait()
        seen.append(await ctx.run(work, "notified"))

    await asyncio.gather(waiter("a"), waiter("b"), waiter("c"), setter())
    return seen


@loom.flow
async def by_future(ctx: loom.Context) -> list[str]:
    """Futures of the flow's own, completed by branches, errors and cancellations too."""
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[str]] = [loop.create_future() for _ in range(4)]

    async def giver(number: int) -> None:
        got = await ctx.run(work, f"give {number}")
        if number == 1:
            futures[number].set_exception(ValueError(got))
        elif number == 2:
            futures[number].cancel()
        else:
            futures[number].set_result(got)

    async def taker(number: int) -> None:
        try:
            seen.append(f"{number}: {await futures[number]}")
        except (ValueError, asyncio.CancelledError) as error:
            seen.append(f"{number}: {type(error).__name__} {error}")
        seen.append(f"{number}: {await worked(ctx, f'took {number}')}")

    await asyncio.gather(*(taker(n) for n in range(4)), *(giver(n) for n in reversed(range(4))))
    return seen


@loom.flow
async def tolerant_gather(ctx: loom.Context) -> list[str]:
    async def branch(name: str) -> str:
        got = await ctx.run(burst if name in "bd" else work, name)
        return f"{name}: {got} {await worked(ctx, name + '2')}"

    results = await asyncio.gather(*(branch(name) for name in "abcd"), return_exceptions=True)
    told = [f"{type(each).__name__} {each}" for each in results]
    return [*told, await ctx.run(work, "end")]


def leaves(error: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in error.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each


@loom.flow
async def nested_groups(ctx: loom.Context) -> list[str]:
    """Several failures at several levels, some while others are being cancelled."""
    seen: list[str] = []

    async def late(name: str) -> None:
        try:
            seen.append(await ctx.run(stubborn, name))
            seen.append(await ctx.run(work, name + "2"))
        except asyncio.CancelledError:
            seen.append(f"{name} cancelled")
            raise ValueError(f"{name} fails on its way out") from None

    async def inner(name: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.run(burst, f"{name}1"))
            group.create_task(ctx.run(burst, f"{name}2"))
            group.create_task(late(f"{name}3"))

    try:
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(inner(name))
            group.create_task(late("d"))
    except* ValueError as errors:
        seen.extend(f"caught {each}" for each in leaves(errors))
    seen.append(await ctx.run(work, "end"))
    return seen


@loom.flow
async def shielded_task(ctx: loom.Context) -> list[str]:
    seen: list[str] = []

    async def kept() -> str:
        seen.append(await ctx.run(work, "kept"))
        seen.append(await ctx.run(work, "kept 2"))
        return "kept it"

    async def impatient() -> str:
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            seen.append("gave up")
            raise

    inner = asyncio.create_task(kept())
    outer = asyncio.create_task(impatient())
    seen.append(await ctx.run(work, "meanwhile"))
    outer.cancel()
    await asyncio.wait([outer])
    seen.append(await inner)
    seen.append(await ctx.run(work, "end"))
    return seen


@loom.flow
async def straggler(ctx: loom.Context) -> list[str]:
    """Returns before its task has ended."""
    seen: list[str] = []

    async def endless() -> None:
        for number in range(1000):
            seen.append(await ctx.run(work, f"endless {number}"))

    task = asyncio.create_task(endless())
    for name in "ab":
        seen.append(await ctx.run(work, name))
    assert not task.done()
    return list(seen)


@loom.flow
async def cancelled_by_itself(ctx: loom.Context) -> list[str]:
    seen: list[str] = []

    async def branch(name: str) -> str:
        for number in range(5):
            seen.append(await ctx.run(work, f"{name}{number}"))
        return name

    tasks = [asyncio.create_task(branch(name)) for name in "abc"]
    seen.append(await ctx.run(work, "first"))
    tasks[0].cancel()
    seen.append(await ctx.run(work, "second"))
    tasks[1].cancel("enough")
    for task in tasks:
        try:
            seen.append(f"ended: {await task}")
        except asyncio.CancelledError as error:
            seen.append(f"cancelled: {error}")
    seen.append(await ctx.run(work, "end"))
    return seen


@loom.flow
async def by_async_generator(ctx: loom.Context) -> list[str]:
    seen: list[str] = []

    async def numbers(name: str) -> AsyncIterator[str]:
        try:
            for number in range(5):
                yield await ctx.run(work, f"{name}{number}")
        finally:
            seen.append(await ctx.run(work, f"{name} closed"))

    async def reader(name: str, count: int) -> None:
        stream = numbers(name)
        async for got in stream:
            seen.append(f"{name}: {got}")
            count -= 1
            if not count:
                break
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator

    await asyncio.gather(reader("a", 2), reader("b", 5), reader("c", 9))
    return seen


@loom.flow
async def as_completed_of_tasks(ctx: loom.Context) -> list[str]:
    async def branch(name: str) -> str:
        return f"{name}: {await worked(ctx, name)} {await worked(ctx, name + '2')}"

    tasks = [asyncio.ensure_future(branch(name)) for name in "abcdef"]
    return [await each for each in asyncio.as_completed(tasks)]


FLOWS = (
    by_queue,
    by_lock,
    by_event,
    by_future,
    tolerant_gather,
    nested_groups,
    shielded_task,
    straggler,
    cancelled_by_itself,
    by_async_generator,
    as_completed_of_tasks,
)
