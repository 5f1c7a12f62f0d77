-- Due timers, earliest first, held from other callers for a while (F9). A suspended execution
-- among them is sent again by the sweep should its wake be lost. It waits for nobody: what an
-- append holds at this moment is left to the next look.
-- Indexes: timers_visible, executions_pkey.
CREATE OR REPLACE FUNCTION loom.due_timers_v1(p_limit bigint, p_hold bigint)
RETURNS TABLE (due bigint, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := loom.now_v1();
    v_tenants text[];
    v_ids text[];
    v_dues bigint[];
    v_timers tid[];
    v_executions tid[];
BEGIN
    SELECT array_agg(f.tenant), array_agg(f.execution_id), array_agg(f.due),
        array_agg(f.timer), array_agg(f.execution)
    INTO v_tenants, v_ids, v_dues, v_timers, v_executions
    FROM (
        SELECT t.tenant, t.execution_id, t.due, t.ctid AS timer, e.place AS execution
        FROM loom.timers AS t
        CROSS JOIN LATERAL (
            SELECT x.ctid AS place FROM loom.executions AS x
            WHERE x.tenant = t.tenant AND x.execution_id = t.execution_id
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS e
        WHERE t.visible_at <= v_now
        ORDER BY t.visible_at
        LIMIT p_limit
        FOR UPDATE OF t SKIP LOCKED
    ) AS f;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM loom.hold_v1(v_timers, v_executions, v_now + p_hold);
    RETURN QUERY
    SELECT k.due, g.execution
    FROM unnest(v_tenants, v_ids, v_dues) AS k (tenant, execution_id, due)
    CROSS JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS g
    ORDER BY k.due;
END
$$;

-- Hold locked timers, and have their executions sent again should the wake be lost. Held is
-- what is visible later than its due time. By place.
CREATE OR REPLACE FUNCTION loom.hold_v1(p_timers tid[], p_executions tid[], p_until bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.timers AS t SET visible_at = greatest(p_until, t.due + 1)
    WHERE t.ctid = ANY (p_timers);
    UPDATE loom.executions AS e SET hint_at = p_until
    WHERE e.ctid = ANY (p_executions) AND e.status = 'suspended';
END
$$;

-- Delete timers whose fire was published. One that was armed again meanwhile is not held any
-- more and stays; one that somebody has locked is being deleted, or fires once more, which
-- does no harm. Index: timers_pkey.
CREATE OR REPLACE FUNCTION loom.drop_timers_v1(p_tenants text[], p_ids text[], p_dues bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    PERFORM loom.remove_timers_v1(ARRAY(
        SELECT t.place
        FROM unnest(p_tenants, p_ids, p_dues) AS k (tenant, execution_id, due)
        CROSS JOIN LATERAL (
            SELECT x.ctid AS place FROM loom.timers AS x
            WHERE x.tenant = k.tenant AND x.execution_id = k.execution_id AND x.due = k.due
                AND x.visible_at <> x.due
            FOR UPDATE SKIP LOCKED
        ) AS t
    ));
END
$$;

-- Delete locked timers. By place.
CREATE OR REPLACE FUNCTION loom.remove_timers_v1(p_timers tid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    DELETE FROM loom.timers AS t WHERE t.ctid = ANY (p_timers);
END
$$;

-- Arm timers that are missing, of executions that are suspended (F9), in the order of their
-- keys. Answers with the places of those that were armed. What is there, nearly all of it, is
-- looked up and not locked. Indexes: timers_pkey, executions_pkey.
CREATE OR REPLACE FUNCTION loom.arm_timers_v1(p_tenants text[], p_ids text[], p_dues bigint[])
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_armed bigint[] := '{}';
BEGIN
    FOR v_item IN 1 .. cardinality(p_ids) LOOP
        CONTINUE WHEN EXISTS (
            SELECT FROM loom.timers AS t
            WHERE t.tenant = p_tenants[v_item] AND t.execution_id = p_ids[v_item]
                AND t.due = p_dues[v_item]
        );
        -- under the row's lock, so that its end cannot come between and leave a timer behind
        UPDATE loom.executions AS e SET littered = true
        WHERE e.tenant = p_tenants[v_item] AND e.execution_id = p_ids[v_item]
            AND e.status = 'suspended';
        CONTINUE WHEN NOT FOUND;
        INSERT INTO loom.timers (tenant, execution_id, due, visible_at)
        VALUES (p_tenants[v_item], p_ids[v_item], p_dues[v_item], p_dues[v_item])
        ON CONFLICT (tenant, execution_id, due) DO NOTHING;
        IF FOUND THEN
            v_armed := v_armed || v_item::bigint;
        END IF;
    END LOOP;
    RETURN v_armed;
END
$$;

-- The earliest due time of a timer that is not held: for timer services that know no schedules,
-- and would look again and again for one. Index: timers_visible.
CREATE OR REPLACE FUNCTION loom.next_timer_v1() RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
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
