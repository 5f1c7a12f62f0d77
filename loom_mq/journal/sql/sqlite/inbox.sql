-- What was told to executions from outside (K7, K13).

-- name: insert
-- index: unique (tenant, execution_id, item_id)
INSERT INTO inbox (
    tenant, execution_id, item_id, kind, gate, wait_id, payload, reply_to, correlation, actor
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, execution_id, item_id) DO NOTHING;

-- name: unread
-- index: unique (tenant, execution_id, item_id), then sorted: an inbox is short
SELECT
    tenant, execution_id, item_id, kind, gate, wait_id, payload, reply_to, correlation, actor
FROM inbox
WHERE tenant = ? AND execution_id = ? AND taken = 0
ORDER BY position;

-- name: take
-- index: unique (tenant, execution_id, item_id)
UPDATE inbox SET taken = 1, payload = x''
WHERE tenant = ? AND execution_id = ? AND item_id = ? AND taken = 0;

-- name: discard
-- index: unique (tenant, execution_id, item_id)
DELETE FROM inbox
WHERE tenant = ? AND execution_id = ? AND item_id = ? AND taken = 0;

-- name: clear
-- index: unique (tenant, execution_id, item_id)
DELETE FROM inbox WHERE tenant = ? AND execution_id = ?;
