-- Functions of the journal. Their names carry a version: a function whose signature changes
-- gets a new name, so that processes of two releases can share a database.

CREATE OR REPLACE FUNCTION loom.now_v1() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- A batch of appends (J2, J3, J4), in the order of their keys.
--
-- One statement checks, moves the index rows and writes the events. Its update waits for a
-- row that somebody else is changing and then checks again what stands there, so it is the
-- lock and the compare-and-set at once. The client sends the batch in key order, and the
-- settings below leave the planner nothing but to visit the rows in that order: two batches
-- never wait for each other.
--
-- Refused items are looked at in a later statement, whose snapshot is younger than every
-- wait of the first. It sees what a dying connection committed while the first waited, so
-- that an append that is there already is known as such and never written twice.
--
-- Indexes: executions_pkey for the rows, events_pkey for recorded appends, workers_pkey for
-- leases; timers_pkey, inbox_pkey where an execution has such rows.
CREATE OR REPLACE FUNCTION loom.append_v1(
    p_tenants text[], p_ids text[], p_expected bigint[], p_fences bigint[],
    p_first_seqs bigint[], p_last_seqs bigint[], p_first_ats bigint[], p_last_ats bigint[],
    p_first_ids bytea[], p_bodies bytea[],
    p_statuses text[], p_wake_ats bigint[], p_gates text[], p_errors text[], p_recoveries bigint[],
    p_owners text[], p_deadlines bigint[], p_releases boolean[],
    p_timer_items bigint[], p_timer_dues bigint[], p_taken_items bigint[], p_taken_ids text[],
    OUT o_written bigint[], OUT o_inbox bigint[], OUT o_waiting bigint[], OUT o_waiters bytea[]
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := loom.now_v1();
    v_littered bigint;
BEGIN
    WITH moved AS (
        UPDATE loom.executions AS e SET
            fence = k.fence,
            last_seq = k.last_seq,
            attempt = CASE WHEN k.owner IS NULL THEN e.attempt ELSE e.attempt + 1 END,
            hints = CASE WHEN k.owner IS NULL THEN e.hints ELSE 0 END,
            recoveries = k.recoveries,
            updated_at = k.last_at,
            started_at = coalesce(e.started_at, k.first_at),
            ended_at = CASE WHEN k.ended THEN k.last_at END,
            wake_at = k.wake_at,
            deadline = CASE
                WHEN k.gone THEN NULL
                WHEN k.owner IS NULL THEN e.deadline
                ELSE v_now + k.deadline
            END,
            hint_at = CASE
                WHEN k.ended THEN NULL
                WHEN k.status = 'suspended' THEN CASE WHEN e.inbox > 0 THEN v_now END
                WHEN k.gone THEN v_now
                WHEN k.owner IS NULL THEN e.hint_at
            END,
            status = k.status,
            owner = CASE WHEN NOT k.gone THEN coalesce(k.owner, e.owner) END,
            gates = k.gates,
            error = k.error,
            start = NULL
        FROM (
            SELECT u.*, u.status NOT IN ('pending', 'running', 'suspended') AS ended,
                u.release OR u.status NOT IN ('pending', 'running', 'suspended') AS gone
            FROM unnest(
                p_tenants, p_ids, p_expected, p_fences, p_first_seqs, p_last_seqs, p_first_ats,
                p_last_ats, p_first_ids, p_bodies, p_statuses, p_wake_ats, p_gates, p_errors,
                p_recoveries, p_owners, p_deadlines, p_releases
            ) WITH ORDINALITY AS u (
                tenant, execution_id, expected, fence, first_seq, last_seq, first_at,
                last_at, first_id, body, status, wake_at, gates, error,
                recoveries, owner, deadline, release, n
            )
        ) AS k
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
            AND e.fence = k.expected AND e.last_seq = k.first_seq - 1
            AND (
                k.owner IS NULL OR e.owner IS NULL OR e.owner = k.owner OR e.deadline <= v_now
                OR NOT EXISTS (
                    SELECT FROM loom.workers AS w
                    WHERE w.owner = e.owner AND w.lease_until > v_now
                )
            )
        RETURNING k.n, k.tenant, k.execution_id, k.first_seq, k.last_seq, k.first_id, k.body,
            k.ended, e.inbox, e.littered, e.waiters
    ), logged AS (
        INSERT INTO loom.events (tenant, execution_id, seq, last_seq, first_id, body)
        SELECT tenant, execution_id, first_seq, last_seq, first_id, body FROM moved
    )
    SELECT
        (SELECT array_agg(n) FROM moved), (SELECT array_agg(inbox) FROM moved),
        (SELECT array_agg(n) FROM moved, unnest(waiters) AS w WHERE ended),
        (SELECT array_agg(w) FROM moved, unnest(waiters) AS w WHERE ended),
        (SELECT count(*) FROM moved WHERE ended AND littered)
    INTO o_written, o_inbox, o_waiting, o_waiters, v_littered;
END
$$;
