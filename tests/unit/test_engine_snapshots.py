"""J7: snapshots are taken as a log grows and at a park, and a re-run begins at the newest."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import loom_mq as loom
from loom_mq.engine.shots import Shots
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.kernel.snapshots import decode_snapshot, encode_state
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.model.snapshots import FOLD_VERSION, Snapshot
from tests.support.house import House, until

KEY = ExecutionKey(DEFAULT_TENANT, "e")
calls: list[int] = []


@loom.step
async def tick(number: int) -> int:
    calls.append(number)
    return number


@loom.flow
async def long(ctx: loom.Context, steps: int) -> int:
    total = 0
    for number in range(steps):
        total += await ctx.run(tick, number)
    total += await ctx.suspend(on="Go", type=int)
    return total + await ctx.run(tick, steps)


async def parked(house: House, steps: int) -> loom.Handle[int]:
    calls.clear()
    handle = await house.client.start(long, steps, id="e")

    async def waits() -> bool:
        return (await handle.state()).gates == ("Go",)

    await until(waits)
    return handle


async def newest(house: House) -> Snapshot | None:
    return await house.journal.snapshot(KEY)


async def test_j7_a_short_execution_has_none() -> None:
    """J7: never on the hot path of a short execution."""
    async with House([long]) as house:
        await parked(house, 5)
        assert await newest(house) is None


async def test_j7_a_park_takes_one_and_the_rerun_begins_there() -> None:
    """J7: the snapshot at a park covers the park; what follows is folded onto it; the flow is
    served from it, and no step runs twice.
    """
    async with House([long], workers=0) as house:
        await house.worker(snapshot_every=10_000)
        handle = await parked(house, 60)

        async def taken() -> bool:
            return await newest(house) is not None

        await until(taken)
        shot = await newest(house)
        assert shot is not None
        log = await house.log("e")
        assert shot.seq == log[-1].seq
        assert decode_snapshot(shot) == fold(log)
        await handle.resume("Go", 1000)
        assert await handle.result(timeout=10) == sum(range(61)) + 1000
        assert calls == list(range(61))


async def test_j7_a_rerun_believes_its_snapshot() -> None:
    """J7: the log behind a snapshot is not read: a snapshot that says otherwise is served. The
    proof that a claim begins there, and not at the first event.
    """
    async with House([long]) as house:
        handle = await parked(house, 60)
        shot = await newest(house)
        assert shot is not None
        state = decode_snapshot(shot)
        assert state is not None
        state.frames["#0"].result = b"\x00" + bytes([100])
        await house.journal.save_snapshots([(KEY, encode_state(state))])
        await handle.resume("Go", 0)
        assert await handle.result(timeout=10) == sum(range(61)) + 100


async def test_j7_one_of_a_newer_fold_is_left_alone() -> None:
    """J7: what a newer release wrote is not guessed at; the log itself tells all."""
    async with House([long]) as house:
        handle = await parked(house, 60)
        shot = await newest(house)
        assert shot is not None
        strange = Snapshot(shot.seq, FOLD_VERSION + 1, b"\xc1 no such thing")
        await house.journal.save_snapshots([(KEY, strange)])
        await handle.resume("Go", 0)
        assert await handle.result(timeout=10) == sum(range(61))
        assert calls == list(range(61))


async def test_j7_a_long_run_takes_some_on_its_way() -> None:
    """J7: ever more seldom, so that their cost per event stays the same."""
    kept: list[int] = []
    async with House([long], workers=0) as house:
        save = house.journal.save_snapshots

        async def spy(snapshots: list[tuple[ExecutionKey, Snapshot]]) -> None:
            kept.extend(shot.seq for _key, shot in snapshots)
            await save(snapshots)

        house.journal.save_snapshots = spy  # type: ignore[method-assign, assignment]
        await house.worker(snapshot_every=20)
        await parked(house, 300)
        await asyncio.sleep(0)
        assert kept[0] >= 19
        gaps = [after - before for before, after in pairwise(kept)]
        assert gaps == sorted(gaps)
        assert gaps[-1] * 4 >= kept[-1] * 0.9
        assert len(kept) < 20


def test_j7_a_snapshot_waits_for_its_last_event() -> None:
    """J7: the fold runs ahead of the log; a snapshot must not know more than its log does."""
    kept: list[Snapshot] = []
    state = ExecutionState(status=loom.Status.RUNNING, last_seq=30)
    shots = Shots(state, -1, 20, kept.append)
    shots.written(25)
    assert kept == []
    state.last_seq = 40
    shots.written(29)
    assert kept == []
    shots.written(35)
    assert [shot.seq for shot in kept] == [30]
