-- Functions of the journal, made anew by every migration. Their names carry a version: a
-- function whose signature changes gets a new name, so that processes of two releases can
-- share a database.
--
-- Most of them forbid the planner everything but nested loops over indexes. What a batch
-- asks for is a handful of keys, and a plan that was made while a table was small must not
-- be kept when it has grown.

-- Journal time: this server's clock, whatever the clients' clocks say.
CREATE OR REPLACE FUNCTION loom.now_v1() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- An execution as programs see it.
CREATE OR REPLACE VIEW loom.execution_v1 AS
SELECT tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest
FROM loom.executions;

-- Whether the lease of an owner runs. Index: workers_pkey.
CREATE OR REPLACE FUNCTION loom.alive_v1(p_owner text, p_now bigint) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM loom.workers AS w WHERE w.owner = p_owner AND w.lease_until > p_now
);

-- Index rows by key, with their place in the question. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.rows_v1(p_tenants text[], p_ids text[])
RETURNS TABLE (item bigint, execution loom.execution_v1)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT k.n, e
    FROM unnest(p_tenants, p_ids) WITH ORDINALITY AS k (tenant, execution_id, n)
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id;
END
$$;

-- Executions as a decision sees them: the row, whether its owner is alive, and the recorded
-- appends that overlap some sequences. Always a statement of its own: its snapshot is
-- younger than whatever an earlier statement waited for (J4).
-- Indexes: executions_pkey, workers_pkey, events_pkey.
CREATE OR REPLACE FUNCTION loom.standing_v1(
    p_tenants text[], p_ids text[], p_first_seqs bigint[], p_last_seqs bigint[]
)
RETURNS TABLE (
    item bigint, moment bigint, alive boolean, waiters bytea[], recorded bytea[],
    execution loom.execution_v1
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now bigint := loom.now_v1();
BEGIN
    RETURN QUERY
    SELECT k.n, v_now, e.owner IS NOT NULL AND loom.alive_v1(e.owner, v_now), x.waiters,
        ARRAY(
            SELECT v.body FROM loom.events AS v
            WHERE v.tenant = k.tenant AND v.execution_id = k.execution_id
                AND v.seq <= k.last_seq AND v.last_seq >= k.first_seq
                AND v.seq >= coalesce((
                    SELECT f.seq FROM loom.events AS f
                    WHERE f.tenant = k.tenant AND f.execution_id = k.execution_id
                        AND f.seq <= k.first_seq
                    ORDER BY f.seq DESC LIMIT 1
                ), 0)
            ORDER BY v.seq
        ),
        e
    FROM unnest(p_tenants, p_ids, p_first_seqs, p_last_seqs)
        WITH ORDINALITY AS k (tenant, execution_id, first_seq, last_seq, n)
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    JOIN loom.executions AS x ON x.tenant = k.tenant AND x.execution_id = k.execution_id;
END
$$;

-- The appends that hold a page of a log; the client cuts off what sticks out. After 8 MB of
-- them the page ends early, at its far end. Indexes: executions_pkey, events_pkey.
CREATE OR REPLACE FUNCTION loom.read_v1(
    p_tenant text, p_id text, p_first bigint, p_limit bigint, p_newest boolean,
    OUT last_seq bigint, OUT bodies bytea[]
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_low bigint := greatest(p_first, 0);
    v_high bigint;
BEGIN
    SELECT e.last_seq INTO last_seq FROM loom.executions AS e
    WHERE e.tenant = p_tenant AND e.execution_id = p_id;
    IF p_newest THEN
        v_low := greatest(v_low, last_seq + 1 - p_limit);
    END IF;
    v_high := least(v_low + p_limit - 1, last_seq);
    bodies := ARRAY(
        SELECT s.body FROM (
            SELECT v.seq, v.body,
                sum(octet_length(v.body)) OVER (
                    ORDER BY CASE WHEN p_newest THEN -v.seq ELSE v.seq END
                ) - octet_length(v.body) AS sent
            FROM loom.events AS v
            WHERE v.tenant = p_tenant AND v.execution_id = p_id
                AND v.seq <= v_high AND v.last_seq >= v_low
                AND v.seq >= coalesce((
                    SELECT f.seq FROM loom.events AS f
                    WHERE f.tenant = p_tenant AND f.execution_id = p_id AND f.seq <= v_low
                    ORDER BY f.seq DESC LIMIT 1
                ), 0)
        ) AS s
        WHERE s.sent < 8000000
        ORDER BY s.seq
    );
END
$$;

-- Unread inbox items, oldest first. Index: inbox_unread.
CREATE OR REPLACE FUNCTION loom.inbox_v1(p_tenants text[], p_ids text[])
RETURNS TABLE (item bigint, body bytea)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT k.n, i.body
    FROM unnest(p_tenants, p_ids) WITH ORDINALITY AS k (tenant, execution_id, n)
    JOIN loom.inbox AS i
        ON i.tenant = k.tenant AND i.execution_id = k.execution_id AND NOT i.taken
    ORDER BY k.n, i.position;
END
$$;
