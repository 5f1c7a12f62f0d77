"""The dispatch policy, the dispatcher's bounds and the supervisor's circuit (F4, F5)."""

from __future__ import annotations

import asyncio

import pytest

from loom_mq.dispatch import (
    Action,
    AttemptEnd,
    AttemptOutcome,
    Circuit,
    CircuitState,
    FoldedState,
    GivenUp,
    LocalDispatcher,
    SupervisingDispatcher,
    is_left_to_another,
    next_action,
)
from loom_mq.errors import (
    AttemptTimeoutError,
    CircuitOpenError,
    ConfigurationError,
    ExecutionAlreadyExistsError,
    ExecutionEndedError,
    ExecutionSupersededError,
    HeldByLiveOwnerError,
    StaleFenceError,
    StartFencedOutError,
    StorageWriteError,
    UnknownExecutionError,
)
from loom_mq.model.execution import Status
from loom_mq.model.messages import Package
from loom_mq.testing.conformance.dispatcher import KEY, PACKAGE, ScriptedWorker, ended


def caused(cause: Exception) -> StorageWriteError:
    error = StorageWriteError("refused", execution_id="e")
    error.__cause__ = cause
    return error


LEFT = [
    StaleFenceError("e", held=1, current=2),
    ExecutionAlreadyExistsError("e"),
    ExecutionSupersededError("taken", execution_id="e"),
    caused(StaleFenceError("e", held=1, current=2)),
    HeldByLiveOwnerError("e", owner="w"),
    ExecutionEndedError("over", execution_id="e"),
    UnknownExecutionError("gone", execution_id="e"),
]
FAILED = [
    RuntimeError("broken"),
    StorageWriteError("full", execution_id="e"),
    StaleFenceError("other", held=1, current=2),
    ExecutionSupersededError("taken", execution_id="other"),
    HeldByLiveOwnerError("other", owner="w"),
    caused(StaleFenceError("other", held=1, current=2)),
    caused(StartFencedOutError("e", current=2)),
    caused(HeldByLiveOwnerError("e", owner="w")),
    StartFencedOutError("e", current=2),
    None,
]


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("error", LEFT, ids=repr)
def test_f5_what_is_anothers_is_never_sent_again(error: Exception, left: int) -> None:
    assert is_left_to_another(error, "e")
    outcome = AttemptOutcome(AttemptEnd.THREW, error)
    assert next_action(outcome, left, "e") is Action.SETTLE


@pytest.mark.parametrize("end", [AttemptEnd.THREW, AttemptEnd.DIED, AttemptEnd.TIMED_OUT])
@pytest.mark.parametrize("error", FAILED, ids=repr)
def test_f4_every_other_failure_is_sent_again(error: Exception | None, end: AttemptEnd) -> None:
    outcome = AttemptOutcome(end, error)
    assert next_action(outcome, 1, "e") is Action.REDISPATCH
    assert next_action(outcome, 0, "e") is Action.SURFACE


def test_f4_an_outcome_is_settled() -> None:
    assert next_action(AttemptOutcome(AttemptEnd.SETTLED), 5, "e") is Action.SETTLE


# ---- the dispatcher ---------------------------------------------------------------------------


class Hanging(ScriptedWorker):
    """Hangs in its first attempts, and swallows being told to give up."""

    def __init__(self, attempts: int) -> None:
        super().__init__(ended(Status.COMPLETED))
        self.hanging = attempts
        self.release = asyncio.Event()

    async def execute(self, package: Package) -> FoldedState:
        if self.attempts >= self.hanging:
            return await super().execute(package)
        self.attempts += 1
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        return ended(Status.FAILED)


async def test_f4_a_hung_attempt_is_sent_again_without_waiting_for_it() -> None:
    worker = Hanging(attempts=1)
    dispatcher = LocalDispatcher(worker, max_attempts=2, execute_timeout=0.02)
    try:
        assert (await dispatcher.dispatch(PACKAGE)).status is Status.COMPLETED
        assert worker.attempts == 2
    finally:
        worker.release.set()


