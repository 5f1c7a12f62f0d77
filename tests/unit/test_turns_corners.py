"""K3, K4, K7, K11, K13: corners that random programs led to and that their checks do not show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import loom_mq as loom
from loom_mq.flows.mail import Mail
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import fold
from loom_mq.model.events import EventKind
from loom_mq.model.execution import CANCEL_ID, DEFAULT_TENANT, InboxItem, InboxKind
from tests.support.house import House, until

calls: list[str] = []


class Latches:
    """Made anew for each test, because events belong to a loop."""

    failed: asyncio.Event
    release: asyncio.Event


@loom.step
async def note(what: str) -> str:
    calls.append(what)
    return what


@loom.step(retry=loom.Retry(attempts=2, initial=0.05, jitter=0))
async def fails_once() -> str:
    if loom.current_step().attempt == 1:
        Latches.failed.set()
        raise ValueError("not yet")
    return "done"


@loom.step
async def until_it_failed() -> None:
    await Latches.failed.wait()


@loom.step
async def held() -> None:
    await Latches.release.wait()


@loom.step
async def unwinds_slowly() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.3)


@loom.flow
async def cancels_a_sleeper(ctx: loom.Context) -> str:
    """Two sleeps end in one turn; who hears of it first cancels the other."""

    async def sleeper() -> str:
        await ctx.sleep(0.02)
        return await ctx.run(note, "slept on")

    task = asyncio.create_task(sleeper())
    await ctx.sleep(0.02)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return "cancelled"


@loom.flow
async def pauses_and_thaws(ctx: loom.Context) -> str:
    """A pause ends while the flow is about to park, which it then does not."""
    retried = asyncio.create_task(ctx.run(fails_once))
    await ctx.run(until_it_failed)
    holding = asyncio.create_task(ctx.run(held))
    sleeping = asyncio.create_task(ctx.sleep(3600))
    await holding
    sleeping.cancel()
    await retried
    return await ctx.suspend(on="Gate", type=str)


class Attempts:
    """What a flow of these tests may reach of its own worker."""

    house: House

    @classmethod
    def stir(cls) -> None:
        """Mail comes in: the engine looks again."""
        [drive] = cls.house.workers[0]._hands
        drive._changed.set()


@loom.flow
async def cleans_up_twice(ctx: loom.Context) -> str:
    """Between two shielded blocks the flow takes some turns of the event loop."""

    async def branch() -> None:
        try:
            await ctx.run(unwinds_slowly)
        finally:
            async with ctx.shield():
                await ctx.run(note, "first")
                await ctx.run(held)
            Attempts.stir()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(branch())
            await ctx.run(unwinds_slowly)
    finally:
        async with ctx.shield():
            await ctx.run(note, "second")
    return "done"


FLOWS = (cancels_a_sleeper, pauses_and_thaws, cleans_up_twice)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    calls.clear()
    for name in ("failed", "release"):
        setattr(Latches, name, asyncio.Event())
    async with House(FLOWS, workers=0) as house:
        Attempts.house = house
        yield house


async def test_k3_a_cancellation_in_the_turn_in_which_a_sleep_ends_is_not_lost(
    house: House,
) -> None:
    """K3: whoever is told first may cancel the others that are told in the same turn."""
    await house.worker()
    handle = await house.client.start(cancels_a_sleeper, id="e")
    assert await handle.result(timeout=10) == "cancelled"
    assert calls == []
    log = await house.log("e")
    [resumed] = [event for event in log if event.kind == EventKind.EXECUTION_RESUMED]
    assert len(fold(log[: resumed.seq + 1]).settled) == 2
    assert (await rehearse(cancels_a_sleeper, log)).ok


async def test_k4_a_pause_that_is_over_wakes_nobody(house: House) -> None:
    """K4, K11: a retry's pause that ended while a park was being decided is no part of a later
    park: it would wake the execution for nothing.
    """
    await house.worker()
    handle = await house.client.start(pauses_and_thaws, id="e")
    await Latches.failed.wait()
    await asyncio.sleep(0.15)  # the pause is over, and the flow waits for leave to go on
    Latches.release.set()

    async def parked() -> bool:
        return (await handle.state()).gates == ("Gate",)

    await until(parked)
    row = await house.row("e")
    assert row.wake_at is None
    assert [wait.name for wait in fold(await house.log("e")).parked_on] == ["Gate"]
    await handle.resume("Gate", "thanks")
    assert await handle.result(timeout=10) == "thanks"


async def test_k13_each_piece_of_cleanup_has_its_time(house: House) -> None:
    """K13: the time that unshielded code gets counts anew after cleanup, so that what comes
    after a long piece of it is not cut off.
    """
    await house.worker(park_drain=0.4)
    handle = await house.client.start(cleans_up_twice, id="e")

    async def working() -> bool:
        return (await house.row("e")).last_seq >= 2

    await until(working)
    await handle.cancel("enough")

    async def cleaning() -> bool:
        return "first" in calls

    await until(cleaning)
    await asyncio.sleep(0.5)  # longer than whatever counts from the cancellation
    Latches.release.set()
    with pytest.raises(loom.ExecutionCancelledError):
        await handle.result(timeout=10)
    assert calls == ["first", "second"]


def test_k7_a_cancellation_that_was_taken_is_no_mail() -> None:
    """K7, K13: it must not hide that something else has come in."""

    def item(item_id: str, kind: InboxKind) -> InboxItem:
        return InboxItem(
            tenant=DEFAULT_TENANT, execution_id="e", item_id=item_id, kind=kind, gate="Gate"
        )

    mail = Mail()
    cancel = item(CANCEL_ID, InboxKind.CANCEL)
    assert mail.add([cancel])
    assert len(mail) == 1
    mail.take_cancel()
    assert len(mail) == 0
    assert not mail.add([cancel])
    assert mail.cancel is None
    assert mail.add([item("a", InboxKind.ANSWER)])
    assert len(mail) == 1
