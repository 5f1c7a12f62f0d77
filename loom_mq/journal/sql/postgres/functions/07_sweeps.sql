-- The sweeps. Their cost follows what is due, not what is stored: they go from one owner or
-- queue to the next in a partial index, and never wait for a row that somebody else holds.

-- Owners that hold something and whose lease does not run; leases that have lapsed are
-- closed for good first, so that a renewal under way cannot bring one back. A lease that is
-- being renewed this very moment is left to the next round.
-- Indexes: executions_owned, workers_pkey.
CREATE OR REPLACE FUNCTION loom.dead_owners_v1(p_now bigint) RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.workers SET lease_until = 0 WHERE owner IN (
        SELECT w.owner FROM loom.workers AS w
        WHERE w.lease_until > 0 AND w.lease_until <= p_now
        FOR UPDATE SKIP LOCKED
    );
    RETURN ARRAY(
        WITH RECURSIVE holder (owner) AS (
            (SELECT e.owner FROM loom.executions AS e
             WHERE e.owner IS NOT NULL ORDER BY e.owner, e.recoveries LIMIT 1)
            UNION ALL
            SELECT (
                SELECT e.owner FROM loom.executions AS e
                WHERE e.owner > h.owner ORDER BY e.owner, e.recoveries LIMIT 1
            )
            FROM holder AS h WHERE h.owner IS NOT NULL
        )
        SELECT h.owner FROM holder AS h
        WHERE h.owner IS NOT NULL AND coalesce((
            SELECT w.lease_until FROM loom.workers AS w WHERE w.owner = h.owner
        ), 0) = 0
    );
END
$$;

