-- The advisory lock that a process's lease session holds. The table's identity is part of it,
-- so that two journals in one database never meet.
CREATE OR REPLACE FUNCTION loom.lease_key_v1(p_owner text) RETURNS bigint
LANGUAGE sql STABLE
RETURN hashtextextended('loom.workers'::regclass::oid::text || '/' || p_owner, 0);

-- Forget lapsed leases that no execution names. Indexes: workers_pkey, executions_owned.
CREATE OR REPLACE FUNCTION loom.forget_workers_v1(p_now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    DELETE FROM loom.workers WHERE owner IN (
        SELECT w.owner FROM loom.workers AS w
        WHERE w.lease_until <= p_now AND (
            SELECT e.recoveries FROM loom.executions AS e
            WHERE e.owner = w.owner ORDER BY e.recoveries LIMIT 1
        ) IS NULL
        FOR UPDATE SKIP LOCKED
    );
END
$$;

-- Register a process and begin its lease (F7). With p_guard the session takes the lock whose
-- freedom will prove that the session is gone. Index: workers_pkey.
CREATE OR REPLACE FUNCTION loom.lease_v1(
    p_owner text, p_role text, p_host text, p_queues text[], p_slots bigint, p_release text,
    p_draining boolean, p_ttl bigint, p_guard boolean
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_guarded boolean := p_guard AND pg_try_advisory_lock(loom.lease_key_v1(p_owner));
    v_now bigint := loom.now_v1();
BEGIN
    PERFORM loom.forget_workers_v1(v_now);
    INSERT INTO loom.workers AS w (
        owner, role, host, queues, slots, release, draining, guarded, started_at, renewed_at,
        lease_until
    )
    VALUES (
        p_owner, p_role, p_host, p_queues, p_slots, p_release, p_draining, v_guarded, v_now,
        v_now, v_now + p_ttl
    )
    ON CONFLICT (owner) DO UPDATE SET
        role = EXCLUDED.role, host = EXCLUDED.host, queues = EXCLUDED.queues,
        slots = EXCLUDED.slots, release = EXCLUDED.release, draining = EXCLUDED.draining,
        guarded = EXCLUDED.guarded, renewed_at = EXCLUDED.renewed_at,
        lease_until = EXCLUDED.lease_until;
    RETURN v_guarded;
END
$$;

-- Extend a lease that still runs, and tell which executions have mail. A lease that has
-- lapsed is lost, whoever noticed. With p_guard the session, a new one, takes the lock
-- again; NULL leaves things as they are. Indexes: workers_pkey, executions_mail.
CREATE OR REPLACE FUNCTION loom.renew_v1(
    p_owner text, p_ttl bigint, p_guard boolean,
    OUT moment bigint, OUT held boolean, OUT guarded boolean, OUT tenants text[], OUT ids text[]
)
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    -- A lease is worth nothing after a crash of the server, so it does not wait for the
    -- disk: a stall there must not make the living look dead.
    SET LOCAL synchronous_commit = off;
    guarded := CASE WHEN p_guard THEN pg_try_advisory_lock(loom.lease_key_v1(p_owner)) END;
    moment := loom.now_v1();
    UPDATE loom.workers AS w SET
        lease_until = moment + p_ttl,
        renewed_at = moment,
        guarded = coalesce(renew_v1.guarded, w.guarded)
    WHERE w.owner = p_owner AND w.lease_until > moment;
    held := FOUND;
    IF held THEN
        SELECT array_agg(m.tenant), array_agg(m.execution_id) INTO tenants, ids
        FROM (
            SELECT e.tenant, e.execution_id FROM loom.executions AS e
            WHERE e.owner = p_owner AND e.inbox > 0
            ORDER BY e.inbox
            LIMIT 1000
        ) AS m;
    END IF;
END
$$;

-- End a lease at once and release what is still held; it is runnable at once.
-- Indexes: workers_pkey, executions_owned, executions_pkey.
CREATE OR REPLACE FUNCTION loom.retire_v1(p_owner text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_indexscan = on SET enable_indexonlyscan = on
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_tenants text[];
    v_ids text[];
BEGIN
    UPDATE loom.workers SET lease_until = 0 WHERE owner = p_owner;
    SELECT array_agg(h.tenant ORDER BY h.tenant, h.execution_id),
        array_agg(h.execution_id ORDER BY h.tenant, h.execution_id)
    INTO v_tenants, v_ids
    FROM (
        SELECT e.tenant, e.execution_id FROM loom.executions AS e
        WHERE e.owner = p_owner ORDER BY e.recoveries
    ) AS h;
    PERFORM loom.release_v2(
        loom.held_v1(v_tenants, v_ids, p_owner), '{}', p_owner, v_now, NULL
    );
    PERFORM loom.forget_workers_v1(v_now);
END
$$;

-- The places of those executions, locked, that an owner still holds. Index: executions_pkey.
CREATE OR REPLACE FUNCTION loom.held_v1(p_tenants text[], p_ids text[], p_owner text)
RETURNS tid[]
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
            WHERE e.tenant = k.tenant AND e.execution_id = k.execution_id AND e.owner = p_owner
            FOR NO KEY UPDATE
        )
        FROM unnest(p_tenants, p_ids) AS k (tenant, execution_id)
    );
END
$$;

-- End a lease early if its session is provably gone (F7); whether it has lapsed now.
--
-- A free lock alone proves little: a restart of the server frees all of them while their
-- holders live. The session that asks is the witness: it was there before the last renewal,
-- over a session that held the lock, and is there still, so the server has stood all the
-- while, and the lock was let go by the end of that one session.
--
-- Index: workers_pkey.
CREATE OR REPLACE FUNCTION loom.lapse_v1(p_owner text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now bigint := loom.now_v1();
    v_worker record;
    v_here_since bigint;
BEGIN
    SELECT w.lease_until, w.renewed_at, w.guarded INTO v_worker
    FROM loom.workers AS w WHERE w.owner = p_owner;
    IF NOT FOUND OR v_worker.lease_until <= v_now THEN
        RETURN true;
    END IF;
    SELECT extract(epoch FROM a.backend_start) * 1000000 INTO v_here_since
    FROM pg_stat_get_activity(pg_backend_pid()) AS a;
    IF NOT v_worker.guarded OR v_here_since IS NULL OR v_here_since >= v_worker.renewed_at
        OR NOT pg_try_advisory_xact_lock(loom.lease_key_v1(p_owner))
    THEN
        RETURN false;
    END IF;
    UPDATE loom.workers AS w SET lease_until = 0
    WHERE w.owner = p_owner AND w.renewed_at = v_worker.renewed_at;
    RETURN FOUND;
END
$$;
