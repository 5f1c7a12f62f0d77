"""The flow that plays random programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, NoReturn

import loom_mq as loom
from tests.simulation.random_programs import FLAVOURS, Node
from tests.simulation.world import STEPS, UNDO, UNDO_FAILS, Declined, Present, World


class ProgramError(Exception):
    """A program raises it on purpose."""


class Player:
    """One run of the program by flow code."""

    def __init__(self, ctx: loom.Context, world: World) -> None:
        self.seen: list[str] = []
        self.final: list[str] | None = None
        self._ctx = ctx
        self._world = world
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._locks = [asyncio.Lock() for _ in range(2)]

    async def play(self) -> list[str]:
        """All of it."""
        try:
            await self._do(self._world.program)
        except Exception as error:
            self._see(self._world.program, f"escaped {_name(error)}")
            if self._world.program.flag:
                self._end()
                raise ProgramError(" ".join(self.seen)) from error
        except asyncio.CancelledError:
            self._see(self._world.program, "cancelled")
            self._end()
            raise
        self._end()
        return list(self.seen)

    @property
    def over(self) -> bool:
        """Whether the engine is taking this run apart."""
        return self._ctx._activation._desk.over

    def _end(self) -> None:
        if not self.over:
            self.final = list(self.seen)

    def _see(self, node: Node, what: object = "") -> None:
        if not self.over:
            self.seen.append(f"{node.op}{node.id}:{what}@{self._count}")

    def _do(self, node: Node) -> Coroutine[Any, Any, None]:
        method: Callable[[Node], Coroutine[Any, Any, None]] = getattr(self, f"_{node.op}")
        return method(node)

    def _task(self, node: Node) -> asyncio.Task[None]:
        task = asyncio.create_task(self._do(node))
        self._tasks.append(task)
        return task

    # ---- one after the other ------------------------------------------------------------

    async def _seq(self, node: Node) -> None:
        for kid in node.kids:
            await self._do(kid)

    def _chosen(self, node: Node) -> loom.Step[[int], int]:
        return STEPS[node.name][(self._count if node.flag else node.n) % FLAVOURS]

    async def _step(self, node: Node) -> None:
        try:
            value = await self._ctx.run(self._chosen(node), node.id)
        except asyncio.CancelledError:
            self._see(node, "cancelled")
            raise
        except Exception as error:
            self._see(node, _name(error))
            raise
        self._see(node, value)

    async def _bump(self, node: Node) -> None:
        self._count += node.n
        self._see(node)

    async def _pick(self, node: Node) -> None:
        await self._do(node.kids[self._count % len(node.kids)])

    async def _hop(self, node: Node) -> None:
        for _ in range(node.n):
            await asyncio.sleep(0)
        self._see(node)

    async def _sleep(self, node: Node) -> None:
        await self._ctx.sleep(node.n / 1000)
        self._see(node)

    async def _until(self, node: Node) -> None:
        moment = await self._ctx.now()
        self._see(node)
        if node.kids:
            await self._do(node.kids[0])
        await self._ctx.sleep_until(moment + timedelta(milliseconds=node.n))
        self._see(node)

    async def _gate(self, node: Node) -> None:
        try:
            answer = await self._ctx.suspend(
                on=node.name, type=int, timeout=node.n / 1000 if node.n else None
            )
        except loom.GateTimeoutError:
            self._see(node, "nobody")
        else:
            self._count += answer
            self._see(node, answer)

    async def _decide(self, node: Node) -> None:
        self._see(node, await self._ctx.decide(f"d{node.n}", lambda: node.id))

    async def _emit(self, node: Node) -> None:
        await self._ctx.emit(f"t{node.n}", node.id)
        self._see(node)

    async def _patched(self, node: Node) -> None:
        self._see(node, self._ctx.patched(f"p{node.n}"))

    async def _poll(self, node: Node) -> None:
        seen = 0

        def ready(_value: int) -> bool:
            nonlocal seen
            seen += 1
            return seen > node.n

        await self._ctx.wait_until(
            STEPS["work"][0], node.id, ready=ready, backoff=loom.Backoff(initial=0.02)
        )
        self._see(node)

    async def _raise(self, node: Node) -> NoReturn:
        self._see(node)
        raise ProgramError(str(node.id))

    # ---- side by side ------------------------------------------------------------------

    async def _gather(self, node: Node) -> None:
        found = await asyncio.gather(
            *(self._do(kid) for kid in node.kids), return_exceptions=node.flag
        )
        self._see(node, ",".join(_name(each) for each in found))

    async def _group(self, node: Node) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for kid in node.kids:
                    self._tasks.append(group.create_task(self._do(kid)))
        except ExceptionGroup as error:
            self._see(node, ",".join(_name(each) for each in error.exceptions))
            raise
        self._see(node)

    async def _race(self, node: Node) -> None:
        tasks = [self._task(kid) for kid in node.kids]
        when = asyncio.FIRST_EXCEPTION if node.flag else asyncio.FIRST_COMPLETED
        done, pending = await asyncio.wait(tasks, return_when=when)
        self._see(node, ",".join(str(tasks.index(task)) for task in done))
        for task in pending:
            task.cancel()
        found = await asyncio.gather(*pending, return_exceptions=True)
        self._see(node, ",".join(_name(each) for each in found))
        for task in done:
            task.result()

    async def _completed(self, node: Node) -> None:
        tasks = [self._task(kid) for kid in node.kids]
        for each in asyncio.as_completed(tasks):
            try:
                await each
            except Exception as error:
                self._see(node, _name(error))
            else:
                self._see(node)

    async def _spawn(self, node: Node) -> None:
        self._task(node.kids[0])
        self._see(node)

    async def _nudge(self, node: Node) -> None:
        """Cancel some task that may be anywhere by now."""
        if self._tasks:
            task = self._tasks[node.n % len(self._tasks)]
            self._see(node, task.cancel())

    async def _lock(self, node: Node) -> None:
        async with self._locks[node.n % 2]:
            self._see(node, "in")
            await self._do(node.kids[0])
        self._see(node, "out")

    # ---- when things go wrong ------------------------------------------------------------

    async def _catch(self, node: Node) -> None:
        body, *handler = node.kids
        try:
            await self._do(body)
        except Exception as error:
            self._see(node, _name(error))
        except asyncio.CancelledError:
            self._see(node, "cancelled")
            if not node.flag:
                raise
        for kid in handler:
            await self._do(kid)

    async def _tidy(self, node: Node) -> None:
        body, cleanup = node.kids
        try:
            await self._do(body)
        finally:
            self._see(node, "tidying")
            if node.flag:
                async with self._ctx.shield():
                    await self._do(cleanup)
            else:
                await self._do(cleanup)

    async def _saga(self, node: Node) -> None:
        try:
            async with self._ctx.saga() as saga:
                for kid in node.kids:
                    if kid.op == "step":
                        undo = UNDO_FAILS if kid.id % 7 == 0 else UNDO
                        value = await saga.run(self._chosen(kid), kid.id, undo=undo)
                        self._see(kid, value)
                    else:
                        await self._do(kid)
        except (Exception, asyncio.CancelledError) as error:
            self._see(node, _name(error))
            raise
        self._see(node)


def _name(found: object) -> str:
    if isinstance(found, BaseExceptionGroup):
        return f"[{' '.join(_name(each) for each in found.exceptions)}]"
    if isinstance(found, ValueError | Declined):
        return f"{type(found).__name__}({found})"
    return type(found).__name__


PLAYERS: Final[list[Player]] = []
"""The runs of the flow's code, oldest first."""


@loom.flow(name="generated")
async def generated(ctx: loom.Context) -> list[str]:
    """Plays the program of the present world."""
    player = Player(ctx, Present.world)
    PLAYERS.append(player)
    return await player.play()
