"""K2, K3, K11, K13, F3: generated flows, whose workers die at any write, and some of which are
cancelled on the way.

``LOOM_PROGRAMS=2000 pytest tests/simulation`` runs so many, from seed ``LOOM_SEED`` on.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from loom_mq.errors import ExecutionEndedError
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import FrameStatus, decode_payload, fold
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import Status
from loom_mq.testing import Run, TestEnvironment
from loom_mq.testing.comparing import Ended
from loom_mq.testing.crashes import ID, Runner
from loom_mq.testing.doom import CrashPoint, Doom
from tests.simulation import programs

PROGRAMS = int(os.environ.get("LOOM_PROGRAMS", "100"))
SEED = int(os.environ.get("LOOM_SEED", "1"))
CHUNK = 20
_ENDS = (EventKind.EXECUTION_COMPLETED, EventKind.EXECUTION_FAILED, EventKind.EXECUTION_CANCELLED)


async def play(seed: int) -> None:
    """One program, once undisturbed and a few times with a death."""
    chance = random.Random(seed)
    program = programs.make(chance, chance.randint(2, 4))
    while _may_leave_its_gate(program):
        program = programs.make(chance, chance.randint(2, 4))
    cancelled = chance.random() < 0.25 and "gate" not in repr(program)
    moment = chance.randint(1, 60)

    async def cancel(_environment: TestEnvironment, run: Run[Any]) -> None:
        if cancelled:
            for _ in range(moment):
                await asyncio.sleep(0)
            with suppress(ExecutionEndedError):
                await run.cancel("chance")

    def reset() -> None:
        programs.CALLS.clear()
        programs.LUCK.seed(chance.random())

    runner = Runner(
        programs.interpret,
        program,
        (programs.interpret,),
        {"Gate": "opened"},
        cancel,
        None,
        reset,
        datetime(2026, 1, 1, tzinfo=UTC),
        20.0,
    )
    undisturbed = Doom(None)
    try:
        await check(program, await runner.run(undisturbed), deaths=0)
        for _ in range(3):
            write = chance.randint(1, len(undisturbed.writes) + 1)
            doom = Doom(CrashPoint(write=write, landed=chance.random() < 0.5))
            ended = await runner.run(doom)
            await check(program, ended, deaths=int(doom.point is not None))
    except BaseException as error:
        error.add_note(f"LOOM_SEED={seed} LOOM_PROGRAMS=1, program {program}")
        raise


def _may_leave_its_gate(program: programs.Program) -> bool:
    """Whether an answer may come to a gate that the flow has left: lawful, and whoever sent it
    waits ten seconds for it to be taken, which would be all that this test does.
    """
    text = repr(program)
    return "gate" in text and ("first" in text or "group" in text)


async def check(program: programs.Program, ended: Ended, *, deaths: int) -> None:
    """What must hold of any run."""
    log, state = ended.log, ended.state
    assert state.status in (Status.COMPLETED, Status.CANCELLED), state.failure
    assert [event.seq for event in log] == list(range(len(log)))
    assert [event.kind for event in log if event.kind in _ENDS] == [log[-1].kind], "S7"
    row = ended.row
    assert (row.status, row.last_seq, row.error) == (state.status, state.last_seq, None), "S6"
    _check_effects(log, deaths)
    for length in range(1, len(log) + 1):
        outcome = await rehearse(programs.interpret, log[:length])
        assert outcome.ok, f"S13 after {length} of {len(log)} events: {outcome.problem}"


def _check_effects(log: Sequence[Envelope], deaths: int) -> None:
    """S9, S10: what completed never ran again, and an interrupted effect only for a reason."""
    completed: set[str] = set()
    starts: dict[str, int] = {}
    again: dict[str, int] = {}
    for event in log:
        match decode_payload(event):
            case ev.StepStarted(step_id=place):
                assert place not in completed, f"S9: {place} ran again after it had completed"
                starts[place] = starts.get(place, 0) + 1
            case ev.StepCompleted(step_id=place):
                completed.add(place)
            case ev.StepRetrying(step_id=place) | ev.StepCancelled(step_id=place):
                again[place] = again.get(place, 0) + 1
            case ev.StepFailed(step_id=place):
                again[place] = again.get(place, 0) + 1
    for place, count in starts.items():
        assert count <= 1 + again.get(place, 0) + deaths, f"S10: {place} started {count} times"
    frames = fold(log).frames
    for key, calls in programs.CALLS.items():
        place = key.removeprefix(f"default/{ID}/")
        assert calls <= starts[place], f"S10: {place} was called {calls} times"
        if frames[place].status is FrameStatus.COMPLETED:
            assert calls >= 1, f"{place} completed without its effect"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEED, SEED + PROGRAMS, CHUNK))
async def test_generated_flows(first: int) -> None:
    """Every program ends, and every prefix of its log leads where it led."""
    for seed in range(first, min(first + CHUNK, SEED + PROGRAMS)):
        async with asyncio.timeout(60):
            await play(seed)
