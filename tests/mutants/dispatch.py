"""The guards of dispatch and supervision (ADR 0004, F3 to F7).

What each mutant does to the table of `loom_mq.testing.conformance.dispatcher`, preempting,
the same over PostgreSQL, SQLite and memory (effect runs of the race for sequence 0, of
the duplicate after the bootstrap, and of the same under a supervisor; with all guards 1, 2
and 2):

========================  =================================================================
dispatch-policy           5, 6 and 18 runs, under fences 1 to 6, 1 to 6 and 1 to 18
dispatch-dispatcher       5, 6 and 6
dispatch-supervisor       1, 2 and 6; and the circuit counts them
dispatch-tenant           5, 6 and 18 seen by a tenant; plainly nothing changes
dispatch-fenced-out       the start is lost: 0 runs, an empty log
dispatch-start-tries      a racer does not lose cleanly: fences 1 to 4 instead of [1, 2]
dispatch-leased           leased is as preempting: 2 runs under fences [1, 2] instead of 1
========================  =================================================================
"""

from __future__ import annotations

from typing import Final

from tests.mutants.guard import Guard

KIT: Final = "tests/conformance/test_dispatcher_kit.py"
RACE: Final = f"{KIT}::TestOverMemory::test_both_race_for_sequence_0"
DUPLICATE: Final = f"{KIT}::TestOverMemory::test_a_duplicate_after_the_bootstrap"
SUPERVISED: Final = f"{KIT}::TestOverMemory::test_the_same_under_a_supervisor"
ZOMBIE: Final = f"{KIT}::TestOverMemory::test_a_dead_holder_is_taken_over"
SILENT: Final = f"{KIT}::TestOverMemory::test_a_start_fenced_out_by_a_silent_holder"
WROTE: Final = f"{KIT}::TestOverMemory::test_a_racer_that_wrote_meanwhile_wins"
POLICY: Final = "tests/unit/test_dispatch_policy.py"
WORKER: Final = "tests/unit/test_dispatch_worker.py"
REMOTE: Final = "tests/conformance/test_dispatch_remote.py"
ERRAND: Final = "loom_mq/dispatch/errand.py"

DISPATCH_GUARDS: Final[tuple[Guard, ...]] = (
    Guard(
        "dispatch-policy", "F5", "a superseded attempt is a failed one, for everybody",
        "loom_mq/engine/policy.py",
        "    if is_superseded_refusal(error, execution_id):\n        return True\n", "",
        (RACE, DUPLICATE, SUPERVISED, ZOMBIE),
    ),
    Guard(
        "dispatch-dispatcher", "F5", "the dispatcher takes a superseded attempt for a failed one",
        "loom_mq/dispatch/local.py",
        "next_action(outcome, self._max_attempts - attempt, key.execution_id)",
        'next_action(outcome, self._max_attempts - attempt, "")',
        (RACE, DUPLICATE, SUPERVISED, ZOMBIE),
    ),
    Guard(
        "dispatch-supervisor", "F5", "the supervisor takes a superseded dispatch for a failed one",
        "loom_mq/dispatch/supervising.py",
        "next_action(threw(error), left, package.execution_id)",
        'next_action(threw(error), left, "")',
        (SUPERVISED,),
    ),
    Guard(
        "dispatch-circuit", "F5", "the circuit counts superseded dispatches",
        "loom_mq/dispatch/supervising.py",
        "                if action is Action.SETTLE:\n                    self.circuit.left()\n",
        "                if action is Action.SETTLE:\n                    self.circuit.failed()\n",
        (SUPERVISED, f"{KIT}::TestOverMemory::test_a_supervisor_never_restarts_a_superseded_one"),
    ),
    Guard(
        "dispatch-tenant", "J9", "a tenant's view passes refusals on under the store's own key",
        "loom_mq/journal/tenant_scope.py",
        "        copy.execution_id = key.execution_id\n", "        pass\n",
        (RACE, DUPLICATE, SUPERVISED, ZOMBIE),
    ),
    Guard(
        "dispatch-fenced-out", "F6", "a start kept out by a silent holder reads as superseded",
        ERRAND,
        "    error.__cause__ = StartFencedOutError(key.execution_id, current=current)\n",
        "    error.__cause__ = StaleFenceError(key.execution_id, held=0, current=current)\n",
        (SILENT,),
    ),
    Guard(
        "dispatch-start-tries", "F6", "a start that is kept out is not tried once more", ERRAND,
        "START_TRIES: Final = 2\n", "START_TRIES: Final = 1\n",
        (WROTE, WORKER),
    ),
    Guard(
        "dispatch-leased", "F7", "a leased worker takes what a living holder has", ERRAND,
        "        preempt = means.policy is Allocation.PREEMPTING\n", "        preempt = True\n",
        (RACE, DUPLICATE, SUPERVISED),
    ),
    Guard(
        "dispatch-silent-racer", "F6", "a claim lost to a racer takes it from him though he lives",
        ERRAND,
        "            row, preempt = now, False\n", "            row = now\n",
        (f"{WORKER}::test_f6_a_claim_lost_to_a_living_racer_is_left_to_him",),
    ),
    Guard(
        "dispatch-at-rest", "F3", "what is parked or over is driven again",
        "loom_mq/dispatch/worker.py",
        "        return parked or row.status.terminal\n", "        return False\n",
        (f"{WORKER}::test_f3_what_is_parked_is_answered_and_a_wake_drives_it",),
    ),
    Guard(
        "dispatch-wire-code", "F5", "any refusal over the wire is superseded",
        "loom_mq/dispatch/remote.py",
        "        if named and item.code == ExecutionSupersededError.code:\n",
        "        if named:\n",
        (f"{REMOTE}::test_f5_code_and_id_must_both_match",),
    ),
    Guard(
        "dispatch-wire-id", "F5", "another execution's refusal over the wire counts",
        "loom_mq/dispatch/remote.py",
        "        if named and item.code == ExecutionSupersededError.code:\n",
        "        if item.code == ExecutionSupersededError.code:\n",
        (f"{REMOTE}::test_f5_code_and_id_must_both_match",),
    ),
    Guard(
        "dispatch-deadline", "F4", "a passed deadline is no failed attempt",
        "loom_mq/dispatch/local.py",
        "            return None, AttemptOutcome(AttemptEnd.TIMED_OUT, self._too_late(package))\n",
        "            raise self._too_late(package)\n",
        (f"{POLICY}::test_f4_a_hung_attempt_is_sent_again_without_waiting_for_it",),
    ),
)  # fmt: skip
