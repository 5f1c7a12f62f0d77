-- Timers (F9).

-- name: arm
-- index: primary key; a timer that is held already is as good as new
INSERT INTO timers (tenant, execution_id, due) VALUES (?, ?, ?)
ON CONFLICT (tenant, execution_id, due) DO UPDATE SET held_until = 0;

-- name: arm_missing
-- index: primary keys of executions and timers; one that is there stays as it is
INSERT INTO timers (tenant, execution_id, due)
SELECT tenant, execution_id, :due FROM executions
WHERE tenant = :tenant AND execution_id = :id AND status = 'suspended'
ON CONFLICT (tenant, execution_id, due) DO NOTHING;

-- name: clear
-- index: primary key
DELETE FROM timers WHERE tenant = ? AND execution_id = ?;

-- name: due
-- index: timers_due, from its beginning; passes over the few that are held
SELECT tenant, execution_id, due
FROM timers
WHERE due <= :now AND held_until <= :now
ORDER BY due, tenant, execution_id
LIMIT :limit;

-- name: hold
-- index: primary key
UPDATE timers SET held_until = ? WHERE tenant = ? AND execution_id = ? AND due = ?;

-- name: drop
-- index: primary key; one that was armed again since it was held stays
DELETE FROM timers
WHERE tenant = ? AND execution_id = ? AND due = ? AND held_until > 0;

-- name: next
-- index: timers_due, from its beginning; passes over the few that are held
SELECT due FROM timers WHERE held_until <= ? ORDER BY due LIMIT 1;
