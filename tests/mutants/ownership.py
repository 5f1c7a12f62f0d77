"""Guards of ownership and of what comes in: who may write, take over, and be told apart from a
failure (J2, J4, J5, F5, F6, F7, F8, K7).
"""

from __future__ import annotations

from typing import Final

from tests.mutants.guard import Guard

ERRORS: Final = "loom_mq/errors.py"
VERDICTS: Final = "loom_mq/journal/verdicts.py"
MEMORY: Final = "loom_mq/journal/memory.py"
FLEET: Final = "loom_mq/journal/memory_fleet.py"
KIT: Final = "tests/conformance/test_journal_memory.py::TestMemoryJournal::"
SUPERSEDED: Final = (
    "tests/unit/test_refusals.py::test_f5_superseded_is_told_by_class_and_by_name",
)
BARE: Final = (
    "isinstance(error, ExecutionAlreadyExistsError | StaleFenceError | ExecutionSupersededError)"
)
GIVEN_UP: Final = (f"{KIT}test_given_up_executions_are_listed",)

OWNERSHIP_GUARDS: Final[tuple[Guard, ...]] = (
    # ---- superseded or failed ---------------------------------------------------------------
    Guard(
        "superseded-bare-id", "F5", "another execution's bare refusal counts", ERRORS,
        f"        {BARE}\n        and error.execution_id == execution_id\n", f"        {BARE}\n",
        SUPERSEDED,
    ),
    Guard(
        "superseded-storage", "F5", "any storage error is superseded", ERRORS,
        "isinstance(cause, StaleFenceError) and cause.execution_id == execution_id", "True",
        SUPERSEDED,
    ),
    Guard(
        "superseded-fenced-out", "F6", "a start that was fenced out is superseded", ERRORS,
        f"        {BARE}\n", "        isinstance(error, JournalError)\n",
        SUPERSEDED,
    ),
    # ---- who may write ----------------------------------------------------------------------
    Guard(
        "append-second-start", "J2", "the race for sequence 0 has two winners", VERDICTS,
        "    if seq == 0 and row.last_seq >= 0:\n", "    if False:\n",
        (f"{KIT}test_second_start_finds_the_execution",),
    ),
    Guard(
        "append-again", "J4", "the same append again is refused", VERDICTS,
        "        return Grant.REPEATED\n    seq = append.events[0].seq\n",
        "        pass\n    seq = append.events[0].seq\n",
        (f"{KIT}test_same_append_again_is_a_success",),
    ),
    Guard(
        "claim-fence", "J5", "a take-over replaces any fence", VERDICTS,
        "    if row.fence != claim.expected_fence:\n", "    if False:\n",
        (f"{KIT}test_claim_names_the_fence_that_it_supersedes",),
    ),
    Guard(
        "claim-acquire", "J5", "a fence is acquired without comparing", VERDICTS,
        "    if expected is not None and expected != row.fence:\n", "    if False:\n",
        (f"{KIT}test_acquire_fence_is_compare_and_set",),
    ),
    Guard(
        "claim-ended", "J5", "what has ended is claimed", VERDICTS,
        "    if row.status.terminal:\n        return ended(row)\n    if row.owner == claim.owner",
        "    if row.owner == claim.owner",
        (f"{KIT}test_claim_of_what_has_ended_or_is_unknown",),
    ),
    Guard(
        "claim-start-alive", "F7", "a start takes what a live holder has", VERDICTS,
        "    if holder is not None and holder != claim.owner:\n", "    if False:\n",
        (f"{KIT}test_start_leaves_a_live_holder_alone",),
    ),
    Guard(
        "claim-wedged", "F7", "a wedged holder is left alone", VERDICTS,
        "        return row.owner if self.alive and not wedged else None\n",
        "        return row.owner if self.alive else None\n",
        (f"{KIT}test_wedged_owner_is_taken_over",),
    ),
    Guard(
        "claim-lapsed", "F7", "a holder whose lease has lapsed is left alone", VERDICTS,
        "        return row.owner if self.alive and not wedged else None\n",
        "        return None if wedged else row.owner\n",
        (f"{KIT}test_lapsed_owner_is_taken_over",),
    ),
    # ---- the bound of recoveries --------------------------------------------------------------
    Guard(
        "recover-bound", "F8", "recoveries without progress have no bound", FLEET,
        "if entry.row.recoveries < max_recoveries\n", "if entry.row.recoveries < 99\n", GIVEN_UP,
    ),
    Guard(
        "recover-one-more", "F8", "one recovery more than the bound", FLEET,
        "if entry.row.recoveries < max_recoveries\n",
        "if entry.row.recoveries <= max_recoveries\n",
        GIVEN_UP,
    ),
    Guard(
        "recover-silence", "F8", "what is given up is not listed", FLEET,
        "            if entry.row.recoveries >= max_recoveries\n",
        "            if entry.row.recoveries > max_recoveries\n",
        GIVEN_UP,
    ),
    # ---- the inbox ----------------------------------------------------------------------------
    Guard(
        "inbox-waiting-twice", "K7", "an item that waits comes in twice", MEMORY,
        "        if item.item_id in entry.inbox or item.item_id in entry.taken:\n",
        "        if item.item_id in entry.taken:\n",
        (f"{KIT}test_same_item_twice_is_one",),
    ),
    Guard(
        "inbox-taken-twice", "K7", "an item that was taken comes in again", MEMORY,
        "        if item.item_id in entry.inbox or item.item_id in entry.taken:\n",
        "        if item.item_id in entry.inbox:\n",
        (f"{KIT}test_taken_item_never_comes_back",),
    ),
    Guard(
        "inbox-ended", "K7", "an item is kept that nobody will read", MEMORY,
        "        if entry.row.status.terminal:\n"
        "            return DeliverVerdict(error=verdicts.ended(entry.row))\n",
        "",
        (f"{KIT}test_delivery_is_refused_where_nobody_will_read",),
    ),
)  # fmt: skip
