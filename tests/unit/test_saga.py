"""K15: what was done is undone in reverse order, each once, whatever ended the block."""

from __future__ import annotations

import asyncio

import pytest

import loom_mq as loom
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import FrameStatus, fold
from loom_mq.model.events import EventKind
from loom_mq.testing import Run, crash_everywhere
from tests.support.house import House, until
from tests.support.undoing import do, fail, frames, fresh, held, runs, undo, undo_badly, world


@pytest.fixture(autouse=True)
async def hold() -> asyncio.Event:
    """A quiet world, and what lets `held` go on."""
    return fresh()


@loom.flow
async def order(ctx: loom.Context, end: str) -> str:
    async with ctx.saga() as saga:
        await saga.run(do, "a", undo=undo)
        await saga.run(do, "b", undo=undo, undo_args=("b by hand",))
        await saga.run(do, "c", undo=undo, undo_args=lambda receipt: (receipt.upper(),))
        saga.add(undo, what="d by name")
        if end == "gate":
            return await ctx.suspend(on="Go", type=str)
        if end == "held":
            return await saga.run(held, "e", undo=undo)
        if end == "unsure":
            await saga.run(held, "e", undo=undo, undo_args=("e",), undo_if_unsure=True)
        if end == "fails unsure":
            await saga.run(fail, "e", undo=undo, undo_args=("e",), undo_if_unsure=True)
        if end != "well":
            await saga.run(fail, end, undo=undo)
    return "done"


UNDONE = ["undo d by name", "undo RECEIPT C", "undo b by hand", "undo receipt a"]
DONE = ["do a", "do b", "do c"]


async def test_a_failure_that_leaves_the_block_undoes_in_reverse() -> None:
    """K15, S18: with the result, with what was given, and what was registered by hand; the
    failed step is not undone, and its error goes on.
    """
    async with House([order]) as house:
        with pytest.raises(loom.ExecutionFailedError, match="ValueError: no stock"):
            await house.client.execute(order, "no stock", id="o", timeout=20)
        assert world == [*DONE, *UNDONE]
        outcome = await rehearse(order, await house.log("o"))
        assert outcome.ok, outcome.problem


async def test_a_block_that_ends_well_undoes_nothing() -> None:
    """K15."""
    async with House([order]) as house:
        assert await house.client.execute(order, "well", timeout=20) == "done"
    assert world == DONE


async def test_a_step_that_failed_is_undone_if_unsure() -> None:
    """K15, K6: its effect may have taken place."""
    async with House([order]) as house:
        with pytest.raises(loom.ExecutionFailedError, match="ValueError: e"):
            await house.client.execute(order, "fails unsure", timeout=20)
    assert world == [*DONE, "undo e", *UNDONE]


@pytest.mark.parametrize(
    ("end", "undone"), [("held", UNDONE), ("unsure", ["undo e", *UNDONE]), ("gate", UNDONE)]
)
async def test_a_cancellation_undoes_and_is_final_then(end: str, undone: list[str]) -> None:
    """K15, K13: a step in flight may have had its effect: undone if that was asked for. A
    parked flow is undone too.
    """
    async with House([order]) as house:
        handle = await house.client.start(order, end, id="o")
        if end == "gate":
            await until(lambda: at_gate(house, "o"))
        else:
            await until(lambda: runs("e"))
        await handle.cancel("changed my mind")
        with pytest.raises(loom.ExecutionCancelledError, match="changed my mind"):
            await handle.result(timeout=20)
        assert world == [*DONE, *undone]
        kinds = await house.kinds("o")
        assert kinds[-1] == EventKind.EXECUTION_CANCELLED
        assert len(frames(fold(await house.log("o")), "undo", FrameStatus.COMPLETED)) == len(undone)
        outcome = await rehearse(order, await house.log("o"))
        assert outcome.ok, outcome.problem


async def at_gate(house: House, name: str) -> bool:
    return bool((await house.row(name)).gates)


async def test_a_park_undoes_nothing(hold: asyncio.Event) -> None:
    """K12, K15: neither does the worker's stop, with which the flow is taken apart."""
    async with House([order]) as house:
        handle = await house.client.start(order, "gate", id="o")
        await until(lambda: at_gate(house, "o"))
        await handle.resume("Go", "gone")
        assert await handle.result(timeout=20) == "gone"
        assert world == DONE
        handle = await house.client.start(order, "held", id="p")
        await until(lambda: runs("e"))
        await house.workers[0].stop()
        await house.worker()
        hold.set()
        assert await handle.result(timeout=20) == "receipt e"
        assert [each for each in world if each.startswith("undo")] == []


@loom.flow
async def goes_on(ctx: loom.Context) -> list[str]:
    seen = []
    async with ctx.saga() as saga:
        await saga.run(do, "a", undo=undo)
        try:
            await saga.run(fail, "b", undo=undo)
        except ValueError as error:
            await saga.undo()
            await saga.undo()
            seen.append(str(error))
        await saga.run(do, "c", undo=undo)
        try:
            await saga.run(fail, "d", undo=undo)
        except ValueError:
            await saga.undo()
        await saga.run(do, "e", undo=undo)
    return seen


async def test_a_caught_failure_can_be_undone_by_hand() -> None:
    """K15: each once, what comes later for itself, and the flow goes on."""
    async with House([goes_on]) as house:
        assert await house.client.execute(goes_on, timeout=20) == ["b"]
    assert world == ["do a", "undo receipt a", "do c", "undo receipt c", "do e"]


