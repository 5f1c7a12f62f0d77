-- The logs: one row per append.

-- name: insert
-- index: primary key; the unique first id says whether it stands elsewhere (J2)
INSERT INTO events (tenant, execution_id, first_seq, last_seq, first_id, events)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, execution_id, first_id) DO NOTHING;

-- name: page
-- index: primary key, twice: where the page begins, then the range
SELECT events
FROM events
WHERE
    tenant = :tenant AND execution_id = :execution_id
    AND first_seq >= coalesce(
        (
            SELECT max(b.first_seq) FROM events AS b
            WHERE
                b.tenant = :tenant AND b.execution_id = :execution_id
                AND b.first_seq <= :low
        ),
        :low
    )
    AND first_seq < :high
ORDER BY first_seq;

-- name: begin
-- index: primary key, its first: a log may have been cut behind a snapshot (J8)
SELECT min(first_seq) FROM events WHERE tenant = ? AND execution_id = ?;

-- name: rename
-- index: primary key and unique (tenant, execution_id, first_id)
UPDATE events SET execution_id = ? WHERE tenant = ? AND execution_id = ?;

-- name: clear
-- index: primary key
DELETE FROM events WHERE tenant = ? AND execution_id = ?;
