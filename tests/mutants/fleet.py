"""Guards of the fleet: servers' own code, the way between processes, and pairs of guards of which
one hides that the other is gone (J2, J4, J5, F7, F9, F10).
"""

from __future__ import annotations

from typing import Final

from tests.mutants.guard import Guard

VERDICTS: Final = "loom_mq/journal/verdicts.py"
FUNCTIONS: Final = "loom_mq/journal/sql/postgres/functions"
SQL_APPEND: Final = f"{FUNCTIONS}/03_append.sql"
DRIVER: Final = "loom_mq/engine/driver.py"
SWEEP: Final = "loom_mq/engine/sweep.py"
MEMORY_KIT: Final = "tests/conformance/test_journal_memory.py::TestMemoryJournal::"
SQL_KIT: Final = "tests/conformance/test_journal_postgres.py::TestPostgresJournal::"
AMQP_KIT: Final = "tests/conformance/test_broker_amqp.py::TestAmqpBroker::"
BROKER_KIT: Final = "tests/conformance/test_broker_memory.py::TestMemoryBroker::"
SIMULATION: Final = "tests/simulation/test_fleet_simulation.py"
PROGRAMS: Final = f"{SIMULATION}::test_each_program_comes_to_its_end"
DEATHS: Final = f"{SIMULATION}::test_a_process_may_die_at_any_step[two steps]"
SEEDS: Final = f"{SIMULATION}::test_no_rule_is_broken"

ACK_FIRST: Final = (
    "        if package.start is not None and fence == 0:\n",
    "        settled.done()\n        if package.start is not None and fence == 0:\n",
)
UNCONFIRMED: Final = (
    "        if not await self._packages.send(timer.row, Cause.WAKE):\n            return False\n",
    "        await self._packages.send(timer.row, Cause.WAKE)\n",
)

