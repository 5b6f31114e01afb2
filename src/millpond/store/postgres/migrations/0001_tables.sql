-- schema-1
--
-- The same tables as on SQLite, column for column, so that the same verbs work on both; only here
-- are a version, which SQLite keeps by itself, and what the server needs to start and end plain tasks
-- by the batch (0003).
--
-- A task is one immutable row (its body) and one narrow row that says where it is: `live` while it
-- waits or runs, `ended` afterwards. Moving it rewrites a few tens of bytes, whatever it carries.
-- Both have the same key, its place: the pool's number << 40 | its seq. So the tasks of a pool
-- stand together, in order, and no index is needed to page through them.
--
-- In these tables '' stands for "none" where a name is part of a key: no key, share or owner is
-- empty. Flags are 0 and 1. Texts are ordered by their code points, whatever the database's locale.
-- What a row must hold is said in guards.py and not here: the server would read it from its text again
-- with every statement.

-- Rows that are rewritten all the time have a turn, which grows with every 32nd rewrite and is the last
-- column of their index. A statement looks for the highest turn of such a row: so it finds the row at
-- once, also while another transaction keeps thousands of its dead versions from being removed.

-- The lock that each transaction takes before it writes. It has no rows; the lock is on the table
-- itself, so a role without rights on the store cannot take it (an advisory lock is open to every role
-- that can connect). The verbs take it in a mode that keeps out every other writer. The functions of
-- the server take it in one that keeps out the verbs only, and then the lock of their pool: the one that
-- the pool's number falls to. See locks.sql for the order.
CREATE TABLE millpond_lock ();
CREATE TABLE millpond_lock_0 ();
CREATE TABLE millpond_lock_1 ();
CREATE TABLE millpond_lock_2 ();
CREATE TABLE millpond_lock_3 ();
CREATE TABLE millpond_lock_4 ();
CREATE TABLE millpond_lock_5 ();
CREATE TABLE millpond_lock_6 ();
CREATE TABLE millpond_lock_7 ();

-- What the server's clock says: all statements ask here. What time it is in the store is another question
-- (millpond_moment, core/store_time.py), for a clock can be set.
CREATE FUNCTION millpond_clock() RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM clock_timestamp())::double precision
$$;

CREATE TABLE millpond_meta (
    one         integer NOT NULL,
    latest      double precision NOT NULL,  -- time does not go back behind it
    joined      bigint NOT NULL,            -- workers, ever
    next_group  bigint NOT NULL,
    next_claim  bigint NOT NULL,
    records     bigint NOT NULL,            -- of the audit, ever
    leader      text COLLATE "C" NOT NULL,
    leader_until double precision NOT NULL,
    generation  bigint NOT NULL,
    -- How far store time is behind the server's clock, and how that was found (core/store_time.py).
    behind      double precision NOT NULL DEFAULT 0,
    since       double precision NOT NULL DEFAULT 0,
    clock       text COLLATE "C" NOT NULL DEFAULT '',
    version     bigint NOT NULL,            -- grows whenever anything is written
    leases      bigint NOT NULL DEFAULT 0,  -- how often leases were stored, ever
    -- Of the inbox all is moved that was committed before the first, but for these: they were open then.
    seen_upto   xid8 NOT NULL DEFAULT '0',
    seen_open   xid8[] NOT NULL DEFAULT '{}',
    turn        bigint PRIMARY KEY DEFAULT 0,
    server      text COLLATE "C" NOT NULL DEFAULT '', -- whose transactions these are: millpond_server()
    first_lease bigint NOT NULL DEFAULT 0   -- no lease has a lower number
);

-- Numbers of groups below 2^20 are the pools' own: the one line of a pool without groups.
INSERT INTO millpond_meta VALUES (1, 0.0, 0, 1048576, 1, 0, '', 0.0, 0, 0, 0, '', 0);

