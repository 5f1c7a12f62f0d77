-- A batch of takeovers (J5, F7), in the order of their keys, no key twice. Answers with the
-- executions that their claimants now hold, whether by this call or by an earlier one whose
-- answer was lost; what is missing was refused, and `standing_v1` tells why.
--
-- Everything is read after the claim: the rows are ours, and this statement sees what earlier
-- holders committed. A stored fold that tells more than the claimant knows stands for the log
-- up to it; where the index row knows of none, none is looked for. At most p_page appends are
-- sent, and no more after 8 MB of them.
--
-- Indexes: executions_pkey, events_pkey, inbox_unread, snapshots_pkey.
CREATE OR REPLACE FUNCTION loom.claim_v2(
    p_tenants text[], p_ids text[], p_owners text[], p_expected bigint[], p_deadlines bigint[],
    p_preempts boolean[], p_known_seqs bigint[], p_page bigint
)
RETURNS TABLE (
    item bigint, moment bigint, start bytea, appends bytea[], mail bytea[],
    seq bigint, fold bigint, state bytea, execution loom.execution_v1
)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
    v_now bigint := loom.now_v1();
BEGIN
    PERFORM loom.take_v1(v_places, p_owners, p_expected, p_deadlines, p_preempts, v_now);
    RETURN QUERY
    SELECT k.n, v_now, f.start,
        ARRAY(
            SELECT p.body FROM (
                SELECT v.seq, v.body,
                    sum(octet_length(v.body)) OVER (ORDER BY v.seq) - octet_length(v.body) AS sent
                FROM (
                    SELECT r.seq, r.body FROM loom.events AS r
                    WHERE r.tenant = k.tenant AND r.execution_id = k.execution_id
                        AND r.last_seq > greatest(k.known_seq, s.seq)
                        AND r.seq >= coalesce((
                            SELECT o.seq FROM loom.events AS o
                            WHERE o.tenant = k.tenant AND o.execution_id = k.execution_id
                                AND o.seq <= greatest(k.known_seq, s.seq) + 1
                            ORDER BY o.seq DESC LIMIT 1
                        ), 0)
                    ORDER BY r.seq LIMIT p_page
                ) AS v
            ) AS p
            WHERE p.sent < 8000000
            ORDER BY p.seq
        ),
        CASE WHEN f.inbox > 0 THEN ARRAY(
            SELECT i.body FROM loom.inbox AS i
            WHERE i.tenant = k.tenant AND i.execution_id = k.execution_id AND NOT i.taken
            ORDER BY i.position
        ) ELSE '{}' END,
        s.seq, s.fold, s.state, g.execution
    FROM unnest(p_tenants, p_ids, p_owners, p_expected, p_known_seqs)
        WITH ORDINALITY AS k (tenant, execution_id, owner, expected, known_seq, n)
    CROSS JOIN LATERAL (
        SELECT e.start, e.inbox, e.fence, e.owner, e.status, e.snapshot_seq
        FROM loom.executions AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS f
    CROSS JOIN LATERAL (
        SELECT e AS execution FROM loom.execution_v1 AS e
        WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id
        LIMIT 1
    ) AS g
    LEFT JOIN LATERAL (
        SELECT x.seq, x.fold, x.state FROM loom.snapshots AS x
        WHERE x.tenant = k.tenant AND x.execution_id = k.execution_id
            AND f.snapshot_seq > k.known_seq
        LIMIT 1
    ) AS s ON true
    WHERE f.fence = k.expected + 1 AND f.owner = k.owner
        AND f.status IN ('pending', 'running', 'suspended');
END
$$;

-- Take over those locked executions that may be taken. By place; index: workers_pkey.
CREATE OR REPLACE FUNCTION loom.take_v1(
    p_places tid[], p_owners text[], p_expected bigint[], p_deadlines bigint[],
    p_preempts boolean[], p_now bigint
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.executions AS e SET
        fence = e.fence + 1,
        owner = k.owner,
        attempt = e.attempt + 1,
        deadline = p_now + k.deadline,
        hint_at = NULL,
        hints = 0
    FROM unnest(p_places, p_owners, p_expected, p_deadlines, p_preempts)
        AS k (place, owner, expected, deadline, preempt)
    WHERE e.ctid = k.place
        AND e.fence = k.expected AND e.status IN ('pending', 'running', 'suspended')
        AND (
            k.preempt OR e.owner IS NULL OR e.owner = k.owner OR e.deadline <= p_now
            OR NOT loom.alive_v1(e.owner, p_now)
        );
END
$$;

-- Take the next fence, whoever holds the execution (J5). A holder that is displaced will go
-- quiet, so the execution is sent again after a grace. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.fence_v1(
    p_tenant text, p_id text, p_expected bigint, p_grace bigint
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_fence bigint;
BEGIN
    UPDATE loom.executions AS e SET
        fence = e.fence + 1,
        owner = NULL,
        deadline = NULL,
        hint_at = CASE WHEN e.owner IS NULL THEN e.hint_at ELSE loom.now_v1() + p_grace END
    WHERE e.tenant = p_tenant AND e.execution_id = p_id
        AND (p_expected IS NULL OR e.fence = p_expected)
    RETURNING e.fence INTO v_fence;
    RETURN v_fence;
END
$$;

-- Give executions back, in the order of their keys: those of an owner, and those of nobody.
-- A fence that has moved belongs to a newer claim, which is not ours to give back; NULL asks
-- for none. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.defer_v2(
    p_tenants text[], p_ids text[], p_fences bigint[], p_owner text, p_delay bigint,
    p_trouble text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_places tid[] := loom.lock_v1(p_tenants, p_ids);
BEGIN
    PERFORM loom.release_v2(v_places, p_fences, p_owner, loom.now_v1() + p_delay, p_trouble);
END
$$;

-- Let go of locked executions that this owner, or nobody, holds. Without a time for the next
-- hint that stands which came since the claim: from mail that the holder may not have seen,
-- or from a timer; and without a word on the trouble that stands which is known. By place.
CREATE OR REPLACE FUNCTION loom.release_v2(
    p_places tid[], p_fences bigint[], p_owner text, p_hint_at bigint, p_trouble text
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_indexscan = off SET enable_indexonlyscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE loom.executions AS e SET
        owner = NULL,
        deadline = NULL,
        hint_at = coalesce(p_hint_at, e.hint_at),
        trouble = coalesce(p_trouble, e.trouble)
    FROM unnest(p_places, p_fences) AS k (place, fence)
    WHERE e.ctid = k.place AND (k.fence IS NULL OR e.fence = k.fence)
        AND (e.owner IS NULL OR e.owner = p_owner)
        AND e.status IN ('pending', 'running', 'suspended');
END
$$;
