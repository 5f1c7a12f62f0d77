"""A fleet to which nothing happens, and what came of its work against what `reference` says.

Neither the simulator's loop nor its ledger takes part: the services run on another loop, over
memory, and what came of each execution is held against the reference alone.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Final

from loom_mq.broker.memory import MemoryBroker
from loom_mq.client.client import Client
from loom_mq.engine.dispatcher import Dispatcher, DispatcherOptions
from loom_mq.engine.lease import LeaseKeeper
from loom_mq.engine.timers import TimerOptions, TimerService
from loom_mq.engine.worker import Worker, WorkerOptions
from loom_mq.flows.registry import Registry
from loom_mq.journal.memory import MemoryJournal
from loom_mq.model.execution import DEFAULT_QUEUE, WorkerRecord
from tests.simulation.rig.attending import attend
from tests.simulation.rig.choices import Tape
from tests.simulation.rig.effects import Present, World
from tests.simulation.rig.jobs import Job, Node, Work
from tests.simulation.rig.nodes import METRICS, SimIds, SimThreads
from tests.simulation.rig.observer import Effect, Observer, Told
from tests.simulation.rig.player import simulated
from tests.simulation.rig.reference import Expected, expected
from tests.simulation.virtual_time import VirtualClock, VirtualLoop

PATIENCE: Final = 4000.0
"""Virtual seconds within which everything ends."""
OUTCOMES: Final = ("completed", "failed", "cancelled")
FAILS_FIRST: Final = ("flaky", "sluggish")


class Recorder(Observer):
    """Keeps what effects and clients say, by execution."""

    def __init__(self) -> None:
        self.begun: dict[str, list[Effect]] = {}
        self.done: dict[str, list[Effect]] = {}
        self.heard: dict[str, list[Told]] = {}
        self.order: list[tuple[str, str, int]] = []

    def began(self, effect: Effect) -> None:
        self.begun.setdefault(effect.execution_id, []).append(effect)
        self.order.append((effect.execution_id, f"{effect.step}@{effect.place}", effect.at))

    def ended(self, effect: Effect, outcome: str) -> None:
        if outcome == "done":
            self.done.setdefault(effect.execution_id, []).append(effect)

    def told(self, told: Told) -> None:
        self.heard.setdefault(told.execution_id, []).append(told)
        self.order.append((told.execution_id, told.what, told.at))


# ---- a fleet that is well ----------------------------------------------------------------------


class ExactLoop(VirtualLoop):
    """No timer rings early, not even by the least: who looks at the clock sees that it is time.

    asyncio takes timers that are due within its clock's resolution. On a clock that stands still
    meanwhile, who waits for what is left of his time would do so for ever.
    """

    def _wait(self, timeout: float | None) -> None:
        super()._wait(timeout)
        self._clock_resolution = math.ulp(self._virtual)


async def _serve(stack: AsyncExitStack, hub: MemoryBroker, clock: VirtualClock, tape: Tape) -> None:
    """One service of each kind."""
    journal = await stack.enter_async_context(MemoryJournal(clock))
    record = WorkerRecord(
        owner="worker", role="worker", host="test", queues=(DEFAULT_QUEUE,), slots=1000
    )
    worker = Worker(
        "worker",
        journal,
        await stack.enter_async_context(hub.connection("worker")),
        LeaseKeeper(journal, record, 5.0, clock=clock, metrics=METRICS, threaded=False),
        Registry([simulated]),
        options=WorkerOptions(queues=(DEFAULT_QUEUE,), slots=1000),
        clock=clock,
        ids=SimIds("worker", tape.stream("ids")),
        threads=SimThreads(tape.stream("threads")),
        metrics=METRICS,
    )
    dispatcher = Dispatcher(
        journal,
        await stack.enter_async_context(hub.connection("dispatcher")),
        options=DispatcherOptions(),
        clock=clock,
        ids=SimIds("dispatcher", tape.stream("ids")),
        metrics=METRICS,
    )
    timers = TimerService(
        journal,
        await stack.enter_async_context(hub.connection("timer")),
        options=TimerOptions(),
        clock=clock,
        metrics=METRICS,
    )
    for part in (worker, dispatcher, timers):
        stack.push_async_callback(part.stop)
        await part.start()


def play(work: Work, seed: int | None) -> Recorder:
    """Do some work.

    Args:
        work: all of a run's executions.
        seed: of what clients and effects leave to chance; None where nothing is.
    """
    seen, tape = Recorder(), Tape(seed)

    async def main() -> None:
        clock, hub = VirtualClock(loop), MemoryBroker()
        Present.world = World(work, seen, tape.stream("effects"), clock.now)
        async with AsyncExitStack() as stack:
            await _serve(stack, hub, clock, tape)
            clients: dict[str, Client] = {}
            for job in work.jobs:
                if job.tenant not in clients:
                    client = Client(hub.connection(f"client of {job.tenant}"), tenant=job.tenant)
                    clients[job.tenant] = await stack.enter_async_context(client)
            choices = tape.stream("clients")
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(
                    *(attend(job, clients[job.tenant], choices, seen) for job in work.jobs)
                )

    loop = ExactLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    return seen


# ---- what came of it, against what should -------------------------------------------------------


def problems(job: Job, wanted: Expected, seen: Recorder) -> Iterator[str]:
    """Where an execution and the reference do not agree."""
    name = f"{job.tenant}/{job.id}"
    heard = seen.heard.get(name, [])
    ends = [told for told in heard if told.what in OUTCOMES]
    if len(ends) != 1:
        yield f"its client heard of {len(ends)} ends"
        return
    begun, done = seen.begun.get(name, []), seen.done.get(name, [])
    yield from _outcome(ends[0], wanted)
    yield from _once(job, begun)
    if wrongly := wanted.never & _nodes(begun):
        yield f"{sorted(wrongly)} began, and never should"
    if ends[0].what == "cancelled":
        yield from _undone_when_cancelled(job.program, done)
        yield from _tidied_when_cancelled(job.program, begun, done)
        return
    if _nodes(begun) != wanted.tried:
        yield f"{sorted(_nodes(begun))} began, not {sorted(wanted.tried)}"
    # the effect of what returns something that cannot be kept has come to its end, its step has not
    unkept = {node.id for node in every(job.program) if node.kind == "unencodable"}
    if _nodes(done) - unkept != wanted.done - unkept:
        yield f"{sorted(_nodes(done))} came to their end, not {sorted(wanted.done)}"
    undone = [_node(effect) for effect in done if _is_undo(effect)]
    one_by_one = all(node.op != "gather" for node in every(job.program))
    if sorted(undone) != sorted(wanted.undone) or (one_by_one and undone != list(wanted.undone)):
        yield f"{undone} were undone, not {list(wanted.undone)}"


def _outcome(end: Told, wanted: Expected) -> Iterator[str]:
    if end.what == "cancelled":
        if not wanted.cancellable:
            yield "it is cancelled, and nobody asked for it"
    elif end.what == "failed":
        error = end.value.error_type
        if not wanted.error or error != wanted.error:
            yield f"it failed with {error}, not {wanted.error or wanted.value}"
    elif wanted.error or end.value != wanted.value:
        yield f"it returned {end.value}, not {wanted.error or wanted.value}"


def _once(job: Job, begun: list[Effect]) -> Iterator[str]:
    """S10 where nobody dies: each attempt begins once, and a place has as many as its step asks."""
    for (place, attempt), times in Counter((each.place, each.attempt) for each in begun).items():
        if times > 1:
            yield f"attempt {attempt} at {place} began {times} times"
    nodes = {node.id: node for node in every(job.program)}
    for (place, name), times in Counter((each.place, each.step) for each in begun).items():
        kind, _, node = name.partition("#")
        most = 1 + (nodes[int(node)].n if kind in FAILS_FIRST else 0)
        if times > most:
            yield f"{name} at {place} began {times} times, not {most}"


def _undone_when_cancelled(program: Node, done: list[Effect]) -> Iterator[str]:
    """K15: a saga that was cancelled is undone as far as it was done, last one first."""
    undone = [_node(effect) for effect in done if _is_undo(effect)]
    finished = [_node(effect) for effect in done if effect.step.startswith("work#")]
    for saga in every(program):
        if saga.op != "saga":
            continue
        # its own step comes after all of an instruction, and a `work` instruction's has that name
        twice = {kid.id for kid in saga.kids if kid.kind == "work"} | {
            kid.id for kid in saga.kids if kid.op == "tidy"
        }
        armed = [kid.id for kid in saga.kids if finished.count(kid.id) > (kid.id in twice)]
        ours = [node for node in undone if node in {kid.id for kid in saga.kids}]
        if ours != armed[::-1] and not (len(armed) == len(saga.kids) and not ours):
            yield f"of a cancelled saga {armed} were done and {ours} undone"


def _tidied_when_cancelled(program: Node, begun: list[Effect], done: list[Effect]) -> Iterator[str]:
    """K13: what was begun is tidied up although it was cancelled."""
    reached = {node.id for node in _at_once(program)} | _nodes(begun)
    for tidy in every(program):
        within = {node.id for node in every(tidy)}
        if tidy.op == "tidy" and within & reached and tidy.id not in _nodes(done):
            yield f"{tidy.id} was cancelled and not tidied up"


def _at_once(node: Node) -> Iterator[Node]:
    """What a program comes to before anything has ended."""
    yield node
    for kid in node.kids if node.op == "gather" else node.kids[:1]:
        yield from _at_once(kid)


def every(node: Node) -> Iterator[Node]:
    """An instruction and all within."""
    yield node
    for kid in node.kids:
        yield from every(kid)


def _is_undo(effect: Effect) -> bool:
    return effect.step.startswith("undo#")


def _node(effect: Effect) -> int:
    return int(effect.step.rpartition("#")[2])


def _nodes(effects: list[Effect]) -> frozenset[int]:
    return frozenset(_node(effect) for effect in effects if not _is_undo(effect))


def complaints(work: Work, seen: Recorder) -> list[str]:
    """All of a run."""
    return [
        f"{job.id}: {text}\n  {job}"
        for job in work.jobs
        for text in problems(job, expected(job), seen)
    ]