CREATE TABLE millpond_pool (
    id             bigint NOT NULL,
    name           text COLLATE "C" NOT NULL,
    spec           text COLLATE "C" NOT NULL, -- what is in force
    declared       text COLLATE "C" NOT NULL,
    revision       bigint NOT NULL,
    created_at     double precision NOT NULL,
    operator_limit bigint,
    paused         smallint NOT NULL,
    closed         smallint NOT NULL,
    not_before     double precision NOT NULL,
    next_seq       bigint NOT NULL,
    next_lane      bigint NOT NULL,
    live           bigint NOT NULL,
    running        bigint NOT NULL,
    claimed        bigint NOT NULL,
    fresh          bigint NOT NULL,
    ready          bigint NOT NULL,
    later          bigint NOT NULL,
    parked         bigint NOT NULL,
    parked_apart   bigint NOT NULL,
    kept           bigint NOT NULL,
    stale_settles  bigint NOT NULL,
    measured       bigint NOT NULL,
    totals         text COLLATE "C" NOT NULL,
    grouped        smallint NOT NULL,
    joins          bigint NOT NULL,
    passed_turn    bigint NOT NULL,
    passed_join    bigint NOT NULL,
    resting        bigint NOT NULL,
    unit_timers    bigint NOT NULL,
    fading         bigint NOT NULL,
    tats           text COLLATE "C" NOT NULL,
    holding        text COLLATE "C" NOT NULL, -- how many each worker runs
    starved        text COLLATE "C" NOT NULL,
    hungry         text COLLATE "C" NOT NULL,
    limiter        text COLLATE "C" NOT NULL, -- of a limit that adapts; else ''
    special        smallint NOT NULL, -- rates, budgets or such: not by the batch
    -- Where to look for what is ready, past what has left: every rank of which there is something, and
    -- the first place at which there may be. NULL = it may be anywhere. Of a pool without groups only.
    bands          bigint[] DEFAULT '{}',
    lows           bigint[] DEFAULT '{}',
    undue_since    double precision NOT NULL DEFAULT 0, -- nothing waits for a time before that
    -- The same of a fair pool's ring: all shares that any worker may serve stand behind this place.
    ring_turn      bigint NOT NULL DEFAULT 0,
    ring_join      bigint NOT NULL DEFAULT 0,
    writes         bigint NOT NULL DEFAULT 0,
    turn           bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id, turn),
    UNIQUE (name, turn)
);

CREATE TABLE millpond_budget (              -- what pools share; how much is taken is in their rows
    name           text COLLATE "C" PRIMARY KEY,
    spec           text COLLATE "C" NOT NULL, -- what is in force
    declared       text COLLATE "C" NOT NULL,
    operator_limit bigint,
    buckets        text COLLATE "C" NOT NULL,
    pools          text COLLATE "C" NOT NULL, -- who shares it, and since when
    waiting        text COLLATE "C" NOT NULL
);

CREATE TABLE millpond_revision (            -- every configuration a pool ever had
    pool     bigint NOT NULL,
    revision bigint NOT NULL,
    spec     text COLLATE "C" NOT NULL,
    PRIMARY KEY (pool, revision)
);

CREATE TABLE millpond_task (
    place bigint PRIMARY KEY,
    id    bigint NOT NULL UNIQUE,
    body  bytea NOT NULL,
    plain text COLLATE "C"                  -- the fields of a plain task, as JSON (unit_of_work.py)
);

CREATE TABLE millpond_live (
    -- What never changes.
    place            bigint PRIMARY KEY,
    id               bigint NOT NULL,
    pool             bigint NOT NULL,
    rank             bigint NOT NULL,
    key              text COLLATE "C",
    lane             text COLLATE "C",
    sequence         bigint NOT NULL,
    submitted_at     double precision NOT NULL,
    expires_at       double precision,
    owner            text COLLATE "C",
    run              bigint,
    -- What changes now and then.
    due              double precision NOT NULL,
    claim            bigint,                -- held ahead: in the order of claims
    claim_revision   bigint,
    cancel_requested smallint NOT NULL,  -- 2 = interrupt
    parked_at        double precision,
    function         text COLLATE "C",      -- while it is parked
    error            bytea,
    progress         text COLLATE "C",
    steps            bytea,
    -- What a start changes.
    running          smallint NOT NULL,
    attempt          integer NOT NULL,
    runs             integer NOT NULL,
    fresh            smallint NOT NULL,
    listed           smallint NOT NULL,
    token            bigint NOT NULL,
    worker           text COLLATE "C",
    started_at       double precision,
    first_started_at double precision,
    reason           text COLLATE "C",
    grp              bigint                 -- of a group: ready; 0 = not due; NULL = not queued
);

