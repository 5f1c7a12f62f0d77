"""Odd moments and durations, through a whole fleet on time that is skipped (C40, C56)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

import loom_mq as loom
from loom_mq.testing import TestEnvironment

NEW_YORK = ZoneInfo("America/New_York")
SLACK = timedelta(seconds=5)
"""Real time goes on in there, too; a loaded machine takes its time."""


@pytest.fixture(autouse=True)
def _host_in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """C56: the host's own zone is that of the moments, and must not matter."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@loom.flow
async def until(ctx: loom.Context, moments: list[datetime]) -> list[datetime]:
    woken = []
    for moment in moments:
        await ctx.sleep_until(moment)
        woken.append(await ctx.now())
    return woken


@loom.flow
async def in_new_york(ctx: loom.Context, clock_times: list[str]) -> list[datetime]:
    """Wall times as a flow's author writes them; ``*`` marks the second of two."""
    woken = []
    for text in clock_times:
        wall = datetime.fromisoformat(text.rstrip("*"))
        await ctx.sleep_until(wall.replace(tzinfo=NEW_YORK, fold=text.endswith("*")))
        woken.append(await ctx.now())
    return woken


@loom.flow
async def a_day(ctx: loom.Context) -> float:
    before = await ctx.now()
    await ctx.sleep(timedelta(hours=24))
    return ((await ctx.now()) - before).total_seconds()


@loom.flow
async def odd_sleeps(ctx: loom.Context) -> dict[str, str]:
    told = {}
    for duration in (0, -1, 1e-9, float("nan"), float("inf"), 1e12, timedelta.max, timedelta.min):
        try:
            await ctx.sleep(duration)
        except loom.InputError:
            told[str(duration)] = "refused"
        else:
            told[str(duration)] = "slept"
    for moment in (
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime(1969, 7, 20, tzinfo=UTC),
        datetime(2040, 1, 1),
    ):
        try:
            await ctx.sleep_until(moment)
        except loom.InputError:
            told[str(moment)] = "refused"
        else:
            told[str(moment)] = "slept"
    return told


def assert_at(woken: list[datetime], *expected: datetime) -> None:
    assert len(woken) == len(expected)
    for found, wanted in zip(woken, expected, strict=True):
        assert timedelta(0) <= found - wanted < SLACK, (found, wanted)


async def test_c40_far_dates_are_exact() -> None:
    """C40: after 2038, and 99 years away; the order of the flow counts, not of the dates."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [datetime(2040, 1, 1, 0, 0, 0, 1, tzinfo=UTC), start + timedelta(days=99 * 365)]
    async with TestEnvironment([until], starts_at=start) as env:
        assert_at(await env.execute(until, moments), *moments)


async def test_c40_odd_durations_fire_at_once_or_are_refused() -> None:
    """C40: nothing of it parks for ever, and nothing stops the others."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    async with TestEnvironment([odd_sleeps, until], starts_at=start) as env:
        other = await env.start(until, [start + timedelta(days=1)])
        assert await env.execute(odd_sleeps) == {
            "0": "slept",
            "-1": "slept",
            "1e-09": "slept",
            "nan": "refused",
            "inf": "refused",
            "1000000000000.0": "refused",
            str(timedelta.max): "refused",
            str(timedelta.min): "slept",
            "9999-12-31 23:59:59.999999+00:00": "refused",
            "0001-01-01 00:00:00+00:00": "slept",
            "1969-07-20 00:00:00+00:00": "slept",
            "2040-01-01 00:00:00": "refused",
        }
        assert_at(await other.result(), start + timedelta(days=1))


async def test_c56_a_day_is_86400_seconds_across_the_change() -> None:
    """C56: whatever the clocks on the wall do."""
    for night in (datetime(2026, 3, 7, 12), datetime(2026, 10, 31, 12)):
        async with TestEnvironment([a_day], starts_at=night.replace(tzinfo=NEW_YORK)) as env:
            assert 86_400 <= await env.execute(a_day) < 86_405


async def test_c56_the_hour_that_does_not_exist_comes_once() -> None:
    """C56: 02:30 on 8 March 2026 in New York is read with the offset before the change."""
    start = datetime(2026, 3, 8, 5, tzinfo=UTC)
    gap = datetime(2026, 3, 8, 7, 30, tzinfo=UTC)
    async with TestEnvironment([in_new_york], starts_at=start) as env:
        run = await env.start(in_new_york, ["2026-03-08T02:30", "2026-03-08T12:00"])
        assert_at(await run.result(), gap, datetime(2026, 3, 8, 16, tzinfo=UTC))
        parks = [each for each in await run.history() if each.kind == "EXECUTION_SUSPENDED"]
        assert len(parks) == 2


async def test_c56_the_hour_that_comes_twice_is_two_moments() -> None:
    """C56: fold 0 and 1 on 1 November 2026 are an hour apart."""
    start = datetime(2026, 11, 1, tzinfo=UTC)
    async with TestEnvironment([in_new_york], starts_at=start) as env:
        woken = await env.execute(in_new_york, ["2026-11-01T01:30", "2026-11-01T01:30*"])
        first = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
        assert_at(woken, first, first + timedelta(hours=1))
