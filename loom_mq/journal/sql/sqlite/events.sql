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