CREATE INDEX millpond_ready ON millpond_live (grp, rank, place) WHERE grp > 0;
CREATE INDEX millpond_later ON millpond_live (pool, due, place) WHERE grp = 0;
CREATE INDEX millpond_held ON millpond_live (worker, place) WHERE worker IS NOT NULL;
CREATE INDEX millpond_stopping ON millpond_live (worker, place) WHERE cancel_requested > 0;
CREATE INDEX millpond_expiring ON millpond_live (expires_at, id)
    WHERE expires_at IS NOT NULL AND running = 0 AND claim IS NULL;
CREATE INDEX millpond_parked ON millpond_live (pool, function, rank, place)
    WHERE function IS NOT NULL;
CREATE INDEX millpond_parked_since ON millpond_live (parked_at, id) WHERE parked_at IS NOT NULL;
CREATE INDEX millpond_closure ON millpond_live (owner, place) WHERE owner IS NOT NULL;
CREATE INDEX millpond_of_run ON millpond_live (run, place) WHERE run IS NOT NULL;
CREATE INDEX millpond_listed ON millpond_live (pool, place) WHERE listed = 1;
CREATE INDEX millpond_listed_key ON millpond_live (pool, key, place) WHERE listed = 1;

-- Plain tasks that run or are held ahead, folded: one row for those of one claim that started at the
-- same moment, and no row of their own in `live`. A column that holds one value holds it for every task;
-- no keys = none has one. A verb that reads one of them unfolds its row first.
CREATE TABLE millpond_lease (
    token        bigint NOT NULL,
    started_at   double precision NOT NULL, -- infinity = not yet: they are held ahead
    pool         bigint NOT NULL,
    worker       text COLLATE "C" NOT NULL,
    revision     bigint,                    -- of the pool when they were claimed ahead
    claims       bigint[],                  -- in which order they were
    ids          bigint[] NOT NULL,
    places       bigint[] NOT NULL,
    ranks        bigint[] NOT NULL,
    submitted_at double precision[] NOT NULL,
    due          double precision[] NOT NULL,
    keys         text[] COLLATE "C" NOT NULL,
    plain        text[] COLLATE "C" NOT NULL,
    n            bigint NOT NULL,           -- when it was stored, as millpond_meta.leases counts
    PRIMARY KEY (token, started_at)
);

-- A lease that stays gets a new number before a thousand others have come: a search through all of
-- them begins with millpond_meta.first_lease, and not with the dead.
CREATE INDEX millpond_lease_recent ON millpond_lease (n);


-- What is folded, as it would stand in `live`.
CREATE VIEW millpond_folded AS
SELECT u.place, u.id, l.pool, coalesce(u.rank, l.ranks[1]) AS rank, u.key, NULL::text AS lane,
       u.place & ((1::bigint << 40) - 1) AS sequence,
       coalesce(u.submitted_at, l.submitted_at[1]) AS submitted_at,
       NULL::double precision AS expires_at, NULL::text AS owner,
       CASE WHEN position('"run":' IN coalesce(u.plain, l.plain[1])) > 0
            THEN (coalesce(u.plain, l.plain[1])::json ->> 'run')::bigint END AS run,
       coalesce(u.due, l.due[1]) AS due, u.claim, l.revision AS claim_revision,
       0::smallint AS cancel_requested, NULL::double precision AS parked_at, NULL::text AS function,
       NULL::bytea AS error, NULL::text AS progress, NULL::bytea AS steps,
       (u.claim IS NULL)::integer::smallint AS running, (u.claim IS NULL)::integer AS attempt,
       (u.claim IS NULL)::integer AS runs, 0::smallint AS fresh, 0::smallint AS listed, l.token,
       l.worker, nullif(l.started_at, 'infinity') AS started_at,
       nullif(l.started_at, 'infinity') AS first_started_at, NULL::text AS reason, NULL::bigint AS grp
  FROM millpond_lease AS l,
       unnest(l.ids, l.places, l.ranks, l.submitted_at, l.due, l.keys, l.claims, l.plain)
       AS u (id, place, rank, submitted_at, due, key, claim, plain)
 WHERE l.n >= (SELECT m.first_lease FROM millpond_meta AS m ORDER BY m.turn DESC LIMIT 1);

-- All that live, folded or not.
CREATE VIEW millpond_alive AS SELECT * FROM millpond_live UNION ALL SELECT * FROM millpond_folded;

