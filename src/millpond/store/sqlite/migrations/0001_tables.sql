-- schema-1
--
-- A task is one immutable row (its body) and one narrow row that says where it is: `live` while it
-- waits or runs, `ended` afterwards. Moving it rewrites a few tens of bytes, whatever it carries.
-- Both have the same key, its place: the pool's number << 40 | its seq. So the tasks of a pool stand
-- together, in order, and no index is needed to page through them.
--
-- In these tables '' stands for "none" where a name is part of a key: no key, share or owner is empty.

CREATE TABLE millpond_meta (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    latest      REAL NOT NULL,              -- time does not go back behind it
    joined      INTEGER NOT NULL,           -- workers, ever
    next_group  INTEGER NOT NULL,
    next_claim  INTEGER NOT NULL,
    records     INTEGER NOT NULL,           -- of the audit, ever
    leader      TEXT NOT NULL,
    leader_until REAL NOT NULL,
    generation  INTEGER NOT NULL
);

-- Numbers of groups below 2^20 are the pools' own: the one line of a pool without groups.
INSERT INTO millpond_meta VALUES (1, 0.0, 0, 1048576, 1, 0, '', 0.0, 0);

CREATE TABLE millpond_pool (
    id             INTEGER PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    spec           TEXT NOT NULL,           -- what is in force
    declared       TEXT NOT NULL,
    revision       INTEGER NOT NULL,
    created_at     REAL NOT NULL,
    operator_limit INTEGER,
    paused         INTEGER NOT NULL CHECK (paused IN (0, 1)),
    closed         INTEGER NOT NULL CHECK (closed IN (0, 1)),
    not_before     REAL NOT NULL,
    next_seq       INTEGER NOT NULL,
    next_lane      INTEGER NOT NULL,
    live           INTEGER NOT NULL CHECK (live >= running + claimed),
    running        INTEGER NOT NULL CHECK (running >= 0),
    claimed        INTEGER NOT NULL CHECK (claimed >= 0),
    fresh          INTEGER NOT NULL CHECK (fresh >= 0),
    ready          INTEGER NOT NULL CHECK (ready >= 0),
    later          INTEGER NOT NULL CHECK (later >= 0),
    parked         INTEGER NOT NULL CHECK (parked >= 0),
    parked_apart   INTEGER NOT NULL CHECK (parked_apart >= 0),
    kept           INTEGER NOT NULL CHECK (kept >= 0),
    stale_settles  INTEGER NOT NULL,
    measured       INTEGER NOT NULL,
    totals         TEXT NOT NULL,
    grouped        INTEGER NOT NULL CHECK (grouped IN (0, 1)),
    joins          INTEGER NOT NULL,
    passed_turn    INTEGER NOT NULL,
    passed_join    INTEGER NOT NULL,
    resting        INTEGER NOT NULL CHECK (resting >= 0),
    unit_timers    INTEGER NOT NULL CHECK (unit_timers >= 0),
    fading         INTEGER NOT NULL CHECK (fading >= 0),
    tats           TEXT NOT NULL,
    holding        TEXT NOT NULL,           -- how many each worker runs
    starved        TEXT NOT NULL,
    hungry         TEXT NOT NULL,
    limiter        TEXT NOT NULL,           -- of a limit that adapts; else ''
    special        INTEGER NOT NULL CHECK (special IN (0, 1)) -- rates, budgets or such
);

