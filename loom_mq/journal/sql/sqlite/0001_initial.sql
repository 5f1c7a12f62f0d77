-- The embedded journal. Times are microseconds of journal time; lists and maps are msgpack.
-- Keys are columns, never joined strings (J10), and TEXT compares byte by byte.

CREATE TABLE meta (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The index beside the logs (J6). `start` stands last: it may be large, and is there only
-- while the log is empty.
CREATE TABLE executions (
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    flow TEXT NOT NULL,
    version TEXT NOT NULL,
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    wake_at INTEGER,
    gates BLOB NOT NULL,
    error TEXT,
    recoveries INTEGER NOT NULL,
    parent TEXT,
    features BLOB NOT NULL,
    labels BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    fence INTEGER NOT NULL,
    owner TEXT,
    attempt INTEGER NOT NULL,
    deadline INTEGER,
    hint_at INTEGER,
    hints INTEGER NOT NULL,
    inbox INTEGER NOT NULL,
    input_digest BLOB NOT NULL,
    waiters BLOB NOT NULL,
    start BLOB,
    PRIMARY KEY (tenant, execution_id)
) STRICT;

CREATE INDEX executions_newest ON executions (created_at, execution_id, tenant);
CREATE INDEX executions_by_status ON executions (status, created_at, execution_id, tenant);
CREATE INDEX executions_owned ON executions (owner) WHERE owner IS NOT NULL;
CREATE INDEX executions_hinted ON executions (hint_at) WHERE hint_at IS NOT NULL;

-- One row per append: its envelopes, packed.
CREATE TABLE events (
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    first_id BLOB NOT NULL,
    events BLOB NOT NULL,
    PRIMARY KEY (tenant, execution_id, first_seq),
    UNIQUE (tenant, execution_id, first_id)
) STRICT;

-- `taken` items are kept, without their payload, until the execution ends: their ids must
-- not come in again (K7).
CREATE TABLE inbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    item_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    gate TEXT NOT NULL,
    wait_id TEXT,
    payload BLOB NOT NULL,
    reply_to TEXT,
    correlation TEXT NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, execution_id, item_id)
) STRICT;

-- `held_until` is 0 until somebody holds the timer.
CREATE TABLE timers (
    tenant TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    due INTEGER NOT NULL,
    held_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, execution_id, due)
) STRICT, WITHOUT ROWID;

CREATE INDEX timers_due ON timers (due, held_until);

CREATE TABLE workers (
    owner TEXT NOT NULL PRIMARY KEY,
    role TEXT NOT NULL,
    host TEXT NOT NULL,
    queues BLOB NOT NULL,
    slots INTEGER NOT NULL,
    release TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    draining INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE flows (
    flow TEXT NOT NULL,
    version TEXT NOT NULL,
    queue TEXT NOT NULL,
    PRIMARY KEY (flow, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letters (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    reason TEXT NOT NULL,
    body BLOB NOT NULL,
    headers BLOB NOT NULL,
    at INTEGER NOT NULL
) STRICT;

CREATE INDEX dead_letters_newest ON dead_letters (at, position);