CREATE TABLE millpond_ended (
    place       bigint PRIMARY KEY,
    pool        bigint NOT NULL,
    status      text COLLATE "C" NOT NULL,
    completed   smallint NOT NULL,
    finished_at double precision NOT NULL,
    reason      text COLLATE "C",
    attempt     integer NOT NULL,
    runs        integer NOT NULL,
    result      bytea,
    error       bytea,
    -- The rest of its record, as it was while the task was live.
    rank             bigint NOT NULL,
    lane             text COLLATE "C",
    sequence         bigint NOT NULL,
    submitted_at     double precision NOT NULL,
    due              double precision NOT NULL,
    token            bigint NOT NULL,
    started_at       double precision,
    first_started_at double precision,
    expires_at       double precision,
    cancel_requested smallint NOT NULL,
    fresh            smallint NOT NULL,
    progress         text COLLATE "C",
    steps            bytea
);

CREATE INDEX millpond_ended_at ON millpond_ended (pool, completed, finished_at, place);

CREATE TABLE millpond_removed (             -- ids of tasks that retention took, the latest of them
    n  bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id bigint NOT NULL UNIQUE
);

CREATE TABLE millpond_key (                 -- idempotency keys; they outlive their tasks
    pool        bigint NOT NULL,
    key         text COLLATE "C" NOT NULL,
    run         bigint NOT NULL,            -- 0 = whatever the run
    task        bigint NOT NULL,
    status      text COLLATE "C" NOT NULL,
    function    text COLLATE "C" NOT NULL,
    fingerprint bigint NOT NULL,
    ended_at    double precision,           -- of a task that is forgotten
    PRIMARY KEY (pool, key, run)
);

CREATE INDEX millpond_old_key ON millpond_key (pool, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE millpond_unit (                -- lanes and keys, while there is something to know
    pool       bigint NOT NULL,
    unit       text COLLATE "C" NOT NULL,
    running    bigint NOT NULL CHECK (running >= 0),
    paused     smallint NOT NULL,
    blocked    smallint NOT NULL,
    held_until double precision NOT NULL,
    tat        bigint NOT NULL,
    groups     bigint NOT NULL,
    timer_at   double precision,
    timer_rank bigint,
    timer_seq  bigint,
    fades_at   double precision,
    PRIMARY KEY (pool, unit)
);

CREATE INDEX millpond_unit_timer ON millpond_unit (pool, timer_at, timer_rank, timer_seq)
    WHERE timer_at IS NOT NULL;
CREATE INDEX millpond_unit_fading ON millpond_unit (pool, fades_at) WHERE fades_at IS NOT NULL;
CREATE INDEX millpond_unit_held ON millpond_unit (pool, held_until) WHERE held_until > 0;
CREATE INDEX millpond_unit_paused ON millpond_unit (pool) WHERE paused = 1;

CREATE TABLE millpond_group (               -- queued tasks of one unit, one share and one owner
    id    bigint PRIMARY KEY,
    pool  bigint NOT NULL,
    unit  text COLLATE "C" NOT NULL,
    share text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    tasks bigint NOT NULL CHECK (tasks >= 0),
    rank  bigint NOT NULL,                  -- where it stands: its first task's place
    seq   bigint NOT NULL,
    due   double precision NOT NULL,
    ready smallint NOT NULL,
    UNIQUE (pool, unit, share, owner)
);

CREATE INDEX millpond_shelf ON millpond_group (pool, share, owner, rank, seq) WHERE ready = 1;

CREATE TABLE millpond_seat (                -- the fair ring
    pool    bigint NOT NULL,
    share   text COLLATE "C" NOT NULL,
    owner   text COLLATE "C" NOT NULL,
    turn    bigint NOT NULL,
    joined  bigint NOT NULL,
    resting smallint NOT NULL,
    PRIMARY KEY (pool, share, owner)
);

CREATE INDEX millpond_turn ON millpond_seat (pool, owner, turn, joined) WHERE resting = 0;
CREATE INDEX millpond_resting ON millpond_seat (pool, turn, joined) WHERE resting = 1;

CREATE TABLE millpond_lane (
    pool      bigint NOT NULL,
    lane      text COLLATE "C" NOT NULL,
    sequence  bigint NOT NULL,              -- the last that was given: gap-free, never used again
    processed bigint NOT NULL,
    PRIMARY KEY (pool, lane)
);

CREATE TABLE millpond_worker (
    id         text COLLATE "C" NOT NULL,
    owner      text COLLATE "C",
    expires_at double precision NOT NULL,   -- the one thing a renewal writes
    lease      double precision NOT NULL,
    number     bigint NOT NULL,
    functions  text COLLATE "C",
    unknown    text COLLATE "C" NOT NULL,
    ahead      bigint NOT NULL,
    writes     bigint NOT NULL DEFAULT 0,
    turn       bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id, turn)
);

