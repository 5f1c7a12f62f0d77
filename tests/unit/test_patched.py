"""K3: code changes while executions are under way."""

from __future__ import annotations

import pytest

import loom_mq as loom
from loom_mq.clock import JournalClock
from loom_mq.flows.rehearsal import rehearse
from loom_mq.journal.memory import MemoryJournal
from tests.support.house import House, until

calls: list[str] = []


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step
async def check(what: str) -> str:
    calls.append(f"check {what}")
    return what


@loom.flow(name="ship")
async def old(ctx: loom.Context) -> str:
    await ctx.run(note, "first")
    await ctx.suspend(on="Go", type=bool)
    await ctx.run(note, "ship")
    return "old"


@loom.flow(name="ship")
async def new(ctx: loom.Context) -> str:
    checked = False
    await ctx.run(note, "first")
    if ctx.patched("check-first"):
        await ctx.run(check, "early")
        checked = True
    await ctx.suspend(on="Go", type=bool)
    if ctx.patched("check-late"):
        await ctx.run(check, "late")
    await ctx.run(note, "ship")
    return f"new {checked}"


@loom.flow(name="ship")
async def broken(ctx: loom.Context) -> str:
    await ctx.run(check, "first")
    return "broken"


@pytest.fixture
async def journal() -> MemoryJournal:
    calls.clear()
    return MemoryJournal(JournalClock())


async def started(house: House, flow: loom.Flow[None, str], execution_id: str) -> None:
    handle = await house.client.start(flow, id=execution_id)

    async def parked() -> bool:
        return (await handle.state()).gates == ("Go",)

    await until(parked)


async def test_k3_old_executions_go_on_as_they_began(journal: MemoryJournal) -> None:
    """K3: what an execution went past with the old code stays the old way; what is still
    ahead of it goes the new way, and every later re-run does the same.
    """
    async with House([old], journal=journal) as house:
        await started(house, old, "before")
    async with House([new], journal=journal) as house:
        await started(house, new, "after")
        calls.clear()
        for execution_id in ("before", "after"):
            await house.client.handle(execution_id, new).resume("Go", True)
        assert await house.client.handle("before", new).result(timeout=5) == "new False"
        assert await house.client.handle("after", new).result(timeout=5) == "new True"
        assert sorted(calls) == ["check late", "check late", "ship", "ship"]
        for execution_id in ("before", "after"):
            log = await house.log(execution_id)
            for length in range(1, len(log) + 1):
                outcome = await rehearse(new, log[:length])
                assert outcome.ok, outcome.problem


async def test_k3_a_patch_in_a_loop_changes_at_the_round_where_the_code_did(
    journal: MemoryJournal,
) -> None:
    """K3: each round of a loop asks anew, and is answered as the first time."""

    def looping(*, patched: bool) -> loom.Flow[None, list[str]]:
        async def body(ctx: loom.Context) -> list[str]:
            seen = []
            for number in range(4):
                if patched and ctx.patched("loud"):
                    seen.append(await ctx.run(check, f"{number}"))
                seen.append(await ctx.run(note, f"{number}"))
                if number == 1:
                    await ctx.suspend(on="Go", type=bool)
            return seen

        return loom.flow(name="looping")(body)

    plain, changed = looping(patched=False), looping(patched=True)
    async with House([plain], journal=journal) as house:
        handle = await house.client.start(plain, id="e")

        async def parked() -> bool:
            return (await handle.state()).gates == ("Go",)

        await until(parked)
    async with House([changed], journal=journal) as house:
        again = house.client.handle("e", changed)
        await again.resume("Go", True)
        assert await again.result(timeout=5) == ["0", "1", "2", "2", "3", "3"]
        assert (await rehearse(changed, await house.log("e"))).ok


async def test_k3_a_mismatch_is_on_the_row_until_the_code_fits(journal: MemoryJournal) -> None:
    """K3, C11: left as it was, listed with the difference; the old code lets it finish."""
    async with House([old], journal=journal) as house:
        await started(house, old, "e")
        log = await house.log("e")
    async with House([broken], journal=journal) as house:
        await house.client.handle("e", old).resume("Go", True)

        async def troubled() -> bool:
            return (await house.row("e")).trouble is not None

        await until(troubled)
        trouble = (await house.row("e")).trouble or ""
        assert "place #0" in trouble
        assert "a step 'note'" in trouble
        assert "a step 'check'" in trouble
        assert "test_patched.py" in trouble
        assert await house.log("e") == log
    async with House([old], journal=journal) as house:
        assert await house.client.handle("e", old).result(timeout=10) == "old"
        assert (await house.row("e")).trouble is None


async def test_k3_patched_belongs_to_flow_code(journal: MemoryJournal) -> None:
    """K3: a step is no place to ask."""

    @loom.step
    async def sly(_what: str) -> bool:
        return contexts[0].patched("x")

    contexts: list[loom.Context] = []

    async def body(ctx: loom.Context) -> bool:
        contexts.append(ctx)
        return await ctx.run(sly, "")

    flow: loom.Flow[None, bool] = loom.flow(name="sly")(body)
    async with House([flow], journal=journal) as house:
        with pytest.raises(loom.ExecutionFailedError, match="outside its flow's own code"):
            await (await house.client.start(flow)).result(timeout=10)


@loom.flow(name="ship")
async def cut_short(ctx: loom.Context) -> str:
    return await ctx.run(note, "first")


@loom.flow(name="typed")
async def takes_text(ctx: loom.Context, what: str) -> str:
    return await ctx.suspend(on="Go", type=str)


@loom.flow(name="typed")
async def takes_number(ctx: loom.Context, what: int) -> str:
    return await ctx.suspend(on="Go", type=str)


async def test_k3_code_that_ends_before_its_log_does_is_a_mismatch(
    journal: MemoryJournal,
) -> None:
    """K3: what the log holds beyond the end of the changed code was never undone; the execution
    is not ended over it.
    """
    async with House([old], journal=journal) as house:
        await started(house, old, "e")
    async with House([cut_short], journal=journal) as house:
        await house.client.handle("e", old).resume("Go", True)

        async def troubled() -> bool:
            return "gate 'Go'" in ((await house.row("e")).trouble or "")

        await until(troubled)
        assert (await house.row("e")).status is loom.Status.SUSPENDED


async def test_k3_an_input_that_does_not_decode_any_more_is_a_mismatch(
    journal: MemoryJournal,
) -> None:
    """K3: a deployment that changes a flow's input type cannot fail what is under way."""
    async with House([takes_text], journal=journal) as house:
        handle = await house.client.start(takes_text, "seven", id="e")

        async def parked() -> bool:
            return (await handle.state()).gates == ("Go",)

        await until(parked)
    async with House([takes_number], journal=journal) as house:
        await house.client.handle("e", takes_number).resume("Go", "on")

        async def troubled() -> bool:
            return "input does not decode" in ((await house.row("e")).trouble or "")

        await until(troubled)
    async with House([takes_text], journal=journal) as house:
        assert await house.client.handle("e", takes_text).result(timeout=10) == "on"
