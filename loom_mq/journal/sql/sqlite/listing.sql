-- Lists for people. Continuing after a row is a comparison of pairs, so that a page costs
-- what it shows.

-- name: newest
-- index: executions_newest, from its end
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest
FROM executions
WHERE
    (:tenant IS NULL OR tenant = :tenant)
    AND (:flow IS NULL OR flow = :flow)
    AND (:queue IS NULL OR queue = :queue)
    AND (created_at, execution_id) < (:before_at, :before_id)
ORDER BY created_at DESC, execution_id DESC, tenant DESC
LIMIT :limit;

-- name: newest_with_status
-- index: executions_by_status, from its end
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest
FROM executions
WHERE
    status = :status
    AND (:tenant IS NULL OR tenant = :tenant)
    AND (:flow IS NULL OR flow = :flow)
    AND (:queue IS NULL OR queue = :queue)
    AND (created_at, execution_id) < (:before_at, :before_id)
ORDER BY created_at DESC, execution_id DESC, tenant DESC
LIMIT :limit;

-- name: count
-- index: executions_by_status, covering
SELECT status, count(*)
FROM executions
WHERE :tenant IS NULL OR tenant = :tenant
GROUP BY status;
