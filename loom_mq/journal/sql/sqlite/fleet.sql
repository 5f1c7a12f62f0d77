-- Leases, flows and dead letters.

-- name: register_worker
-- index: primary key
INSERT INTO workers (
    owner, role, host, queues, slots, release, lease_until, started_at, draining
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (owner) DO UPDATE SET
    role = excluded.role, host = excluded.host, queues = excluded.queues,
    slots = excluded.slots, release = excluded.release,
    lease_until = excluded.lease_until, draining = excluded.draining;

-- name: renew
-- index: primary key
UPDATE workers SET lease_until = ? WHERE owner = ? AND lease_until > ?;

-- name: drain
-- index: primary key
UPDATE workers SET draining = 1 WHERE owner = ?;

-- name: end_lease
-- index: primary key
UPDATE workers SET lease_until = 0 WHERE owner = ?;

-- name: end_all_leases
-- index: none, the table is small
UPDATE workers SET lease_until = 0;

-- name: release_all_timers
-- a scan of the timers: whoever held one is dead
UPDATE timers SET held_until = 0 WHERE held_until > 0;

-- name: hasten_all_hints
-- index: the hinted executions; what was on its way to a worker died with the process
UPDATE executions SET hint_at = ? WHERE hint_at > ? AND owner IS NULL;

-- name: forget_workers
-- index: none, the table is small; executions_owned for each
DELETE FROM workers
WHERE
    lease_until <= ?
    AND NOT EXISTS (SELECT 1 FROM executions AS e WHERE e.owner = workers.owner);

-- name: lease_of
-- index: primary key
SELECT lease_until FROM workers WHERE owner = ?;

-- name: live_workers
-- index: none, the table is small
SELECT owner, role, host, queues, slots, release, lease_until, started_at, draining
FROM workers
WHERE lease_until > ?
ORDER BY owner;

-- name: mail
-- index: executions_owned
SELECT tenant, execution_id FROM executions WHERE owner = ? AND inbox > 0;

-- name: held
-- index: executions_owned
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble
FROM executions
WHERE owner = ?;

-- name: register_flow
-- index: primary key
INSERT INTO flows (flow, version, queue) VALUES (?, ?, ?)
ON CONFLICT (flow, version) DO UPDATE SET queue = excluded.queue;

-- name: flows
-- index: primary key, whole
SELECT flow, version, queue FROM flows ORDER BY flow, version;

-- name: record_letter
-- index: unique id
INSERT INTO dead_letters (id, queue, reason, body, headers, at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: letters
-- index: dead_letters_newest, from its end
SELECT id, queue, reason, body, headers, at
FROM dead_letters
ORDER BY at DESC, position DESC
LIMIT ?;

-- name: drop_letter
-- index: unique id
DELETE FROM dead_letters WHERE id = ?;
