-- A batch of takeovers (J5, F7), in the order of their keys, no key twice. Answers with the
-- executions that their claimants now hold, whether by this call or by an earlier one whose
-- answer was lost; what is missing was refused, and `standing_v1` tells why.
--
-- The second statement reads what the claimant goes on from: it holds the rows, and its
-- snapshot shows everything that earlier holders committed. At most p_page appends are
-- sent, and no more after 8 MB of them.
--
-- Indexes: executions_pkey, workers_pkey, events_pkey, inbox_unread.
CREATE OR REPLACE FUNCTION loom.claim_v1(
    p_tenants text[], p_ids text[], p_owners text[], p_expected bigint[], p_deadlines bigint[],
    p_preempts boolean[], p_known_seqs bigint[], p_page bigint
)
RETURNS TABLE (
    item bigint, moment bigint, start bytea, appends bytea[], mail bytea[],
    execution loom.execution_v1
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := loom.now_v1();
BEGIN
    UPDATE loom.executions AS e SET
        fence = e.fence + 1,
        owner = k.owner,
        attempt = e.attempt + 1,
        deadline = v_now + k.deadline,
        hint_at = NULL,
        hints = 0
    FROM unnest(p_tenants, p_ids, p_owners, p_expected, p_deadlines, p_preempts)
        AS k (tenant, execution_id, owner, expected, deadline, preempt)
    WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        AND e.fence = k.expected AND e.status IN ('pending', 'running', 'suspended')
        AND (
            k.preempt OR e.owner IS NULL OR e.owner = k.owner OR e.deadline <= v_now
            OR NOT loom.alive_v1(e.owner, v_now)
        );

    RETURN QUERY
    SELECT k.n, v_now, x.start,
        ARRAY(
            SELECT s.body FROM (
                SELECT v.seq, v.body,
                    sum(octet_length(v.body)) OVER (ORDER BY v.seq) - octet_length(v.body) AS sent
                FROM (
                    SELECT r.seq, r.body FROM loom.events AS r
                    WHERE r.tenant = k.tenant AND r.execution_id = k.execution_id
                        AND r.last_seq > k.known_seq
                        AND r.seq >= coalesce((
                            SELECT f.seq FROM loom.events AS f
                            WHERE f.tenant = k.tenant AND f.execution_id = k.execution_id
                                AND f.seq <= k.known_seq + 1
                            ORDER BY f.seq DESC LIMIT 1
                        ), 0)
                    ORDER BY r.seq LIMIT p_page
                ) AS v
            ) AS s
            WHERE s.sent < 8000000
            ORDER BY s.seq
        ),
        CASE WHEN x.inbox > 0 THEN ARRAY(
            SELECT i.body FROM loom.inbox AS i
            WHERE i.tenant = k.tenant AND i.execution_id = k.execution_id AND NOT i.taken
            ORDER BY i.position
        ) ELSE '{}' END,
        e
    FROM unnest(p_tenants, p_ids, p_owners, p_expected, p_known_seqs)
        WITH ORDINALITY AS k (tenant, execution_id, owner, expected, known_seq, n)
    JOIN loom.executions AS x ON x.tenant = k.tenant AND x.execution_id = k.execution_id
    JOIN loom.execution_v1 AS e ON e.tenant = k.tenant AND e.execution_id = k.execution_id
    WHERE x.fence = k.expected + 1 AND x.owner = k.owner
        AND x.status IN ('pending', 'running', 'suspended');
END
$$;

-- Take the next fence, whoever holds the execution (J5). A holder that is displaced will go
-- quiet, so the execution is sent again after a grace. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.fence_v1(
    p_tenant text, p_id text, p_expected bigint, p_grace bigint
)
RETURNS bigint
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    UPDATE loom.executions AS e SET
        fence = e.fence + 1,
        owner = NULL,
        deadline = NULL,
        hint_at = CASE WHEN e.owner IS NULL THEN e.hint_at ELSE loom.now_v1() + p_grace END
    WHERE e.tenant = p_tenant AND e.execution_id = p_id
        AND (p_expected IS NULL OR e.fence = p_expected)
    RETURNING e.fence;
END;

-- Give executions back, in the order of their keys. Without a delay a hint goes, unless mail
-- has come since the claim: the holder may not have seen it. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.defer_v1(
    p_tenants text[], p_ids text[], p_owner text, p_delay bigint
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now bigint := loom.now_v1();
BEGIN
    UPDATE loom.executions AS e SET
        owner = NULL,
        deadline = NULL,
        hint_at = CASE
            WHEN p_delay IS NOT NULL THEN v_now + p_delay
            WHEN e.inbox > 0 THEN e.hint_at
        END
    FROM unnest(p_tenants, p_ids) AS k (tenant, execution_id)
    WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        AND (e.owner IS NULL OR e.owner = p_owner)
        AND e.status IN ('pending', 'running', 'suspended');
END
$$;
