"""Runs outlaws where they can do no harm: in a process of their own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

import loom_mq as loom

ROOT: Final = Path(__file__).parents[2]
WITHIN: Final = 40.0


class Told(msgspec.Struct):
    """What came of one of them.

    Attributes:
        end: what it returned, or the error that it ended with.
        others: what the executions beside it and after it returned.
    """

    name: str
    end: str
    others: list[str]


async def run_outlaws(flows: Sequence[loom.Flow[None, str]]) -> list[Told]:
    """What came of each.

    Raises:
        AssertionError: the process hung, or one of them ended it.
    """
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.outlaws", *(flow.name for flow in flows)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    hung = False
    timer = asyncio.get_running_loop().call_later(WITHIN, program.kill)
    said, complaints = await program.communicate()
    hung = not timer.cancelled() and timer.when() <= asyncio.get_running_loop().time()
    timer.cancel()
    text = complaints.decode(errors="replace")[-3000:]
    assert not hung, f"the worker hangs, or the process does not end: {text}"
    assert program.returncode == 0, f"the worker was ended ({program.returncode}): {text}"
    told = [msgspec.json.decode(line, type=Told) for line in said.splitlines() if line[:1] == b"{"]
    assert [each.name for each in told] == [flow.name for flow in flows]
    return told
