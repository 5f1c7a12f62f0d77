-- Stored folds (J7), verdicts on steps in doubt (K6), and why nothing could be done (K3).

ALTER TABLE executions ADD COLUMN in_doubt BLOB NOT NULL DEFAULT x'90';
ALTER TABLE executions ADD COLUMN trouble TEXT;
ALTER TABLE inbox ADD COLUMN actor TEXT NOT NULL DEFAULT '';

-- What somebody has to look at: few among many. x'90' is the empty list.
CREATE INDEX executions_in_doubt ON executions (created_at, execution_id, tenant)
WHERE in_doubt <> x'90';
CREATE INDEX executions_troubled ON executions (created_at, execution_id, tenant)
WHERE trouble IS NOT NULL;

-- The newest fold of a log; `state` may be large.
CREATE TABLE snapshots (
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    fold INTEGER NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (tenant, execution_id)
) STRICT;
