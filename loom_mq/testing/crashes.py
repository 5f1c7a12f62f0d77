"""`crash_everywhere`: a flow must end the same, wherever its worker dies.

A worker can die before a write of its is durable, or after and before it hears so. In
between it does what the flow says, so the two together are the earliest and the latest
moment at which a death can be told apart by anybody: before a write is durable, the
effects that led to it have run to their end and left no trace on the log; after it,
none of those that follow has begun. An append lands whole or not at all, so there is
no point between the events of one. Claims, and every other write, are points too.

Not covered: a death in the midst of an effect (what such an effect leaves behind is its
own affair), a second death during the recovery, and deaths of the other services.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, overload

import msgspec

from loom_mq.errors import LoomError
from loom_mq.flows.definition import Flow
from loom_mq.flows.registry import AnyFlow
from loom_mq.kernel.fold import ExecutionState, fold
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, ExecutionRow
from loom_mq.testing.comparing import CrashDifference, Ended, compare
from loom_mq.testing.doom import CrashPoint, Doom
from loom_mq.testing.environment import PATIENCE, Run, TestEnvironment
from loom_mq.testing.stuck import StuckError

In = TypeVar("In")
Out = TypeVar("Out")

ID: Final = "crash-everywhere"
"""The execution's id in every run, so that idempotency keys are the same in all of them."""
_MAX_ANSWERS: Final = 1000

Drive = Callable[[TestEnvironment, Run[Out]], Awaitable[object]]


class Crashes(msgspec.Struct, frozen=True, kw_only=True):
    """What `crash_everywhere` tried.

    Attributes:
        events: how many events the log of the undisturbed run has.
        points: where workers died, and the execution ended the same.
        in_doubt: where it stopped, as it should, to ask how a step ended that must not
            run twice (K6).
        missed: how often a worker had ended its work before the point was reached.
    """

    events: int
    points: tuple[CrashPoint, ...]
    in_doubt: tuple[CrashPoint, ...] = ()
    missed: int = 0

    def __str__(self) -> str:
        told = f"{self.events} events, {len(self.points)} crashes, each with the same end"
        return told + (f"; {len(self.in_doubt)} more in doubt" if self.in_doubt else "")


@overload
async def crash_everywhere(
    flow: Flow[In, Out],
    value: In,
    *,
    answers: Mapping[str, object] = ...,
    drive: Drive[Out] | None = ...,
    effects: Callable[[], object] | None = ...,
    reset: Callable[[], object] | None = ...,
    equal: Callable[[Out, Out], bool] = ...,
    flows: Iterable[AnyFlow] = ...,
    starts_at: datetime | None = ...,
    patience: float = ...,
) -> Crashes: ...


@overload
async def crash_everywhere(
    flow: Flow[None, Out],
    *,
    answers: Mapping[str, object] = ...,
    drive: Drive[Out] | None = ...,
    effects: Callable[[], object] | None = ...,
    reset: Callable[[], object] | None = ...,
    equal: Callable[[Out, Out], bool] = ...,
    flows: Iterable[AnyFlow] = ...,
    starts_at: datetime | None = ...,
    patience: float = ...,
) -> Crashes: ...


async def crash_everywhere(
    flow: Flow[Any, Any],
    value: object = None,
    *,
    answers: Mapping[str, object] | None = None,
    drive: Drive[Any] | None = None,
    effects: Callable[[], object] | None = None,
    reset: Callable[[], object] | None = None,
    equal: Callable[[Any, Any], bool] = operator.eq,
    flows: Iterable[AnyFlow] = (),
    starts_at: datetime | None = None,
    patience: float = PATIENCE,
) -> Crashes:
    """Run a flow once undisturbed, then once for every point at which its worker can die;
    another worker goes on each time (K2, F3, F7). Time is skipped.

    Compared are the end, the result or the failure, every place of the flow with its
    name, and the effects: a step that the log holds as completed when the worker died is
    never started again, an interrupted one at most once more.

    Args:
        flow: the flow.
        value: its input.
        answers: what to answer at each gate, every time it opens.
        drive: does more to an execution than answer gates; called once in each run, after
            the start. It meets the crash like any other client.
        effects: what the outside world has seen, compared after each run; must be equal
            though an interrupted step may have run twice, such as the set of idempotency
            keys seen.
        reset: called before each run, to bring everything outside back to its beginning.
        equal: compares results; ``==`` by default.
        flows: other flows that it needs.
        starts_at: what time it is at the beginning of every run.
        patience: real seconds that code may run without any event.

    Returns:
        Where workers died.

    Raises:
        CrashDifference: an `AssertionError` that says where the worker died, and what
            was different then.
        StuckError: the undisturbed run does not end.
    """
    runner = Runner(
        flow,
        value,
        (flow, *(each for each in flows if each is not flow)),
        answers or {},
        drive,
        effects,
        reset,
        starts_at or datetime.now(UTC),
        patience,
    )
    undisturbed = Doom(None)
    baseline = await runner.run(undisturbed)
    points: list[CrashPoint] = []
    in_doubt: list[CrashPoint] = []
    missed = 0
    for write in range(1, len(undisturbed.writes) + 1):
        for landed in (False, True):
            doom = Doom(CrashPoint(write=write, landed=landed))
            ended = await runner.run_doomed(doom, baseline)
            if doom.point is None:
                missed += 1
                continue
            if any(state.in_doubt for state in ended.states.values()):
                in_doubt.append(doom.point)
                continue
            compare(doom.point, baseline, ended, equal)
            points.append(doom.point)
    return Crashes(
        events=baseline.row.last_seq + 1,
        points=tuple(points),
        in_doubt=tuple(in_doubt),
        missed=missed,
    )


