-- Whether an execution has all wanted labels with their values. Both are read as they are
-- stored, pair by pair: the text of a label need be nothing that the server could hold.
CREATE OR REPLACE FUNCTION loom.labelled_v1(p_labels text, p_wanted text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_wanted <@ ARRAY(
    SELECT m[1]
    FROM regexp_matches(p_labels, '("(?:[^"\\]|\\.)*":"(?:[^"\\]|\\.)*")', 'g') AS m
);

-- Executions, newest first, after a place in that order. What somebody has to look at is found
-- in an index of its own; else it is one short walk back through executions_listed per status.
-- The other filters are applied on the way.
-- Indexes: executions_listed, executions_in_doubt, executions_troubled.
CREATE OR REPLACE FUNCTION loom.find_v1(
    p_statuses text[], p_created_at bigint, p_id text, p_tenant text, p_flow text,
    p_version text, p_queue text, p_labels text[], p_ended_before bigint,
    p_in_doubt boolean, p_troubled boolean, p_limit bigint
)
RETURNS SETOF loom.execution_v1
LANGUAGE plpgsql STABLE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    IF p_in_doubt THEN
        RETURN QUERY
        SELECT x.* FROM loom.execution_v1 AS x
        WHERE x.in_doubt IS NOT NULL
            AND (x.created_at, x.execution_id) < (p_created_at, p_id)
            AND (NOT p_troubled OR x.trouble IS NOT NULL)
            AND x.status = ANY (p_statuses)
            AND (p_tenant IS NULL OR x.tenant = p_tenant)
            AND (p_flow IS NULL OR x.flow = p_flow)
            AND (p_version IS NULL OR x.version = p_version)
            AND (p_queue IS NULL OR x.queue = p_queue)
            AND (p_ended_before IS NULL OR x.ended_at < p_ended_before)
            AND (p_labels IS NULL OR loom.labelled_v1(x.labels, p_labels))
        ORDER BY x.created_at DESC, x.execution_id DESC, x.tenant DESC
        LIMIT p_limit;
    ELSIF p_troubled THEN
        RETURN QUERY
        SELECT x.* FROM loom.execution_v1 AS x
        WHERE x.trouble IS NOT NULL
            AND (x.created_at, x.execution_id) < (p_created_at, p_id)
            AND x.status = ANY (p_statuses)
            AND (p_tenant IS NULL OR x.tenant = p_tenant)
            AND (p_flow IS NULL OR x.flow = p_flow)
            AND (p_version IS NULL OR x.version = p_version)
            AND (p_queue IS NULL OR x.queue = p_queue)
            AND (p_ended_before IS NULL OR x.ended_at < p_ended_before)
            AND (p_labels IS NULL OR loom.labelled_v1(x.labels, p_labels))
        ORDER BY x.created_at DESC, x.execution_id DESC, x.tenant DESC
        LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT e.* FROM unnest(p_statuses) AS s (status)
        CROSS JOIN LATERAL (
            SELECT x.* FROM loom.execution_v1 AS x
            WHERE x.status = s.status
                AND (x.created_at, x.execution_id) < (p_created_at, p_id)
                AND (p_tenant IS NULL OR x.tenant = p_tenant)
                AND (p_flow IS NULL OR x.flow = p_flow)
                AND (p_version IS NULL OR x.version = p_version)
                AND (p_queue IS NULL OR x.queue = p_queue)
                AND (p_ended_before IS NULL OR x.ended_at < p_ended_before)
                AND (p_labels IS NULL OR loom.labelled_v1(x.labels, p_labels))
            ORDER BY x.created_at DESC, x.execution_id DESC
            LIMIT p_limit
        ) AS e
        ORDER BY e.created_at DESC, e.execution_id DESC, e.tenant DESC
        LIMIT p_limit;
    END IF;
END
$$;
