"""Failures from the field about deployments and early answers: C39, C47."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from structlog.testing import capture_logs

import loom_mq as loom
from tests.support.house import House, until

DELAY = 0.1
"""Seconds that an old worker leaves alone what it does not know; 2 in a real one."""


# ---- C39: a flow that an old worker does not know ---------------------------------------------


@loom.step
async def note(what: str) -> str:
    return what


@loom.flow
async def known(ctx: loom.Context) -> str:
    return await ctx.run(note, "f")


@loom.flow
async def fresh(ctx: loom.Context) -> str:
    await ctx.run(note, "g")
    return await ctx.suspend(on="Go", type=str)


@loom.flow(name="known", version="2")
async def known_anew(ctx: loom.Context) -> str:
    return await ctx.run(note, "f2")


async def test_c39_only_an_old_worker_for_a_while() -> None:
    """C39: 50 parked and answered, 25 new ones, 25 of another version; the old worker looks at
    each now and then, says which flow it does not know, does its own work, and loses none.
    """
    flows = (known, fresh, known_anew)
    async with House(flows, workers=0) as house:
        await house.worker([known], unknown_flow_delay=DELAY)
        new = await house.worker()
        parked = [await house.client.start(fresh, id=f"p{n}") for n in range(50)]

        async def all_parked() -> bool:
            rows = [await house.row(f"p{n}") for n in range(50)]
            return all(row.status is loom.Status.SUSPENDED for row in rows)

        await until(all_parked)
        await new.drain(1)
        await new.stop()
        ids = [
            f"{kind}{n}" for kind, many in (("p", 50), ("s", 25), ("v", 25)) for n in range(many)
        ]
        with capture_logs() as logs:
            began = house.clock.monotonic()
            await asyncio.gather(*(handle.resume("Go", "p", timeout=1) for handle in parked))
            started = [await house.client.start(fresh, id=f"s{n}") for n in range(25)]
            versions = [await house.client.start(known_anew, id=f"v{n}") for n in range(25)]
            assert await house.client.execute(known, timeout=5) == "f"

            async def looked_at_twice() -> bool:
                seen = Counter(
                    each["execution_id"] for each in logs if "flow_not_served" in str(each)
                )
                return min(seen[each] for each in ids) >= 2

            await until(looked_at_twice, within=15)
            assert await house.client.execute(known, timeout=5) == "f"
            passed = house.clock.monotonic() - began
        looks = [each for each in logs if each["event"] == "package.flow_not_served"]
        seen = Counter(each["execution_id"] for each in looks)
        assert max(seen.values()) <= passed / DELAY + 1, "it spins"
        assert {(each["flow"], each["version"]) for each in looks} == {
            ("fresh", "1"),
            ("known", "2"),
        }
        statuses = Counter([(await house.row(each)).status for each in ids])
        assert statuses == {loom.Status.SUSPENDED: 50, loom.Status.PENDING: 50}
        assert await house.journal.dead_letters() == []
        await house.worker()
        for handle in started:
            await handle.resume("Go", "s")
        results = [await handle.result(timeout=20) for handle in (*parked, *started, *versions)]
    assert results == ["p"] * 50 + ["s"] * 25 + ["f2"] * 25


# ---- C47: an answer that comes first -------------------------------------------------------------


@loom.flow
async def looks_once(ctx: loom.Context) -> str:
    """No await before its look, and no patience."""
    try:
        return await ctx.suspend(on="Signal", type=str, timeout=0)
    except loom.GateTimeoutError:
        return "none"


@pytest.mark.parametrize("answered", [True, False])
async def test_c47_an_answer_before_the_first_activation_is_there_at_the_first_look(
    answered: bool,
) -> None:
    """C47 (a): started and answered while no worker runs; found at once, or not at all."""
    async with House([looks_once]) as house:
        await house.workers[0].drain(1)
        await house.workers[0].stop()
        handle = await house.client.start(looks_once, id="e")
        if answered:
            assert await handle.resume("Signal", "got") is loom.Answered.STORED
        await house.worker()
        assert await handle.result(timeout=10) == ("got" if answered else "none")


async def test_c47_an_answer_right_behind_the_start() -> None:
    """C47 (c): there is no start with an answer, so one sent right behind it: what was taken
    was seen, and what was not seen was never said to be taken.
    """
    async with House([looks_once]) as house:

        async def one(number: int) -> tuple[str, str]:
            handle = await house.client.start(looks_once, id=f"e{number}")
            await asyncio.sleep(random.choice((0, 0, 0.001, 0.005)))
            try:
                answered = str(await handle.resume("Signal", "got"))
            except loom.ResumeRefusedError as refused:
                answered = refused.reason
            return answered, await handle.result(timeout=10)

        ends = Counter(await asyncio.gather(*(one(number) for number in range(100))))
    assert sum(ends.values()) == 100
    assert not [end for end in ends if end in (("taken", "none"), ("terminal", "got"))], ends


async def test_c47_an_answer_to_an_id_that_comes_later() -> None:
    """C47 (b): refused as not found, so its sender knows; it is not there later on."""
    async with House([looks_once]) as house:
        handle = house.client.handle("e", looks_once)
        with pytest.raises(loom.ResumeRefusedError) as refused:
            await handle.resume("Signal", "lost")
        assert refused.value.reason == "unknown-execution"
        assert await (await house.client.start(looks_once, id="e")).result(timeout=10) == "none"
