-- Those who wait for an end, the newest last; the same one twice is one, and 64 are kept.
CREATE OR REPLACE FUNCTION loom.with_waiter_v1(p_waiters bytea[], p_waiter bytea) RETURNS bytea[]
LANGUAGE sql IMMUTABLE
RETURN (array_remove(p_waiters, p_waiter))[
    greatest(1, cardinality(array_remove(p_waiters, p_waiter)) - 62) :
] || p_waiter;

-- A batch of starts (F2), in the order of their keys, no key twice. The row with item 0 answers
-- with the time and the number of executions that are new without more ado; a row follows for
-- each other one: `made` is 1 when it took the place of one that had ended (K16), 0 when it was
-- found, and without an execution it was there and is gone, and is to be asked for again.
--
-- New rows go in by key order, so that two batches wait for each other one way only. What
-- was found is locked in a later statement, by which time nobody waits for our new rows
-- but other starts, and those hold no lock that we could wait for. Who makes way does so
-- when all locks are held; whoever starts the same id meanwhile waits for it and goes on.
--
-- Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.admit_v2(
    p_tenants text[], p_ids text[], p_flows text[], p_versions text[], p_queues text[],
    p_starts bytea[], p_digests bytea[], p_parents text[], p_features text[], p_labels text[],
    p_waiters bytea[], p_hint_afters bigint[], p_retire_as text[], p_after_close boolean[]
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
    v_digests bytea[];
    v_places tid[];
    v_renewed bigint[] := '{}';
    v_old record;
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
        array_agg(k.n ORDER BY k.n), array_agg(k.waiter ORDER BY k.n),
        array_agg(k.digest ORDER BY k.n)
    INTO v_tenants, v_ids, v_items, v_waiters, v_digests
    FROM unnest(p_tenants, p_ids, p_waiters, p_digests)
        WITH ORDINALITY AS k (tenant, execution_id, waiter, digest, n)
    WHERE (k.tenant, k.execution_id) NOT IN (SELECT * FROM unnest(v_made_tenants, v_made_ids));
    v_places := loom.lock_v1(v_tenants, v_ids);
    PERFORM loom.await_v2(v_places, v_waiters, v_digests);

    FOR v_old IN
        SELECT k.item, k.tenant, k.execution_id, e.fence
        FROM unnest(v_items, v_tenants, v_ids, v_places)
            AS k (item, tenant, execution_id, place)
        CROSS JOIN LATERAL (
            SELECT x.status, x.fence FROM loom.executions AS x
            WHERE x.tenant = k.tenant AND x.execution_id = k.execution_id
            LIMIT 1
        ) AS e
        WHERE k.place IS NOT NULL AND p_retire_as[k.item] IS NOT NULL
            AND (
                e.status IN ('failed', 'cancelled')
                OR (e.status = 'completed' AND p_after_close[k.item])
            )
    LOOP
        CONTINUE WHEN NOT loom.retire_execution_v1(
            v_old.tenant, v_old.execution_id, p_retire_as[v_old.item]
        );
        -- the fence goes on: whatever of the other is still on its way names one that has passed
        INSERT INTO loom.executions (
            fence, last_seq, attempt, hints, inbox, recoveries, created_at, updated_at, hint_at,
            littered, tenant, execution_id, status, queue, flow, version, parent, features,
            labels, input_digest, waiters, start
        )
        SELECT v_old.fence + 1, -1, 0, 0, 0, 0, v_now, v_now, v_now + p_hint_afters[n],
            false, p_tenants[n], p_ids[n], 'pending', p_queues[n], p_flows[n], p_versions[n],
            p_parents[n], p_features[n], p_labels[n], p_digests[n],
            array_remove(ARRAY[p_waiters[n]], NULL), p_starts[n]
        FROM (SELECT v_old.item) AS k (n);
        v_renewed := v_renewed || v_old.item;
    END LOOP;

    RETURN QUERY
    SELECT k.item, v_now, CASE WHEN k.item = ANY (v_renewed) THEN 1::bigint ELSE 0 END,
        f.execution
    FROM unnest(v_items, v_tenants, v_ids, v_places) AS k (item, tenant, execution_id, place)
    LEFT JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
            AND k.place IS NOT NULL
        LIMIT 1
    ) AS f ON true;
END
$$;

-- Keep an execution, which is locked and has ended, under another id with all that belongs to
-- it, unless that id is taken (K16). Whether it was done.
-- Indexes: executions_pkey, events_pkey, snapshots_pkey.
CREATE OR REPLACE FUNCTION loom.retire_execution_v1(p_tenant text, p_id text, p_new_id text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM loom.executions AS e WHERE e.tenant = p_tenant AND e.execution_id = p_new_id
    ) THEN
        RETURN false;
    END IF;
    UPDATE loom.executions AS e SET execution_id = p_new_id
    WHERE e.tenant = p_tenant AND e.execution_id = p_id;
    UPDATE loom.events AS v SET execution_id = p_new_id
    WHERE v.tenant = p_tenant AND v.execution_id = p_id;
    UPDATE loom.snapshots AS s SET execution_id = p_new_id
    WHERE s.tenant = p_tenant AND s.execution_id = p_id;
    RETURN true;
END
$$;

-- Add waiters to locked executions that have not ended. A start waits only for what it would have
-- made itself: where digests are given, the one with that digest. By place.
CREATE OR REPLACE FUNCTION loom.await_v2(
    p_places tid[], p_waiters bytea[], p_digests bytea[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.executions AS e SET waiters = loom.with_waiter_v1(e.waiters, k.waiter)
    FROM unnest(p_places, p_waiters, p_digests) AS k (place, waiter, digest)
    WHERE e.ctid = k.place AND k.waiter IS NOT NULL
        AND (p_digests IS NULL OR e.input_digest = k.digest)
        AND e.status IN ('pending', 'running', 'suspended');
END
$$;

-- Register a waiter (NULL: only look), or learn that the execution has ended. The last
-- statement sees an end that an earlier one waited for. Where a wait ended with another id for
-- the row there may be a successor, which is asked instead. Indexes: executions_pkey,
-- events_pkey.
CREATE OR REPLACE FUNCTION loom.watch_v1(p_tenant text, p_id text, p_waiter bytea)
RETURNS TABLE (newest bytea, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_places tid[];
BEGIN
    IF p_waiter IS NOT NULL THEN
        v_places := loom.lock_v1(ARRAY[p_tenant], ARRAY[p_id]);
        IF v_places[1] IS NULL THEN
            v_places := loom.lock_v1(ARRAY[p_tenant], ARRAY[p_id]);
        END IF;
        PERFORM loom.await_v2(v_places, ARRAY[p_waiter], NULL);
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
