-- Schedules (F9): what is to be started when. What they say is the program's affair; the table
-- knows when somebody must look at them.
CREATE TABLE loom.schedules (
    revision    bigint NOT NULL,
    -- NULL when there is nothing to wait for
    due         bigint,
    -- when the next look may be: the due time, or later while somebody looks
    visible_at  bigint,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    paused      boolean NOT NULL,
    tenant      text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C" NOT NULL,
    flow        text NOT NULL,
    definition  bytea NOT NULL,
    state       bytea NOT NULL,
    PRIMARY KEY (tenant, schedule_id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500
);

CREATE INDEX schedules_visible ON loom.schedules (visible_at) WHERE visible_at IS NOT NULL;
