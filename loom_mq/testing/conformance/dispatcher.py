"""The kit that every dispatcher over a worker must pass: F3, F4, F5, F6.

A dispatcher is held to it by a test class that says over which store, and how to make it::

    class TestMyDispatcher(DispatcherConformance):
        @pytest_asyncio.fixture
        async def store(self, tmp_path):
            async with SqliteJournal(tmp_path / "journal.db") as journal:
                yield journal

        def dispatcher(self, worker, max_attempts):
            return MyDispatcher(worker, tries=max_attempts)

Two such dispatchers, of three attempts each, then meet over one store: under the policy
of the original Loom, where every attempt takes a newer fence ("preempting"), and under
this project's, where a living holder is left alone ("leased").

======================================== ========================= =================
case                                     preempting                leased
======================================== ========================= =================
both race for sequence 0                 1 effect                  1 effect
a duplicate after the bootstrap          2 effects, fences [1, 2]  1 effect
the same under a supervisor, 2 restarts  2 effects, circuit closed 1 effect
a dead holder is taken over              1 re-run, zombie settles  the same
a start fenced out by a silent holder    completes                 completes
======================================== ========================= =================

A dispatcher that takes a superseded refusal for a failed attempt runs the effect 5 times
in the first case, 6 times in the second and 18 times in the third.
"""

from __future__ import annotations

import pytest

from loom_mq.dispatch.errand import Allocation
from loom_mq.dispatch.local import LocalDispatcher
from loom_mq.dispatch.protocol import ExecutionDispatcher, ExecutionWorker, FoldedState
from loom_mq.dispatch.supervising import Circuit, CircuitState, SupervisingDispatcher
from loom_mq.engine.policy import is_left_to_another
from loom_mq.errors import (
    ExecutionAlreadyExistsError,
    HeldByLiveOwnerError,
    LoomError,
    StaleFenceError,
    StartFencedOutError,
    StorageWriteError,
    is_superseded_refusal,
)
from loom_mq.journal.protocol import Journal
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey, Status
from loom_mq.model.messages import Cause, Package
from loom_mq.testing.conformance.dispatcher_stage import ATTEMPTS, Stage, set_up

PACKAGE = Package(DEFAULT_TENANT, "kit", "flow", "1", 0, Cause.START)
KEY = ExecutionKey(DEFAULT_TENANT, "kit")
FENCED_OUT = StorageWriteError("not started", execution_id="kit")
FENCED_OUT.__cause__ = StartFencedOutError("kit", current=2)
STALE_CAUSE = StorageWriteError("refused", execution_id="kit")
STALE_CAUSE.__cause__ = StaleFenceError("kit", held=1, current=2)
OTHERS_CAUSE = StorageWriteError("refused", execution_id="kit")
OTHERS_CAUSE.__cause__ = StaleFenceError("another", held=1, current=2)
both_policies = pytest.mark.parametrize("policy", list(Allocation))


class ScriptedWorker:
    """Answers each attempt with the next of `script`, and the last one for ever."""

    def __init__(self, *script: FoldedState | Exception) -> None:
        self.script = script
        self.attempts = 0

    async def load_state(self, key: ExecutionKey) -> FoldedState | None:
        """There is nothing durable."""
        return None

    async def execute(self, package: Package) -> FoldedState:
        """Play the next attempt."""
        answer = self.script[min(self.attempts, len(self.script) - 1)]
        self.attempts += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


def ended(status: Status) -> FoldedState:
    """The state of the scripted execution."""
    return FoldedState(key=KEY, status=status)


