"""Flows made by chance: small programs of steps, branches, waits and cleanup.

A program is data, interpreted by one flow. It returns what it saw, in the order in which it
saw it, so that two runs can be compared by what flow code could observe.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import loom_mq as loom

Program = list[Any]
"""``[kind, ...]``; see `_KINDS`."""

LUCK = random.Random()
"""How long effects take; seeded by whoever runs a program."""
CALLS: Counter[str] = Counter()
"""Effects that ran, by idempotency key."""


class Refused(loom.TypedFailure[str], channel="refused"):
    """A failure that programs have a branch for."""


async def _effect(name: str) -> None:
    CALLS[loom.current_step().idempotency_key] += 1
    for _ in range(LUCK.choice((0, 0, 1, 3, 9, 30))):
        await asyncio.sleep(0)


@loom.step
async def fine(name: str) -> str:
    await _effect(name)
    return name


@loom.step(retry=loom.NO_RETRY)
async def bad(name: str) -> str:
    await _effect(name)
    raise ValueError(name)


@loom.step(failures=(Refused,))
async def refused(name: str) -> str:
    await _effect(name)
    raise Refused(name)


@loom.step(retry=loom.Retry(attempts=3, initial=0.001, jitter=0))
async def flaky(name: str) -> str:
    await _effect(name)
    if loom.current_step().attempt < 2:
        raise OSError(name)
    return name


@loom.step
async def stubborn(name: str) -> str:
    """Takes a cancellation for a hint."""
    CALLS[loom.current_step().idempotency_key] += 1
    try:
        for _ in range(40):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        await asyncio.sleep(0)
    return name


STEPS = {"fine": fine, "bad": bad, "refused": refused, "flaky": flaky, "stubborn": stubborn}


class Interpreter:
    """One run of a program."""

    def __init__(self, ctx: loom.Context) -> None:
        self._ctx = ctx
        self._count = 0
        self.seen: list[str] = []

    async def run(self, program: Program) -> None:
        """Run one node."""
        kind, *rest = program
        await getattr(self, f"_{kind}")(*rest)

    async def _step(self, which: str) -> None:
        name = f"{which}{self._count}"
        try:
            self.seen.append(await self._ctx.run(STEPS[which], name))
        except (ValueError, Refused) as error:
            self.seen.append(f"{type(error).__name__} {name}")
        self._count += 1

    async def _seq(self, *parts: Program) -> None:
        for part in parts:
            await self.run(part)

    async def _gather(self, *parts: Program) -> None:
        await asyncio.gather(*(self.run(part) for part in parts))

    async def _group(self, *parts: Program) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(self.run(part))
                tasks.create_task(self._raise())
        except* KeyError:
            self.seen.append("group failed")

    async def _raise(self) -> None:
        await self._ctx.run(fine, "raiser")
        raise KeyError("raiser")

    async def _first(self, *parts: Program) -> None:
        tasks = {asyncio.ensure_future(self.run(part)) for part in parts}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self.seen.append(f"{len(done)} of {len(tasks)}")

    async def _each(self, *parts: Program) -> None:
        tasks = [asyncio.ensure_future(self.run(part)) for part in parts]
        for number, task in enumerate(asyncio.as_completed(tasks)):
            await task
            self.seen.append(f"completion {number} at {self._count}")

    async def _branch(self, odd: Program, even: Program) -> None:
        await self.run(odd if self._count % 2 else even)

    async def _sleep(self) -> None:
        await self._ctx.sleep(0.01)
        self.seen.append(f"slept at {self._count}")

    async def _gate(self) -> None:
        self.seen.append(await self._ctx.suspend(on="Gate", type=str))

    async def _decide(self) -> None:
        self._count += await self._ctx.decide("chance", lambda: LUCK.randrange(3), type=int)

    async def _patched(self) -> None:
        self.seen.append(f"patched {self._ctx.patched('way')}")

    async def _event(self, first: Program, second: Program) -> None:
        """One branch waits for another by asyncio's own means."""
        happened = asyncio.Event()

        async def leader() -> None:
            await self.run(first)
            happened.set()

        async def follower() -> None:
            await happened.wait()
            self.seen.append(f"followed at {self._count}")
            await self.run(second)

        await asyncio.gather(leader(), follower())

    async def _tidy(self, body: Program, cleanup: Program) -> None:
        try:
            await self.run(body)
        finally:
            async with self._ctx.shield():
                await self.run(cleanup)

    async def _saga(self, body: Program) -> None:
        try:
            async with self._ctx.saga() as saga:
                await saga.run(fine, "do", undo=fine)
                await self.run(body)
                if self._count % 3 == 0:
                    raise KeyError("undo")
        except KeyError:
            self.seen.append("undone")


@loom.flow(name="program")
async def interpret(ctx: loom.Context, program: Program) -> list[str]:
    interpreter = Interpreter(ctx)
    await interpreter.run(program)
    return interpreter.seen


def make(chance: random.Random, depth: int = 3) -> Program:
    """A program of at most so many levels."""
    if depth == 0:
        return ["step", chance.choice(("fine", "fine", "bad", "refused", "flaky", "stubborn"))]
    return _KINDS[chance.choice(_WEIGHTED)](chance, depth - 1)


def _parts(kind: str, low: int, high: int) -> Callable[[random.Random, int], Program]:
    def build(chance: random.Random, depth: int) -> Program:
        return [kind, *(make(chance, depth) for _ in range(chance.randint(low, high)))]

    return build


_KINDS: dict[str, Callable[[random.Random, int], Program]] = {
    "step": lambda chance, _depth: make(chance, 0),
    "seq": _parts("seq", 2, 3),
    "gather": _parts("gather", 2, 3),
    "group": _parts("group", 1, 2),
    "first": _parts("first", 2, 3),
    "each": _parts("each", 2, 3),
    "branch": _parts("branch", 2, 2),
    "event": _parts("event", 2, 2),
    "tidy": _parts("tidy", 2, 2),
    "saga": _parts("saga", 1, 1),
    "sleep": lambda _chance, _depth: ["sleep"],
    "gate": lambda _chance, _depth: ["gate"],
    "decide": lambda _chance, _depth: ["decide"],
    "patched": lambda _chance, _depth: ["patched"],
}
_WEIGHTED = [
    *("seq", "seq", "seq", "gather", "gather", "first", "first", "each", "group", "branch"),
    *("event", "tidy", "saga", "sleep", "gate", "decide", "patched", "step", "step"),
]