class Runner:
    """Runs the same flow with the same input again and again."""

    def __init__(
        self,
        flow: AnyFlow,
        value: object,
        flows: Iterable[AnyFlow],
        answers: Mapping[str, object],
        drive: Drive[Any] | None,
        effects: Callable[[], object] | None,
        reset: Callable[[], object] | None,
        starts_at: datetime,
        patience: float,
    ) -> None:
        self._flow = flow
        self._value = value
        self._flows = tuple(flows)
        self._answers = answers
        self._drive = drive
        self._effects = effects
        self._reset = reset
        self._starts_at = starts_at
        self._patience = patience
        self._key = ExecutionKey(DEFAULT_TENANT, ID)

    async def run_doomed(self, doom: Doom, baseline: Ended) -> Ended:
        """One run whose first worker dies; whatever it raises is a difference."""
        try:
            return await self.run(doom)
        except CrashDifference:
            raise
        except Exception as error:
            if doom.point is None:
                raise
            raise CrashDifference(
                doom.point, "the way to its end", baseline.row.status.value, error
            ) from error

    async def run(self, doom: Doom) -> Ended:
        """One run to its end."""
        if self._reset is not None:
            self._reset()
        environment = TestEnvironment(
            self._flows,
            starts_at=self._starts_at,
            patience=self._patience,
            first_view=doom.view,
        )
        fleet = environment.fleet
        doom.over(fleet)
        async with environment:
            row = await self._play(environment)
            await doom.finish()
            logs = await fleet.logs()
            states = {name: fold(log) for name, log in logs.items()}
            return Ended(
                row=row,
                log=logs[ID],
                state=states[ID],
                result=self._result(states[ID]),
                before=doom.before,
                states=states,
                completed=sum((tally.completed for tally in fleet.tallies), Counter()),
                effects=None if self._effects is None else self._effects(),
            )

    def _result(self, state: ExecutionState) -> object:
        return None if state.result is None else self._flow.result_codec.decode(state.result)

    async def _play(self, environment: TestEnvironment) -> ExecutionRow:
        handle = await environment.client.start(self._flow, self._value, id=ID)
        run = Run(environment, handle, self._flow)
        try:
            if self._drive is not None:
                await self._drive(environment, run)
            return await self._answer(environment, run)
        except (AssertionError, LoomError):
            # nobody but an operator can say how the interrupted step ended
            if not any(fold(log).in_doubt for log in (await environment.fleet.logs()).values()):
                raise
            return await environment.watcher.row(self._key)

    async def _answer(self, environment: TestEnvironment, run: Run[Any]) -> ExecutionRow:
        """Answer gates until the execution has ended."""
        for _ in range(_MAX_ANSWERS):
            row = await environment.watcher.until(self._key, self._wants_me, "end")
            if row.status.terminal or row.in_doubt:
                return row
            for gate in row.gates:
                if gate in self._answers:
                    await run.resume(gate, self._answers[gate])
        raise StuckError(f"the flow asked for more than {_MAX_ANSWERS} answers", ID)

    def _wants_me(self, row: ExecutionRow) -> bool:
        return bool(
            row.status.terminal or row.in_doubt or any(gate in self._answers for gate in row.gates)
        )
