-- A batch of appends (J2, J3, J4), in the order of their keys, no key twice. Answers with the
-- places of those that were written, their unread inbox items, and who waits for the ended
-- ones. What is not among the written was refused or is there already: `standing_v1` tells.
--
-- The rows are locked first. One statement then checks fence and sequence, moves the index
-- rows and writes the events; its snapshot is younger than the wait for the locks, so it
-- judges what a dying connection committed meanwhile, and never writes anything twice.
--
-- By place; indexes: executions_pkey for the locks, workers_pkey for leases that are in the
-- way of a claim, timers_pkey and inbox_pkey where an execution has such rows.
CREATE OR REPLACE FUNCTION loom.append_v2(
    p_tenants text[], p_ids text[], p_expected bigint[], p_fences bigint[],
    p_first_seqs bigint[], p_last_seqs bigint[], p_first_ats bigint[], p_last_ats bigint[],
    p_first_ids bytea[], p_bodies bytea[],
    p_statuses text[], p_wake_ats bigint[], p_gates text[], p_errors text[],
    p_recoveries bigint[], p_owners text[], p_deadlines bigint[], p_releases boolean[],
    p_in_doubts text[],
    p_timer_items bigint[], p_timer_dues bigint[], p_taken_items bigint[], p_taken_ids text[],
    OUT written bigint[], OUT unread bigint[], OUT awaited bigint[], OUT waiters bytea[]
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
    v_now bigint := loom.now_v1();
    v_littered bigint[];
BEGIN
    WITH moved AS (
        UPDATE loom.executions AS e SET
            fence = k.fence,
            last_seq = k.last_seq,
            attempt = CASE WHEN k.owner IS NULL THEN e.attempt ELSE e.attempt + 1 END,
            hints = CASE WHEN k.owner IS NULL THEN e.hints ELSE 0 END,
            recoveries = k.recoveries,
            updated_at = k.last_at,
            started_at = coalesce(e.started_at, k.first_at),
            ended_at = CASE WHEN k.ended THEN k.last_at END,
            wake_at = k.wake_at,
            deadline = CASE
                WHEN k.gone THEN NULL
                WHEN k.owner IS NULL THEN e.deadline
                ELSE v_now + k.deadline
            END,
            hint_at = CASE
                WHEN k.ended THEN NULL
                WHEN k.status = 'suspended' THEN CASE WHEN e.inbox > 0 THEN v_now END
                WHEN k.gone THEN v_now
                WHEN k.owner IS NULL THEN e.hint_at
            END,
            littered = e.littered OR k.n = ANY (p_timer_items),
            status = k.status,
            owner = CASE WHEN NOT k.gone THEN coalesce(k.owner, e.owner) END,
            gates = k.gates,
            error = k.error,
            in_doubt = k.in_doubt,
            trouble = NULL,
            start = NULL
        FROM (
            SELECT u.*, u.status NOT IN ('pending', 'running', 'suspended') AS ended,
                u.release OR u.status NOT IN ('pending', 'running', 'suspended') AS gone
            FROM unnest(
                v_places, p_tenants, p_ids, p_expected, p_fences, p_first_seqs, p_last_seqs,
                p_first_ats, p_last_ats, p_first_ids, p_bodies, p_statuses, p_wake_ats,
                p_gates, p_errors, p_recoveries, p_owners, p_deadlines, p_releases, p_in_doubts
            ) WITH ORDINALITY AS u (
                place, tenant, execution_id, expected, fence, first_seq, last_seq,
                first_at, last_at, first_id, body, status, wake_at,
                gates, error, recoveries, owner, deadline, release, in_doubt, n
            )
        ) AS k
        WHERE e.ctid = k.place
            AND e.fence = k.expected AND e.last_seq = k.first_seq - 1
            AND (
                k.owner IS NULL OR e.owner IS NULL OR e.owner = k.owner OR e.deadline <= v_now
                OR NOT loom.alive_v1(e.owner, v_now)
            )
        RETURNING k.n, k.tenant, k.execution_id, k.first_seq, k.last_seq, k.first_id, k.body,
            k.ended, e.inbox, e.littered, e.waiters
    ), logged AS (
        INSERT INTO loom.events (tenant, execution_id, seq, last_seq, first_id, body)
        SELECT tenant, execution_id, first_seq, last_seq, first_id, body FROM moved
    )
    SELECT
        (SELECT array_agg(n) FROM moved),
        (SELECT array_agg(CASE WHEN ended THEN 0 ELSE inbox END) FROM moved),
        (SELECT array_agg(n) FROM moved, unnest(waiters) AS w WHERE ended),
        (SELECT array_agg(w) FROM moved, unnest(waiters) AS w WHERE ended),
        (SELECT array_agg(n) FROM moved WHERE ended AND littered)
    INTO written, unread, awaited, waiters, v_littered;

    IF v_littered IS NOT NULL THEN
        PERFORM loom.tidy_v1(p_tenants, p_ids, v_littered);
    END IF;
    IF p_timer_items <> '{}' THEN
        -- a timer armed again is as good as new, held or not
        INSERT INTO loom.timers (tenant, execution_id, due, visible_at)
        SELECT DISTINCT p_tenants[t.n], p_ids[t.n], t.due, t.due
        FROM unnest(p_timer_items, p_timer_dues) AS t (n, due)
        WHERE t.n = ANY (written) AND t.n <> ALL (coalesce(v_littered, '{}'))
        ON CONFLICT (tenant, execution_id, due) DO UPDATE SET visible_at = EXCLUDED.visible_at;
    END IF;
    IF p_taken_items <> '{}' THEN
        unread := loom.take_mail_v1(
            p_tenants, p_ids, p_taken_items, p_taken_ids, written, unread
        );
    END IF;
END
$$;

-- Remove inbox and timers of ended executions, whose rows are locked already. One by one:
-- few executions have any. Indexes: timers_pkey, inbox_pkey, executions_pkey.
CREATE OR REPLACE FUNCTION loom.tidy_v1(p_tenants text[], p_ids text[], p_items bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_item bigint;
BEGIN
    FOREACH v_item IN ARRAY p_items LOOP
        DELETE FROM loom.timers AS t
        WHERE t.tenant = p_tenants[v_item] AND t.execution_id = p_ids[v_item];
        DELETE FROM loom.inbox AS i
        WHERE i.tenant = p_tenants[v_item] AND i.execution_id = p_ids[v_item];
        UPDATE loom.executions AS e SET inbox = 0, littered = false
        WHERE e.tenant = p_tenants[v_item] AND e.execution_id = p_ids[v_item];
    END LOOP;
END
$$;

-- Mark inbox items as taken by the events just written; answers with the unread items, now
-- without them. The hint that the main statement gave a park for them goes when nothing
-- else is unread. Rows are locked already; one by one. Indexes: inbox_pkey, executions_pkey.
CREATE OR REPLACE FUNCTION loom.take_mail_v1(
    p_tenants text[], p_ids text[], p_items bigint[], p_item_ids text[], p_written bigint[],
    p_unread bigint[]
)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_item bigint;
    v_item_id text;
    v_place integer;
    v_unread bigint[] := p_unread;
BEGIN
    FOR v_item, v_item_id IN SELECT * FROM unnest(p_items, p_item_ids) LOOP
        v_place := array_position(p_written, v_item);
        CONTINUE WHEN v_place IS NULL;
        UPDATE loom.inbox AS i SET taken = true, body = ''
        WHERE i.tenant = p_tenants[v_item] AND i.execution_id = p_ids[v_item]
            AND i.item_id = v_item_id AND NOT i.taken;
        CONTINUE WHEN NOT FOUND;
        v_unread[v_place] := v_unread[v_place] - 1;
        UPDATE loom.executions AS e SET
            inbox = e.inbox - 1,
            hint_at = CASE WHEN e.status <> 'suspended' OR e.inbox > 1 THEN e.hint_at END
        WHERE e.tenant = p_tenants[v_item] AND e.execution_id = p_ids[v_item];
    END LOOP;
    RETURN v_unread;
END
$$;
