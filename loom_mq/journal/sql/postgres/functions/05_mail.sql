-- Put items in inboxes (K7, K13). Answers with every execution that exists; `fresh` says
-- whether the item came in by this call. An id that is there already, taken ones included,
-- is a duplicate.
--
-- Rows are locked first and in key order, so that an item's place follows the order in
-- which inboxes were locked, and an append that parks sees it or is seen by it.
--
-- Indexes: executions_pkey, inbox_pkey.
CREATE OR REPLACE FUNCTION loom.deliver_v1(
    p_tenants text[], p_ids text[], p_item_ids text[], p_kinds text[], p_bodies bytea[],
    p_resend_after bigint
)
RETURNS TABLE (item bigint, fresh boolean, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := loom.now_v1();
    v_fresh bigint[];
BEGIN
    PERFORM FROM (
        SELECT DISTINCT u.tenant, u.execution_id
        FROM unnest(p_tenants, p_ids) AS u (tenant, execution_id)
    ) AS k
    JOIN loom.executions AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    ORDER BY e.tenant, e.execution_id
    FOR NO KEY UPDATE OF e;

    WITH put AS (
        INSERT INTO loom.inbox AS i (received_at, tenant, execution_id, item_id, kind, body)
        SELECT v_now, k.tenant, k.execution_id, k.item_id, k.kind, k.body
        FROM unnest(p_tenants, p_ids, p_item_ids, p_kinds, p_bodies)
            WITH ORDINALITY AS k (tenant, execution_id, item_id, kind, body, n)
        JOIN loom.executions AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
        WHERE e.status IN ('pending', 'running', 'suspended')
        ORDER BY k.n
        ON CONFLICT (tenant, execution_id, item_id) DO NOTHING
        RETURNING i.tenant, i.execution_id, i.item_id
    ), counted AS (
        SELECT p.tenant, p.execution_id, count(*) AS number
        FROM put AS p GROUP BY p.tenant, p.execution_id
    ), told AS (
        UPDATE loom.executions AS e SET
            inbox = e.inbox + c.number,
            littered = true,
            hint_at = CASE
                WHEN e.status = 'running' THEN e.hint_at
                ELSE least(e.hint_at, v_now + p_resend_after)
            END
        FROM counted AS c
        WHERE e.tenant = c.tenant AND e.execution_id = c.execution_id
    )
    SELECT array_agg(first.n) INTO v_fresh
    FROM put AS p
    JOIN (
        SELECT u.tenant, u.execution_id, u.item_id, min(u.n) AS n
        FROM unnest(p_tenants, p_ids, p_item_ids)
            WITH ORDINALITY AS u (tenant, execution_id, item_id, n)
        GROUP BY u.tenant, u.execution_id, u.item_id
    ) AS first USING (tenant, execution_id, item_id);

    RETURN QUERY
    SELECT k.n, k.n = ANY (coalesce(v_fresh, '{}')), e
    FROM unnest(p_tenants, p_ids) WITH ORDINALITY AS k (tenant, execution_id, n)
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id;
END
$$;

-- Delete items that were refused; their ids may come in again.
-- Indexes: executions_pkey, inbox_pkey.
CREATE OR REPLACE FUNCTION loom.discard_v1(p_tenants text[], p_ids text[], p_item_ids text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    PERFORM FROM (
        SELECT DISTINCT u.tenant, u.execution_id
        FROM unnest(p_tenants, p_ids) AS u (tenant, execution_id)
    ) AS k
    JOIN loom.executions AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    ORDER BY e.tenant, e.execution_id
    FOR NO KEY UPDATE OF e;

    WITH gone AS (
        DELETE FROM loom.inbox AS i
        USING unnest(p_tenants, p_ids, p_item_ids) AS k (tenant, execution_id, item_id)
        WHERE i.tenant = k.tenant AND i.execution_id = k.execution_id
            AND i.item_id = k.item_id AND NOT i.taken
        RETURNING i.tenant, i.execution_id
    ), counted AS (
        SELECT g.tenant, g.execution_id, count(*) AS number
        FROM gone AS g GROUP BY g.tenant, g.execution_id
    )
    UPDATE loom.executions AS e SET inbox = e.inbox - c.number
    FROM counted AS c
    WHERE e.tenant = c.tenant AND e.execution_id = c.execution_id;
END
$$;