async def test_f4_used_up_attempts_are_surfaced_and_listed() -> None:
    """F4: never silence: raised, told to a hook, and listed until the execution settles."""
    told: list[GivenUp] = []
    worker = Hanging(attempts=2)
    dispatcher = LocalDispatcher(
        worker, max_attempts=2, execute_timeout=0.02, on_given_up=told.append
    )
    with pytest.raises(AttemptTimeoutError, match=r"not over within 0\.02 s"):
        await dispatcher.dispatch(PACKAGE)
    assert [(each.key, each.attempts) for each in told] == [(KEY, 2)]
    assert list(dispatcher.given_up) == [KEY]
    await dispatcher.dispatch(PACKAGE)
    assert not dispatcher.given_up
    worker.release.set()


async def test_f4_a_caller_that_leaves_takes_its_attempt_along() -> None:
    left = asyncio.Event()

    class Leaving(ScriptedWorker):
        async def execute(self, package: Package) -> FoldedState:
            self.attempts += 1
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            raise AssertionError

    worker = Leaving()
    task = asyncio.ensure_future(LocalDispatcher(worker, max_attempts=3).dispatch(PACKAGE))
    while not worker.attempts:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(left.wait(), 5)
    assert worker.attempts == 1


async def test_f4_a_worker_that_drops_its_attempt_counts_as_dead() -> None:
    class Dropping(ScriptedWorker):
        async def execute(self, package: Package) -> FoldedState:
            if self.attempts == 0:
                self.attempts += 1
                raise asyncio.CancelledError
            return await super().execute(package)

    worker = Dropping(ended(Status.COMPLETED))
    state = await LocalDispatcher(worker, max_attempts=2).dispatch(PACKAGE)
    assert (state.status, worker.attempts) == (Status.COMPLETED, 2)


def test_bad_bounds_are_refused() -> None:
    worker = ScriptedWorker(ended(Status.COMPLETED))
    for attempts, timeout in ((0, None), (1, 0.0), (1, -1.0)):
        with pytest.raises(ConfigurationError):
            LocalDispatcher(worker, max_attempts=attempts, execute_timeout=timeout)
    with pytest.raises(ConfigurationError):
        SupervisingDispatcher(LocalDispatcher(worker), max_restarts=-1)
    for threshold, cool_down in ((0, 1.0), (1, -1.0)):
        with pytest.raises(ConfigurationError):
            Circuit(threshold, cool_down)


# ---- the circuit ------------------------------------------------------------------------------


class HandClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.seconds


def state_of(circuit: Circuit) -> CircuitState:
    """Asked anew each time, which a type checker does not expect of an attribute."""
    return circuit.state


async def test_f5_a_circuit_opens_lets_one_through_and_closes() -> None:
    clock = HandClock()
    circuit = Circuit(2, 10.0, clock=clock)
    worker = ScriptedWorker(
        RuntimeError("1"), RuntimeError("2"), RuntimeError("3"), ended(Status.COMPLETED)
    )
    supervised = SupervisingDispatcher(LocalDispatcher(worker), circuit=circuit)
    for message in ("1", "2"):
        with pytest.raises(RuntimeError, match=message):
            await supervised.dispatch(PACKAGE)
    with pytest.raises(CircuitOpenError, match="2 times in a row"):
        await supervised.dispatch(PACKAGE)
    assert (state_of(circuit), worker.attempts) == (CircuitState.OPEN, 2)
    clock.seconds = 10.0
    assert state_of(circuit) is CircuitState.HALF_OPEN
    with pytest.raises(RuntimeError, match="3"):
        await supervised.dispatch(PACKAGE)
    assert state_of(circuit) is CircuitState.OPEN
    clock.seconds = 20.0
    assert (await supervised.dispatch(PACKAGE)).status is Status.COMPLETED
    assert (state_of(circuit), circuit.failures) == (CircuitState.CLOSED, 0)


def test_f5_half_open_lets_one_dispatch_through_at_a_time() -> None:
    """A probe that was superseded says nothing of the target: the next one may try."""
    clock = HandClock()
    circuit = Circuit(1, 10.0, clock=clock)
    circuit.failed()
    clock.seconds = 10.0
    circuit.enter("e")
    with pytest.raises(CircuitOpenError):
        circuit.enter("e")
    circuit.left()
    circuit.enter("e")


async def test_f5_an_open_circuit_ends_the_restarts() -> None:
    circuit = Circuit(2, 10.0, clock=HandClock())
    worker = ScriptedWorker(RuntimeError("always"))
    supervised = SupervisingDispatcher(LocalDispatcher(worker), max_restarts=9, circuit=circuit)
    with pytest.raises(CircuitOpenError):
        await supervised.dispatch(PACKAGE)
    assert worker.attempts == 2