CREATE TABLE millpond_budget (              -- what pools share; how much is taken is in their rows
    name           TEXT PRIMARY KEY,
    spec           TEXT NOT NULL,           -- what is in force
    declared       TEXT NOT NULL,
    operator_limit INTEGER,
    buckets        TEXT NOT NULL,
    pools          TEXT NOT NULL,           -- who shares it, and since when
    waiting        TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE millpond_revision (            -- every configuration a pool ever had
    pool     INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    spec     TEXT NOT NULL,
    PRIMARY KEY (pool, revision)
) WITHOUT ROWID;

CREATE TABLE millpond_task (
    place INTEGER PRIMARY KEY,
    id    INTEGER NOT NULL UNIQUE,
    body  BLOB NOT NULL
);

CREATE TABLE millpond_live (
    -- What never changes.
    place            INTEGER PRIMARY KEY,
    id               INTEGER NOT NULL,
    pool             INTEGER NOT NULL,
    rank             INTEGER NOT NULL,
    key              TEXT,
    lane             TEXT,
    sequence         INTEGER NOT NULL,
    submitted_at     REAL NOT NULL,
    expires_at       REAL,
    owner            TEXT,
    run              INTEGER,
    -- What changes now and then.
    due              REAL NOT NULL,
    claim            INTEGER,               -- held ahead: in the order of claims
    claim_revision   INTEGER,
    cancel_requested INTEGER NOT NULL CHECK (cancel_requested IN (0, 1, 2)),  -- 2 = interrupt
    parked_at        REAL,
    function         TEXT,                  -- while it is parked
    error            BLOB,
    progress         TEXT,
    steps            BLOB,
    -- What a start changes.
    running          INTEGER NOT NULL CHECK (running IN (0, 1)),
    attempt          INTEGER NOT NULL CHECK (attempt >= 0),
    runs             INTEGER NOT NULL CHECK (runs >= attempt),
    fresh            INTEGER NOT NULL CHECK (fresh IN (0, 1)),
    listed           INTEGER NOT NULL CHECK (listed IN (0, 1)),
    token            INTEGER NOT NULL,
    worker           TEXT,
    started_at       REAL,
    first_started_at REAL,
    reason           TEXT,
    grp              INTEGER,               -- ready in a group; 0 = not due; NULL = out of the queue
    -- The lifecycle, once more: what runs has a holder and a fence and is out of the queue.
    CHECK (running = 0 OR (worker IS NOT NULL AND grp IS NULL AND claim IS NULL AND attempt > 0)),
    CHECK (running = 1 OR (worker IS NULL) = (claim IS NULL)),
    CHECK (claim IS NULL OR grp IS NULL),
    CHECK (fresh = 0 OR (running = 0 AND claim IS NULL AND runs = 0)),
    CHECK (parked_at IS NULL OR running = 0)
);

CREATE INDEX millpond_ready ON millpond_live (grp, rank, place) WHERE grp > 0;
CREATE INDEX millpond_later ON millpond_live (pool, due, place) WHERE grp = 0;
CREATE INDEX millpond_held ON millpond_live (worker, place) WHERE worker IS NOT NULL;
CREATE INDEX millpond_expiring ON millpond_live (expires_at, id)
    WHERE expires_at IS NOT NULL AND running = 0 AND claim IS NULL;
CREATE INDEX millpond_parked ON millpond_live (pool, function, rank, place)
    WHERE function IS NOT NULL;
CREATE INDEX millpond_parked_since ON millpond_live (parked_at, id) WHERE parked_at IS NOT NULL;
CREATE INDEX millpond_closure ON millpond_live (owner, place) WHERE owner IS NOT NULL;
CREATE INDEX millpond_of_run ON millpond_live (run, place) WHERE run IS NOT NULL;
CREATE INDEX millpond_listed ON millpond_live (pool, place) WHERE listed = 1;
CREATE INDEX millpond_listed_key ON millpond_live (pool, key, place) WHERE listed = 1;

CREATE TABLE millpond_ended (
    place       INTEGER PRIMARY KEY,
    pool        INTEGER NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled', 'rejected')),
    completed   INTEGER NOT NULL CHECK (completed = (status = 'completed')),
    finished_at REAL NOT NULL,
    reason      TEXT,
    attempt     INTEGER NOT NULL,
    runs        INTEGER NOT NULL,
    result      BLOB,
    error       BLOB,
    -- The rest of its record, as it was while the task was live.
    rank             INTEGER NOT NULL,
    lane             TEXT,
    sequence         INTEGER NOT NULL,
    submitted_at     REAL NOT NULL,
    due              REAL NOT NULL,
    token            INTEGER NOT NULL,
    started_at       REAL,
    first_started_at REAL,
    expires_at       REAL,
    cancel_requested INTEGER NOT NULL,
    fresh            INTEGER NOT NULL,
    progress         TEXT,
    steps            BLOB
);

CREATE INDEX millpond_ended_at ON millpond_ended (pool, completed, finished_at, place);

CREATE TABLE millpond_removed (             -- ids of tasks that retention took, the latest of them
    n  INTEGER PRIMARY KEY,
    id INTEGER NOT NULL UNIQUE
);

CREATE TABLE millpond_key (                 -- idempotency keys; they outlive their tasks
    pool        INTEGER NOT NULL,
    key         TEXT NOT NULL,
    run         INTEGER NOT NULL,           -- 0 = whatever the run
    task        INTEGER NOT NULL,
    status      TEXT NOT NULL,
    function    TEXT NOT NULL,
    fingerprint INTEGER NOT NULL,
    ended_at    REAL,                       -- of a task that is forgotten
    PRIMARY KEY (pool, key, run)
) WITHOUT ROWID;

CREATE INDEX millpond_old_key ON millpond_key (pool, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE millpond_unit (                -- lanes and keys, while something is to be known of them
    pool       INTEGER NOT NULL,
    unit       TEXT NOT NULL,
    running    INTEGER NOT NULL CHECK (running >= 0),
    paused     INTEGER NOT NULL CHECK (paused IN (0, 1)),
    blocked    INTEGER NOT NULL CHECK (blocked IN (0, 1)),
    held_until REAL NOT NULL,
    tat        INTEGER NOT NULL,
    groups     INTEGER NOT NULL CHECK (groups >= 0),
    timer_at   REAL,
    timer_rank INTEGER,
    timer_seq  INTEGER,
    fades_at   REAL,
    PRIMARY KEY (pool, unit)
) WITHOUT ROWID;

CREATE INDEX millpond_unit_timer ON millpond_unit (pool, timer_at, timer_rank, timer_seq)
    WHERE timer_at IS NOT NULL;
CREATE INDEX millpond_unit_fading ON millpond_unit (pool, fades_at) WHERE fades_at IS NOT NULL;
CREATE INDEX millpond_unit_paused ON millpond_unit (pool) WHERE paused = 1;

CREATE TABLE millpond_group (               -- queued tasks of one unit, one share and one owner
    id    INTEGER PRIMARY KEY,
    pool  INTEGER NOT NULL,
    unit  TEXT NOT NULL,
    share TEXT NOT NULL,
    owner TEXT NOT NULL,
    tasks INTEGER NOT NULL CHECK (tasks >= 0),
    rank  INTEGER NOT NULL,                 -- where it stands: its first task's place
    seq   INTEGER NOT NULL,
    due   REAL NOT NULL,
    ready INTEGER NOT NULL CHECK (ready IN (0, 1)),
    UNIQUE (pool, unit, share, owner)
);

CREATE INDEX millpond_shelf ON millpond_group (pool, share, owner, rank, seq) WHERE ready = 1;

CREATE TABLE millpond_seat (                -- the fair ring
    pool    INTEGER NOT NULL,
    share   TEXT NOT NULL,
    owner   TEXT NOT NULL,
    turn    INTEGER NOT NULL,
    joined  INTEGER NOT NULL,
    resting INTEGER NOT NULL CHECK (resting IN (0, 1)),
    PRIMARY KEY (pool, share, owner)
) WITHOUT ROWID;

CREATE INDEX millpond_turn ON millpond_seat (pool, owner, turn, joined) WHERE resting = 0;
CREATE INDEX millpond_resting ON millpond_seat (pool, turn, joined) WHERE resting = 1;

CREATE TABLE millpond_lane (
    pool      INTEGER NOT NULL,
    lane      TEXT NOT NULL,
    sequence  INTEGER NOT NULL,             -- the last that was given: gap-free, never used again
    processed INTEGER NOT NULL,
    PRIMARY KEY (pool, lane)
) WITHOUT ROWID;

CREATE TABLE millpond_worker (
    id         TEXT PRIMARY KEY,
    owner      TEXT,
    expires_at REAL NOT NULL,               -- the one thing a renewal writes
    lease      REAL NOT NULL,
    number     INTEGER NOT NULL,
    functions  TEXT,
    unknown    TEXT NOT NULL,
    ahead      INTEGER NOT NULL CHECK (ahead >= 0)
) WITHOUT ROWID;

CREATE TABLE millpond_run (
    id          INTEGER PRIMARY KEY,
    pool        TEXT NOT NULL,
    name        TEXT,
    finished_at REAL,
    state       BLOB NOT NULL
);

CREATE UNIQUE INDEX millpond_run_name ON millpond_run (pool, name) WHERE name IS NOT NULL;
CREATE INDEX millpond_run_open ON millpond_run (id) WHERE finished_at IS NULL;
CREATE INDEX millpond_run_over ON millpond_run (pool, finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE millpond_audit (               -- one row per transaction that wrote records
    position INTEGER PRIMARY KEY,           -- of its last record
    records  INTEGER NOT NULL,
    at       REAL NOT NULL,                 -- of its last record
    told     BLOB NOT NULL
);

CREATE TABLE millpond_measured (            -- how long the latest attempts waited and ran
    pool  INTEGER NOT NULL,
    upto  INTEGER NOT NULL,
    times BLOB NOT NULL,
    PRIMARY KEY (pool, upto)
) WITHOUT ROWID;
