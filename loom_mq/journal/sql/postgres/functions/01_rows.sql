-- Functions of the journal, made anew by every migration. Their names carry a version: a
-- function whose signature changes gets a new name, so that processes of two releases can
-- share a database.
--
-- A session keeps the plans of its functions, and may have made them while a table was
-- empty. So nothing is left to the planner's taste. There are two kinds of functions:
--
-- - Those that look up rows may use indexes and nested loops only, and what they join with
--   a batch stands in a subquery for one key, so the batch leads.
-- - Those that change rows that are locked already find them by their place (ctid), which
--   cannot change while the lock is held, and may use nothing else.
--
-- One kind calls the other, and settings are handed down, so each says all that it needs.

-- Journal time: this server's clock, whatever the clients' clocks say.
CREATE OR REPLACE FUNCTION loom.now_v1() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- An execution as programs see it. New columns come last: functions and programs of an older
-- release name the ones that they know.
CREATE OR REPLACE VIEW loom.execution_v1 AS
SELECT tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble
FROM loom.executions;

-- Whether the lease of an owner runs. Index: workers_pkey, or the small table itself.
CREATE OR REPLACE FUNCTION loom.alive_v1(p_owner text, p_now bigint) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM loom.workers AS w WHERE w.owner = p_owner AND w.lease_until > p_now
);

-- Lock index rows in the order of the batch, which is that of the keys: whoever writes more
-- than one execution does this first, so that two batches never wait for each other. Answers
-- with the rows' places, NULL for a key that is not there. What happens afterwards sees
-- everything that was committed while this waited. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.lock_v1(p_tenants text[], p_ids text[]) RETURNS tid[]
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    RETURN ARRAY(
        SELECT (
            SELECT e.ctid FROM loom.executions AS e
            WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
            FOR NO KEY UPDATE
        )
        FROM unnest(p_tenants, p_ids) AS k (tenant, execution_id)
    );
END
$$;

-- Index rows by key, with their place in the question. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.rows_v1(p_tenants text[], p_ids text[])
RETURNS TABLE (item bigint, execution loom.execution_v1)
LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT k.n, f.execution
    FROM unnest(p_tenants, p_ids) WITH ORDINALITY AS k (tenant, execution_id, n)
    CROSS JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS f;
END
$$;

-- The recorded appends that overlap some sequences of a log. Index: events_pkey.
CREATE OR REPLACE FUNCTION loom.recorded_v1(
    p_tenant text, p_id text, p_first_seq bigint, p_last_seq bigint
)
RETURNS bytea[]
LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_from bigint := (
        SELECT v.seq FROM loom.events AS v
        WHERE v.tenant = p_tenant AND v.execution_id = p_id AND v.seq <= p_first_seq
        ORDER BY v.seq DESC LIMIT 1
    );
BEGIN
    RETURN ARRAY(
        SELECT v.body FROM loom.events AS v
        WHERE v.tenant = p_tenant AND v.execution_id = p_id
            AND v.seq >= coalesce(v_from, 0) AND v.seq <= p_last_seq
            AND v.last_seq >= p_first_seq
        ORDER BY v.seq
    );
END
$$;

-- Executions as a decision sees them: the row, whether its owner is alive, who waits for its
-- end, and the recorded appends that overlap some sequences. Always a statement of its own:
-- its snapshot is younger than whatever an earlier statement waited for (J4).
-- Indexes: executions_pkey, workers_pkey, events_pkey.
CREATE OR REPLACE FUNCTION loom.standing_v1(
    p_tenants text[], p_ids text[], p_first_seqs bigint[], p_last_seqs bigint[]
)
RETURNS TABLE (
    item bigint, moment bigint, alive boolean, waiters bytea[], recorded bytea[],
    execution loom.execution_v1
)
LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
BEGIN
    RETURN QUERY
    SELECT k.n, v_now, f.owner IS NOT NULL AND loom.alive_v1(f.owner, v_now), f.waiters,
        loom.recorded_v1(k.tenant, k.execution_id, k.first_seq, k.last_seq), g.execution
    FROM unnest(p_tenants, p_ids, p_first_seqs, p_last_seqs)
        WITH ORDINALITY AS k (tenant, execution_id, first_seq, last_seq, n)
    CROSS JOIN LATERAL (
        SELECT e.owner, e.waiters FROM loom.executions AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS f
    CROSS JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS g;
END
$$;

-- The appends that hold a page of a log; the client cuts off what sticks out. `begins` is where
-- the log begins when that is later than what was asked for. After 8 MB of them the page ends
-- early, at its far end. Indexes: executions_pkey, events_pkey.
CREATE OR REPLACE FUNCTION loom.read_v2(
    p_tenant text, p_id text, p_first bigint, p_limit bigint, p_newest boolean,
    OUT last_seq bigint, OUT begins bigint, OUT bodies bytea[]
)
LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_low bigint := greatest(p_first, 0);
    v_high bigint;
    v_from bigint;
BEGIN
    last_seq := (
        SELECT e.last_seq FROM loom.executions AS e
        WHERE e.tenant = p_tenant AND e.execution_id = p_id
    );
    IF p_newest THEN
        v_low := greatest(v_low, last_seq + 1 - p_limit);
    END IF;
    v_from := (
        SELECT v.seq FROM loom.events AS v
        WHERE v.tenant = p_tenant AND v.execution_id = p_id AND v.seq <= v_low
        ORDER BY v.seq DESC LIMIT 1
    );
    IF v_from IS NULL THEN
        -- nothing so early: a snapshot stands for what was before, or the log is empty
        v_from := (
            SELECT v.seq FROM loom.events AS v
            WHERE v.tenant = p_tenant AND v.execution_id = p_id
            ORDER BY v.seq LIMIT 1
        );
        begins := v_from;
        v_low := v_from;
    END IF;
    v_high := least(v_low + p_limit - 1, last_seq);
    bodies := CASE WHEN p_newest THEN ARRAY(
        SELECT s.body FROM (
            SELECT v.seq, v.body,
                sum(octet_length(v.body)) OVER (ORDER BY v.seq DESC) - octet_length(v.body) AS sent
            FROM loom.events AS v
            WHERE v.tenant = p_tenant AND v.execution_id = p_id
                AND v.seq >= v_from AND v.seq <= v_high
        ) AS s
        WHERE s.sent < 8000000 ORDER BY s.seq
    ) ELSE ARRAY(
        SELECT s.body FROM (
            SELECT v.seq, v.body,
                sum(octet_length(v.body)) OVER (ORDER BY v.seq) - octet_length(v.body) AS sent
            FROM loom.events AS v
            WHERE v.tenant = p_tenant AND v.execution_id = p_id
                AND v.seq >= v_from AND v.seq <= v_high
        ) AS s
        WHERE s.sent < 8000000 ORDER BY s.seq
    ) END;
END
$$;

-- Unread inbox items, oldest first. Index: inbox_unread.
CREATE OR REPLACE FUNCTION loom.inbox_v1(p_tenants text[], p_ids text[])
RETURNS TABLE (item bigint, bodies bytea[])
LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT k.n, ARRAY(
        SELECT i.body FROM loom.inbox AS i
        WHERE i.tenant = k.tenant AND i.execution_id = k.execution_id AND NOT i.taken
        ORDER BY i.position
    )
    FROM unnest(p_tenants, p_ids) WITH ORDINALITY AS k (tenant, execution_id, n);
END
$$;
