-- Write a schedule by compare-and-set on its revision (F9); NULL for one that must not be there.
-- What was written before, by a commit that nobody heard of, is written (J4). `verdict` is
-- stored, exists, stale or unknown; a new one that met another, which went before the second
-- look, exists: it did when it was met. Index: schedules_pkey.
CREATE OR REPLACE FUNCTION loom.put_schedule_v1(
    p_tenant text, p_id text, p_flow text, p_paused boolean, p_definition bytea, p_state bytea,
    p_due bigint, p_expected bigint
)
RETURNS TABLE (verdict text, schedule loom.schedules)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_row loom.schedules;
BEGIN
    IF p_expected IS NULL THEN
        INSERT INTO loom.schedules AS s (
            revision, due, visible_at, created_at, updated_at, paused, tenant, schedule_id, flow,
            definition, state
        ) VALUES (
            1, p_due, p_due, v_now, v_now, p_paused, p_tenant, p_id, p_flow, p_definition, p_state
        )
        ON CONFLICT (tenant, schedule_id) DO NOTHING
        RETURNING s.* INTO v_row;
    ELSE
        UPDATE loom.schedules AS s
        SET revision = p_expected + 1, due = p_due, visible_at = p_due, updated_at = v_now,
            paused = p_paused, flow = p_flow, definition = p_definition, state = p_state
        WHERE s.tenant = p_tenant AND s.schedule_id = p_id AND s.revision = p_expected
        RETURNING s.* INTO v_row;
    END IF;
    IF FOUND THEN
        RETURN QUERY SELECT 'stored', v_row;
        RETURN;
    END IF;
    SELECT s.* INTO v_row FROM loom.schedules AS s
    WHERE s.tenant = p_tenant AND s.schedule_id = p_id;
    IF NOT FOUND THEN
        RETURN QUERY SELECT CASE WHEN p_expected IS NULL THEN 'exists' ELSE 'unknown' END, v_row;
    ELSIF v_row.revision = coalesce(p_expected, 0) + 1
        AND (v_row.flow, v_row.paused, v_row.definition, v_row.state)
            = (p_flow, p_paused, p_definition, p_state)
        AND v_row.due IS NOT DISTINCT FROM p_due
    THEN
        RETURN QUERY SELECT 'stored', v_row;
    ELSE
        RETURN QUERY SELECT CASE WHEN p_expected IS NULL THEN 'exists' ELSE 'stale' END, v_row;
    END IF;
END
$$;

-- Schedules that are due, earliest first, held from other callers for a while (F9). Waits for
-- nobody: one that is being changed is left to the next look. Indexes: schedules_visible,
-- schedules_pkey.
CREATE OR REPLACE FUNCTION loom.due_schedules_v1(p_limit bigint, p_hold bigint)
RETURNS SETOF loom.schedules
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_row loom.schedules;
BEGIN
    FOR v_row IN
        SELECT s.* FROM loom.schedules AS s
        WHERE s.visible_at <= v_now
        ORDER BY s.visible_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE loom.schedules AS s SET visible_at = greatest(v_now + p_hold, s.due + 1)
        WHERE s.tenant = v_row.tenant AND s.schedule_id = v_row.schedule_id;
        RETURN NEXT v_row;
    END LOOP;
END
$$;

-- The earliest due time, of timers and of schedules, that is not held. Indexes: timers_visible,
-- schedules_visible.
CREATE OR REPLACE FUNCTION loom.next_timer_v2() RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
BEGIN
    RETURN least(
        (
            SELECT t.due FROM loom.timers AS t
            WHERE t.visible_at = t.due OR t.visible_at <= v_now
            ORDER BY t.visible_at
            LIMIT 1
        ),
        (
            SELECT s.due FROM loom.schedules AS s
            WHERE s.visible_at IS NOT NULL AND (s.visible_at = s.due OR s.visible_at <= v_now)
            ORDER BY s.visible_at
            LIMIT 1
        )
    );
END
$$;
