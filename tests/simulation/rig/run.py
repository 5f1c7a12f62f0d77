"""One run: a fleet, its work, the weather, and what must be so afterwards."""

from __future__ import annotations

import asyncio
import traceback
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import structlog

from loom_mq.flows.registry import Registry
from loom_mq.journal.protocol import Append, AppendVerdict
from tests.simulation.rig.attending import attend
from tests.simulation.rig.chaos import Chaos, Weather, draw_shape, draw_weather
from tests.simulation.rig.choices import Tape
from tests.simulation.rig.effects import Present, World
from tests.simulation.rig.eyes import Eyes
from tests.simulation.rig.jobs import Work, make_work
from tests.simulation.rig.journal import SessionJournal
from tests.simulation.rig.loop import DeadlockError, LivelockError, SimLoop, run_to_end
from tests.simulation.rig.nodes import EPOCH, Shape, SimClock, SimFleet
from tests.simulation.rig.observer import (
    Violation,
)
from tests.simulation.rig.player import simulated
from tests.simulation.rig.rest import check_replay, check_rest
from tests.simulation.rig.witness import Witness

EXECUTIONS: Final = 40
CONVERGE: Final = 4000.0
"""Virtual seconds within which all work ends once the weather is fair; a program may sleep for
ten minutes a time."""
REST: Final = 12.0
"""Virtual seconds until what was on its way has come to its end."""
MAX_STEPS: Final = 3_000_000
BAD_NEWS: Final = frozenset(
    {
        "execution.code_mismatch",
        "package.crashed",
        "sweep.crashed",
        "timers.round_crashed",
        "background.crashed",
        "delivery.handler_raised",
    }
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does, besides what its tape says.

    Attributes:
        seed: of new draws; None to play the recorded ones.
        executions: how many.
        only: which of them are started; None for all.
        recorded: draws of an earlier run.
        kill_at: place in the fleet to the step before which its first process is killed.
        shape, weather, work: drawn where None.
        broken: whether the journal has a fault planted that must be found.
        about: an execution; the report tells of nothing else.
        prefixes: lengths at which each log is played again, besides its whole.
    """

    seed: int | None = None
    executions: int = EXECUTIONS
    only: tuple[int, ...] | None = None
    recorded: dict[str, list[int]] | None = None
    kill_at: dict[str, int] = {}
    shape: Shape | None = None
    weather: Weather | None = None
    work: Work | None = None
    broken: bool = False
    about: str = ""
    prefixes: int = 1


class Report(msgspec.Struct, kw_only=True):
    """What came of a run.

    Attributes:
        violations: broken rules.
        goals: rare things that happened, counted.
        steps: of the event loop.
        seconds: virtual ones.
        taken: steps that the first process of each place took until all clients knew.
        digest: of everything that was observed: the same seed, the same digest.
        tail: the last things that were observed.
    """

    shape: Shape
    weather: Weather
    violations: list[Violation] = []
    goals: Counter[str] = Counter()
    executions: int = 0
    steps: int = 0
    seconds: float = 0.0
    taken: dict[str, int] = {}
    draws: dict[str, list[int]] = {}
    digest: int = 0
    tail: list[str] = []


def run(plan: Plan) -> Report:
    """Do it."""
    tape = Tape(plan.seed, plan.recorded)
    swarm = tape.stream("swarm")
    shape = draw_shape(swarm) if plan.shape is None else plan.shape
    weather = draw_weather(swarm) if plan.weather is None else plan.weather
    work = make_work(tape.stream("workload"), plan.executions) if plan.work is None else plan.work
    if plan.only is not None:
        work = Work(tuple(work.jobs[index] for index in plan.only))
    report = Report(shape=shape, weather=weather)
    attempt = _Run(tape, plan, work, report)
    with structlog.testing.capture_logs() as lines:
        try:
            run_to_end(attempt.loop, attempt.main())
        except (DeadlockError, LivelockError) as error:
            attempt.complain("H0", f"{error}: {attempt.standing()}")
        except Exception as error:  # a harness that fails is a failure
            attempt.complain("H0", "".join(traceback.format_exception(error)))
    for line in lines:
        if line["event"] in BAD_NEWS:
            attempt.complain("H0", f"told: {line}")
    attempt.conclude()
    report.draws = tape.draws()
    return report


class BrokenJournal(SessionJournal):
    """Forgets a timer now and then: the fault that every long run must find."""

    async def append(self, appends: Sequence[Append]) -> list[AppendVerdict]:
        """Append, nearly as it should."""
        return await super().append([_forgetful(append) for append in appends])


def _forgetful(append: Append) -> Append:
    forgets = append.timers and zlib.crc32(append.events[0].id) % 16 == 0
    return msgspec.structs.replace(append, timers=()) if forgets else append


class _Run:
    def __init__(self, tape: Tape, plan: Plan, work: Work, report: Report) -> None:
        self._tape = tape
        self._plan = plan
        self._work = work
        self._report = report
        self._weather = report.weather
        self.loop = SimLoop(
            tape.stream("schedule"), disorder=report.weather.disorder, max_steps=MAX_STEPS
        )
        self.loop.set_exception_handler(self._unexpected)
        store = (BrokenJournal if plan.broken else SessionJournal)(SimClock(self.loop))
        self._eyes = Eyes(store, once=self._weather.harmless and not self._weather.broker.doubled)
        self._book = self._eyes.book
        self._witness = Witness(self._eyes, EPOCH + 1000 * 1_000_000, plan.about)
        self._fleet = SimFleet(
            self.loop,
            tape,
            report.shape,
            Registry([simulated]),
            self._witness,
            store,
            kill_at=plan.kill_at,
        )

    async def main(self) -> None:
        """From the first process to the last check."""
        fleet, tape = self._fleet, self._tape
        Present.world = World(self._work, self._witness, tape.stream("effects"), fleet.clock.now)
        fleet.start()
        clients = await self._attend()
        chaos = Chaos(fleet, self._weather, tape.stream("chaos"))
        making = self.loop.create_task(chaos.run())
        await self._wait(clients, self._weather.lasts)
        making.cancel()
        if self._book.violations:
            return  # what comes of a broken rule is no news
        chaos.end()
        await self._wait(clients, CONVERGE)
        if self._book.violations:
            return
        for task in clients:
            if not task.done():
                self.complain("L1", f"a client still waits: {self.standing()}")
                return
            if (error := task.exception()) is not None:
                self.complain("H0", "".join(traceback.format_exception(error)))
        for node in fleet.nodes:
            if node.first is not None:
                self._report.taken[node.name] = node.first.steps
        await asyncio.sleep(REST + self.held_up)
        self._report.violations += check_rest(
            fleet,
            self._eyes,
            harmless=self._weather.harmless and not self._plan.kill_at,
        )
        self._report.violations += self._eyes.check(self._work)
        self._report.violations += await check_replay(
            self._eyes.shadow, tape.stream("replay"), self._plan.prefixes
        )

    async def _wait(self, clients: list[asyncio.Task[None]], seconds: float) -> None:
        """Until all have heard how it ended, or a rule is broken, or it is too late."""
        alarm = asyncio.Event()
        self._book.first = alarm.set
        ending: list[asyncio.Future[Any]] = [
            self.loop.create_task(alarm.wait()),
            asyncio.gather(*clients, return_exceptions=True),
        ]
        await asyncio.wait(ending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ending[0].cancel()

    @property
    def held_up(self) -> float:
        """Virtual seconds for which a message may be held up."""
        return self._weather.broker.held_up_by

    async def _attend(self) -> list[asyncio.Task[None]]:
        clients = {
            tenant: await self._fleet.client(tenant)
            for tenant in sorted({job.tenant for job in self._work.jobs})
        }
        choices = self._tape.stream("clients")
        return [
            self._fleet.client_process.spawn(
                attend(job, clients[job.tenant], choices, self._witness)
            )
            for job in self._work.jobs
        ]

    def standing(self) -> str:
        """How it stands with what has not ended."""
        rows = [entry.row for entry in self._fleet.store._store.entries.values()]
        return "; ".join(
            f"{row.execution_id} {row.status.value} fence {row.fence} owner {row.owner} "
            f"gates {row.gates} doubt {row.in_doubt} wake {row.wake_at} hint {row.hint_at} "
            f"inbox {row.inbox} trouble {row.trouble}"
            for row in rows
            if not row.status.terminal
        )

    def complain(self, rule: str, text: str) -> None:
        """A broken rule."""
        self._book.complain(rule, "", text)

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "never retrieved" not in context["message"]:  # flow code may leave tasks alone
            self.complain("H0", f"{context['message']}: {context.get('exception')!r}")

    def conclude(self) -> None:
        """Fill in the report."""
        report = self._report
        report.violations = [*self._book.violations, *report.violations]
        report.goals = self._book.goals
        report.executions = len(self._work.jobs)
        report.steps = self.loop.steps
        report.seconds = self.loop.time() - 1000.0
        report.digest = self._witness.digest
        report.tail = list(self._witness.lines)
