-- Schedules (F9).

-- name: put
-- index: primary key; what is changed is held by nobody any more
INSERT INTO schedules (
    tenant, schedule_id, flow, paused, revision, definition, state, due, created_at, updated_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, schedule_id) DO UPDATE SET
    flow = excluded.flow, paused = excluded.paused, revision = excluded.revision,
    definition = excluded.definition, state = excluded.state, due = excluded.due,
    updated_at = excluded.updated_at, held_until = 0;

-- name: get
-- index: primary key
SELECT tenant, schedule_id, flow, paused, revision, definition, state, due, created_at, updated_at
FROM schedules WHERE tenant = ? AND schedule_id = ?;

-- name: drop
-- index: primary key
DELETE FROM schedules WHERE tenant = ? AND schedule_id = ?;

-- name: list
-- index: primary key, from one key on
SELECT tenant, schedule_id, flow, paused, revision, definition, state, due, created_at, updated_at
FROM schedules
WHERE (tenant, schedule_id) > (:after_tenant, :after_id) AND (:tenant IS NULL OR tenant = :tenant)
ORDER BY tenant, schedule_id
LIMIT :limit;

-- name: due
-- index: schedules_due, from its beginning; passes over the few that are held
SELECT tenant, schedule_id, flow, paused, revision, definition, state, due, created_at, updated_at
FROM schedules
WHERE due <= :now AND held_until <= :now
ORDER BY due, tenant, schedule_id
LIMIT :limit;

-- name: hold
-- index: primary key
UPDATE schedules SET held_until = ? WHERE tenant = ? AND schedule_id = ?;

-- name: next
-- index: schedules_due, from its beginning; passes over the few that are held
SELECT due FROM schedules WHERE due IS NOT NULL AND held_until <= ? ORDER BY due LIMIT 1;