@loom.flow
async def badly(ctx: loom.Context, how: str) -> str:
    try:
        async with ctx.saga() as saga:
            await saga.run(do, "a", undo=undo)
            await saga.run(do, "b", undo=undo_badly)
            await saga.run(do, "c", undo=undo, undo_args=lambda receipt: [receipt])  # type: ignore[arg-type,return-value]  # what is refused
            await saga.run(do, "d", undo=undo)
            if how == "hand":
                try:
                    await ctx.run(fail, "by hand")
                except ValueError:
                    await saga.undo()
            if how == "held":
                await ctx.run(held, "e")
            await ctx.run(fail, "escaped")
    except loom.CompensationFailedError as error:
        if how != "caught":
            raise
        return f"{','.join(error.steps)} after {error.__cause__!r}"
    return "not reached"


async def test_a_compensation_that_fails_does_not_stop_the_others() -> None:
    """K15: at the end an error names those that failed; what ended the block is its cause."""
    async with House([badly]) as house:
        with pytest.raises(loom.ExecutionFailedError) as caught:
            await house.client.execute(badly, "escaped", id="x", timeout=20)
        assert caught.value.error_type == "CompensationFailedError"
        told = str(caught.value)
        assert "undo (ConfigurationError" in told
        assert "undo_badly (OSError: cannot undo receipt b)" in told
        undoing = ["do d", "undo receipt d", "try receipt b", "undo receipt a"]
        assert world[3:] == undoing
        state = fold(await house.log("x"))
        assert len(frames(state, "undo_badly", FrameStatus.FAILED)) == 1
        assert state.failure is not None
        assert state.failure.causes[0].message == "escaped"

        again = await house.client.execute(badly, "caught", timeout=20)
        assert again == "undo,undo_badly after ValueError('escaped')"

        world.clear()
        with pytest.raises(loom.ExecutionFailedError, match="CompensationFailedError"):
            await house.client.execute(badly, "hand", timeout=20)
        assert world[3:] == undoing  # once, not again as the block is left


async def test_a_cancellation_whose_undoing_fails_is_one_all_the_same() -> None:
    """K13, K15: the log tells which step failed."""
    async with House([badly]) as house:
        handle = await house.client.start(badly, "held", id="x")
        await until(lambda: runs("e"))
        await handle.cancel("over")
        with pytest.raises(loom.ExecutionCancelledError, match="over"):
            await handle.result(timeout=20)
        assert world[3:] == ["do d", "undo receipt d", "try receipt b", "undo receipt a"]
        assert len(frames(fold(await house.log("x")), "undo_badly", FrameStatus.FAILED)) == 1


@loom.flow
async def nested(ctx: loom.Context) -> None:
    async with ctx.saga() as outer:
        await outer.run(do, "a", undo=undo)
        async with ctx.saga() as kept:
            await kept.run(do, "kept", undo=undo)
        async with ctx.saga() as inner:
            await inner.run(do, "b", undo=undo)
            await outer.run(do, "c", undo=undo)
            await inner.run(do, "d", undo=undo)
            raise KeyError("inside")


async def test_sagas_inside_sagas() -> None:
    """K15: the inner one first; one that ended well stays as it is."""
    async with House([nested]) as house:
        with pytest.raises(loom.ExecutionFailedError, match="KeyError"):
            await house.client.execute(nested, timeout=20)
    undone = ["undo receipt d", "undo receipt b", "undo receipt c", "undo receipt a"]
    assert world == ["do a", "do kept", "do b", "do c", "do d", *undone]


@pytest.mark.parametrize("end", ["no stock", "cancelled"])
async def test_a_crash_anywhere_resumes_and_undoes_each_once(end: str) -> None:
    """K15, S18: each compensation completes once, wherever the worker died."""
    keys: set[str] = set()

    @loom.step
    async def note(what: str) -> str:
        keys.add(f"{loom.current_step().idempotency_key} {what}")
        return what

    @loom.flow
    async def trip(ctx: loom.Context) -> None:
        async with ctx.saga() as saga:
            for name in "ab":
                await saga.run(note, name, undo=note, undo_args=(f"undo {name}",))
            if end == "cancelled":
                await ctx.suspend(on="Never", type=str)
            await ctx.run(fail, end)

    async def cancel(_environment: object, run: Run[None]) -> None:
        await run.reach("Never")
        await run.cancel("over")

    tried = await crash_everywhere(
        trip,
        effects=lambda: frozenset(keys),
        reset=keys.clear,
        drive=cancel if end == "cancelled" else None,
    )
    assert len(tried.points) > 10
    assert len({key.partition(" ")[2] for key in keys}) == len(keys) == 4


@loom.flow
async def misused(ctx: loom.Context, how: str) -> None:
    saga = ctx.saga()
    if how == "before":
        saga.add(undo, "x")
    async with saga:
        if how == "no step":
            await saga.run(do, "a", undo=undo.function)  # type: ignore[arg-type]  # what is refused
        if how == "no result":
            await saga.run(do, "a", undo=undo, undo_if_unsure=True)
        if how == "no tuple":
            await saga.run(do, "a", undo=undo, undo_args="ab")  # type: ignore[arg-type]  # what is refused
    if how == "after":
        await saga.run(do, "a", undo=undo)
    async with saga:
        pass


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("before", "UnsupportedInFlowError", "inside its block only"),
        ("after", "UnsupportedInFlowError", "inside its block only"),
        ("twice", "UnsupportedInFlowError", "entered once"),
        ("no step", "ConfigurationError", "must be one itself"),
        ("no result", "ConfigurationError", "needs undo_args as a tuple"),
        ("no tuple", "ConfigurationError", "must be a tuple or a function"),
    ],
)
async def test_what_would_undo_nothing_is_refused(how: str, error: str, told: str) -> None:
    """K15: before anything is done."""
    async with House([misused]) as house:
        with pytest.raises(loom.ExecutionFailedError, match=told) as caught:
            await house.client.execute(misused, how, timeout=20)
    assert caught.value.error_type == error
    assert world == []
