-- A batch of appends (J2, J3, J4), in the order of their keys, no key twice. Answers with the
-- places of those that were written, their unread inbox items, and who waits for the ended
-- ones. What is not among the written was refused or is there already: `standing_v1` tells.
--
-- One statement checks, moves the index rows and writes the events. Its update waits for a
-- row that somebody else is changing and then checks again what stands there, so it is the
-- lock and the compare-and-set at once. The settings leave the planner nothing but to visit
-- the rows in the order of the batch: two batches never wait for each other.
--
-- Indexes: executions_pkey, workers_pkey; timers_pkey and inbox_pkey where they are needed.
CREATE OR REPLACE FUNCTION loom.append_v1(
    p_tenants text[], p_ids text[], p_expected bigint[], p_fences bigint[],
    p_first_seqs bigint[], p_last_seqs bigint[], p_first_ats bigint[], p_last_ats bigint[],
    p_first_ids bytea[], p_bodies bytea[],
    p_statuses text[], p_wake_ats bigint[], p_gates text[], p_errors text[],
    p_recoveries bigint[], p_owners text[], p_deadlines bigint[], p_releases boolean[],
    p_timer_items bigint[], p_timer_dues bigint[], p_taken_items bigint[], p_taken_ids text[],
    OUT written bigint[], OUT unread bigint[], OUT awaited bigint[], OUT waiters bytea[]
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
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
            start = NULL
        FROM (
            SELECT u.*, u.status NOT IN ('pending', 'running', 'suspended') AS ended,
                u.release OR u.status NOT IN ('pending', 'running', 'suspended') AS gone
            FROM unnest(
                p_tenants, p_ids, p_expected, p_fences, p_first_seqs, p_last_seqs,
                p_first_ats, p_last_ats, p_first_ids, p_bodies, p_statuses, p_wake_ats,
                p_gates, p_errors, p_recoveries, p_owners, p_deadlines, p_releases
            ) WITH ORDINALITY AS u (
                tenant, execution_id, expected, fence, first_seq, last_seq,
                first_at, last_at, first_id, body, status, wake_at,
                gates, error, recoveries, owner, deadline, release, n
            )
        ) AS k
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
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
        PERFORM loom.take_mail_v1(p_tenants, p_ids, p_taken_items, p_taken_ids, written);
        unread := ARRAY(
            SELECT e.inbox
            FROM unnest(written) WITH ORDINALITY AS w (n, place)
            JOIN loom.executions AS e
                ON e.tenant = p_tenants[w.n] AND e.execution_id = p_ids[w.n]
            ORDER BY w.place
        );
    END IF;
END
$$;

-- Remove inbox and timers of ended executions. Their rows are locked already.
-- Indexes: timers_pkey, inbox_pkey, executions_pkey.
CREATE OR REPLACE FUNCTION loom.tidy_v1(p_tenants text[], p_ids text[], p_items bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    DELETE FROM loom.timers AS t USING unnest(p_items) AS k (n)
    WHERE t.tenant = p_tenants[k.n] AND t.execution_id = p_ids[k.n];
    DELETE FROM loom.inbox AS i USING unnest(p_items) AS k (n)
    WHERE i.tenant = p_tenants[k.n] AND i.execution_id = p_ids[k.n];
    UPDATE loom.executions AS e SET inbox = 0, littered = false FROM unnest(p_items) AS k (n)
    WHERE e.tenant = p_tenants[k.n] AND e.execution_id = p_ids[k.n];
END
$$;

-- Mark inbox items as taken by the events just written. The hint of a park that the main
-- statement set for them goes when nothing else is unread. Rows are locked already.
-- Indexes: inbox_pkey, executions_pkey.
CREATE OR REPLACE FUNCTION loom.take_mail_v1(
    p_tenants text[], p_ids text[], p_items bigint[], p_item_ids text[], p_written bigint[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    WITH gone AS (
        UPDATE loom.inbox AS i SET taken = true, body = ''
        FROM unnest(p_items, p_item_ids) AS k (n, item_id)
        WHERE i.tenant = p_tenants[k.n] AND i.execution_id = p_ids[k.n]
            AND i.item_id = k.item_id AND NOT i.taken AND k.n = ANY (p_written)
        RETURNING k.n
    ), counted AS (
        SELECT g.n, count(*) AS number FROM gone AS g GROUP BY g.n
    )
    UPDATE loom.executions AS e SET
        inbox = e.inbox - c.number,
        hint_at = CASE
            WHEN e.status = 'suspended' AND e.inbox <= c.number THEN NULL ELSE e.hint_at
        END
    FROM counted AS c
    WHERE e.tenant = p_tenants[c.n] AND e.execution_id = p_ids[c.n];
END
$$;