class PolicyRules:
    """What any dispatcher does about the end of an attempt."""

    def dispatcher(self, worker: ExecutionWorker, max_attempts: int) -> ExecutionDispatcher:
        """Make the dispatcher under test; this project's own by default."""
        return LocalDispatcher(worker, max_attempts=max_attempts)

    def supervisor(
        self, dispatcher: ExecutionDispatcher, max_restarts: int, circuit: Circuit
    ) -> ExecutionDispatcher:
        """Make the supervisor under test; this project's own by default."""
        return SupervisingDispatcher(dispatcher, max_restarts=max_restarts, circuit=circuit)

    @pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED, Status.SUSPENDED])
    async def test_an_outcome_is_no_failed_attempt(self, status: Status) -> None:
        """F4: a flow that ended failed, or parked, is answered and never retried."""
        worker = ScriptedWorker(ended(status))
        state = await self.dispatcher(worker, 3).dispatch(PACKAGE)
        assert (state.status, worker.attempts) == (status, 1)

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("broken"),
            StorageWriteError("disk full", execution_id="kit"),
            FENCED_OUT,
            OTHERS_CAUSE,
            StaleFenceError("another", held=1, current=2),
            StaleFenceError("acme:kit", held=1, current=2),
        ],
        ids=["error", "storage", "fenced-out", "cause-of-another", "another", "scoped-key"],
    )
    async def test_a_failed_attempt_goes_out_again(self, error: Exception) -> None:
        """F4, F5: everything that does not name this very execution as superseded."""
        worker = ScriptedWorker(error, ended(Status.COMPLETED))
        state = await self.dispatcher(worker, 3).dispatch(PACKAGE)
        assert (state.status, worker.attempts) == (Status.COMPLETED, 2)

    async def test_attempts_are_bounded(self) -> None:
        """F4: the last error reaches the caller when the attempts are used up."""
        worker = ScriptedWorker(RuntimeError("first"), RuntimeError("second"))
        with pytest.raises(RuntimeError, match="second"):
            await self.dispatcher(worker, 2).dispatch(PACKAGE)
        assert worker.attempts == 2

    @pytest.mark.parametrize(
        "error",
        [
            StaleFenceError("kit", held=1, current=2),
            ExecutionAlreadyExistsError("kit"),
            STALE_CAUSE,
        ],
        ids=["stale", "exists", "stale-cause"],
    )
    async def test_a_superseded_attempt_does_not(self, error: LoomError) -> None:
        """F5: the refusal is rethrown on the attempt that saw it, as it came."""
        worker = ScriptedWorker(RuntimeError("earlier"), error, ended(Status.COMPLETED))
        with pytest.raises(type(error)) as caught:
            await self.dispatcher(worker, 3).dispatch(PACKAGE)
        assert caught.value is error
        assert worker.attempts == 2

    async def test_a_supervisor_restarts_what_failed(self) -> None:
        """F5: a real failure is restarted and counted; success closes the circuit again."""
        circuit = Circuit(threshold=5)
        worker = ScriptedWorker(RuntimeError("once"), ended(Status.COMPLETED))
        supervised = self.supervisor(self.dispatcher(worker, 1), 2, circuit)
        assert (await supervised.dispatch(PACKAGE)).status is Status.COMPLETED
        assert (worker.attempts, circuit.failures) == (2, 0)

    async def test_a_supervisor_never_restarts_a_superseded_one(self) -> None:
        """F5: no restart, nothing counted; what really failed before it stays counted."""
        circuit = Circuit(threshold=2)
        refusal = StaleFenceError("kit", held=1, current=2)
        alone = ScriptedWorker(refusal)
        supervised = self.supervisor(self.dispatcher(alone, 3), 2, circuit)
        for _ in range(3):
            with pytest.raises(StaleFenceError):
                await supervised.dispatch(PACKAGE)
        assert (alone.attempts, circuit.failures) == (3, 0)
        after = ScriptedWorker(RuntimeError("real"), refusal)
        supervised = self.supervisor(self.dispatcher(after, 1), 2, circuit)
        with pytest.raises(StaleFenceError):
            await supervised.dispatch(PACKAGE)
        assert (after.attempts, circuit.failures) == (2, 1)
        assert circuit.state is CircuitState.CLOSED


