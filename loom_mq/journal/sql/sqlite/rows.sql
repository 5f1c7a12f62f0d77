-- The index rows of executions. Where a statement lists the columns of a row, it lists them
-- in the order of `sqlite_ops.rows`.

-- name: insert
-- index: primary key
INSERT INTO executions (
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble,
    waiters, start
)
VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    x'90', ?
);

-- name: get
-- index: primary key
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble
FROM executions
WHERE tenant = ? AND execution_id = ?;

-- name: exists
-- index: primary key, and nothing else is read
SELECT 1 FROM executions WHERE tenant = ? AND execution_id = ?;

-- name: get_standing
-- index: primary key; workers by primary key
SELECT
    e.tenant, e.execution_id, e.flow, e.version, e.queue, e.status, e.last_seq, e.wake_at,
    e.gates, e.error, e.recoveries, e.parent, e.features, e.labels, e.created_at,
    e.updated_at, e.started_at, e.ended_at, e.fence, e.owner, e.attempt, e.deadline,
    e.hint_at, e.hints, e.inbox, e.input_digest, e.in_doubt, e.trouble,
    coalesce((SELECT w.lease_until FROM workers AS w WHERE w.owner = e.owner), 0)
FROM executions AS e
WHERE e.tenant = ? AND e.execution_id = ?;

-- name: update_progress
-- index: primary key; touches no other
UPDATE executions SET
    last_seq = ?, wake_at = ?, gates = ?, error = ?, recoveries = ?, updated_at = ?,
    started_at = ?, ended_at = ?, fence = ?, attempt = ?, deadline = ?, hints = ?, inbox = ?
WHERE tenant = ? AND execution_id = ?;

-- name: update
-- index: primary key; keeps executions_by_status, executions_owned, executions_hinted,
-- executions_in_doubt and executions_troubled
UPDATE executions SET
    last_seq = ?, wake_at = ?, gates = ?, error = ?, recoveries = ?, updated_at = ?,
    started_at = ?, ended_at = ?, fence = ?, attempt = ?, deadline = ?, hints = ?, inbox = ?,
    status = ?, owner = ?, hint_at = ?, in_doubt = ?, trouble = ?
WHERE tenant = ? AND execution_id = ?;

-- name: update_lasting
-- index: primary key; what changes with a rewritten log only (J8)
UPDATE executions SET error = ?, labels = ?, input_digest = ?
WHERE tenant = ? AND execution_id = ?;

-- name: rename
-- index: primary key, and keeps all others
UPDATE executions SET execution_id = ? WHERE tenant = ? AND execution_id = ?;

-- name: delete
-- index: primary key, and keeps all others
DELETE FROM executions WHERE tenant = ? AND execution_id = ?;

-- name: get_start
-- index: primary key
SELECT start FROM executions WHERE tenant = ? AND execution_id = ?;

-- name: drop_start
-- index: primary key
UPDATE executions SET start = NULL WHERE tenant = ? AND execution_id = ?;

-- name: get_waiters
-- index: primary key
SELECT waiters FROM executions WHERE tenant = ? AND execution_id = ?;

-- name: set_waiters
-- index: primary key
UPDATE executions SET waiters = ? WHERE tenant = ? AND execution_id = ?;
