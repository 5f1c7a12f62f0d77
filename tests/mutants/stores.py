"""Guards where a store has code of its own for them: memory, SQLite, PostgreSQL, and the view of a
tenant (J2, J4, J5, J9, F7, F9). What the stores share is in `ownership` and `table`.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.guard import Guard

STORE: Final = "loom_mq/journal/memory_store.py"
FLEET: Final = "loom_mq/journal/memory_fleet.py"
VERDICTS: Final = "loom_mq/journal/verdicts.py"
SCOPE: Final = "loom_mq/journal/tenant_scope.py"
OPS: Final = "loom_mq/journal/sqlite_ops"
LITE_SQL: Final = "loom_mq/journal/sql/sqlite"
PG_SQL: Final = "loom_mq/journal/sql/postgres"
LEASES: Final = f"{PG_SQL}/functions/06_fleet.sql"
MEMORY_KIT: Final = "tests/conformance/test_journal_memory.py::TestMemoryJournal::"
LITE_KIT: Final = "tests/conformance/test_journal_sqlite.py::TestSqliteJournal::"
PG_KIT: Final = "tests/conformance/test_journal_postgres.py::TestPostgresJournal::"
PG_LEASES: Final = "tests/conformance/test_postgres_leases.py::"
TENANT: Final = "tests/conformance/test_journal_tenant.py::"

IDS: Final = "test_recorded_envelope_id_at_another_sequence_is_refused"
AGAIN: Final = "test_same_append_again_is_a_success"
ACQUIRE: Final = "test_acquire_fence_is_compare_and_set"
LIVE: Final = "test_live_owner_is_left_alone"
LAPSED: Final = "test_lapsed_owner_is_taken_over"
LOST: Final = "test_lapsed_lease_is_lost"
DETACHED: Final = "test_abandoned_executions_are_detached"
HELD: Final = "test_due_timers_are_held"
TWICE: Final = "test_same_item_twice_is_one"
SILENT: Final = "test_start_fenced_out_by_a_silent_holder"

STORE_GUARDS: Final[tuple[Guard, ...]] = (
    Guard(
        "append-fenced-out", "F6", "a start that a silent holder kept out is superseded", VERDICTS,
        "        if claim is not None and row.last_seq < 0 and row.fence > expected:\n",
        "        if False:\n",
        (f"{MEMORY_KIT}{SILENT}",),
    ),
    # ---- memory -----------------------------------------------------------------------------
    Guard(
        "mem-alive", "F7", "nobody is alive in memory", STORE,
        "        return worker is not None and worker.lease_until > now\n",
        "        return False\n",
        (f"{MEMORY_KIT}{LIVE}",),
    ),
    Guard(
        "mem-lapsed", "F7", "leases never lapse in memory", STORE,
        "        return worker is not None and worker.lease_until > now\n",
        "        return worker is not None and worker.lease_until > 0\n",
        (f"{MEMORY_KIT}{LAPSED}",),
    ),
    Guard(
        "mem-renew", "F7", "a lapsed lease is renewed in memory", FLEET,
        "        if not self._store.alive(self._owner, now):\n", "        if False:\n",
        (f"{MEMORY_KIT}{LOST}",),
    ),
    Guard(
        "mem-abandoned", "F7", "the sweep takes from the living in memory", STORE,
        "            if Standing(entry.row, ", "            if True or Standing(entry.row, ",
        (f"{MEMORY_KIT}{DETACHED}",),
    ),
    # ---- SQLite -----------------------------------------------------------------------------
    Guard(
        "lite-append-ids", "J4", "an envelope's id may stand twice in SQLite", f"{OPS}/logs.py",
        "        if not events.insert(db, append.key, append.events):\n",
        "        if events.insert(db, append.key, append.events) is None:\n",
        (f"{LITE_KIT}{IDS}",),
    ),
    Guard(
        "lite-append-again", "J4", "the same append again is refused in SQLite",
        f"{OPS}/logs.py",
        "    if standing is None or not verdicts.may_be_recorded(standing.row, append):\n",
        "    if True:\n",
        (f"{LITE_KIT}{AGAIN}",),
    ),
    Guard(
        "lite-fence-acquire", "J5", "a fence is acquired without comparing in SQLite",
        f"{OPS}/holding.py",
        "    verdicts.judge_fence(row, key, expected)\n", "",
        (f"{LITE_KIT}{ACQUIRE}",),
    ),
    Guard(
        "lite-alive", "F7", "nobody is alive in SQLite", f"{OPS}/rows.py",
        "columns[ROW_COLUMNS] > now)\n", "False)\n",
        (f"{LITE_KIT}{LIVE}",),
    ),
    Guard(
        "lite-lapsed", "F7", "leases never lapse in SQLite", f"{OPS}/rows.py",
        "columns[ROW_COLUMNS] > now)\n", "columns[ROW_COLUMNS] > 0)\n",
        (f"{LITE_KIT}{LAPSED}",),
    ),
    Guard(
        "lite-renew", "F7", "a lapsed lease is renewed in SQLite", f"{LITE_SQL}/fleet.sql",
        "UPDATE workers SET lease_until = ? WHERE owner = ? AND lease_until > ?;\n",
        "UPDATE workers SET lease_until = ? WHERE owner = ? AND ? > 0;\n",
        (f"{LITE_KIT}{LOST}",),
    ),
    Guard(
        "lite-abandoned", "F7", "the sweep takes from the living in SQLite",
        f"{LITE_SQL}/sweeps.sql",
        "        OR NOT EXISTS (\n", "        OR TRUE OR NOT EXISTS (\n",
        (f"{LITE_KIT}{DETACHED}",),
    ),
    Guard(
        "lite-timer-row", "F9", "a park writes no timer in SQLite", f"{OPS}/logs.py",
        '    for due in append.timers:\n        db.execute(_TIMERS["arm"], (*key, due))\n', "",
        (f"{LITE_KIT}{HELD}",),
    ),
    Guard(
        "lite-inbox-twice", "K7", "an item that is there counts again in SQLite",
        f"{OPS}/holding.py",
        "    if inserted.rowcount == 0:\n", "    if False:\n",
        (f"{LITE_KIT}{TWICE}",),
    ),
    # ---- PostgreSQL -------------------------------------------------------------------------
    Guard(
        "pg-append-ids", "J4", "an envelope's id may stand twice in PostgreSQL",
        f"{PG_SQL}/0001_initial.sql",
        "CREATE UNIQUE INDEX events_first_id ON", "CREATE INDEX events_first_id ON",
        (f"{PG_KIT}{IDS}",),
    ),
    Guard(
        "pg-append-again", "J4", "the same append again is refused in PostgreSQL",
        f"{PG_SQL}/functions/01_rows.sql",
        "        loom.recorded_v1(k.tenant, k.execution_id, k.first_seq, k.last_seq), "
        "g.execution\n",
        "        '{}'::bytea[], g.execution\n",
        (f"{PG_KIT}{AGAIN}",),
    ),
    Guard(
        "pg-fence-acquire", "J5", "a fence is acquired without comparing in PostgreSQL",
        f"{PG_SQL}/functions/04_claim.sql",
        "        AND (p_expected IS NULL OR e.fence = p_expected)\n", "",
        (f"{PG_KIT}{ACQUIRE}",),
    ),
    Guard(
        "pg-lapsed", "F7", "leases never lapse in PostgreSQL",
        f"{PG_SQL}/functions/01_rows.sql",
        "WHERE w.owner = p_owner AND w.lease_until > p_now\n", "WHERE w.owner = p_owner\n",
        (f"{PG_KIT}{LAPSED}",),
    ),
    Guard(
        "pg-renew", "F7", "a lapsed lease is renewed in PostgreSQL", LEASES,
        "    WHERE w.owner = p_owner AND w.lease_until > moment;\n",
        "    WHERE w.owner = p_owner;\n",
        (f"{PG_KIT}{LOST}",),
    ),
    Guard(
        "pg-abandoned", "F7", "the sweep takes from the living in PostgreSQL",
        f"{PG_SQL}/functions/07_sweeps.sql",
        "        ), 0) = 0\n", "        ), 0) >= 0\n",
        (f"{PG_KIT}{DETACHED}",),
    ),
    Guard(
        "pg-gone-lock", "F7", "a session that is there proves a death", LEASES,
        "        OR NOT pg_try_advisory_xact_lock(loom.lease_key_v1(p_owner))\n", "",
        (f"{PG_LEASES}test_end_of_a_session_is_proof",),
    ),
    Guard(
        "pg-gone-witness", "F7", "a restart of the server proves a death", LEASES,
        " OR v_here_since IS NULL OR v_here_since >= v_worker.renewed_at\n", "\n",
        (f"{PG_LEASES}test_new_session_proves_nothing",),
    ),
    Guard(
        "pg-gone-guarded", "F7", "who never took the lock is taken for dead", LEASES,
        "    IF NOT v_worker.guarded OR v_here_since IS NULL", "    IF v_here_since IS NULL",
        (f"{PG_LEASES}test_lease_without_sessions_ends_by_time_alone",),
    ),
    Guard(
        "pg-inbox-twice", "K7", "an item that is there counts again in PostgreSQL",
        f"{PG_SQL}/functions/05_mail.sql",
        "        fresh := FOUND;\n", "        fresh := true;\n",
        (f"{PG_KIT}{TWICE}",),
    ),
    # ---- a tenant's view --------------------------------------------------------------------
    Guard(
        "tenant-foreign", "J9", "a tenant's view lets other tenants' keys through", SCOPE,
        "        if tenant != DEFAULT_TENANT:\n", "        if False:\n",
        (f"{TENANT}test_foreign_keys_are_refused_before_anything_happens",),
    ),
    Guard(
        "tenant-others", "J9", "a tenant's sweep keeps what is another's", SCOPE,
        "        return key.tenant == self.tenant\n", "        return True\n",
        (f"{TENANT}test_sweeps_take_the_tenants_and_give_the_others_back",),
    ),
    Guard(
        "tenant-cause", "J9", "a refusal within a storage error keeps the store's own key", SCOPE,
        "        renamed.__cause__ = own_error(cause, key)\n",
        "        renamed.__cause__ = cause\n",
        (f"{TENANT}test_refusal_within_a_storage_error_is_renamed_too",),
    ),
)  # fmt: skip
