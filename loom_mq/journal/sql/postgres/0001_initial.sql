-- The journal's tables. `loom` stands for the schema's name, which is replaced by the one
-- that is configured. Times are microseconds since the epoch, numbers are 64 bits wide,
-- and ids compare by their bytes, so that every client sorts them alike.

-- One row per execution. Every drive rewrites it a few times, so it is kept small, and a
-- page keeps room for the newer versions of its rows: an append that only moves the log on
-- changes no indexed column and stays in its page.
CREATE TABLE loom.executions (
    fence        bigint NOT NULL,
    last_seq     bigint NOT NULL,
    attempt      bigint NOT NULL,
    hints        bigint NOT NULL,
    inbox        bigint NOT NULL,
    recoveries   bigint NOT NULL,
    created_at   bigint NOT NULL,
    updated_at   bigint NOT NULL,
    started_at   bigint,
    ended_at     bigint,
    wake_at      bigint,
    deadline     bigint,
    hint_at      bigint,
    -- whether rows of timers or inbox may have to go when it ends
    littered     boolean NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    status       text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    owner        text COLLATE "C",
    flow         text COLLATE "C" NOT NULL,
    version      text COLLATE "C" NOT NULL,
    parent       text COLLATE "C",
    -- lists and labels as JSON text; NULL for none
    features     text,
    labels       text,
    gates        text,
    error        text,
    input_digest bytea NOT NULL,
    -- who waits for the end, each as msgpack, newest last
    waiters      bytea[] NOT NULL,
    -- the payload of the first event; gone when that event is written
    start        bytea,
    PRIMARY KEY (tenant, execution_id),
    CHECK (status IN ('pending', 'running', 'suspended', 'completed', 'failed', 'cancelled'))
) WITH (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

-- The sweeps' indexes: an execution is in one only while that sweep is concerned with it.
CREATE INDEX executions_hinted ON loom.executions (queue, hint_at)
    WHERE hint_at IS NOT NULL AND owner IS NULL;
CREATE INDEX executions_owned ON loom.executions (owner, recoveries) WHERE owner IS NOT NULL;
CREATE INDEX executions_deadline ON loom.executions (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX executions_mail ON loom.executions (owner, inbox)
    WHERE owner IS NOT NULL AND inbox > 0;
-- For listing and counting by status, newest first.
CREATE INDEX executions_listed ON loom.executions (status, created_at, execution_id);

-- The logs: one row per append, its events packed.
CREATE TABLE loom.events (
    seq          bigint NOT NULL,
    last_seq     bigint NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    first_id     bytea NOT NULL,
    body         bytea NOT NULL,
    PRIMARY KEY (tenant, execution_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.1);

-- The guard against an envelope id at another sequence. The id comes first because ids grow
-- with time: new entries go to the index's end.
CREATE UNIQUE INDEX events_first_id ON loom.events (first_id, execution_id, tenant);

CREATE TABLE loom.inbox (
    position     bigint GENERATED ALWAYS AS IDENTITY,
    received_at  bigint NOT NULL,
    -- taken by an event: kept until the end, so that the same id never comes in again
    taken        boolean NOT NULL DEFAULT false,
    tenant       text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    item_id      text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    body         bytea NOT NULL,
    PRIMARY KEY (tenant, execution_id, item_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE INDEX inbox_unread ON loom.inbox (tenant, execution_id, position) WHERE NOT taken;

CREATE TABLE loom.timers (
    due          bigint NOT NULL,
    -- when a service may take it: at its due time, or when the hold on it ends
    visible_at   bigint NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    execution_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, execution_id, due)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500
);

CREATE INDEX timers_visible ON loom.timers (visible_at);

CREATE TABLE loom.workers (
    lease_until bigint NOT NULL,
    renewed_at  bigint NOT NULL,
    started_at  bigint NOT NULL,
    slots       bigint NOT NULL,
    -- its session holds an advisory lock that tells whether it is still there
    guarded     boolean NOT NULL,
    draining    boolean NOT NULL,
    owner       text COLLATE "C" PRIMARY KEY,
    role        text NOT NULL,
    host        text NOT NULL,
    queues      text[] NOT NULL,
    release     text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);

CREATE TABLE loom.flows (
    flow    text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    queue   text COLLATE "C" NOT NULL,
    PRIMARY KEY (flow, version)
);

CREATE TABLE loom.dead_letters (
    position bigint GENERATED ALWAYS AS IDENTITY,
    at       bigint NOT NULL,
    id       text COLLATE "C" PRIMARY KEY,
    queue    text NOT NULL,
    reason   text NOT NULL,
    headers  text,
    body     bytea NOT NULL
);

CREATE INDEX dead_letters_newest ON loom.dead_letters (at, position);

-- A payload of a megabyte is compressed in a few milliseconds instead of some tens, where the
-- server can do that.
DO $$
BEGIN
    ALTER TABLE loom.events ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE loom.inbox ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE loom.executions ALTER COLUMN start SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$$;