-- Detach executions from dead and from wedged holders (F7), except those that have used up
-- their recoveries (F8). Indexes: executions_owned, executions_deadline, executions_pkey.
CREATE OR REPLACE FUNCTION loom.take_abandoned_v1(
    p_limit bigint, p_resend_after bigint, p_max_recoveries bigint
)
RETURNS TABLE (lost_owner text, start bytea, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_dead text[] := loom.dead_owners_v1(v_now);
    v_tenants text[] := '{}';
    v_ids text[] := '{}';
    v_owners text[] := '{}';
    v_places tid[] := '{}';
    v_found record;
BEGIN
    FOR v_found IN
        SELECT held.* FROM unnest(v_dead) AS d (owner)
        CROSS JOIN LATERAL (
            SELECT e.ctid AS place, e.tenant, e.execution_id, e.owner FROM loom.executions AS e
            WHERE e.owner = d.owner AND e.recoveries < p_max_recoveries
            ORDER BY e.recoveries
            LIMIT p_limit
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS held
        LIMIT p_limit
    LOOP
        v_tenants := v_tenants || v_found.tenant;
        v_ids := v_ids || v_found.execution_id;
        v_owners := v_owners || v_found.owner;
        v_places := v_places || v_found.place;
    END LOOP;
    FOR v_found IN
        SELECT e.ctid AS place, e.tenant, e.execution_id, e.owner FROM loom.executions AS e
        WHERE e.deadline <= v_now AND e.owner IS NOT NULL AND e.owner <> ALL (v_dead)
            AND e.recoveries < p_max_recoveries
        ORDER BY e.deadline
        LIMIT p_limit - cardinality(v_ids)
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        v_tenants := v_tenants || v_found.tenant;
        v_ids := v_ids || v_found.execution_id;
        v_owners := v_owners || v_found.owner;
        v_places := v_places || v_found.place;
    END LOOP;
    IF v_ids = '{}' THEN
        RETURN;
    END IF;
    PERFORM loom.detach_v1(v_places, v_now + p_resend_after);
    RETURN QUERY
    SELECT k.owner, f.start, g.execution
    FROM unnest(v_tenants, v_ids, v_owners) AS k (tenant, execution_id, owner)
    CROSS JOIN LATERAL (
        SELECT e.start, e.updated_at FROM loom.executions AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS f
    CROSS JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS g
    ORDER BY f.updated_at;
END
$$;

-- Take locked executions from whoever holds them. By place.
CREATE OR REPLACE FUNCTION loom.detach_v1(p_places tid[], p_hint_at bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.executions AS e SET owner = NULL, deadline = NULL, hint_at = p_hint_at
    WHERE e.ctid = ANY (p_places);
END
$$;

-- Executions left with their dead or wedged holder after too many recoveries (F8).
-- Indexes: executions_owned, executions_deadline, executions_pkey.
CREATE OR REPLACE FUNCTION loom.exhausted_v1(p_max_recoveries bigint, p_limit bigint)
RETURNS SETOF loom.execution_v1
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_dead text[] := loom.dead_owners_v1(v_now);
BEGIN
    RETURN QUERY
    SELECT f.* FROM (
        (SELECT held.tenant, held.execution_id FROM unnest(v_dead) AS d (owner)
         CROSS JOIN LATERAL (
            SELECT e.tenant, e.execution_id FROM loom.executions AS e
            WHERE e.owner = d.owner AND e.recoveries >= p_max_recoveries
            ORDER BY e.recoveries
            LIMIT p_limit
         ) AS held
         LIMIT p_limit)
        UNION
        (SELECT e.tenant, e.execution_id FROM loom.executions AS e
         WHERE e.deadline <= v_now AND e.owner IS NOT NULL
            AND e.recoveries >= p_max_recoveries
         ORDER BY e.deadline
         LIMIT p_limit)
    ) AS k
    CROSS JOIN LATERAL (
        SELECT e.* FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS f
    ORDER BY f.updated_at, f.tenant, f.execution_id
    LIMIT p_limit;
END
$$;

-- Executions whose hint has come due and that nobody holds, longest due first: count the hint
-- and put the next one off, twice as long each time. Without queues all of them are looked
-- at. Indexes: executions_hinted, executions_pkey.
CREATE OR REPLACE FUNCTION loom.take_unsent_v1(
    p_limit bigint, p_resend_after bigint, p_backoff_limit bigint, p_queues text[]
)
RETURNS TABLE (start bytea, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_queues text[] := p_queues;
    v_tenants text[];
    v_ids text[];
    v_places tid[];
BEGIN
    IF v_queues IS NULL THEN
        v_queues := ARRAY(
            WITH RECURSIVE known (queue) AS (
                (SELECT e.queue FROM loom.executions AS e
                 WHERE e.hint_at IS NOT NULL AND e.owner IS NULL
                 ORDER BY e.queue, e.hint_at LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT e.queue FROM loom.executions AS e
                    WHERE e.hint_at IS NOT NULL AND e.owner IS NULL AND e.queue > q.queue
                    ORDER BY e.queue, e.hint_at LIMIT 1
                )
                FROM known AS q WHERE q.queue IS NOT NULL
            )
            SELECT q.queue FROM known AS q WHERE q.queue IS NOT NULL
        );
    END IF;
    SELECT array_agg(p.place), array_agg(p.tenant), array_agg(p.execution_id)
    INTO v_places, v_tenants, v_ids
    FROM (
        SELECT due.* FROM (SELECT DISTINCT u.queue FROM unnest(v_queues) AS u (queue)) AS q
        CROSS JOIN LATERAL (
            SELECT e.ctid AS place, e.tenant, e.execution_id, e.hint_at
            FROM loom.executions AS e
            WHERE e.queue = q.queue AND e.hint_at <= v_now AND e.owner IS NULL
            ORDER BY e.hint_at
            LIMIT p_limit
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS due
        ORDER BY due.hint_at
        LIMIT p_limit
    ) AS p;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM loom.put_off_v1(v_places, v_now, p_resend_after, p_backoff_limit);
    RETURN QUERY
    SELECT f.start, g.execution
    FROM unnest(v_tenants, v_ids) WITH ORDINALITY AS k (tenant, execution_id, n)
    CROSS JOIN LATERAL (
        SELECT e.start FROM loom.executions AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS f
    CROSS JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS g
    ORDER BY k.n;
END
$$;

-- Count a hint of locked executions and set the next. By place.
CREATE OR REPLACE FUNCTION loom.put_off_v1(
    p_places tid[], p_now bigint, p_resend_after bigint, p_backoff_limit bigint
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.executions AS e SET
        hints = e.hints + 1,
        hint_at = p_now + least(
            p_resend_after::numeric * (1::bigint << least(e.hints, 30)::integer), p_backoff_limit
        )::bigint
    WHERE e.ctid = ANY (p_places);
END
$$;
