"""More guards of the kernel and of whoever writes for it: each end of a park by itself, each
event that seals, each condition under which an old fold is mended, each part of an address.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.guard import Guard

FOLD: Final = "loom_mq/kernel/fold.py"
STATE: Final = "loom_mq/kernel/state.py"
SHOTS: Final = "loom_mq/kernel/snapshots.py"
LOG: Final = "loom_mq/journal/log.py"
MAIL: Final = "loom_mq/flows/mail.py"
REFUSALS: Final = "loom_mq/kernel/refusals.py"
OF_FOLD: Final = "tests/unit/test_fold.py::"
OF_SHOTS: Final = "tests/unit/test_snapshots.py::"
OF_LOG: Final = "tests/unit/test_execution_log.py::"
OF_REFUSALS: Final = "tests/unit/test_refusals.py::"
OF_CAUGHT: Final = "tests/unit/test_caught_failures.py::"
MARK: Final = (
    f"{OF_FOLD}test_k8_the_mark_is_set_while_parked_and_cleared_by_whatever_ends_the_park",
)
PAST: Final = (f"{OF_FOLD}test_k2_a_failure_is_served_once_the_flow_went_past_it",)
MENDED: Final = (f"{OF_SHOTS}test_d4_nothing_else_is_mended",)
SEALED: Final = (f"{OF_LOG}test_k11_nothing_follows_a_park_or_an_end",)
SEALING: Final = ("ExecutionSuspended", "ExecutionCompleted", "ExecutionFailed",
                  "ExecutionCancelled")  # fmt: skip

KERNEL_GUARDS: Final[tuple[Guard, ...]] = (
    # ---- the fold -------------------------------------------------------------------------
    Guard(
        "fold-status-cancelled", "K1", "a cancelled step cancels its execution", FOLD,
        "        frame.status = FrameStatus.CANCELLED\n",
        "        frame.status = FrameStatus.CANCELLED\n        state.status = Status.CANCELLED\n",
        ("tests/unit/test_fold_properties.py::test_k1_no_step_event_moves_the_status",),
    ),
    Guard(
        "fold-failed-error", "K1", "an execution fails without its error", FOLD,
        "    state.failure = event.failure\n\n\ndef _cancelled", "\n\ndef _cancelled",
        (f"{OF_FOLD}test_a_failed_execution_has_its_failure",),
    ),
    Guard(
        "fold-mark-resumed", "K8", "EXECUTION_RESUMED keeps the mark", FOLD,
        "    state.status = _RUNNING\n    _unpark(state)\n",
        "    state.status = _RUNNING\n    state.parked_on = ()\n",
        MARK,
    ),
    *(
        Guard(
            f"fold-mark-{status.lower()}", "K8", f"EXECUTION_{status} keeps the mark", FOLD,
            "    state.ended_at = at\n    _unpark(state)\n",
            f"    state.ended_at = at\n    if status is not Status.{status}:\n"
            "        _unpark(state)\n",
            MARK,
        )
        for status in ("COMPLETED", "FAILED", "CANCELLED")
    ),
    Guard(
        "fold-answer-in-time", "K7", "the time replaces an answer that came before", FOLD,
        "        state.answers.setdefault(wait_id, Answer(None))\n",
        "        state.answers[wait_id] = Answer(None)\n",
        (f"{OF_FOLD}test_k7_the_first_end_of_a_wait_counts",),
    ),
    Guard(
        "fold-recoveries", "F8", "recoveries are not counted", FOLD,
        "    state.recoveries += 1\n", "    state.recoveries = 1\n",
        (f"{OF_FOLD}test_f8_recoveries_count_since_the_last_progress",),
    ),
    *(
        Guard(
            f"past-{what}", "K3", f"a flow does not go past a failure by a {what}", STATE,
            "max(self.newest_place, self.told_at, self.parked_at)", f"max({rest})",
            PAST,
        )
        for what, rest in (
            ("call", "self.told_at, self.parked_at"),
            ("turn", "self.newest_place, self.parked_at"),
            ("park", "self.newest_place, self.told_at"),
        )
    ),
    # ---- snapshots (ADR 0105 D4) ----------------------------------------------------------
    Guard(
        "shot-failed-only", "J7", "what did not fail is mended too", SHOTS,
        "    if state.status is not Status.FAILED or state.failure is not None:\n",
        "    if state.failure is not None:\n",
        MENDED,
    ),
    Guard(
        "shot-failed-step", "J7", "it is mended without a failed step", SHOTS,
        "    if not any(frame.status is FrameStatus.FAILED for frame in state.frames.values()):\n",
        "    if False:\n",
        MENDED,
    ),
    Guard(
        "shot-recorded-end", "J7", "a recorded end is reopened", SHOTS,
        "    if state.ended_at is not None:\n", "    if False:\n",
        (f"{OF_SHOTS}test_d4_an_end_that_was_recorded_stands",),
    ),
    Guard(
        "shot-cadence", "J7", "snapshots cost more, the longer the log", SHOTS,
        "    return new >= every and new * SHARE > seq\n", "    return new >= every\n",
        (f"{OF_SHOTS}test_j7_due_after_so_many_events_and_a_quarter_of_the_log",),
    ),
    # ---- the writing end of a log ---------------------------------------------------------
    *(
        Guard(
            f"log-seal-{event.removeprefix('Execution').lower()}", "K11",
            f"something follows {event}", LOG,
            f"_SEALING = ({', '.join(SEALING)})",
            f"_SEALING = ({', '.join(each for each in SEALING if each != event)})",
            SEALED,
        )
        for event in SEALING
    ),
    Guard(
        "log-release", "F7", "a park or an end keeps its owner", LOG,
        "            self.sealed = self._released = True\n", "            self.sealed = True\n",
        SEALED,
    ),
    Guard(
        "log-refused", "F5", "writing goes on after a refusal", LOG,
        "        if self.sealed or self.refusal is not None:\n", "        if self.sealed:\n",
        (f"{OF_LOG}test_j2_after_a_refusal_nothing_is_written",),
    ),
    Guard(
        "log-hold", "K3", "a wake that leads to nothing new is on the log", LOG,
        "        if not (self._inflight or hold):\n", "        if not self._inflight:\n",
        (f"{OF_LOG}test_k3_an_event_on_hold_goes_out_with_the_next_one_or_never",),
    ),
    # ---- mail -----------------------------------------------------------------------------
    Guard(
        "answer-gate", "K7", "an answer goes to any gate", MAIL,
        "                and item.gate == gate\n", "",
        (f"{OF_REFUSALS}test_k7_an_answer_goes_to_the_wait_that_it_names",),
    ),
    Guard(
        "answer-kind", "K6", "a verdict is taken for an answer", MAIL,
        "                item.kind is InboxKind.ANSWER\n                and item.gate == gate\n",
        "                item.gate == gate\n",
        (f"{OF_REFUSALS}test_k7_a_verdict_is_no_answer",),
    ),
    Guard(
        "answer-taken-twice", "K7", "an item that was taken comes in again", MAIL,
        "            if item.item_id in self._items or item.item_id in self._done:\n",
        "            if item.item_id in self._items:\n",
        (f"{OF_REFUSALS}test_k7_the_same_id_twice_is_one_item",),
    ),
    Guard(
        "answer-waiting-twice", "K7", "an item that waits comes in again", MAIL,
        "            if item.item_id in self._items or item.item_id in self._done:\n",
        "            if item.item_id in self._done:\n",
        (f"{OF_REFUSALS}test_k7_the_same_id_twice_is_one_item",),
    ),
    Guard(
        "answer-null-ordinary", "K8", "an empty answer is refused without a failure", REFUSALS,
        "parked is None or not state.failed_while_parked or not _is_none(item.payload)",
        "parked is None or not _is_none(item.payload)",
        (f"{OF_CAUGHT}test_k8_an_empty_answer_is_an_ordinary_one_otherwise",),
    ),
    Guard(
        "answer-value-marked", "K8", "an answer with a value is refused after a failure", REFUSALS,
        "parked is None or not state.failed_while_parked or not _is_none(item.payload)",
        "parked is None or not state.failed_while_parked",
        (f"{OF_REFUSALS}test_k8_nothing_else_is_refused",),
    ),
    Guard(
        "answer-refused-first", "K8", "an empty answer is refused after something was appended",
        "loom_mq/engine/drive.py",
        "        self._refuse(self._mail)\n", "",
        (f"{OF_CAUGHT}test_k8_a_gate_is_answered_after_a_sibling_failed_late",),
    ),
    Guard(
        "serve-recalled", "K5", "what the log holds is run again", "loom_mq/flows/effects.py",
        "                if desk.turns.is_ahead(place):\n", "                if False:\n",
        (f"{OF_CAUGHT}test_0105_a_typed_failure_is_served_and_its_step_is_not_called",),
    ),
)  # fmt: skip