class TableRules(PolicyRules):
    """Two dispatchers over one store: the table of the module's docstring."""

    def three_attempts(self, worker: ExecutionWorker) -> ExecutionDispatcher:
        """The dispatcher under test, as the table has it."""
        return self.dispatcher(worker, ATTEMPTS)

    @both_policies
    async def test_both_race_for_sequence_0(self, store: Journal, policy: Allocation) -> None:
        """F5: one effect. Without the dispatcher's check: 5 effects, fences 1 to 6."""
        async with set_up(store, policy, self.three_attempts) as stage:

            async def until_b_is_past_it() -> None:
                stage.b.dispatch()
                await stage.until(lambda: stage.ran(stage.b) or stage.b.over)

            stage.a.before_start[1] = until_b_is_past_it
            stage.a.dispatch()
            await self._one_wins(stage)
            if policy is Allocation.PREEMPTING:
                stage.expect(["b"], [1, 2])
            else:
                stage.expect(["a"], [1])

    @both_policies
    async def test_a_duplicate_after_the_bootstrap(
        self, store: Journal, policy: Allocation
    ) -> None:
        """F5, F7: two effects under fences [1, 2], or one. Without the check: 6, fences 1 to 6."""
        async with set_up(store, policy, self.three_attempts) as stage:
            await self._duplicate(stage)

    @both_policies
    async def test_the_same_under_a_supervisor(self, store: Journal, policy: Allocation) -> None:
        """F5: as before, the circuit closed. With neither check: 18 effects, fences 1 to 18."""
        circuits: list[Circuit] = []

        def supervised(worker: ExecutionWorker) -> ExecutionDispatcher:
            circuits.append(Circuit(threshold=100))
            return self.supervisor(self.three_attempts(worker), 2, circuits[-1])

        async with set_up(store, policy, supervised) as stage:
            await self._duplicate(stage)
        assert [(each.state, each.failures) for each in circuits] == [(CircuitState.CLOSED, 0)] * 2

    @both_policies
    async def test_a_dead_holder_is_taken_over(self, store: Journal, policy: Allocation) -> None:
        """F5, F7: exactly one re-run; the zombie wakes while it goes on, and settles."""
        async with set_up(store, policy, self.three_attempts) as stage:
            stage.a.dispatch()
            await stage.until(lambda: stage.ran(stage.a))
            await stage.loses_lease(stage.a)
            stage.b.dispatch(Cause.RECOVER)
            await self._one_wins(stage)
            stage.expect(["a", "b"], [1, 2])
            assert stage.b.outcome == await stage.state()
            assert (await stage.kinds())["EXECUTION_RECOVERED"] == 1

    @both_policies
    async def test_a_start_fenced_out_by_a_silent_holder(
        self, store: Journal, policy: Allocation
    ) -> None:
        """F6: a holder that never wrote keeps a start out twice; the next attempt starts it.
        Without the cause that says so the start is lost: the log stays empty.
        """
        async with set_up(store, policy, self.three_attempts) as stage:

            async def fence_it_out() -> None:
                await store.acquire_fence(stage.key, None)

            stage.a.before_start[1] = fence_it_out
            stage.alone = True
            stage.a.dispatch()
            await stage.until(lambda: stage.a.over)
            assert stage.a.outcome == await self._complete(stage)
            stage.expect(["a"], [1, 3])
            assert stage.a.starts == 3

    async def test_a_racer_that_wrote_meanwhile_wins(self, store: Journal) -> None:
        """F6: the second try of the start then finds sequence 0 and loses cleanly."""
        async with set_up(store, Allocation.PREEMPTING, self.three_attempts) as stage:

            async def until_b_has_the_fence() -> None:
                stage.b.dispatch()
                await stage.until(lambda: stage.b.starts == 1)

            async def until_b_wrote() -> None:
                await stage.until(lambda: stage.ran(stage.b))

            async def until_a_was_refused() -> None:
                await stage.until(lambda: stage.a.starts == 2)

            stage.a.before_start.update({1: until_b_has_the_fence, 2: until_b_wrote})
            stage.b.before_start[1] = until_a_was_refused
            stage.a.dispatch()
            await self._one_wins(stage)
            stage.expect(["b"], [1, 2])

    async def _duplicate(self, stage: Stage) -> None:
        stage.a.dispatch()
        await stage.until(lambda: stage.ran(stage.a))
        stage.b.dispatch()
        await self._one_wins(stage)
        if stage.policy is Allocation.PREEMPTING:
            stage.expect(["a", "b"], [1, 2])
        else:
            stage.expect(["a"], [1])

    async def _one_wins(self, stage: Stage) -> None:
        """Play a case to its end: one dispatch completes, the other is told of it under the
        caller's own id, and settles.
        """
        await stage.until(lambda: stage.a.over and stage.b.over)
        found = f"effects {stage.runs}, fences {stage.fences}"
        state = await self._complete(stage)
        outcomes = [stage.a.outcome, stage.b.outcome]
        assert state in outcomes, found
        outcomes.remove(state)
        [refusal] = outcomes
        assert isinstance(refusal, LoomError), found
        assert is_left_to_another(refusal, stage.key.execution_id), f"{refusal!r}; {found}"
        live = isinstance(refusal, HeldByLiveOwnerError)
        assert live or is_superseded_refusal(refusal, stage.key.execution_id), found

    async def _complete(self, stage: Stage) -> FoldedState:
        state, kinds = await stage.state(), await stage.kinds()
        assert state is not None, "the start was lost"
        assert (state.key, state.status) == (stage.key, Status.COMPLETED)
        assert (kinds["EXECUTION_STARTED"], kinds["EXECUTION_COMPLETED"]) == (1, 1)
        return state


@pytest.mark.asyncio
class DispatcherConformance(TableRules):
    """See the module's docstring. A subclass supplies the fixture `store`, and its own
    `dispatcher` and `supervisor` if it has any.
    """
