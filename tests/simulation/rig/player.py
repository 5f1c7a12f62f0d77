"""The flow that plays the programs of simulated executions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import loom_mq as loom
from tests.simulation.rig.effects import Present, step_of, undo
from tests.simulation.rig.jobs import Node

Value = int | str | list[Any] | None


class Player:
    """One run of one program."""

    def __init__(self, ctx: loom.Context) -> None:
        self._ctx = ctx

    def do(self, node: Node) -> Coroutine[Any, Any, Value]:
        """Play an instruction."""
        method: Callable[[Node], Coroutine[Any, Any, Value]] = getattr(self, f"_{node.op}")
        return method(node)

    async def _seq(self, node: Node) -> Value:
        return [await self.do(kid) for kid in node.kids]

    async def _step(self, node: Node) -> Value:
        value: Value = await self._ctx.run(step_of(node), node.id, node.n)
        return value

    async def _catch(self, node: Node) -> Value:
        try:
            return await self.do(node.kids[0])
        except Exception as error:
            return name_of(error)

    async def _sleep(self, node: Node) -> Value:
        await self._ctx.sleep(node.n / 1000)
        return "slept"

    async def _decide(self, node: Node) -> Value:
        return await self._ctx.decide("choice", lambda: node.id)

    async def _emit(self, node: Node) -> Value:
        await self._ctx.emit("topic", node.id)
        return "emitted"

    async def _patched(self, node: Node) -> Value:
        return str(self._ctx.patched(f"mark {node.id}"))

    async def _gather(self, node: Node) -> Value:
        tasks = [asyncio.create_task(self.do(kid)) for kid in node.kids]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        return [name_of(each) if isinstance(each, BaseException) else each for each in ended]

    async def _saga(self, node: Node) -> Value:
        """Each instruction is followed by a step that would be undone."""
        values: list[Value] = []
        async with self._ctx.saga() as saga:
            for kid in node.kids:
                values.append(await self.do(kid))
                values.append(
                    await saga.run(step_of(done(kid)), kid.id, 0, undo=undo, undo_args=(kid.id, 0))
                )
        return values

    async def _tidy(self, node: Node) -> Value:
        """Cleanup that a cancellation does not keep from being done."""
        try:
            return await self.do(node.kids[0])
        finally:
            async with self._ctx.shield():
                await self._ctx.run(step_of(done(node)), node.id, 0)

    async def _gate(self, node: Node) -> Value:
        try:
            return await self._ctx.suspend(
                on=f"gate {node.id}", type=int, timeout=node.n / 1000 if node.n else None
            )
        except loom.GateTimeoutError:
            return "nobody"


def done(node: Node) -> Node:
    """The step that says that a node is done."""
    return Node(op="step", id=node.id, kind="work")


def name_of(error: BaseException) -> str:
    """How an error is written down."""
    return type(error).__name__


@loom.flow
async def simulated(ctx: loom.Context, again: bool) -> list[Any]:
    """Play the program of this execution."""
    value = await Player(ctx).do(Present.world.programs[ctx.execution_id])
    assert isinstance(value, list)
    return value
