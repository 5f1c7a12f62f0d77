-- What the sweeps look for. Their cost follows what is held or due, not what is stored.

-- name: abandoned
-- index: executions_owned, whole: as many rows as are being driven; workers by primary key
SELECT
    e.tenant, e.execution_id, e.flow, e.version, e.queue, e.status, e.last_seq, e.wake_at,
    e.gates, e.error, e.recoveries, e.parent, e.features, e.labels, e.created_at,
    e.updated_at, e.started_at, e.ended_at, e.fence, e.owner, e.attempt, e.deadline,
    e.hint_at, e.hints, e.inbox, e.input_digest, e.in_doubt, e.trouble, e.start
FROM executions AS e
WHERE
    e.owner IS NOT NULL
    AND e.recoveries >= :least AND e.recoveries < :below
    AND (
        e.deadline <= :now
        OR NOT EXISTS (
            SELECT 1 FROM workers AS w WHERE w.owner = e.owner AND w.lease_until > :now
        )
    )
ORDER BY e.updated_at, e.tenant, e.execution_id
LIMIT :limit;

-- name: unsent
-- index: executions_hinted, up to now
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble,
    start
FROM executions
WHERE
    hint_at <= :now AND owner IS NULL
    AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
ORDER BY hint_at, tenant, execution_id
LIMIT :limit;
