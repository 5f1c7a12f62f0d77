"""Executions that change hands: drain, death, zombies, changed code (F3, F5, F7, K3, K12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

import loom_mq as loom
from loom_mq.broker import topology
from loom_mq.broker.protocol import Outgoing
from loom_mq.engine.outbox import pack_packages
from loom_mq.flows.definition import Flow
from loom_mq.journal.protocol import Append, Claim, IndexUpdate
from loom_mq.model.events import ExecutionStarted
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow, Status
from loom_mq.model.messages import Cause, Package
from tests.support.house import House, until

calls: list[str] = []


class Latch:
    """Where a step waits; made anew for each test, because events belong to a loop."""

    holding: asyncio.Event
    release: asyncio.Event


START = msgspec.msgpack.encode(ExecutionStarted(flow="held", version="1", input=b"\x00\xc0"))
KEY = ExecutionKey(DEFAULT_TENANT, "e")


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.NO_RETRY)
async def hold(what: str) -> str:
    calls.append(f"hold {what} attempt {loom.current_step().attempt}")
    Latch.holding.set()
    await Latch.release.wait()
    return what


@loom.flow
async def held(ctx: loom.Context) -> list[str]:
    return [await ctx.run(note, "before"), await ctx.run(hold, "x"), await ctx.run(note, "after")]


def version_of(name: str, step: str) -> Flow[None, str]:
    """A flow whose code asks for `step` after its gate."""

    async def body(ctx: loom.Context) -> str:
        await ctx.run(note, "first")
        await ctx.suspend(on="Deploy", type=bool)
        return await ctx.run(note if step == "note" else hold, step)

    async def changed(ctx: loom.Context) -> str:
        return await ctx.run(hold, step)

    return loom.flow(name=name)(body if step == "note" else changed)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    Latch.holding = asyncio.Event()
    Latch.release = asyncio.Event()
    async with House([held], lease=0.5) as house:
        yield house


async def test_c06_a_drained_worker_finishes_what_it_has(house: House) -> None:
    """C06, L6: work in hand is finished, nothing is recovered and nothing runs twice."""
    handle = await house.client.start(held, id="e")
    await Latch.holding.wait()
    second = await house.worker()
    draining = asyncio.ensure_future(house.workers[0].drain(5))
    Latch.release.set()
    await draining
    await house.workers[0].stop()
    assert await handle.result(timeout=5) == ["before", "x", "after"]
    assert calls == ["before", "hold x attempt 1", "after"]
    assert "EXECUTION_RECOVERED" not in await house.kinds("e")
    assert second.busy == 0


async def test_c06_a_worker_out_of_time_gives_back_at_once(house: House) -> None:
    """C06: the unfinished step goes on elsewhere without waiting for a lease; nothing failed."""
    handle = await house.client.start(held, id="e")
    await Latch.holding.wait()
    await house.worker()
    Latch.holding.clear()
    await house.workers[0].drain(0)
    await house.workers[0].stop()
    await asyncio.wait_for(Latch.holding.wait(), 5)
    Latch.release.set()
    assert await handle.result(timeout=5) == ["before", "x", "after"]
    assert calls == ["before", "hold x attempt 1", "hold x attempt 2", "after"]
    assert (await house.row("e")).attempt == 2


async def test_f7_a_dead_worker_is_taken_over_and_its_zombie_is_refused(house: House) -> None:
    """F7, C61: the lease lapses, another goes on, and the old one's result is refused."""
    handle = await house.client.start(held, id="e")
    await Latch.holding.wait()
    zombie = house.workers[0]
    await zombie._lease._drop_session()  # as if the machine slept: no renewal any more
    assert zombie._lease._task is not None
    zombie._lease._task.cancel()
    for consumer in zombie._consumers:
        await consumer.cancel()
    await house.worker()
    Latch.holding.clear()
    await asyncio.wait_for(Latch.holding.wait(), 10)
    assert (await house.row("e")).fence == 2
    Latch.release.set()  # both go on now; only one of them may write
    assert await handle.result(timeout=5) == ["before", "x", "after"]
    assert calls.count("after") == 1
    assert calls.count("before") == 1
    kinds = await house.kinds("e")
    assert kinds.count("EXECUTION_RECOVERED") == 1
    assert kinds.count("EXECUTION_COMPLETED") == 1
    fences = [envelope.fence for envelope in await house.log("e")]
    assert fences == sorted(fences)
    assert house.metrics.value("loom_superseded_total", at="append") == 1


