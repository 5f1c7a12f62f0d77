-- Due timers, earliest first, held from other callers for a while (F9). It waits for nobody.
-- Indexes: timers_visible, timers_pkey, executions_pkey.
CREATE OR REPLACE FUNCTION loom.due_timers_v1(p_limit bigint, p_hold bigint)
RETURNS TABLE (due bigint, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := loom.now_v1();
BEGIN
    RETURN QUERY
    WITH found AS (
        SELECT t.tenant, t.execution_id, t.due FROM loom.timers AS t
        WHERE t.visible_at <= v_now
        ORDER BY t.visible_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ), held AS (
        -- later than its due time, or it would not count as held
        UPDATE loom.timers AS t SET visible_at = greatest(v_now + p_hold, t.due + 1)
        FROM found AS f
        WHERE t.tenant = f.tenant AND t.execution_id = f.execution_id AND t.due = f.due
        RETURNING t.tenant, t.execution_id, t.due
    )
    SELECT h.due, e FROM held AS h
    JOIN loom.execution_v1 AS e ON e.tenant = h.tenant AND e.execution_id = h.execution_id
    ORDER BY h.due;
END
$$;

-- Delete timers whose fire was published. One that was armed again meanwhile is not held any
-- more and stays; one that somebody has locked is being deleted, or fires once more, which
-- does no harm. Index: timers_pkey.
CREATE OR REPLACE FUNCTION loom.drop_timers_v1(p_tenants text[], p_ids text[], p_dues bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    WITH gone AS (
        SELECT t.tenant, t.execution_id, t.due
        FROM unnest(p_tenants, p_ids, p_dues) AS k (tenant, execution_id, due)
        JOIN loom.timers AS t
            ON t.tenant = k.tenant AND t.execution_id = k.execution_id AND t.due = k.due
        WHERE t.visible_at <> t.due
        FOR UPDATE OF t SKIP LOCKED
    )
    DELETE FROM loom.timers AS t USING gone AS g
    WHERE t.tenant = g.tenant AND t.execution_id = g.execution_id AND t.due = g.due;
END
$$;

-- The earliest due time that is not held. Index: timers_visible.
CREATE OR REPLACE FUNCTION loom.next_timer_v1() RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now bigint := loom.now_v1();
BEGIN
    RETURN (
        SELECT t.due FROM loom.timers AS t
        WHERE t.visible_at = t.due OR t.visible_at <= v_now
        ORDER BY t.visible_at
        LIMIT 1
    );
END
$$;
