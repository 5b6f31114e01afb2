-- The claim spike, SQLite: schema.
--
-- A task is one immutable row (payload never rewritten) plus exactly one narrow row that says where it
-- is: `ready`, `later`, `lease` or `done`. Moving a task rewrites a few tens of bytes, whatever its
-- payload weighs. Counters live in the pool row: SQLite has one writer, so a hot row costs nothing.

CREATE TABLE pool (
    id        INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    fair      INTEGER NOT NULL,             -- 1: groups are served by the ring, 0: by their head
    grouped   INTEGER NOT NULL,             -- 0: one root group, never in the ring
    ordered   INTEGER NOT NULL,             -- 1: a waiting head blocks its group (lanes, ordered)
    cap       INTEGER NOT NULL,             -- max_concurrent
    per_key   INTEGER,                      -- max_per_key; 1 for lanes and ordered; NULL = none
    bound     INTEGER,                      -- NULL = unbounded
    running   INTEGER NOT NULL DEFAULT 0,
    depth     INTEGER NOT NULL DEFAULT 0,   -- outside tasks never claimed
    next_seq  INTEGER NOT NULL DEFAULT 1,
    next_join INTEGER NOT NULL DEFAULT 1,
    turn      INTEGER NOT NULL DEFAULT 0,   -- V: the turn last served
    root      INTEGER NOT NULL DEFAULT 0,   -- the group of a pool without groups
    stale     INTEGER NOT NULL DEFAULT 0    -- settles refused by the fence
);

CREATE TABLE worker (
    id      INTEGER PRIMARY KEY,
    expires INTEGER NOT NULL                -- the one thing a renewal writes
);

-- One row per (pool, key). state: 0 dry, 1 eligible, 2 at its limit, 3 waiting for its head (due = until).
-- (o1, o2) is the group's place among the eligible: (turn, join) in a fair pool, its head's (rank, seq)
-- otherwise. Out of the ring a fair group keeps its last turn in o1.
CREATE TABLE grp (
    id      INTEGER PRIMARY KEY,
    pool    INTEGER NOT NULL,
    name    TEXT NOT NULL,
    state   INTEGER NOT NULL,
    o1      INTEGER NOT NULL,
    o2      INTEGER NOT NULL,
    stride  INTEGER NOT NULL,
    running INTEGER NOT NULL DEFAULT 0,
    tail    INTEGER NOT NULL DEFAULT 0,     -- last sequence given in an ordered group: gap-free
    due     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pool, name)
);
-- What the claim reads: eligible groups only, so blocked work costs a claim nothing.
CREATE INDEX grp_eligible ON grp (pool, o1, o2) WHERE state = 1;
CREATE INDEX grp_waiting ON grp (pool, due) WHERE state = 3;

CREATE TABLE task (
    id           INTEGER PRIMARY KEY,       -- made by the client, so a submit can be repeated
    pool         INTEGER NOT NULL,
    grp          INTEGER NOT NULL,
    rank         INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    lane_seq     INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    submitted_at INTEGER NOT NULL,
    payload      BLOB NOT NULL
);

CREATE TABLE ready (
    grp     INTEGER NOT NULL,
    rank    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    id      INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    fresh   INTEGER NOT NULL,               -- 1: counts against the bound
    due     INTEGER NOT NULL,               -- used in ordered groups only, where a delay keeps its place
    PRIMARY KEY (grp, rank, seq)
) WITHOUT ROWID;

CREATE TABLE later (                        -- delayed and backing off, pools that are not ordered
    pool    INTEGER NOT NULL,
    due     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    grp     INTEGER NOT NULL,
    rank    INTEGER NOT NULL,
    id      INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    fresh   INTEGER NOT NULL,
    PRIMARY KEY (pool, due, seq)
) WITHOUT ROWID;

CREATE TABLE lease (
    id         INTEGER PRIMARY KEY,
    worker     INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    token      INTEGER NOT NULL,
    grp        INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    started_at INTEGER NOT NULL
);

CREATE TABLE done (
    id          INTEGER PRIMARY KEY,
    pool        INTEGER NOT NULL,
    status      INTEGER NOT NULL,           -- 1 completed, 2 failed, 3 cancelled
    attempt     INTEGER NOT NULL,
    worker      INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    result      BLOB
);
CREATE INDEX done_finished ON done (finished_at);          -- retention walks this, oldest first

CREATE TABLE idem (
    pool INTEGER NOT NULL,
    key  TEXT NOT NULL,
    id   INTEGER NOT NULL,
    PRIMARY KEY (pool, key)
) WITHOUT ROWID;
