-- Schedules (F9): what is to be started when. What they say is the program's affair; the table
-- knows when somebody must look at them.
CREATE TABLE schedules (
    tenant TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    flow TEXT NOT NULL,
    paused INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    definition BLOB NOT NULL,
    state BLOB NOT NULL,
    -- NULL when there is nothing to wait for
    due INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    held_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, schedule_id)
) STRICT;

CREATE INDEX schedules_due ON schedules (due) WHERE due IS NOT NULL;