CREATE TABLE millpond_run (
    id          bigint PRIMARY KEY,
    pool        text COLLATE "C" NOT NULL,
    name        text COLLATE "C",
    finished_at double precision,
    state       bytea NOT NULL
);

CREATE UNIQUE INDEX millpond_run_name ON millpond_run (pool, name) WHERE name IS NOT NULL;
CREATE INDEX millpond_run_open ON millpond_run (id) WHERE finished_at IS NULL;
CREATE INDEX millpond_run_over ON millpond_run (pool, finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE millpond_audit (               -- one row per transaction that wrote records
    position bigint PRIMARY KEY,            -- of its last record
    records  bigint NOT NULL,
    at       double precision NOT NULL,     -- of its last record
    told     bytea,
    -- Or, for the same arrow of many plain tasks: what all have in common, and what each has.
    event    text COLLATE "C",
    -- For the arrows of a relay: whether it is a start or an end. One value = as many starts as ends, which
    -- come first here; the reader puts the n-th start right after the n-th end.
    starts   boolean[],
    pool     bigint,
    worker   text COLLATE "C",
    tokens   bigint[],
    ids      bigint[],
    places   bigint[],
    due      double precision[],
    keys     text[] COLLATE "C",
    plain    text[] COLLATE "C",
    -- More fields of each: its event, attempt, runs and reason, as JSON. NULL = it is the first attempt.
    differs  text[] COLLATE "C"
);

CREATE TABLE millpond_measured (            -- how long the latest attempts waited and ran
    pool  bigint NOT NULL,
    upto  bigint NOT NULL,
    times bytea,
    -- Or, for plain tasks that started and ended together: when they were due (one value = all), and both.
    due         double precision[],
    started_at  double precision,
    finished_at double precision,
    n           integer,
    PRIMARY KEY (pool, upto)
);

-- Rows that are rewritten all the time are vacuumed after so many dead ones, not after a share of
-- what the table holds, which may be a million that wait. Giving pages back to the system would lock
-- out all sessions for a moment, and the pages are needed again.
ALTER TABLE millpond_live SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off
);
ALTER TABLE millpond_unit SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off
);
ALTER TABLE millpond_group SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off
);
ALTER TABLE millpond_seat SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off
);
ALTER TABLE millpond_pool SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off
);
ALTER TABLE millpond_lease SET (
    toast_tuple_target = 8160,              -- a hundred tasks stay in their row
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off
);
ALTER TABLE millpond_audit SET (toast_tuple_target = 8160);
-- Lists of ids do not get much shorter by compression, and trying took a third of a step.
ALTER TABLE millpond_lease
    ALTER claims SET STORAGE EXTERNAL,
    ALTER ids SET STORAGE EXTERNAL,
    ALTER places SET STORAGE EXTERNAL,
    ALTER ranks SET STORAGE EXTERNAL,
    ALTER submitted_at SET STORAGE EXTERNAL,
    ALTER due SET STORAGE EXTERNAL,
    ALTER keys SET STORAGE EXTERNAL,
    ALTER plain SET STORAGE EXTERNAL;
ALTER TABLE millpond_audit
    ALTER tokens SET STORAGE EXTERNAL,
    ALTER ids SET STORAGE EXTERNAL,
    ALTER places SET STORAGE EXTERNAL,
    ALTER due SET STORAGE EXTERNAL,
    ALTER keys SET STORAGE EXTERNAL,
    ALTER plain SET STORAGE EXTERNAL,
    ALTER differs SET STORAGE EXTERNAL;
ALTER TABLE millpond_measured ALTER due SET STORAGE EXTERNAL;
ALTER TABLE millpond_meta SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    vacuum_truncate = off
);
