-- Those who wait for an end, the newest last; the same one twice is one, and 64 are kept.
CREATE OR REPLACE FUNCTION loom.with_waiter_v1(p_waiters bytea[], p_waiter bytea) RETURNS bytea[]
LANGUAGE sql IMMUTABLE
RETURN (array_remove(p_waiters, p_waiter))[
    greatest(1, cardinality(array_remove(p_waiters, p_waiter)) - 62) :
] || p_waiter;

-- A batch of starts (F2), in the order of their keys, no key twice. The first row answers
-- with the time and the number of new executions; a row follows for each one found.
--
-- New rows go in by key order, so that two batches wait for each other one way only. What
-- was found is locked in a later statement, by which time nobody waits for our new rows
-- but other starts, and those hold no lock that we could wait for.
--
-- Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.admit_v1(
    p_tenants text[], p_ids text[], p_flows text[], p_versions text[], p_queues text[],
    p_starts bytea[], p_digests bytea[], p_parents text[], p_features text[], p_labels text[],
    p_waiters bytea[], p_hint_afters bigint[]
)
RETURNS TABLE (item bigint, moment bigint, made bigint, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_made_tenants text[];
    v_made_ids text[];
    v_made bigint;
    v_tenants text[];
    v_ids text[];
    v_items bigint[];
    v_waiters bytea[];
BEGIN
    WITH inserted AS (
        INSERT INTO loom.executions AS e (
            fence, last_seq, attempt, hints, inbox, recoveries, created_at, updated_at, hint_at,
            littered, tenant, execution_id, status, queue, flow, version, parent, features,
            labels, input_digest, waiters, start
        )
        SELECT 0, -1, 0, 0, 0, 0, v_now, v_now, v_now + k.hint_after,
            false, k.tenant, k.execution_id, 'pending', k.queue, k.flow, k.version, k.parent,
            k.features, k.labels, k.digest,
            CASE WHEN k.waiter IS NULL THEN '{}' ELSE ARRAY[k.waiter] END, k.start
        FROM unnest(
            p_tenants, p_ids, p_flows, p_versions, p_queues, p_starts, p_digests, p_parents,
            p_features, p_labels, p_waiters, p_hint_afters
        ) AS k (
            tenant, execution_id, flow, version, queue, start, digest, parent,
            features, labels, waiter, hint_after
        )
        ON CONFLICT (tenant, execution_id) DO NOTHING
        RETURNING e.tenant, e.execution_id
    )
    SELECT count(*), array_agg(i.tenant), array_agg(i.execution_id)
    INTO v_made, v_made_tenants, v_made_ids FROM inserted AS i;

    RETURN QUERY SELECT 0::bigint, v_now, v_made, NULL::loom.execution_v1;
    IF v_made = cardinality(p_ids) THEN
        RETURN;
    END IF;

    SELECT array_agg(k.tenant ORDER BY k.n), array_agg(k.execution_id ORDER BY k.n),
        array_agg(k.n ORDER BY k.n), array_agg(k.waiter ORDER BY k.n)
    INTO v_tenants, v_ids, v_items, v_waiters
    FROM unnest(p_tenants, p_ids, p_waiters)
        WITH ORDINALITY AS k (tenant, execution_id, waiter, n)
    WHERE (k.tenant, k.execution_id) NOT IN (SELECT * FROM unnest(v_made_tenants, v_made_ids));
    PERFORM loom.await_v1(loom.lock_v1(v_tenants, v_ids), v_waiters);

    RETURN QUERY
    SELECT k.item, v_now, v_made, f.execution
    FROM unnest(v_items, v_tenants, v_ids) AS k (item, tenant, execution_id)
    CROSS JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS f;
END
$$;

-- Add waiters to locked executions that have not ended. By place.
CREATE OR REPLACE FUNCTION loom.await_v1(p_places tid[], p_waiters bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.executions AS e SET waiters = loom.with_waiter_v1(e.waiters, k.waiter)
    FROM unnest(p_places, p_waiters) AS k (place, waiter)
    WHERE e.ctid = k.place AND k.waiter IS NOT NULL
        AND e.status IN ('pending', 'running', 'suspended');
END
$$;

-- Register a waiter (NULL: only look), or learn that the execution has ended. The second
-- statement sees an end that the first one waited for. Indexes: executions_pkey, events_pkey.
CREATE OR REPLACE FUNCTION loom.watch_v1(p_tenant text, p_id text, p_waiter bytea)
RETURNS TABLE (newest bytea, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    IF p_waiter IS NOT NULL THEN
        PERFORM loom.await_v1(loom.lock_v1(ARRAY[p_tenant], ARRAY[p_id]), ARRAY[p_waiter]);
    END IF;
    RETURN QUERY
    SELECT (
            SELECT v.body FROM loom.events AS v
            WHERE v.tenant = p_tenant AND v.execution_id = p_id
                AND e.status NOT IN ('pending', 'running', 'suspended')
            ORDER BY v.seq DESC LIMIT 1
        ), e
    FROM loom.execution_v1 AS e
    WHERE e.tenant = p_tenant AND e.execution_id = p_id;
END
$$;
