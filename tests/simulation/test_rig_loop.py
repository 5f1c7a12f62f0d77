"""The simulator's own loop: it must be an asyncio loop to its processes, and kill them cleanly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.simulation.rig.choices import Tape
from tests.simulation.rig.loop import (
    DeadlockError,
    LivelockError,
    Process,
    SimLoop,
    run_to_end,
)


def sim(seed: int = 0, **options: Any) -> SimLoop:
    return SimLoop(Tape(seed).stream("schedule"), **options)


async def programme(seen: list[str]) -> None:
    """Tasks, events, locks, queues, timeouts, cancellations and timers in one another's way."""
    loop = asyncio.get_running_loop()
    lock, event = asyncio.Lock(), asyncio.Event()
    queue: asyncio.Queue[int] = asyncio.Queue(2)

    async def holder(name: str, turns: int) -> None:
        async with lock:
            for turn in range(turns):
                seen.append(f"{name}{turn}")
                await asyncio.sleep(0)

    async def producer() -> None:
        for number in range(6):
            await queue.put(number)
            seen.append(f"put {number}")

    async def consumer() -> None:
        for _ in range(6):
            seen.append(f"got {await queue.get()}")

    async def stubborn() -> None:
        try:
            await event.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cancelled")
            raise

    loop.call_soon(seen.append, "soon")
    loop.call_later(0.02, seen.append, "later")
    loop.call_later(0.01, event.set)
    victim = asyncio.create_task(stubborn())
    async with asyncio.TaskGroup() as group:
        for name, turns in (("a", 3), ("b", 1), ("c", 2)):
            group.create_task(holder(name, turns))
        group.create_task(producer())
        group.create_task(consumer())
        await asyncio.sleep(0)
        victim.cancel()
    try:
        async with asyncio.timeout(0.005):
            await event.wait()
    except TimeoutError:
        seen.append("timeout")
    await event.wait()
    seen.append("event")
    await asyncio.gather(*(asyncio.sleep(pause) for pause in (0.03, 0.01)))
    seen.append("end")


def test_it_is_fifo_like_asyncios_own() -> None:
    """One process sees on it what it would see on the stock loop."""
    stock: list[str] = []
    asyncio.run(programme(stock))
    simulated: list[str] = []
    run_to_end(sim(), programme(simulated))
    assert simulated == stock


def test_a_process_is_fifo_whatever_the_order_of_processes() -> None:
    """Disorder is between processes, never within one."""
    stock: list[str] = []
    asyncio.run(programme(stock))
    loop = sim(3, disorder=0.9)
    processes = [Process(loop, name, "p") for name in "xyz"]
    seen: list[list[str]] = [[] for _ in processes]

    async def main() -> None:
        tasks = [
            process.spawn(programme(each)) for process, each in zip(processes, seen, strict=True)
        ]
        await asyncio.gather(*tasks)

    run_to_end(loop, main())
    assert seen == [stock] * 3


async def tidy(done: list[str]) -> None:
    try:
        done.append("began")
        await asyncio.sleep(1)
        done.append("ended")
    except BaseException:
        done.append("caught")
        raise
    finally:
        done.append("finally")


@pytest.mark.parametrize("how", ["kill", "kill_at"])
def test_a_killed_process_runs_nothing_any_more(how: str) -> None:
    """No ``finally`` and no ``except`` of it runs, and neither does what it had asked for."""
    loop = sim()
    done: list[str] = []

    async def main() -> None:
        process = Process(loop, "victim", "p", kill_at=2 if how == "kill_at" else 0)
        process.spawn(tidy(done))
        await asyncio.sleep(0.5)
        if how == "kill":
            process.kill()
        await asyncio.sleep(10)
        assert process.dead
        assert done == ["began"]

    run_to_end(loop, main())


def test_a_paused_process_goes_on_unaware() -> None:
    """Its timers ring when it wakes, in order."""
    loop = sim()
    rang: list[float] = []

    async def sleeper(process_time: float) -> None:
        await asyncio.sleep(process_time)
        rang.append(round(loop.time() - 1000, 3))

    async def main() -> None:
        process = Process(loop, "p", "p")
        for seconds in (2.0, 1.0, 9.0):
            process.spawn(sleeper(seconds))
        await asyncio.sleep(0.1)
        process.pause()
        await asyncio.sleep(5)
        assert rang == []
        process.wake()
        await asyncio.sleep(10)

    run_to_end(loop, main())
    assert rang == [5.1, 5.1, 9.0]


def test_what_is_beside_a_blocked_loop_goes_on() -> None:
    """The thread that renews the lease does not wait for user code (F7)."""
    loop = sim()
    turns = {"main": 0, "beside": 0}

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            turns[name] += 1

    async def main() -> None:
        process = Process(loop, "p", "p")
        process.spawn(tick("main"))
        context = process.context(process.beside)
        beside = context.run(asyncio.Task, tick("beside"), loop=loop, context=context)
        await asyncio.sleep(0.5)
        process.block()
        await asyncio.sleep(5)
        assert turns == {"main": 0, "beside": 5}
        process.unblock()
        await asyncio.sleep(5)
        assert turns["main"] == 5
        assert not beside.done()

    run_to_end(loop, main())


def test_a_deadlock_and_a_livelock_are_told() -> None:
    """Nothing hangs, and nothing spins for ever."""

    async def never() -> None:
        await asyncio.Event().wait()

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(DeadlockError):
        run_to_end(sim(), never())
    with pytest.raises(LivelockError):
        run_to_end(sim(max_steps=1000), spin())
    with pytest.raises(LivelockError):
        run_to_end(sim(max_time=100.0), asyncio.sleep(1000))


def test_the_same_tape_leads_to_the_same_end() -> None:
    """What was drawn can be played again; past its end the world is healthy."""

    def play(tape: Tape) -> list[str]:
        loop = SimLoop(tape.stream("schedule"), disorder=0.5)
        order: list[str] = []

        async def walk(name: str) -> None:
            for _ in range(20):
                order.append(name)
                await asyncio.sleep(0)

        async def main() -> None:
            tasks = [Process(loop, name, "p").spawn(walk(name)) for name in "abcd"]
            await asyncio.gather(*tasks)

        run_to_end(loop, main())
        return order

    first = Tape(7)
    order = play(first)
    assert play(Tape(None, first.draws())) == order
    assert play(Tape(8)) != order
    assert play(Tape(None)) == ["a", "b", "c", "d"] * 20


def test_a_stream_does_not_disturb_another() -> None:
    """A draw more in one concern leaves the others alone."""

    def draws(tape: Tape) -> list[int]:
        return [tape.stream("broker").pick("y", 1000) for _ in range(5)]

    one, other = Tape(1), Tape(1)
    one.stream("journal").pick("x", 10)
    assert draws(one) == draws(other)
