"""One program under its mishaps, and what must be so afterwards."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import structlog

from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import CANCEL_PLACE, ExecutionState, FrameStatus, decode_payload, fold
from loom_mq.kernel.snapshots import decode_snapshot
from loom_mq.model import events as ev
from loom_mq.model.events import Envelope, EventKind
from loom_mq.model.execution import ExecutionRow
from loom_mq.model.verdicts import VerdictKind
from tests.simulation.mishaps import ID, KEY, Fleet, Mishaps
from tests.simulation.player import PLAYERS, Player, generated
from tests.simulation.random_programs import ONCE, Node
from tests.simulation.virtual_time import SpinError, VirtualClock, VirtualLoop, run_virtually
from tests.simulation.world import Call, Present, World

TOO_LONG: Final = 120.0
"""Virtual seconds."""
_ENDS: Final = frozenset(
    {EventKind.EXECUTION_COMPLETED, EventKind.EXECUTION_FAILED, EventKind.EXECUTION_CANCELLED}
)
_BAD_NEWS: Final = frozenset({"execution.code_mismatch", "package.crashed", "sweep.crashed"})


class Trial(msgspec.Struct):
    """What came of one program.

    Attributes:
        problems: what must not be; none when all is well.
    """

    problems: list[str]
    log: list[Envelope] = []
    status: str = ""
    deaths: int = 0
    drains: int = 0
    turns: int = 0


def attempt(program: Node, mishaps: Mishaps, seed: int) -> Trial:
    """Run a program and check everything."""
    trial = Trial([])
    with structlog.testing.capture_logs() as told:
        try:
            run_virtually(lambda loop: _Attempt(loop, program, mishaps, seed, trial).run())
        except SpinError as error:
            trial.problems.append(f"it spins: {error}")
        except AssertionError as error:
            trial.problems.append(f"assertion: {error}")
    trial.problems += [f"told: {each}" for each in told if each["event"] in _BAD_NEWS]
    return trial


class _Attempt:
    def __init__(
        self, loop: VirtualLoop, program: Node, mishaps: Mishaps, seed: int, trial: Trial
    ) -> None:
        self._loop = loop
        self._mishaps = mishaps
        self._luck = random.Random(f"world {seed}")
        self._world = World(program, random.Random(f"steps {seed}"))
        self._trial = trial
        self._problems = trial.problems
        self._fleet: Fleet

    async def run(self) -> None:
        Present.world = self._world
        PLAYERS.clear()
        self._world.began = self._began
        self._loop.set_exception_handler(self._unexpected)
        async with Fleet(VirtualClock(self._loop), self._mishaps, self._luck) as fleet:
            self._fleet = fleet
            row = await self._play(fleet)
            log = await self._log()
            self._trial.status = row.status.value
            self._trial.log = log
            self._trial.deaths, self._trial.drains = fleet.deaths, fleet.drains
            self._problems += [repr(fault) for fault in fleet.faults]
            last = PLAYERS[-1] if PLAYERS else None
            entry = fleet.journal._store.entries[KEY]
            snapshot = entry.snapshot
            if snapshot is not None:
                state = decode_snapshot(snapshot)
                again = fold(log[: snapshot.seq + 1])
                if state != again:
                    self._problems.append(f"the snapshot of {snapshot.seq} is not the fold")
        self._world.began = lambda _call: None
        if not row.status.terminal:
            return
        self._problems += check_log(log, row)
        self._problems += check_calls(log, self._world.calls)
        await self._rehearse(log, last)
        await self._leftovers()
        self._trial.turns = self._loop.turns

    async def _play(self, fleet: Fleet) -> ExecutionRow:
        await fleet.client.start(generated, id=ID)
        fleet.spawn(fleet.attend())
        deadline = self._loop.time() + TOO_LONG
        while True:
            await asyncio.sleep(0.05)
            [row] = await fleet.journal.get([KEY])
            assert row is not None
            if row.status.terminal:
                return row
            if row.trouble:
                self._problems.append(f"trouble: {row.trouble}")
                return row
            if self._loop.time() > deadline:
                self._problems.append(
                    f"it does not end: {row.status.value}, owner {row.owner}, gates {row.gates}, "
                    f"in doubt {row.in_doubt}, wakes at {row.wake_at}, inbox {row.inbox}"
                )
                return row

    async def _log(self) -> list[Envelope]:
        log: list[Envelope] = []
        while page := await self._fleet.journal.read(KEY, first=len(log)):
            log += page
        return log

    def _began(self, call: Call) -> None:
        """An effect begins: its start must be the newest thing that is durable of it."""
        newest = ""
        for envelope in self._fleet.journal._store.entries[KEY].events:
            event = decode_payload(envelope)
            if getattr(event, "step_id", None) == call.place:
                number = event.attempt if isinstance(event, ev.StepStarted) else ""
                newest = f"{envelope.kind} {number}"
        if newest != f"{EventKind.STEP_STARTED} {call.attempt}":
            self._problems.append(f"{call} began after {newest or 'nothing'}")

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = context["message"]
        if "never retrieved" not in message:  # flow code may leave its own tasks alone
            self._problems.append(f"{message}: {context.get('exception')!r} {context}")

    async def _rehearse(self, log: Sequence[Envelope], last: Player | None) -> None:
        whole = await self._rehearsed(log, len(log))
        if last is not None and log[-1].kind != EventKind.EXECUTION_CANCELLED:
            if whole.final != last.final:
                self._problems.append(f"seen: {last.final}, rehearsed: {whole.final}")
        elif last is not None and not _agree(whole.seen, last.seen):
            self._problems.append(f"seen: {last.seen}, rehearsed: {whole.seen}")
        for length in range(1, len(log)):
            part = await self._rehearsed(log, length)
            if _between_turns(log, length) and part.seen != whole.seen[: len(part.seen)]:
                self._problems.append(
                    f"after {length} events it sees {part.seen}, in the end {whole.seen}"
                )
        PLAYERS.clear()

    async def _rehearsed(self, log: Sequence[Envelope], length: int) -> Player:
        PLAYERS.clear()
        outcome = await rehearse(generated, log[:length])
        if not outcome.ok:
            self._problems.append(f"after {length} of {len(log)} events: {outcome.problem}")
        return PLAYERS[-1]

    async def _leftovers(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        self._problems += [f"left over: {task}" for task in left]
        gc.collect()


def _agree(one: list[str], other: list[str]) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _between_turns(log: Sequence[Envelope], length: int) -> bool:
    """Whether the flow was at rest when the log was so long, and what it was told next is told
    to this day.
    """
    state = fold(log[:length])
    served = all(state.serves(place) for place in state.settled)
    event = decode_payload(log[length])
    number: int = getattr(event, "turn", 0)
    place: str = getattr(event, "step_id", "") or getattr(event, "wait_id", "") or CANCEL_PLACE
    lasting = fold(log).settled.get(place) == number
    # a wake may begin what was kept back when the execution was about to park
    wake = isinstance(event, ev.ExecutionResumed)
    return served and lasting and number > state.turn and not wake


def check_log(log: Sequence[Envelope], row: ExecutionRow) -> Iterator[str]:
    """What no log may hold, and what its row must say."""
    state = fold(log)
    for index, envelope in enumerate(log):
        if envelope.seq != index:
            yield f"event {index} has sequence {envelope.seq}"
        if (envelope.kind == EventKind.EXECUTION_STARTED) != (index == 0):
            yield f"{envelope.kind} at {index}"
        if envelope.kind in _ENDS and index != len(log) - 1:
            yield f"{envelope.kind} at {index}, and {log[index + 1].kind} after it"
    yield from _check_row(row, state)
    yield from _check_places(log)


def _check_row(row: ExecutionRow, state: ExecutionState) -> Iterator[str]:
    said = (row.status, row.last_seq, row.wake_at, row.gates, row.in_doubt, row.recoveries)
    folded = (
        state.status,
        state.last_seq,
        state.wake_at,
        state.gates,
        state.in_doubt,
        state.recoveries,
    )
    if said != folded:
        yield f"the row says {said}, the fold {folded}"
    if row.inbox:
        yield f"{row.inbox} items in the inbox after the end"


def _check_places(log: Sequence[Envelope]) -> Iterator[str]:
    done: set[str] = set()
    once: Counter[str] = Counter()
    parked = False
    turn = 0
    for envelope in log:
        event = decode_payload(envelope)
        number = getattr(event, "turn", 0)
        if number > 0:
            if number < turn:
                yield f"turn {number} after {turn}"
            turn = number
        if parked and not isinstance(event, ev.ExecutionResumed):
            yield f"{envelope.kind} at {envelope.seq}, after a park"
        parked = isinstance(event, ev.ExecutionSuspended)
        match event:
            case ev.StepStarted(step_id=place) if place in done:
                yield f"step {place} was started after its end"
            case ev.StepCompleted(step_id=place):
                if place in done:
                    yield f"step {place} completed twice"
                done.add(place)
            case ev.StepFailed(step_id=place, failure=failure) if failure.channel:
                done.add(place)
            case ev.AnswerTaken(wait_id=place, answer_id=answer):
                once[f"answer at {place}"] += 1
                once[f"answer {answer}"] += 1
            case ev.DecisionRecorded(op_id=place) | ev.CustomEmitted(op_id=place):
                once[f"place {place}"] += 1
            case ev.CancelRequested():
                once["cancel"] += 1
            case _:
                pass
    yield from (f"{what} {number} times" for what, number in once.items() if number > 1)


def check_calls(log: Sequence[Envelope], calls: Sequence[Call]) -> Iterator[str]:
    """Effects begin once for each start on the log; a careful one only when allowed to."""
    state = fold(log)
    again: Counter[str] = Counter()
    for envelope in log:
        match decode_payload(envelope):
            case ev.VerdictTaken(step_id=place, verdict=VerdictKind.RUN_AGAIN):
                again[place] += 1
            case _:
                pass
    begun = Counter((call.place, call.attempt) for call in calls)
    for (place, number), times in begun.items():
        if times > 1:
            yield f"attempt {number} of {place} began {times} times"
    for place, frame in state.frames.items():
        times = sum(call.place == place for call in calls)
        if times > frame.attempts:
            yield f"{place} began {times} times, and the log says {frame.attempts}"
        if frame.name.startswith(ONCE) and times > 1 + again[place]:
            yield f"{frame.name} at {place} began {times} times, {again[place]} of them allowed"
        if frame.status is FrameStatus.COMPLETED and not times and not _judged(log, place):
            yield f"{frame.name} at {place} completed and never began"


def _judged(log: Sequence[Envelope], place: str) -> bool:
    events = map(decode_payload, log)
    return any(isinstance(each, ev.VerdictTaken) and each.step_id == place for each in events)
