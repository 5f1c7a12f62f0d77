-- Stored folds (J7), verdicts on steps in doubt (K6), and why nothing could be done (K3).
--
-- The new columns are empty in every row that is there, so no row is rewritten: the tables
-- are locked for a moment, and for one look through the executions.
ALTER TABLE loom.executions
    -- how far the snapshot reaches; NULL without one, so that nobody looks for it in vain
    ADD COLUMN snapshot_seq bigint,
    -- a list as JSON text; NULL for none
    ADD COLUMN in_doubt     text,
    ADD COLUMN trouble      text;

-- What somebody has to look at, newest first: few among many. An append that leaves these
-- columns empty touches neither index and stays in its page.
CREATE INDEX executions_in_doubt ON loom.executions (created_at, execution_id, tenant)
    WHERE in_doubt IS NOT NULL;
CREATE INDEX executions_troubled ON loom.executions (created_at, execution_id, tenant)
    WHERE trouble IS NOT NULL;

-- The newest fold of a log.
CREATE TABLE loom.snapshots (
    seq          bigint NOT NULL,
    fold         bigint NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    state        bytea NOT NULL,
    PRIMARY KEY (tenant, execution_id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500
);

DO $$
BEGIN
    ALTER TABLE loom.snapshots ALTER COLUMN state SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;
