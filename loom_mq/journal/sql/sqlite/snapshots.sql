-- Stored folds (J7), one per execution.

-- name: put
-- index: primary key
INSERT INTO snapshots (tenant, execution_id, seq, fold, state) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, execution_id) DO UPDATE SET
    seq = excluded.seq, fold = excluded.fold, state = excluded.state;

-- name: reach
-- index: primary key; does not read the state
SELECT seq FROM snapshots WHERE tenant = ? AND execution_id = ?;

-- name: newer
-- index: primary key
SELECT seq, fold, state FROM snapshots WHERE tenant = ? AND execution_id = ? AND seq > ?;

-- name: rename
-- index: primary key
UPDATE snapshots SET execution_id = ? WHERE tenant = ? AND execution_id = ?;

-- name: clear
-- index: primary key
DELETE FROM snapshots WHERE tenant = ? AND execution_id = ?;
