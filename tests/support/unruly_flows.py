"""Flows whose steps end their own process, and what stands beside them (C68, F4)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
from datetime import UTC, datetime
from pathlib import Path

import loom_mq as loom
from tests.support.ledger import record

_HEADROOM = 300 * 1024 * 1024


def _end(how: str) -> None:
    if how == "exit":
        os._exit(0)
    ctypes.string_at(0)  # a null pointer


@loom.step(retry=loom.NO_RETRY)
async def ends_its_process(how: str, unless: str) -> str:
    """Ends the worker's process, unless a file says that it has done so before."""
    record("begun")
    if unless and Path(unless).exists():
        return "lived"
    if unless:
        Path(unless).touch()
    _end(how)
    return "never"


@loom.step(retry=loom.NO_RETRY)
def ends_its_process_in_a_thread(how: str) -> str:
    record("begun")
    _end(how)
    return "never"


@loom.step(retry=loom.Retry(attempts=2, initial=0.01))
def asks_for_too_much() -> str:
    """A MemoryError, because no more than 300 MB are left to its process."""
    record("begun")
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _HEADROOM, before[1]))
    try:
        return str(len(bytearray(4 * _HEADROOM)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@loom.flow
async def deadly(ctx: loom.Context, how: str) -> str:
    """Never gets past its first step."""
    return await ctx.run(ends_its_process, how, "")


@loom.flow
async def deadly_in_a_thread(ctx: loom.Context, how: str) -> str:
    return await ctx.run(ends_its_process_in_a_thread, how)


@loom.flow
async def deadly_once(ctx: loom.Context, plan: tuple[str, str]) -> str:
    """Gets past it at the second try."""
    how, marker = plan
    return await ctx.run(ends_its_process, how, marker)


@loom.flow
async def greedy(ctx: loom.Context) -> str:
    return await ctx.run(asks_for_too_much)


@loom.flow
async def alarm(ctx: loom.Context, due: float) -> None:
    """Sleeps until a moment, in seconds since the epoch."""
    await ctx.sleep_until(datetime.fromtimestamp(due, UTC))


@loom.step(retry=loom.NO_RETRY)
async def linger(seconds: float) -> str:
    """Takes its time; both ends are in the ledger."""
    record("begun")
    await asyncio.sleep(seconds)
    record("done")
    return "done"


@loom.flow
async def lingering(ctx: loom.Context, seconds: float) -> str:
    return await ctx.run(linger, seconds)


@loom.flow
async def deadly_itself(ctx: loom.Context, how: str) -> str:
    """Its own code ends the process, in between whatever is durable."""
    if how == "after a step":
        await ctx.run(linger, 0.0)
    if how == "after a sleep":
        await ctx.sleep(0.1)
    _end("exit")
    return "never"
