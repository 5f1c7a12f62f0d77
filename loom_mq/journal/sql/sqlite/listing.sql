-- Lists for people. Continuing after a row is a comparison of pairs, so that a page costs
-- what it shows. Labels are looked at by who reads.

-- name: newest
-- index: executions_newest, from its end
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble
FROM executions
WHERE
    (created_at, execution_id) < (:before_at, :before_id)
    AND (:status IS NULL OR status = :status)
    AND (:tenant IS NULL OR tenant = :tenant)
    AND (:flow IS NULL OR flow = :flow)
    AND (:version IS NULL OR version = :version)
    AND (:queue IS NULL OR queue = :queue)
    AND (:ended_before IS NULL OR ended_at < :ended_before)
    AND (NOT :in_doubt OR in_doubt <> x'90')
    AND (NOT :troubled OR trouble IS NOT NULL)
ORDER BY created_at DESC, execution_id DESC, tenant DESC
LIMIT :limit;

-- name: newest_with_status
-- index: executions_by_status, from its end
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble
FROM executions
WHERE
    status = :status
    AND (created_at, execution_id) < (:before_at, :before_id)
    AND (:tenant IS NULL OR tenant = :tenant)
    AND (:flow IS NULL OR flow = :flow)
    AND (:version IS NULL OR version = :version)
    AND (:queue IS NULL OR queue = :queue)
    AND (:ended_before IS NULL OR ended_at < :ended_before)
    AND (NOT :in_doubt OR in_doubt <> x'90')
    AND (NOT :troubled OR trouble IS NOT NULL)
ORDER BY created_at DESC, execution_id DESC, tenant DESC
LIMIT :limit;

-- name: newest_in_doubt
-- index: executions_in_doubt, from its end
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble
FROM executions
WHERE
    in_doubt <> x'90'
    AND (created_at, execution_id) < (:before_at, :before_id)
    AND (:status IS NULL OR status = :status)
    AND (:tenant IS NULL OR tenant = :tenant)
    AND (:flow IS NULL OR flow = :flow)
    AND (:version IS NULL OR version = :version)
    AND (:queue IS NULL OR queue = :queue)
    AND (:ended_before IS NULL OR ended_at < :ended_before)
    AND (NOT :in_doubt OR in_doubt <> x'90')
    AND (NOT :troubled OR trouble IS NOT NULL)
ORDER BY created_at DESC, execution_id DESC, tenant DESC
LIMIT :limit;

-- name: newest_troubled
-- index: executions_troubled, from its end
SELECT
    tenant, execution_id, flow, version, queue, status, last_seq, wake_at, gates, error,
    recoveries, parent, features, labels, created_at, updated_at, started_at, ended_at,
    fence, owner, attempt, deadline, hint_at, hints, inbox, input_digest, in_doubt, trouble
FROM executions
WHERE
    trouble IS NOT NULL
    AND (created_at, execution_id) < (:before_at, :before_id)
    AND (:status IS NULL OR status = :status)
    AND (:tenant IS NULL OR tenant = :tenant)
    AND (:flow IS NULL OR flow = :flow)
    AND (:version IS NULL OR version = :version)
    AND (:queue IS NULL OR queue = :queue)
    AND (:ended_before IS NULL OR ended_at < :ended_before)
    AND (NOT :in_doubt OR in_doubt <> x'90')
    AND (NOT :troubled OR trouble IS NOT NULL)
ORDER BY created_at DESC, execution_id DESC, tenant DESC
LIMIT :limit;

-- name: count
-- index: executions_by_status, covering
SELECT status, count(*)
FROM executions
WHERE :tenant IS NULL OR tenant = :tenant
GROUP BY status;
