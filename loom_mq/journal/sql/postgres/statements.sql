-- Plain statements. Each says which index it uses.

-- name: now
SELECT loom.now_v1()

-- Whether there is a journal in a schema. Reads the catalog's tables and not its cache: a name
-- that was once looked up in vain stays unknown to a session's cache while it waits for
-- another process's migration. Index: pg_namespace_nspname_index, pg_class_relname_nsp_index.
-- name: meta_exists
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = 'meta'
)

-- Index: meta_pkey.
-- name: read_meta
SELECT name, value FROM loom.meta

-- name: create_meta
CREATE TABLE IF NOT EXISTS loom.meta (name text COLLATE "C" PRIMARY KEY, value text NOT NULL)

-- Index: meta_pkey.
-- name: write_meta
INSERT INTO loom.meta (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value

-- Index: executions_listed; a scan of the table for one tenant's.
-- name: count
SELECT status, count(*) AS number FROM loom.executions
WHERE $1::text IS NULL OR tenant = $1
GROUP BY status

-- A small table.
-- name: workers
SELECT owner, role, host, queues, slots, release, lease_until, started_at, draining
FROM loom.workers WHERE lease_until > (SELECT loom.now_v1()) ORDER BY owner

-- Index: workers_pkey.
-- name: drain
UPDATE loom.workers SET draining = true WHERE owner = $1

-- Index: flows_pkey.
-- name: register_flows
INSERT INTO loom.flows AS f (flow, version, queue)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
ON CONFLICT (flow, version) DO UPDATE SET queue = EXCLUDED.queue
WHERE f.queue <> EXCLUDED.queue

-- A small table.
-- name: flows
SELECT flow, version, queue FROM loom.flows ORDER BY flow, version

-- Index: dead_letters_pkey.
-- name: record_dead_letters
INSERT INTO loom.dead_letters (at, id, queue, reason, headers, body)
SELECT coalesce(k.at, loom.now_v1()), k.id, k.queue, k.reason, k.headers, k.body
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[])
    AS k (at, id, queue, reason, headers, body)
ON CONFLICT (id) DO NOTHING

-- Index: dead_letters_newest.
-- name: dead_letters
SELECT id, queue, reason, headers, body, at FROM loom.dead_letters
ORDER BY at DESC, position DESC LIMIT $1

-- Index: dead_letters_pkey.
-- name: drop_dead_letters
DELETE FROM loom.dead_letters WHERE id = ANY ($1::text[]) RETURNING id

-- How the server keeps what it has answered, and how busy it is. Reads the server's own views.
-- name: server_facts
SELECT
    current_setting('server_version') AS version,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    pg_is_in_recovery() AS standby,
    current_setting('max_connections')::int AS most_connections,
    (
        SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
    ) AS connections,
    (
        SELECT coalesce(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)::float8
        FROM pg_stat_activity AS a
        WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
    ) AS oldest_transaction,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now

-- name: schedule
-- index: schedules_pkey
SELECT tenant, schedule_id, flow, paused, revision, definition, state, due, created_at, updated_at
FROM loom.schedules WHERE tenant = $1 AND schedule_id = $2;

-- name: schedules
-- index: schedules_pkey, from one key on; all tenants where none is named
SELECT tenant, schedule_id, flow, paused, revision, definition, state, due, created_at, updated_at
FROM loom.schedules
WHERE (tenant, schedule_id) > ($2, $3) AND ($1::text IS NULL OR tenant = $1)
ORDER BY tenant, schedule_id
LIMIT $4;

-- name: drop_schedule
-- index: schedules_pkey
DELETE FROM loom.schedules
WHERE tenant = $1 AND schedule_id = $2 AND ($3::bigint IS NULL OR revision = $3)
RETURNING revision;