async def test_f7_a_live_holder_is_never_preempted(house: House) -> None:
    """F7: a claim that names the right fence is refused while the holder's lease runs."""
    await house.client.start(held, id="e")
    await Latch.holding.wait()
    [verdict] = await house.journal.claim([Claim(key=KEY, owner="another", expected_fence=1)])
    assert verdict.claimed is None
    assert verdict.error is not None
    assert verdict.error.code == "held-by-live-owner"
    Latch.release.set()


async def test_j2_an_append_under_an_old_fence_is_refused(house: House) -> None:
    """J2: the fence is compared with the current one, whoever asks."""
    handle = await house.client.start(held, id="e")
    await Latch.holding.wait()
    await house.journal.acquire_fence(KEY, 1)
    log = await house.log("e")
    [verdict] = await house.journal.append(
        [
            Append(
                key=KEY,
                fence=1,
                events=(log[-1],),
                index=IndexUpdate(status=Status.RUNNING),
            )
        ]
    )
    assert verdict.error is None, "the very same envelope again is a success (J4)"
    Latch.release.set()
    await until(lambda: _superseded(house))
    assert "STEP_COMPLETED" not in (await house.kinds("e"))[4:]
    del handle


async def _superseded(house: House) -> bool:
    return house.metrics.value("loom_superseded_total", at="append") == 1


async def test_c08_the_same_package_five_times(house: House) -> None:
    """C08: duplicates while it runs and after it ended change nothing."""
    verdicts: list[object] = []
    async with house.hub.connection() as connection:
        handle = await house.client.start(held, id="e")
        await Latch.holding.wait()
        package = _package(await house.row("e"))
        for _ in range(5):
            verdicts.extend(await connection.publish([package]))
        Latch.release.set()
        result = await handle.result(timeout=5)
        log = await house.log("e")
        for _ in range(5):
            verdicts.extend(await connection.publish([package]))
        await until(lambda: _drained(house))
    assert verdicts == [None] * 10
    assert result == ["before", "x", "after"]
    assert calls == ["before", "hold x attempt 1", "after"]
    assert await house.log("e") == log


def _package(row: ExecutionRow) -> Outgoing:
    """The package that the dispatcher sent, once more."""
    return pack_packages(
        topology.work(row.queue).name,
        [Package(row.tenant, row.execution_id, row.flow, row.version, 0, Cause.START, START)],
    )


async def _drained(house: House) -> bool:
    depth = await house.workers[0]._broker.depth("loom.work.default")
    return depth is not None and depth.ready == 0 and house.workers[0].busy == 0


async def test_k3_changed_code_leaves_the_execution_untouched() -> None:
    """K3, C11: a mismatch writes nothing; the old code, put back, finishes it."""
    calls.clear()
    old, new = version_of("deployed", "note"), version_of("deployed", "hold")
    async with House([old], lease=0.5) as house:
        handle = await house.client.start(old, id="e")
        await until(lambda: _is(house, Status.SUSPENDED))
        await house.workers[0].drain(1)
        await house.workers[0].stop()
        changed = await house.worker([new])
        await handle.resume("Deploy", True, timeout=0.5)
        await until(lambda: _attempted(house))
        assert await house.kinds("e") == [
            "EXECUTION_STARTED",
            "STEP_STARTED",
            "STEP_COMPLETED",
            "EXECUTION_SUSPENDED",
        ]
        await changed.drain(1)
        await changed.stop()
        await house.worker([old])
        assert await handle.result(timeout=10) == "note"
        assert calls == ["first", "note"]


async def _attempted(house: House) -> bool:
    """The changed code has had its look, and has let go again."""
    row = await house.row("e")
    return row.attempt >= 3 and row.owner is None


async def _is(house: House, status: Status) -> bool:
    return (await house.row("e")).status is status


@loom.flow
async def swallowing(ctx: loom.Context) -> str:
    for round_ in range(3):
        try:
            await ctx.run(note, f"round {round_}")
            await ctx.sleep(0.01)
        except:  # noqa: E722
            await ctx.run(note, "swallowed")
    return "done"


async def test_k12_a_bare_except_turns_no_park_into_progress() -> None:
    """K12, C15: three rounds with a bare except around a park: each step once, no more."""
    calls.clear()
    async with House([swallowing]) as house:
        assert await house.client.execute(swallowing, id="e", timeout=10) == "done"
        assert calls == ["round 0", "round 1", "round 2"]
