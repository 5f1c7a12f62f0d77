"""K15: sagas whose steps run side by side."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.model.events import EventKind
from tests.support.house import House, until
from tests.support.undoing import do, fail, frames, fresh, held, luck, lucky, runs, undo, world


@pytest.fixture(autouse=True)
async def hold() -> asyncio.Event:
    """A quiet world, and what lets `held` go on."""
    return fresh()


@loom.flow
async def gathered(ctx: loom.Context) -> None:
    async with ctx.saga() as saga:
        await asyncio.gather(
            saga.run(do, "a", undo=undo),
            saga.run(fail, "b", undo=undo),
            saga.run(held, "c", undo=undo),
        )


async def test_what_a_branch_still_does_is_awaited_and_undone(hold: asyncio.Event) -> None:
    """K15: `gather` leaves the others running when one fails."""
    async with House([gathered]) as house:
        handle = await house.client.start(gathered, id="g")
        await until(lambda: runs("c"))
        await until(lambda: has(house, "g", EventKind.STEP_FAILED))
        assert world == ["do a"]
        hold.set()
        with pytest.raises(loom.ExecutionFailedError, match="ValueError: b"):
            await handle.result(timeout=20)
    assert world == ["do a", "do c", "undo receipt c", "undo receipt a"]


async def has(house: House, name: str, kind: EventKind) -> bool:
    return kind in await house.kinds(name)


@loom.flow
async def group(ctx: loom.Context) -> None:
    async with ctx.saga() as saga:

        async def branch(name: str) -> None:
            await saga.run(lucky, f"{name}1", undo=undo)
            await saga.run(lucky, f"{name}2", undo=undo)
            await saga.run(lucky, "bad" if name == "x" else f"{name}3", undo=undo)

        async with asyncio.TaskGroup() as tasks:
            for name in "xyz":
                tasks.create_task(branch(name))


@pytest.mark.parametrize("seed", range(24))
async def test_whatever_the_log_says_was_done_is_undone(seed: int) -> None:
    """K15, K3: also the step that completed in the very turn in which its branch was
    cancelled; and every re-run agrees.
    """
    luck.seed(seed)
    async with House([group]) as house:
        with pytest.raises(loom.ExecutionFailedError, match="ExceptionGroup"):
            await house.client.execute(group, id="g", timeout=20)
        events = await house.log("g")
        state = fold(events)
        done = {
            msgspec.msgpack.decode((state.frames[place].result or b"")[1:])
            for place in frames(state, "lucky", FrameStatus.COMPLETED)
        }
        undone = [each.removeprefix("undo ") for each in world if each.startswith("undo")]
        assert sorted(undone) == sorted(done)
        for length in range(1, len(events) + 1, 4):
            outcome = await rehearse(group, events[:length])
            assert outcome.ok, f"after {length} of {len(events)} events: {outcome.problem}"


@loom.flow
async def branch_of_its_own(ctx: loom.Context) -> list[str]:
    async def branch(name: str) -> str:
        async with ctx.saga() as saga:
            receipt = await saga.run(do, name, undo=undo)
            if name == "b":
                await saga.run(fail, name, undo=undo)
            return receipt

    results = await asyncio.gather(*(branch(name) for name in "abc"), return_exceptions=True)
    return [str(each) for each in results]


async def test_a_saga_in_a_branch() -> None:
    """K15: undoes what the branch did, no more."""
    async with House([branch_of_its_own]) as house:
        result = await house.client.execute(branch_of_its_own, timeout=20)
    assert result == ["receipt a", "b", "receipt c"]
    assert [each for each in world if each.startswith("undo")] == ["undo receipt b"]
