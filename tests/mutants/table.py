"""The guards, by rule. The kernel's own, above all those of ADR 0105."""

from __future__ import annotations

from typing import Final

from tests.mutants.dispatch import DISPATCH_GUARDS
from tests.mutants.fleet import FLEET_GUARDS
from tests.mutants.guard import Guard
from tests.mutants.kernel import KERNEL_GUARDS
from tests.mutants.ownership import OWNERSHIP_GUARDS
from tests.mutants.settling import SETTLING_GUARDS
from tests.mutants.stores import STORE_GUARDS

FOLD: Final = "loom_mq/kernel/fold.py"
STATE: Final = "loom_mq/kernel/state.py"
SHOTS: Final = "loom_mq/kernel/snapshots.py"
PROPERTIES: Final = "tests/unit/test_fold_properties.py"
CAUGHT: Final = "tests/unit/test_caught_failures.py"
TURNS: Final = "tests/unit/test_turns.py"
DOUBT: Final = "tests/unit/test_in_doubt.py"
CANCEL: Final = "tests/unit/test_cancellation.py"

GUARDS: Final[tuple[Guard, ...]] = (
    # ---- the fold (ADR 0105 D1, D3) -----------------------------------------------------
    Guard(
        "fold-status", "K1", "a failed step fails its execution", FOLD,
        "    if state.status is _SUSPENDED:\n        state.failed_while_parked = True\n",
        "    state.failed_while_parked = state.status is _SUSPENDED\n"
        "    state.status = Status.FAILED\n",
        (f"{PROPERTIES}::test_k1_no_step_event_moves_the_status",),
    ),
    Guard(
        "fold-mark", "K8", "a failure while parked leaves no mark", FOLD,
        "        state.failed_while_parked = True\n", "        pass\n",
        (f"{PROPERTIES}::test_k8_the_mark_is_there_from_a_failure_while_parked_to_the_end_of_the_park",),
    ),
    Guard(
        "fold-mark-anywhere", "K8", "a failure while running leaves the mark", FOLD,
        "    if state.status is _SUSPENDED:\n        state.failed_while_parked = True\n",
        "    state.failed_while_parked = True\n",
        (f"{PROPERTIES}::test_k8_the_mark_is_there_from_a_failure_while_parked_to_the_end_of_the_park",),
    ),
    Guard(
        "fold-mark-repark", "K8", "the next park keeps the mark", FOLD,
        "    state.parked_at = state.last_seq\n    state.failed_while_parked = False\n",
        "    state.parked_at = state.last_seq\n",
        (f"{PROPERTIES}::test_k8_the_mark_is_there_from_a_failure_while_parked_to_the_end_of_the_park",),
    ),
    Guard(
        "fold-mark-unpark", "K8", "waking and ending keep the mark", FOLD,
        "    state.parked_on = ()\n    state.failed_while_parked = False\n",
        "    state.parked_on = ()\n",
        (f"{PROPERTIES}::test_k8_the_mark_is_there_from_a_failure_while_parked_to_the_end_of_the_park",),
    ),
    Guard(
        "fold-end-unparks", "K8", "an end leaves the execution parked", FOLD,
        "    state.ended_at = at\n    _unpark(state)\n", "    state.ended_at = at\n",
        (f"{PROPERTIES}::test_k8_the_mark_is_there_from_a_failure_while_parked_to_the_end_of_the_park",),
    ),
    Guard(
        "fold-resume-running", "K8", "a wake of what is not parked answers its waits", FOLD,
        "    if state.status is not _SUSPENDED:\n        return\n", "",
        (PROPERTIES, "tests/unit/test_fold.py"),
    ),
    Guard(
        "fold-progress-step", "F8", "a completed step is no progress", FOLD,
        "    state.recoveries = 0\n    if (frame := state.frames.get(event.step_id)) is not None:\n"
        "        frame.status = _STEP_COMPLETED\n",
        "    if (frame := state.frames.get(event.step_id)) is not None:\n"
        "        frame.status = _STEP_COMPLETED\n",
        ("tests/unit/test_fold.py",),
    ),
    Guard(
        "fold-progress-park", "F8", "a park is no progress", FOLD,
        "    state.failed_while_parked = False\n    state.recoveries = 0\n",
        "    state.failed_while_parked = False\n",
        ("tests/unit/test_fold.py",),
    ),
    Guard(
        "fold-progress-wake", "F8", "a wake is no progress", FOLD,
        "    state.recoveries = 0\n    if state.status is not _SUSPENDED:\n",
        "    if state.status is not _SUSPENDED:\n",
        ("tests/unit/test_fold.py",),
    ),
    Guard(
        "fold-first-answer", "K7", "a later answer replaces the first", FOLD,
        "    state.answers.setdefault(event.wait_id, Answer(event.answer))\n",
        "    state.answers[event.wait_id] = Answer(event.answer)\n",
        ("tests/unit/test_fold.py", PROPERTIES),
    ),
    # ---- what a re-run is served (K2, K5, K6) ---------------------------------------------
    Guard(
        "serve-typed", "K5", "a typed failure is found out anew", STATE,
        "            known = frame.once or (frame.failure is not None and frame.failure.channel)\n",
        "            known = frame.once\n",
        (f"{CAUGHT}::test_0105_a_typed_failure_is_served_and_its_step_is_not_called",),
    ),
    Guard(
        "serve-untyped", "K2", "an untyped failure that nobody went past is served", STATE,
        "            return bool(known) or frame.withdrawn or self.went_past(frame)\n",
        "            return True\n",
        (f"{CAUGHT}::test_0105_a_caught_failure_is_recovered_and_its_step_runs_again",),
    ),
    Guard(
        "serve-went-past", "K3", "a failure that the flow went past is found out anew", STATE,
        "            return bool(known) or frame.withdrawn or self.went_past(frame)\n",
        "            return bool(known)\n",
        ("tests/unit/test_engine.py::test_c18_a_failure_that_the_flow_went_past_is_met_again",),
    ),
    Guard(
        "serve-once", "K6", "a failure of an effect that must not run twice is found out anew",
        STATE,
        "            known = frame.once or (frame.failure is not None and frame.failure.channel)\n",
        "            known = frame.failure is not None and frame.failure.channel\n",
        (f"{DOUBT}::test_k6_a_failure_that_nobody_went_past_is_no_doubt_either",),
    ),
    # ---- snapshots (J7, ADR 0105 D4) ----------------------------------------------------
    Guard(
        "shot-normalise", "J7", "an old fold's snapshot is taken as it is", SHOTS,
        "    return normalise(state) if snapshot.fold < STEP_FAILURE_IS_NO_END else state\n",
        "    return state\n",
        (f"{PROPERTIES}::test_j7_an_earlier_folds_snapshot_and_tail_are_the_whole_log",),
    ),
    Guard(
        "shot-parked", "J7", "a parked one is mended to running", SHOTS,
        "    if state.parked_on:\n", "    if False and state.parked_on:\n",
        (f"{PROPERTIES}::test_j7_an_earlier_folds_snapshot_and_tail_are_the_whole_log",),
    ),
    Guard(
        "shot-mark", "K8", "a mended park has no mark", SHOTS,
        "status=Status.SUSPENDED, failed_while_parked=True)",
        "status=Status.SUSPENDED)",
        (f"{CAUGHT}::test_k8_a_gate_is_answered_after_a_sibling_failed_late",),
    ),
    Guard(
        "shot-really-failed", "J7", "what really failed is mended too", SHOTS,
        "    if state.status is not Status.FAILED or state.failure is not None:\n",
        "    if state.status is not Status.FAILED:\n",
        (PROPERTIES, "tests/unit/test_snapshots.py"),
    ),
    Guard(
        "shot-newer", "J7", "a snapshot of a newer fold is guessed at", SHOTS,
        "    if snapshot.fold > FOLD_VERSION:\n        return None\n", "",
        ("tests/unit/test_snapshots.py",),
    ),
    Guard(
        "shot-durable", "J7", "a snapshot knows more than its log", "loom_mq/engine/shots.py",
        "self._waiting is not None and self._waiting.seq <= durable_seq",
        "self._waiting is not None",
        ("tests/unit/test_engine_snapshots.py::test_j7_a_snapshot_waits_for_its_last_event",),
    ),
    Guard(
        "shot-used", "J7", "a claim reads the log from its beginning",
        "loom_mq/engine/attempts.py",
        "        base = None if shot is None else decode_snapshot(shot)\n",
        "        base = decode_snapshot(shot) and None if shot is not None else None\n",
        ("tests/unit/test_engine_snapshots.py",),
    ),
    # ---- answers and verdicts (K6, K7, K8) ----------------------------------------------
    Guard(
        "answer-null", "K8", "an empty answer after a failure while parked is taken",
        "loom_mq/kernel/refusals.py",
        "    if parked is None or not state.failed_while_parked or not _is_none(item.payload):\n",
        "    if True:\n",
        (f"{CAUGHT}::test_k8_a_gate_is_answered_after_a_sibling_failed_late",),
    ),
    Guard(
        "answer-wait", "K7", "an answer goes to any wait of its gate", "loom_mq/flows/mail.py",
        "                and item.wait_id in (None, wait_id)\n", "",
        ("tests/unit/test_refusals.py", "tests/unit/test_engine.py"),
    ),
    Guard(
        "answer-type", "K7", "an answer of another type is taken", "loom_mq/flows/waits.py",
        '                codec.decode(item.payload, what="answer")\n', "                pass\n",
        ("tests/unit/test_engine.py",),
    ),
    Guard(
        "answer-in-doubt", "K7", "an answer is kept while in doubt", "loom_mq/engine/control.py",
        "    if item.op is ControlOp.RESUME and row.in_doubt and item.gate not in row.gates:\n",
        "    if False:\n",
        (f"{DOUBT}::test_k7_an_answer_is_refused_while_in_doubt",),
    ),
    Guard(
        "doubt-asks", "K6", "an effect that must not run twice runs again",
        "loom_mq/flows/effects.py",
        "if frame is not None and not step.idempotent and frame.status in UNSETTLED:",
        "if False:",
        (f"{DOUBT}::test_k6_it_parks_and_asks",),
    ),
    Guard(
        "doubt-barrier", "K6", "an effect begins before its start is durable",
        "loom_mq/flows/effects.py",
        "            await desk.log.barrier()  # the write barrier stands before the effect\n",
        "",
        (f"{CAUGHT}::test_k6_the_start_of_a_step_is_durable_before_its_effect",),
    ),
    Guard(
        "doubt-value", "K6", "a verdict's value is not checked", "loom_mq/flows/effects.py",
        "                    if verdict.kind is VerdictKind.COMPLETED\n",
        "                    if False\n",
        (f"{DOUBT}::test_k6_a_wrong_value_is_refused_and_the_question_stays",),
    ),
    # ---- turns (K3) ---------------------------------------------------------------------
    Guard(
        "turn-order", "K3", "a re-run is told everything at once", "loom_mq/flows/turns.py",
        "        return place in self._ahead\n", "        return False\n",
        (TURNS,),
    ),
    Guard(
        "turn-rest", "K3", "a turn begins before the flow has come to rest",
        "loom_mq/flows/turns.py",
        "        if not (self._script or self._pending) and self._resting:\n",
        "        if not (self._script or self._pending):\n",
        (TURNS,),
    ),
    Guard(
        "turn-births", "K3", "a re-run begins new steps before it is told the old ones",
        "loom_mq/flows/turns.py",
        "        if not (self.replaying or (self._pending and not at_once)):\n"
        "            return None\n        born",
        "        return None\n        born",
        ("tests/simulation/test_random_programs.py::test_random_programs",),
    ),
    Guard(
        "turn-sets", "K3", "sets of tasks are ordered by address", "loom_mq/flows/scope.py",
        "    def __hash__(self) -> int:\n        return self._number\n", "",
        (f"{TURNS}::test_k3_tasks_are_in_the_same_order_in_every_set",),
    ),
    Guard(
        "turn-missing", "K3", "a place that the code does not come to is waited for for ever",
        "loom_mq/flows/turns.py",
        "            self._missing(places[0])\n", "            pass\n",
        (f"{TURNS}::test_k3_a_place_that_the_code_does_not_come_to_is_a_mismatch",),
    ),
    Guard(
        "place-mismatch", "K3", "another step's record is served", "loom_mq/flows/desk.py",
        "        if recorded is not None and recorded != (kind, name):\n", "        if False:\n",
        ("tests/unit/test_patched.py", "tests/unit/test_engine_handover.py"),
    ),
    Guard(
        "place-patched", "K3", "old executions go the new way", "loom_mq/flows/activation.py",
        "        if strand.went_on_in(state.ops):\n            return False\n", "",
        ("tests/unit/test_patched.py",),
    ),
    Guard(
        "clock-refused", "K12", "flow code may wait by the clock", "loom_mq/flows/scope.py",
        "        if current_strand.get() is not None:\n"
        "            raise UnsupportedInFlowError(what)\n",
        "",
        (f"{TURNS}::test_k12_flow_code_cannot_wait_by_the_clock",),
    ),
    # ---- cancel, park, seal (K11, K13) --------------------------------------------------
    Guard(
        "cancel-level", "K13", "a swallowed cancellation is forgotten", "loom_mq/flows/desk.py",
        "        if self.cancelling and not call.shielded:\n"
        "            await self._interrupt()\n",
        "",
        (f"{CANCEL}::test_k13_a_flow_that_swallows_it_is_told_at_every_call",),
    ),
    Guard(
        "cancel-shield", "K13", "a shield does not shield", "loom_mq/flows/desk.py",
        "        self.shielded = shielded.get()\n", "        self.shielded = False\n",
        (f"{CANCEL}::test_k13_a_shielded_block_runs_before_the_cancellation_is_final",),
    ),
    Guard(
        "cancel-record", "K13", "a cancellation is told in no turn", "loom_mq/kernel/fold.py",
        "        state.settle(CANCEL_PLACE, event.turn)\n", "        pass\n",
        (f"{CANCEL}::test_k13_a_cleanup_may_sleep",),
    ),
    Guard(
        "park-drain", "K11", "a park does not wait for what is in flight",
        "loom_mq/engine/drive.py",
        "            if await self._settled() or "
        "(self._late(_PARK) and activation.stands_still):\n",
        "            if True:\n",
        ("tests/unit/test_park.py",),
    ),
    Guard(
        "park-freeze", "K11", "new steps begin while the flow parks", "loom_mq/flows/desk.py",
        "                if not self.frozen or though_frozen:\n", "                if True:\n",
        ("tests/unit/test_park.py",),
    ),
    Guard(
        "log-seal", "K11", "an event follows a park or an end", "loom_mq/journal/log.py",
        "        if self.sealed or self.refusal is not None:\n",
        "        if self.refusal is not None:\n",
        ("tests/unit/test_execution_log.py",),
    ),
    Guard(
        "end-durable", "K9", "an end that is not durable is told", "loom_mq/engine/drive.py",
        "        if await self._log.flushed() is not None:\n"
        "            # the outcome is not durable, so nobody is told one (K9)\n"
        "            return DriveEnd.REFUSED\n",
        "        await self._log.flushed()\n",
        (f"{CAUGHT}::test_k9_an_end_that_is_not_durable_is_told_to_nobody",),
    ),
    # ---- ownership (F5, F8) -------------------------------------------------------------
    Guard(
        "superseded-id", "F5", "another execution's refusal counts", "loom_mq/errors.py",
        "isinstance(cause, StaleFenceError) and cause.execution_id == execution_id\n",
        "isinstance(cause, StaleFenceError)\n",
        ("tests/unit/test_refusals.py",),
    ),
    Guard(
        "claim-alive", "F7", "a live holder is preempted", "loom_mq/journal/verdicts.py",
        "    if holder is not None and holder != claim.owner and not claim.preempt:\n",
        "    if False:\n",
        ("tests/unit/test_engine_handover.py::test_f7_a_live_holder_is_never_preempted",),
    ),
    Guard(
        "append-fence", "J2", "an old fence may append", "loom_mq/journal/verdicts.py",
        "    if row.fence != expected or (claim is not None and append.fence != expected + 1):\n",
        "    if False:\n",
        ("tests/conformance/test_journal_memory.py",),
    ),
    Guard(
        "append-sequence", "J2", "a sequence may be skipped", "loom_mq/journal/verdicts.py",
        "    if seq != row.last_seq + 1:\n", "    if False:\n",
        ("tests/conformance/test_journal_memory.py",),
    ),
    *KERNEL_GUARDS,
    *OWNERSHIP_GUARDS,
    *DISPATCH_GUARDS,
    *FLEET_GUARDS,
    *STORE_GUARDS,
    *SETTLING_GUARDS,
)  # fmt: skip