FLEET_GUARDS: Final[tuple[Guard, ...]] = (
    # ---- fence and sequence (J2, J4) --------------------------------------------------------
    Guard(
        "append-ids", "J4", "an envelope's id may stand twice", VERDICTS,
        "    if first_id_known:\n", "    if False:\n",
        (f"{MEMORY_KIT}test_recorded_envelope_id_at_another_sequence_is_refused",),
    ),
    Guard(
        "pair-fence-sequence", "J2", "anybody may append anything, as the pair hides it",
        VERDICTS,
        "    if row.fence != expected or (claim is not None and append.fence != expected + 1):\n",
        "    if False:\n",
        (SEEDS,),
        ((VERDICTS, "    if seq != row.last_seq + 1:\n", "    if False:\n"),),
    ),
    Guard(
        "pg-append-fence", "J2", "an old fence may append to PostgreSQL", SQL_APPEND,
        "            AND e.fence = k.expected AND e.last_seq = k.first_seq - 1\n",
        "            AND e.last_seq = k.first_seq - 1\n",
        (f"{SQL_KIT}test_append_without_the_current_fence_is_refused",),
    ),
    Guard(
        "pg-append-sequence", "J2", "a sequence may be skipped in PostgreSQL", SQL_APPEND,
        "            AND e.fence = k.expected AND e.last_seq = k.first_seq - 1\n",
        "            AND e.fence = k.expected\n",
        (f"{SQL_KIT}test_append_at_another_sequence_is_refused",),
    ),
    Guard(
        "pg-start-alive", "F7", "a start takes what a live holder has in PostgreSQL", SQL_APPEND,
        "                OR NOT loom.alive_v1(e.owner, v_now)\n", "                OR true\n",
        (f"{SQL_KIT}test_start_leaves_a_live_holder_alone",),
    ),
    # ---- claims (J5, F7) --------------------------------------------------------------------
    Guard(
        "pg-claim-fence", "J5", "a take-over replaces any fence in PostgreSQL",
        f"{FUNCTIONS}/04_claim.sql",
        "        AND e.fence = k.expected AND e.status IN ('pending', 'running', 'suspended')\n",
        "        AND e.status IN ('pending', 'running', 'suspended')\n",
        (f"{SQL_KIT}test_claim_names_the_fence_that_it_supersedes",),
    ),
    Guard(
        "pg-claim-alive", "F7", "a live holder is preempted in PostgreSQL",
        f"{FUNCTIONS}/04_claim.sql",
        "            OR NOT loom.alive_v1(e.owner, p_now)\n", "            OR true\n",
        (f"{SQL_KIT}test_live_owner_is_left_alone",),
    ),
    Guard(
        "owner-fresh", "F7", "a restarted process takes its predecessor for itself",
        "loom_mq/ids.py",
        '/{os.getpid()}/{secrets.token_hex(6)}"\n', '"\n',
        ("tests/unit/test_guards.py::test_f7_a_process_is_a_stranger_to_the_one_before",),
    ),
    Guard(
        "owner-token", "F7", "two processes of one pid have one name", "loom_mq/ids.py",
        "/{secrets.token_hex(6)}", "",
        ("tests/unit/test_guards.py::test_f7_a_process_is_a_stranger_to_the_one_before",),
    ),
    # ---- packages (F7, F10) -----------------------------------------------------------------
    Guard(
        "ack-order", "F10", "a package is let go of before anything of it is durable", DRIVER,
        *ACK_FIRST, (PROGRAMS,),
    ),
    Guard(
        "pair-ack-sweep", "F10", "the same, without the sweep that hides it", DRIVER,
        *ACK_FIRST, (DEATHS,),
        (
            (
                SWEEP,
                "        for sweep in (self.abandoned, self._unsent):\n",
                "        for sweep in (self.abandoned,):\n",
            ),
        ),
    ),
    Guard(
        "sweep-abandoned", "F7", "nobody looks for what dead holders left", SWEEP,
        "        for sweep in (self.abandoned, self._unsent):\n",
        "        for sweep in (self._unsent,):\n",
        (
            "tests/unit/test_engine_handover.py"
            "::test_f7_a_dead_worker_is_taken_over_and_its_zombie_is_refused",
        ),
    ),
    Guard(
        "pair-sweep-presence", "F7", "nobody looks for what the dead left, nor is told of a death",
        SWEEP,
        "        for sweep in (self.abandoned, self._unsent):\n",
        "        for sweep in (self._unsent,):\n",
        (DEATHS,),
        (
            (
                "loom_mq/engine/dispatcher.py",
                "                    await self._sweeper.abandoned()\n                    return\n",
                "                    return\n",
            ),
        ),
    ),
    Guard(
        "cut-off", "F7", "who cannot send takes what is due all the same",
        "loom_mq/broker/protocol.py",
        "        return self.connected and not self.blocked\n", "        return True\n",
        ("tests/unit/test_cut_off_services.py",),
    ),
    # ---- timers (F9) ------------------------------------------------------------------------
    Guard(
        "timer-row", "F9", "a park writes no timer", "loom_mq/journal/memory.py",
        "        for due in append.timers:\n            self._store.arm(entry, due)\n", "",
        (PROGRAMS,),
    ),
    Guard(
        "pg-timer-row", "F9", "a park writes no timer in PostgreSQL", SQL_APPEND,
        "    IF p_timer_items <> '{}' THEN\n", "    IF false THEN\n",
        (f"{SQL_KIT}test_due_timers_are_held",),
    ),
    Guard(
        "confirm-wait", "F9", "a timer's row goes without a confirm of its wake",
        "loom_mq/engine/waking.py", *UNCONFIRMED,
        ("tests/unit/test_guards.py::test_f9_a_wake_that_is_not_confirmed_keeps_its_timer",),
    ),
    Guard(
        "pair-confirm-hint", "F9", "the same, without the second package that hides it",
        "loom_mq/engine/waking.py", *UNCONFIRMED, (SEEDS,),
        (
            (
                "loom_mq/journal/transitions.py",
                "    return replace(row, hint_at=after(now, hold))\n", "    return row\n",
            ),
        ),
    ),
    # ---- the broker (F10) -------------------------------------------------------------------
    Guard(
        "limit-memory", "F10", "a poisonous message comes back for ever, in memory",
        "loom_mq/broker/memory_queue.py",
        "            if limit is not None and stored.returns > limit:\n", "            if False:\n",
        (f"{BROKER_KIT}test_the_delivery_limit_ends_in_the_grave",),
    ),
    Guard(
        "limit-amqp", "F10", "a poisonous message comes back for ever, on RabbitMQ",
        "loom_mq/broker/amqp/arguments.py",
        "        if queue.delivery_limit is not None:\n", "        if False:\n",
        (f"{AMQP_KIT}test_the_delivery_limit_ends_in_the_grave",),
    ),
    # ---- schedules (F9) ---------------------------------------------------------------------
    Guard(
        "schedule-revision", "F9", "a schedule is changed whoever changed it meanwhile",
        "loom_mq/journal/schedule_rules.py",
        "    if found.revision != expected:\n", "    if False:\n",
        (f"{MEMORY_KIT}test_one_of_many_changes_a_schedule",),
    ),
    Guard(
        "pg-schedule-revision", "F9", "the same in PostgreSQL", f"{FUNCTIONS}/11_schedules.sql",
        " AND s.schedule_id = p_id AND s.revision = p_expected\n", " AND s.schedule_id = p_id\n",
        (f"{SQL_KIT}test_one_of_many_changes_a_schedule",),
    ),
)  # fmt: skip
