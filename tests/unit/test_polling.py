"""K16: a condition that is polled durably."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import loom_mq as loom
from loom_mq.kernel.fold import fold
from loom_mq.model.events import EventKind
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.testing import TestEnvironment, crash_everywhere
from tests.support.house import House, until

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
polls: list[int] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    polls.clear()


@loom.step
async def progress(of: int) -> int:
    polls.append(of)
    return len(polls)


@loom.flow
async def waiting(ctx: loom.Context, wanted: int) -> int:
    return await ctx.wait_until(
        progress,
        wanted,
        ready=lambda reached: reached >= wanted,
        backoff=loom.Backoff(initial=10, factor=3, maximum=60),
    )


@loom.flow
async def limited(ctx: loom.Context, wanted: int) -> int:
    try:
        return await ctx.wait_until(
            progress,
            of=wanted,
            ready=lambda reached: reached >= wanted,
            backoff=loom.Backoff(initial=40, factor=1, maximum=60),
            timeout=timedelta(seconds=100),
        )
    except TimeoutError:  # which ConditionTimeoutError is
        return -1


async def test_pauses_grow_and_what_is_ready_is_returned() -> None:
    """K16: 10, 30, 60, 60 seconds; each poll is a step of its own."""
    async with TestEnvironment([waiting], starts_at=BEGIN) as environment:
        assert await environment.execute(waiting, 5, id="w") == 5
        assert timedelta(seconds=160) <= environment.now - BEGIN < timedelta(seconds=162)
        state = fold(await environment.fleet.log(ExecutionKey(DEFAULT_TENANT, "w")))
        assert polls == [5] * 5
        assert [frame.name for frame in state.frames.values()] == ["progress"] * 5


async def test_what_is_ready_at_once_never_sleeps() -> None:
    """K16."""
    async with House([waiting]) as house:
        assert await house.client.execute(waiting, 1, id="w", timeout=20) == 1
        assert EventKind.EXECUTION_SUSPENDED not in await house.kinds("w")


async def test_no_worker_is_held_between_polls() -> None:
    """K16, F9: the execution is parked on a timer, and nobody owns it."""
    async with House([waiting]) as house:
        handle = await house.client.start(waiting, 3, id="w")

        async def parked() -> bool:
            return (await house.row("w")).status is Status.SUSPENDED

        await until(parked)
        row = await house.row("w")
        assert row.owner is None
        assert row.wake_at is not None
        await handle.cancel()


async def test_it_gives_up_after_one_last_poll() -> None:
    """K16: at 0, 40, 80 and 100 seconds."""
    async with TestEnvironment([limited], starts_at=BEGIN) as environment:
        assert await environment.execute(limited, 99) == -1
        assert timedelta(seconds=100) <= environment.now - BEGIN < timedelta(seconds=102)
        assert len(polls) == 4
        polls.clear()
        assert await environment.execute(limited, 4) == 4


@pytest.mark.parametrize(("wanted", "how_often"), [(3, 3), (99, 4)])
async def test_a_crash_anywhere_polls_on_where_it_was(wanted: int, how_often: int) -> None:
    """K16, K2: the clock is on the log, so a re-run gives up, or does not, as the first did."""
    keys: set[str] = set()

    @loom.step
    async def ask() -> int:
        keys.add(loom.current_step().idempotency_key)
        return len(keys)

    @loom.flow
    async def asking(ctx: loom.Context) -> int:
        return await ctx.wait_until(
            ask,
            ready=lambda reached: reached >= wanted,
            backoff=loom.Backoff(initial=40, factor=1),
            timeout=100,
        )

    tried = await crash_everywhere(
        asking, effects=lambda: len(keys), reset=keys.clear, starts_at=BEGIN
    )
    assert len(tried.points) > 10
    assert len(keys) == how_often


@loom.flow
async def several(ctx: loom.Context) -> list[int]:
    return await asyncio.gather(
        *(
            ctx.wait_until(progress, wanted, ready=lambda reached, n=wanted: reached >= n)  # type: ignore[misc]  # a default binds the loop's variable
            for wanted in (4, 2)
        )
    )


async def test_in_branches() -> None:
    """K16, K3: each has its own places."""
    async with TestEnvironment([several], starts_at=BEGIN) as environment:
        first, second = await environment.execute(several)
        assert first >= 4
        assert second >= 2


@loom.flow
async def mistaken(ctx: loom.Context, how: str) -> Any:
    async def later(_reached: int) -> bool:
        return True

    def fault(_reached: int) -> bool:
        raise LookupError("in ready")

    if how == "async":
        return await ctx.wait_until(progress, 1, ready=later)
    if how == "fault":
        return await ctx.wait_until(progress, 1, ready=fault)
    return await ctx.wait_until(progress, 1, ready=bool, timeout=float("nan"))


@pytest.mark.parametrize(
    ("how", "told"),
    [("async", "must be a plain function"), ("fault", "in ready"), ("nan", "not a duration")],
)
async def test_mistakes_end_the_flow(how: str, told: str) -> None:
    """K16."""
    async with House([mistaken]) as house:
        with pytest.raises(loom.ExecutionFailedError, match=told):
            await house.client.execute(mistaken, how, timeout=20)


@pytest.mark.parametrize("figures", [{"initial": 0}, {"maximum": -1}, {"factor": 0.5}])
def test_backoff_that_cannot_be(figures: dict[str, float]) -> None:
    """K16."""
    with pytest.raises(loom.ConfigurationError, match="Backoff"):
        loom.Backoff(**figures)
