-- The sweeps. Their cost follows what is due, not what is stored: they go from one owner or
-- queue to the next in a partial index, and never wait for a row that somebody else holds.

-- Owners that hold something and whose lease does not run; leases that have lapsed are
-- closed for good first, so that a renewal under way cannot bring one back. A lease that is
-- being renewed this very moment is left to the next round.
-- Indexes: executions_owned, workers_pkey.
CREATE OR REPLACE FUNCTION loom.dead_owners_v1(p_now bigint) RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
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
             WHERE e.owner IS NOT NULL ORDER BY e.owner LIMIT 1)
            UNION ALL
            SELECT (
                SELECT e.owner FROM loom.executions AS e
                WHERE e.owner > h.owner ORDER BY e.owner LIMIT 1
            )
            FROM holder AS h WHERE h.owner IS NOT NULL
        )
        SELECT h.owner FROM holder AS h
        LEFT JOIN loom.workers AS w ON w.owner = h.owner
        WHERE h.owner IS NOT NULL AND coalesce(w.lease_until, 0) = 0
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
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := loom.now_v1();
    v_dead text[] := loom.dead_owners_v1(v_now);
    v_tenants text[];
    v_ids text[];
    v_owners text[];
BEGIN
    SELECT array_agg(p.tenant), array_agg(p.execution_id), array_agg(p.owner)
    INTO v_tenants, v_ids, v_owners
    FROM (
        SELECT held.* FROM unnest(v_dead) AS d (owner)
        CROSS JOIN LATERAL (
            SELECT e.tenant, e.execution_id, e.owner FROM loom.executions AS e
            WHERE e.owner = d.owner AND e.recoveries < p_max_recoveries
            LIMIT p_limit
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS held
        LIMIT p_limit
    ) AS p;
    IF coalesce(cardinality(v_ids), 0) < p_limit THEN
        SELECT v_tenants || array_agg(p.tenant), v_ids || array_agg(p.execution_id),
            v_owners || array_agg(p.owner)
        INTO v_tenants, v_ids, v_owners
        FROM (
            SELECT e.tenant, e.execution_id, e.owner FROM loom.executions AS e
            WHERE e.deadline <= v_now AND e.owner IS NOT NULL
                AND e.recoveries < p_max_recoveries
                AND e.owner <> ALL (v_dead)
            ORDER BY e.deadline
            LIMIT p_limit - coalesce(cardinality(v_ids), 0)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS p;
    END IF;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    UPDATE loom.executions AS e SET
        owner = NULL, deadline = NULL, hint_at = v_now + p_resend_after
    FROM unnest(v_tenants, v_ids) AS k (tenant, execution_id)
    WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id;
    RETURN QUERY
    SELECT k.owner, x.start, e
    FROM unnest(v_tenants, v_ids, v_owners) AS k (tenant, execution_id, owner)
    JOIN loom.executions AS x ON x.tenant = k.tenant AND x.execution_id = k.execution_id
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    ORDER BY x.updated_at;
END
$$;

-- Executions left with their dead or wedged holder after too many recoveries (F8).
-- Indexes: executions_owned, executions_deadline, executions_pkey.
CREATE OR REPLACE FUNCTION loom.exhausted_v1(p_max_recoveries bigint, p_limit bigint)
RETURNS SETOF loom.execution_v1
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_dead text[] := loom.dead_owners_v1(v_now);
BEGIN
    RETURN QUERY
    SELECT e.* FROM (
        (SELECT held.tenant, held.execution_id FROM unnest(v_dead) AS d (owner)
         CROSS JOIN LATERAL (
            SELECT x.tenant, x.execution_id FROM loom.executions AS x
            WHERE x.owner = d.owner AND x.recoveries >= p_max_recoveries
            LIMIT p_limit
         ) AS held
         LIMIT p_limit)
        UNION
        (SELECT x.tenant, x.execution_id FROM loom.executions AS x
         WHERE x.deadline <= v_now AND x.owner IS NOT NULL
            AND x.recoveries >= p_max_recoveries
         ORDER BY x.deadline
         LIMIT p_limit)
    ) AS k
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    ORDER BY e.updated_at, e.tenant, e.execution_id
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
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := loom.now_v1();
    v_queues text[] := p_queues;
    v_tenants text[];
    v_ids text[];
BEGIN
    IF v_queues IS NULL THEN
        v_queues := ARRAY(
            WITH RECURSIVE known (queue) AS (
                (SELECT e.queue FROM loom.executions AS e
                 WHERE e.hint_at IS NOT NULL AND e.owner IS NULL ORDER BY e.queue LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT e.queue FROM loom.executions AS e
                    WHERE e.hint_at IS NOT NULL AND e.owner IS NULL AND e.queue > q.queue
                    ORDER BY e.queue LIMIT 1
                )
                FROM known AS q WHERE q.queue IS NOT NULL
            )
            SELECT q.queue FROM known AS q WHERE q.queue IS NOT NULL
        );
    END IF;
    SELECT array_agg(p.tenant), array_agg(p.execution_id) INTO v_tenants, v_ids
    FROM (
        SELECT due.* FROM (SELECT DISTINCT u.queue FROM unnest(v_queues) AS u (queue)) AS q
        CROSS JOIN LATERAL (
            SELECT e.tenant, e.execution_id, e.hint_at FROM loom.executions AS e
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
    UPDATE loom.executions AS e SET
        hints = e.hints + 1,
        hint_at = v_now + least(p_resend_after * (1::bigint << least(e.hints, 30)::integer),
            p_backoff_limit)
    FROM unnest(v_tenants, v_ids) AS k (tenant, execution_id)
    WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id;
    RETURN QUERY
    SELECT x.start, e
    FROM unnest(v_tenants, v_ids) WITH ORDINALITY AS k (tenant, execution_id, n)
    JOIN loom.executions AS x ON x.tenant = k.tenant AND x.execution_id = k.execution_id
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    ORDER BY k.n;
END
$$;
