-- What the functions of a step give each other. Lists have one value per task; a list of one value holds
-- it for every task, and an empty list of keys means that none has one.

-- The answer of millpond_settle_and_lease.
CREATE TYPE millpond_step_answer AS (
    refused     text,                -- why nothing was done; NULL = it was done
    moment      double precision,
    pool_name   text,
    live_left   bigint,              -- tasks that wait or run
    running_now bigint,
    has_room    boolean,
    processed   bigint,              -- completed and failed tasks, ever
    next_at     double precision,    -- when to ask again; NULL = nothing is known to come
    give_back   boolean,             -- whether the worker should give back what it prefetched
    starting    integer,             -- how many of the following are started; the others are prefetched
    tokens      bigint[],            -- of the first of them, which were prefetched before
    ids         bigint[],
    places      bigint[],
    submitted   double precision[],
    dues        double precision[],
    bodies      bytea[],
    finished_runs bigint[],
    attempts    integer[],           -- which attempt of each this is; NULL = the first of all
    first_started_at double precision[], -- when the first attempt began; NULL = now
    wake_at     double precision,    -- when tasks that went back to the queue can start; NULL = no matter
    lanes       text[],              -- of a pool with lanes: where each task stands; NULL = it has none
    sequences   bigint[],
    dry_lanes   text[],              -- the lanes that the ends left empty; NULL = the pool has none
    dry_processed bigint[],          -- how many tasks of each were completed or failed, ever
    was_full    boolean,             -- whether a worker may sleep because there was no room
    simple      bigint[]             -- of a simple pool, for millpond_step_simple: its number, the digest of its
                                     -- settings and its limit; NULL = only this function can do it
);

-- The attempts that end, all of one pool and one worker, and the prefetched tasks that start in their slots.
CREATE TYPE millpond_ends AS (
    pool       bigint,
    worker     text,
    begun      integer,              -- how many prefetched tasks start
    starts     boolean[],            -- which of the following start; NULL = all end
    ids        bigint[],
    places     bigint[],
    due        double precision[],
    tokens     bigint[],
    keys       text[],
    plain      text[],
    started_at double precision,     -- they are one whole lease that started at this moment
    measured   bigint,               -- millpond_pool.measured; their times are stored already
    times      bytea,                -- or their times, and how many
    timed      bigint,
    -- Where tasks have rows of their own (millpond_end_rows); else all of them are completed.
    over       integer,              -- how many tasks end with their attempts; the others go back
    failed     integer,              -- how many of them failed
    events     text[],               -- what happens to each
    differs    text[],               -- more of each, as JSON; see millpond_audit
    back       bigint[],             -- the places of those that go back and are due
    back_at    integer[],            -- which of the attempts these are
    first_back integer,              -- which is the first that goes back
    later      integer,              -- how many go back and wait outside the queue until they are due
    first_due  double precision,     -- when the first is due of all that go back and are not
    back_due   boolean,              -- whether some go back and are due
    lanes      text[]                -- where tasks stand that have rows of their own; NULL = they have no lane
);

-- What the settings of a pool say, and its budgets.
CREATE TYPE millpond_rules AS (
    refused      text,
    unknown      boolean,            -- there is an option that these functions do not know
    flow         boolean,            -- it has rates or budgets, and nothing else that is special
    grouped      boolean,            -- lanes, keys or shares say what is next
    in_lanes     boolean,            -- its lanes run one task at a time, in their order
    lanes        bigint,             -- how many there are; NULL = each key is one
    fair         boolean,            -- shares take turns
    weights      jsonb,              -- of shares; NULL = all have the same
    limited      boolean,            -- units have a limit or a rate
    unit_limit   bigint,             -- how many tasks of one lane or key run at once
    a_limit      bigint,
    prefetch     bigint,
    key_interval bigint,             -- of the rate of each key; NULL = none
    key_depth    bigint,
    moment       double precision,
    ticks        bigint,             -- the moment, in microseconds
    promoted     bigint,             -- how many tasks became due
    rates        jsonb,
    tats         jsonb,              -- the buckets of the rates
    budgets      text[],
    budget_names jsonb,
    budget_rates jsonb[],
    budget_buckets jsonb[],
    budget_left  bigint[]
);

-- Prefetched tasks that start.
CREATE TYPE millpond_begun AS (
    ids          bigint[],
    places       bigint[],
    tokens       bigint[],
    submitted_at double precision[],
    due          double precision[],
    keys         text[],
    plain        text[],
    bodies       bytea[]
);

-- How many tasks a worker may start and prefetch.
CREATE TYPE millpond_room AS (
    refused    text,
    slots      bigint,               -- how many it may start that it has not prefetched
    beginning  bigint,               -- how many it starts that it has prefetched
    may_claim  bigint,               -- how many it may prefetch
    own_claims bigint,               -- how many it has prefetched
    functions  jsonb,                -- what it knows; NULL = all
    unknown    jsonb                 -- what it does not know
);

-- The next tasks of a queue.
CREATE TYPE millpond_next AS (
    refused      text,
    n            integer,
    spots        tid[],              -- their rows in millpond_live
    ids          bigint[],
    places       bigint[],
    ranks        bigint[],
    submitted_at double precision[],
    due          double precision[],
    keys         text[],
    plain        text[],
    bodies       bytea[],
    simple       boolean,            -- nothing hangs on any of them
    fresh        bigint,             -- how many count for the bound of the queue
    own_rows     integer[],          -- which of them keep their rows; NULL = all can be folded
    attempts     integer[],          -- how many attempts each has had; NULL = none
    runs         integer[],
    first_started_at double precision[],
    lanes        text[],             -- of a pool with lanes: where each stands; NULL = it has none
    sequences    bigint[],
    -- Of a pool with lanes, keys or shares: how many of each group there are among them, and what is next there.
    groups       tid[],
    units        tid[],              -- of each group
    taken        bigint[],
    entered      bigint[],           -- how many of them count for the unit
    next_ranks   bigint[],           -- NULL = nothing is left
    next_seqs    bigint[],
    next_dues    double precision[],
    ready_then   boolean[],
    waiting      text[],             -- the units whose rate holds the next task
    seats        tid[],              -- of the shares of these tasks, each with its turn afterwards
    turns        bigint[],
    resting      boolean[],          -- whether the share has nothing left that may start
    last_turn    bigint,             -- the turn that is served last
    last_joined  bigint
);

-- New tasks of a submit.
CREATE TYPE millpond_new AS (
    base         bigint,             -- the place before the first
    count        integer,
    later        integer,            -- how many of them are not due
    first_due    double precision,   -- of those
    ids          bigint[],
    bodies       bytea[],
    plains       text[],
    keys         text[],
    priorities   bigint[],
    shares       text[],
    dues         double precision[], -- NULL = all are due
    expires      double precision[],
    idempotency_keys text[],
    functions    text[],
    fingerprints bigint[],
    keys_stored  boolean,            -- whether some of these keys have a row
    runs         bigint[],           -- empty = none is of a run
    lanes        text[],             -- of a pool with lanes; NULL = it has none
    sequences    bigint[],
    positions    bigint[]            -- how many wait before it in its lane
);

-- What touches groups: units that have come free or whose timers are due, and tasks that come, with where each belongs
-- and stands, and when it is due.
CREATE TYPE millpond_touched AS (
    units        text[],
    unit_at      bigint[],           -- in which order units and groups are touched
    group_units  text[],
    group_shares text[],
    ranks        bigint[],
    seqs         bigint[],
    dues         double precision[],
    group_at     bigint[],
    pops         boolean             -- the timers that are due have done their work
);
