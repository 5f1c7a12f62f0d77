-- Put items in inboxes (K7, K13). Executions come in the order of their keys, no key twice;
-- each item says which of them it is for. Answers with a row per item, with no execution
-- where there is none, else as it stood after the item; `fresh` says whether the item came in
-- by this call. An id that is there already, taken ones included, is a duplicate. One by one:
-- what people and other systems say comes in small numbers.
--
-- Rows are locked first, so that an item's position follows the order in which inboxes were
-- locked, and an append that parks sees the item or is seen by it. A row that was given
-- another id while this waited for it may have a successor, which is locked on its turn.
--
-- Indexes: executions_pkey, inbox_pkey.
CREATE OR REPLACE FUNCTION loom.deliver_v1(
    p_tenants text[], p_ids text[],
    p_targets bigint[], p_item_ids text[], p_kinds text[], p_bodies bytea[],
    p_resend_after bigint
)
RETURNS TABLE (item bigint, fresh boolean, execution loom.execution_v1)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
    v_now bigint := loom.now_v1();
    v_item record;
BEGIN
    FOR v_item IN
        SELECT k.*, p_tenants[k.target] AS tenant, p_ids[k.target] AS execution_id
        FROM unnest(p_targets, p_item_ids, p_kinds, p_bodies)
            WITH ORDINALITY AS k (target, item_id, kind, body, n)
    LOOP
        IF v_places[v_item.target] IS NULL THEN
            PERFORM loom.lock_v1(ARRAY[v_item.tenant], ARRAY[v_item.execution_id]);
        END IF;
        INSERT INTO loom.inbox (received_at, tenant, execution_id, item_id, kind, body)
        SELECT v_now, e.tenant, e.execution_id, v_item.item_id, v_item.kind, v_item.body
        FROM loom.executions AS e
        WHERE e.tenant = v_item.tenant AND e.execution_id = v_item.execution_id
            AND e.status IN ('pending', 'running', 'suspended')
        ON CONFLICT (tenant, execution_id, item_id) DO NOTHING;
        fresh := FOUND;
        IF fresh THEN
            UPDATE loom.executions AS e SET
                inbox = e.inbox + 1,
                littered = true,
                hint_at = CASE
                    WHEN e.status = 'running' THEN e.hint_at
                    ELSE least(e.hint_at, v_now + p_resend_after)
                END
            WHERE e.tenant = v_item.tenant AND e.execution_id = v_item.execution_id;
        END IF;
        item := v_item.n;
        execution := (
            SELECT e FROM loom.execution_v1 AS e
            WHERE e.tenant = v_item.tenant AND e.execution_id = v_item.execution_id
        );
        RETURN NEXT;
    END LOOP;
END
$$;

-- Delete items that were refused; their ids may come in again. Executions come in the order
-- of their keys, no key twice. Indexes: executions_pkey, inbox_pkey.
CREATE OR REPLACE FUNCTION loom.discard_v1(
    p_tenants text[], p_ids text[], p_targets bigint[], p_item_ids text[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
    v_item record;
BEGIN
    FOR v_item IN
        SELECT p_tenants[k.target] AS tenant, p_ids[k.target] AS execution_id, k.item_id
        FROM unnest(p_targets, p_item_ids) AS k (target, item_id)
    LOOP
        DELETE FROM loom.inbox AS i
        WHERE i.tenant = v_item.tenant AND i.execution_id = v_item.execution_id
            AND i.item_id = v_item.item_id AND NOT i.taken;
        CONTINUE WHEN NOT FOUND;
        UPDATE loom.executions AS e SET inbox = e.inbox - 1
        WHERE e.tenant = v_item.tenant AND e.execution_id = v_item.execution_id;
    END LOOP;
END
$$;
