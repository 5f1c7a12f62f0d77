-- Keep stored folds, one per execution (J7), in the order of their keys, no key twice. One that
-- reaches further than the log, or less far than the one that is there, is dropped.
-- By place; index: snapshots_pkey.
CREATE OR REPLACE FUNCTION loom.save_snapshots_v1(
    p_tenants text[], p_ids text[], p_seqs bigint[], p_folds bigint[], p_states bytea[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
BEGIN
    WITH noted AS (
        UPDATE loom.executions AS e SET snapshot_seq = k.seq
        FROM unnest(v_places, p_tenants, p_ids, p_seqs, p_folds, p_states)
            AS k (place, tenant, execution_id, seq, fold, state)
        WHERE e.ctid = k.place
            AND k.seq <= e.last_seq AND k.seq >= coalesce(e.snapshot_seq, k.seq)
        RETURNING k.tenant, k.execution_id, k.seq, k.fold, k.state
    )
    INSERT INTO loom.snapshots (tenant, execution_id, seq, fold, state)
    SELECT n.tenant, n.execution_id, n.seq, n.fold, n.state FROM noted AS n
    ON CONFLICT (tenant, execution_id) DO UPDATE SET
        seq = EXCLUDED.seq, fold = EXCLUDED.fold, state = EXCLUDED.state;
END
$$;

-- The stored fold of an execution. Index: snapshots_pkey.
CREATE OR REPLACE FUNCTION loom.snapshot_v1(p_tenant text, p_id text)
RETURNS TABLE (seq bigint, fold bigint, state bytea)
LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT s.seq, s.fold, s.state FROM loom.snapshots AS s
    WHERE s.tenant = p_tenant AND s.execution_id = p_id;
END
$$;

-- Create executions with ready logs (J8), in the order of their keys, no key twice. Answers with
-- the places of those that were made; the others exist. Events and timers say which of them
-- they are for. Like a start, it holds no lock that anybody but another start waits for.
-- Indexes: executions_pkey.
CREATE OR REPLACE FUNCTION loom.plant_v1(
    p_tenants text[], p_ids text[], p_flows text[], p_versions text[], p_queues text[],
    p_statuses text[], p_last_seqs bigint[], p_wake_ats bigint[], p_gates text[],
    p_errors text[], p_recoveries bigint[], p_parents text[], p_features text[],
    p_labels text[], p_created_ats bigint[], p_updated_ats bigint[], p_started_ats bigint[],
    p_ended_ats bigint[], p_fences bigint[], p_attempts bigint[], p_deadlines bigint[],
    p_hint_ats bigint[], p_hints bigint[], p_digests bytea[], p_in_doubts text[],
    p_troubles text[], p_starts bytea[],
    p_snapshot_seqs bigint[], p_folds bigint[], p_states bytea[],
    p_event_items bigint[], p_event_seqs bigint[], p_event_last_seqs bigint[],
    p_event_first_ids bytea[], p_event_bodies bytea[],
    p_timer_items bigint[], p_timer_dues bigint[]
)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_made bigint[] := '{}';
BEGIN
    FOR v_item IN 1 .. cardinality(p_ids) LOOP
        INSERT INTO loom.executions (
            tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates,
            error, recoveries, parent, features, labels, created_at, updated_at, started_at,
            ended_at, fence, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt,
            trouble, start, snapshot_seq, littered, waiters
        )
        VALUES (
            p_tenants[v_item], p_ids[v_item], p_flows[v_item], p_versions[v_item],
            p_queues[v_item], p_statuses[v_item], p_last_seqs[v_item], p_wake_ats[v_item],
            p_gates[v_item], p_errors[v_item], p_recoveries[v_item], p_parents[v_item],
            p_features[v_item], p_labels[v_item], p_created_ats[v_item],
            p_updated_ats[v_item], p_started_ats[v_item], p_ended_ats[v_item],
            p_fences[v_item], p_attempts[v_item], p_deadlines[v_item], p_hint_ats[v_item],
            p_hints[v_item], 0, p_digests[v_item], p_in_doubts[v_item], p_troubles[v_item],
            p_starts[v_item], p_snapshot_seqs[v_item], v_item = ANY (p_timer_items), '{}'
        )
        ON CONFLICT (tenant, execution_id) DO NOTHING;
        IF FOUND THEN
            v_made := v_made || v_item::bigint;
        END IF;
    END LOOP;
    PERFORM loom.write_logs_v1(
        p_tenants, p_ids, v_made, p_snapshot_seqs, p_folds, p_states,
        p_event_items, p_event_seqs, p_event_last_seqs, p_event_first_ids, p_event_bodies
    );
    INSERT INTO loom.timers (tenant, execution_id, due, visible_at)
    SELECT DISTINCT p_tenants[t.n], p_ids[t.n], t.due, t.due
    FROM unnest(p_timer_items, p_timer_dues) AS t (n, due)
    WHERE t.n = ANY (v_made);
    RETURN v_made;
END
$$;

-- Replace the logs of executions that have ended (J8), in the order of their keys, no key twice.
-- Answers with the places of those that were: the others have moved since they were looked at,
-- which fence and sequence tell. Indexes: executions_pkey, events_pkey, snapshots_pkey.
CREATE OR REPLACE FUNCTION loom.rewrite_v1(
    p_tenants text[], p_ids text[], p_fences bigint[], p_last_seqs bigint[],
    p_errors text[], p_labels text[], p_digests bytea[],
    p_snapshot_seqs bigint[], p_folds bigint[], p_states bytea[],
    p_event_items bigint[], p_event_seqs bigint[], p_event_last_seqs bigint[],
    p_event_first_ids bytea[], p_event_bodies bytea[]
)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
    v_written bigint[] := '{}';
BEGIN
    FOR v_item IN 1 .. cardinality(p_ids) LOOP
        CONTINUE WHEN v_places[v_item] IS NULL;
        UPDATE loom.executions AS e SET
            error = p_errors[v_item],
            labels = p_labels[v_item],
            input_digest = coalesce(p_digests[v_item], e.input_digest),
            snapshot_seq = p_snapshot_seqs[v_item]
        WHERE e.tenant = p_tenants[v_item] AND e.execution_id = p_ids[v_item]
            AND e.fence = p_fences[v_item] AND e.last_seq = p_last_seqs[v_item]
            AND e.status NOT IN ('pending', 'running', 'suspended');
        CONTINUE WHEN NOT FOUND;
        DELETE FROM loom.events AS v
        WHERE v.tenant = p_tenants[v_item] AND v.execution_id = p_ids[v_item];
        DELETE FROM loom.snapshots AS s
        WHERE s.tenant = p_tenants[v_item] AND s.execution_id = p_ids[v_item];
        v_written := v_written || v_item::bigint;
    END LOOP;
    PERFORM loom.write_logs_v1(
        p_tenants, p_ids, v_written, p_snapshot_seqs, p_folds, p_states,
        p_event_items, p_event_seqs, p_event_last_seqs, p_event_first_ids, p_event_bodies
    );
    RETURN v_written;
END
$$;

-- Put events and stored folds where there are none, for some executions of a batch whose rows
-- are locked or new.
CREATE OR REPLACE FUNCTION loom.write_logs_v1(
    p_tenants text[], p_ids text[], p_items bigint[],
    p_snapshot_seqs bigint[], p_folds bigint[], p_states bytea[],
    p_event_items bigint[], p_event_seqs bigint[], p_event_last_seqs bigint[],
    p_event_first_ids bytea[], p_event_bodies bytea[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    INSERT INTO loom.events (tenant, execution_id, seq, last_seq, first_id, body)
    SELECT p_tenants[v.n], p_ids[v.n], v.seq, v.last_seq, v.first_id, v.body
    FROM unnest(
        p_event_items, p_event_seqs, p_event_last_seqs, p_event_first_ids, p_event_bodies
    ) AS v (n, seq, last_seq, first_id, body)
    WHERE v.n = ANY (p_items);
    INSERT INTO loom.snapshots (tenant, execution_id, seq, fold, state)
    SELECT p_tenants[i.n], p_ids[i.n], p_snapshot_seqs[i.n], p_folds[i.n], p_states[i.n]
    FROM unnest(p_items) AS i (n)
    WHERE p_snapshot_seqs[i.n] IS NOT NULL;
END
$$;

-- Delete executions that have ended, with all that belongs to them (J8), in the order of their
-- keys, no key twice. Answers with those that were there, as they stood: who had ended is gone.
-- Indexes: executions_pkey, events_pkey, snapshots_pkey, timers_pkey, inbox_pkey.
CREATE OR REPLACE FUNCTION loom.delete_v1(p_tenants text[], p_ids text[])
RETURNS TABLE (item bigint, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
BEGIN
    FOR v_item IN 1 .. cardinality(p_ids) LOOP
        CONTINUE WHEN v_places[v_item] IS NULL;
        item := v_item;
        execution := (
            SELECT e FROM loom.execution_v1 AS e
            WHERE e.tenant = p_tenants[v_item] AND e.execution_id = p_ids[v_item]
        );
        RETURN NEXT;
        DELETE FROM loom.executions AS e
        WHERE e.tenant = p_tenants[v_item] AND e.execution_id = p_ids[v_item]
            AND e.status NOT IN ('pending', 'running', 'suspended');
        CONTINUE WHEN NOT FOUND;
        DELETE FROM loom.events AS v
        WHERE v.tenant = p_tenants[v_item] AND v.execution_id = p_ids[v_item];
        DELETE FROM loom.snapshots AS s
        WHERE s.tenant = p_tenants[v_item] AND s.execution_id = p_ids[v_item];
        DELETE FROM loom.timers AS t
        WHERE t.tenant = p_tenants[v_item] AND t.execution_id = p_ids[v_item];
        DELETE FROM loom.inbox AS i
        WHERE i.tenant = p_tenants[v_item] AND i.execution_id = p_ids[v_item];
    END LOOP;
END
$$;
