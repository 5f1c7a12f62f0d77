-- Due timers, earliest first, held from other callers for a while (F9). A suspended execution
-- among them is sent again by the sweep should its wake be lost. It waits for nobody: what an
-- append holds at this moment is left to the next look.
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
    v_tenants text[];
    v_ids text[];
    v_dues bigint[];
BEGIN
    SELECT array_agg(f.tenant), array_agg(f.execution_id), array_agg(f.due)
    INTO v_tenants, v_ids, v_dues
    FROM (
        SELECT t.tenant, t.execution_id, t.due FROM loom.timers AS t
        JOIN loom.executions AS e ON e.tenant = t.tenant AND e.execution_id = t.execution_id
        WHERE t.visible_at <= v_now
        ORDER BY t.visible_at
        LIMIT p_limit
        FOR UPDATE OF t SKIP LOCKED FOR NO KEY UPDATE OF e SKIP LOCKED
    ) AS f;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    -- later than its due time, or it would not count as held
    UPDATE loom.timers AS t SET visible_at = greatest(v_now + p_hold, t.due + 1)
    FROM unnest(v_tenants, v_ids, v_dues) AS k (tenant, execution_id, due)
    WHERE t.tenant = k.tenant AND t.execution_id = k.execution_id AND t.due = k.due;
    UPDATE loom.executions AS e SET hint_at = v_now + p_hold
    FROM unnest(v_tenants, v_ids) AS k (tenant, execution_id)
    WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id AND e.status = 'suspended';
    RETURN QUERY
    SELECT k.due, e FROM unnest(v_tenants, v_ids, v_dues) AS k (tenant, execution_id, due)
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    ORDER BY k.due;
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
