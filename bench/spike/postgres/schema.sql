-- The claim spike, PostgreSQL: schema.
--
-- Immutable `task`, narrow `ready`, one `holding` row per worker, append-only `done`. What must change
-- often is kept as a last-value log: a new version has a higher number in its index key, so the newest
-- is found at one edge of the index however many dead versions a long transaction keeps alive.

create sequence task_seq;
create sequence join_seq;
create sequence gid_seq start 1000;

create table pool (
    id      int primary key,
    name    text not null unique,
    fair    boolean not null,
    grouped boolean not null,
    blocks  boolean not null,               -- a waiting head blocks its group (lanes, ordered)
    lifo    boolean not null,
    marked  boolean not null,               -- fifo: every rank is 0, scan from a low-water mark
    cap     int not null,                   -- max_concurrent
    per_key int,                            -- max_per_key; 1 for lanes and ordered
    bound   int,
    root    bigint not null                 -- the group of a pool without groups
);

create table worker (
    id      int primary key,
    expires bigint not null                 -- the one thing a renewal writes
);

create table task (
    id           bigint primary key,        -- made by the client, so a submit can be repeated
    gid          bigint not null,
    rank         bigint not null,
    seq          bigint not null,
    lane_seq     bigint not null,
    submitted_at bigint not null,
    pool         int not null,
    priority     int not null,
    payload      bytea not null
);

create table ready (
    gid     bigint not null,
    rank    bigint not null,
    seq     bigint not null,
    id      bigint not null,
    due     bigint not null,                -- used in blocking groups only
    attempt smallint not null,
    fresh   boolean not null,               -- counts against the bound
    primary key (gid, rank, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);

create table later (                        -- delayed and backing off, pools that do not block
    pool    int not null,
    due     bigint not null,
    seq     bigint not null,
    id      bigint not null,
    attempt smallint not null,
    fresh   boolean not null,
    primary key (pool, due, seq)
);

-- A worker's complete set of leases is one row; a step replaces version seq by seq + 1. Taking 100
-- leases and ending 100 others is one insert and one delete, and the fleet's count is a sum over workers.
create table holding (
    pool   int not null,
    worker int not null,
    seq    bigint not null,
    n      int not null,
    ids    bigint[] not null,
    atts   smallint[] not null,
    toks   bigint[] not null,
    gids   bigint[] not null,
    starts bigint[] not null,
    primary key (pool, worker, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);

-- Per pool. (v1, v2): the place last served. In a fair pool every member of the ring stands behind it,
-- so it is the exact place to scan from; in a plain fifo pool v2 is a low-water mark (see lease.sql).
create table pstate (
    pool      int not null,
    seq       bigint not null,
    out_total bigint not null,              -- outside tasks that stopped being "never claimed"
    stale     bigint not null,              -- settles refused by the fence
    v1        bigint not null,
    v2        bigint not null,
    primary key (pool, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);

create table inlog (                        -- bounded pools: outside tasks ever accepted
    pool  int not null,
    seq   bigint not null,
    total bigint not null,
    primary key (pool, seq)
);

create table idem (
    pool int not null,
    key  text collate "C" not null,
    id   bigint not null,
    primary key (pool, key)
);

create table done (
    id          bigint primary key,
    finished_at bigint not null,
    started_at  bigint not null,
    pool        int not null,
    worker      int not null,
    status      smallint not null,          -- 1 completed, 2 failed, 3 cancelled
    attempt     smallint not null,
    result      bytea
);
create index done_finished on done using brin (finished_at);
create index done_dead on done (pool, finished_at) where status <> 1;

create table grp_name (                     -- a group's identity: written once
    pool   int not null,
    name   text collate "C" not null,
    gid    bigint not null,
    stride bigint not null,
    primary key (pool, name)
);

-- A group's state, a last-value log by `ver`. state: 0 dry, 1 eligible, 2 at its limit, 3 waiting for its
-- head. (o1, o2): (turn, join) in a fair pool, its head's (rank, seq) otherwise; a fair group that is out
-- keeps its last turn. `running` is kept only where a limit above 1 needs it: at 1, eligible means 0.
create table grp (
    gid    bigint not null,
    ver    bigint not null,
    o1     bigint not null,
    o2     bigint not null,
    stride bigint not null,
    tail   bigint not null,                 -- last sequence given in a blocking group
    due    bigint not null,
    low    bigint not null,                 -- marked pools: nothing of it is ready below this seq
    pool   int not null,
    running int not null,
    state  smallint not null,
    primary key (gid, ver)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        vacuum_truncate = off);
create index grp_eligible on grp (pool, o1, o2) where state = 1;
create index grp_waiting on grp (pool, due) where state = 3;
