BEGIN TRANSACTION;
CREATE TABLE millpond_audit (               -- one row per transaction that wrote records
    position INTEGER PRIMARY KEY,           -- of its last record
    records  INTEGER NOT NULL,
    at       REAL NOT NULL,                 -- of its last record
    told     BLOB NOT NULL
);
INSERT INTO "millpond_audit" VALUES(1,1,0.0,X'91DC001DCB0000000000000000A7636F6E74726F6CA5706C61696EC0C0C0C000000000C0C0C0C00000CB000000000000000001C2C0C0A0C0C0C2C0C0B86465636C617265206D61785F636F6E63757272656E743D31');
INSERT INTO "millpond_audit" VALUES(2,1,0.0,X'91DC001DCB0000000000000000A7636F6E74726F6CA5686F6F6B73C0C0C0C000000000C0C0C0C00000CB000000000000000001C2C0C0A0C0C0C2C0C0B86465636C617265206D61785F636F6E63757272656E743D32');
INSERT INTO "millpond_audit" VALUES(3,1,0.0,X'91DC001DCB0000000000000000A7636F6E74726F6CA563616C6C73C0C0C0C000000000C0C0C0C00000CB000000000000000001C2C0C0A0C0C0C2C0C0B86465636C617265206D61785F636F6E63757272656E743D34');
INSERT INTO "millpond_audit" VALUES(4,1,0.0,X'91DC001DCB0000000000000000A67375626D6974A5706C61696ECF7AE3BA0400E19858A67375626D6974C0A671756575656400030000C0C0C0C00101CB000000000000000001C3C0C0A36A6F62A76F726465722D31A7666F7265766572C3C0C0C0');
INSERT INTO "millpond_audit" VALUES(5,1,0.0,X'91DC001DCB0000000000000000A67375626D6974A5706C61696ECF5796FB08037B30F1A67375626D6974C0A671756575656400010000C0C0C0C00202CB000000000000000001C3C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(6,1,0.0,X'91DC001DCB0000000000000000A67375626D6974A5706C61696ECF37D6EE818B5C60D1A67375626D6974C0A671756575656400030000C0C0C0C00303CB000000000000000001C3C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(7,1,0.0,X'91DC001DCB0000000000000000A764657175657565A5706C61696ECF7AE3BA0400E19858A56C65617365A6717565756564A772756E6E696E67010301CF3B414475A9ED3E08B2766D2D323530302D65633432373765322F31C0C0C00101CB000000000000000001C2C0C0A36A6F62A76F726465722D31A7666F7265766572C3C0C0C0');
INSERT INTO "millpond_audit" VALUES(10,3,0.0,X'93DC001DCB0000000000000000A6736574746C65A5706C61696ECF7AE3BA0400E19858A8636F6D706C657465A772756E6E696E67A9636F6D706C65746564010301CF3B414475A9ED3E08B2766D2D323530302D65633432373765322F31C0C0C00101CB000000000000000001C2C0C0A36A6F62A76F726465722D31A7666F7265766572C3C0C0C0DC001DCB0000000000000000A67375626D6974AF706C61696E7E63616C6C6261636B73CF50403D64C09CADC4A67375626D6974C0A671756575656400190000C0C0C0C00101CB000000000000000001C2C0C0A474656C6CC0C0C2CF7AE3BA0400E19858C0C0DC001DCB0000000000000000A764657175657565A5706C61696ECF5796FB08037B30F1A56C65617365A6717565756564A772756E6E696E67010101CF3F239F03EDF45DF6B2766D2D323530302D65633432373765322F31C0C0C00202CB000000000000000001C2C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(11,1,0.0,X'91DC001DCB0000000000000000A764657175657565AF706C61696E7E63616C6C6261636B73CF50403D64C09CADC4A56C65617365A6717565756564A772756E6E696E67011901CF2991540C072443B1B2766D2D323530302D65633432373765322F31C0C0C00101CB000000000000000001C2C0C0A474656C6CC0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(14,3,0.0,X'93DC001DCB0000000000000000A6736574746C65A5706C61696ECF5796FB08037B30F1A46661696CA772756E6E696E67A66661696C6564010101CF3F239F03EDF45DF6B2766D2D323530302D65633432373765322F31C0C0C00202CB000000000000000001C2C0C0A36A6F62C0C0C2C0C0C092DC001DCB0000000000000000A6736574746C65AF706C61696E7E63616C6C6261636B73CF50403D64C09CADC4A8636F6D706C657465A772756E6E696E67A9636F6D706C6574656400190000B2766D2D323530302D65633432373765322F31C0C0C00101CB000000000000000001C2C0C0A474656C6CC0C0C2C0C0C087A47461736B91CF50403D64C09CADC4A7617474656D70749101A472756E739101A5746F6B656E91CF2991540C072443B1A37365719101A873657175656E63659101A364756591CB0000000000000000DC001DCB0000000000000000A764657175657565A5706C61696ECF37D6EE818B5C60D1A56C65617365A6717565756564A772756E6E696E67010301CF7D2678CCB758F727B2766D2D323530302D65633432373765322F31C0C0C00303CB000000000000000001C2C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(15,1,0.0,X'91DC001DCB0000000000000000A57265747279A5706C61696ECF37D6EE818B5C60D1A57265747279A772756E6E696E67A6717565756564010301CF7D2678CCB758F727B2766D2D323530302D65633432373765322F31C0C0C00303CB3FF000000000000001C2C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(16,1,0.5,X'91DC001DCB3FE0000000000000A67375626D6974A5706C61696ECF2F434CCB9F7E79D9A67375626D6974C0A671756575656400030000C0C0C0C00404CB40AC21000000000001C3C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(17,1,0.5,X'91DC001DCB3FE0000000000000A67375626D6974A5706C61696ECF61F834D85EDFC75CA67375626D6974C0A671756575656400030000C0C0C0C00505CB3FE000000000000001C3C0C0A36A6F62C0C0C3C0C0C0');
INSERT INTO "millpond_audit" VALUES(20,3,0.5,X'93DC001DCB3FE0000000000000A67375626D6974A5686F6F6B73CF0D1EF5D83307C9F7A67375626D6974C0A671756575656400030000C0C0C0A1300101CB3FE000000000000001C3C0C0A36A6F62C0C0C2C0C0C0DC001DCB3FE0000000000000A67375626D6974A5686F6F6B73CF6FBA9D4803D12BFDA67375626D6974C0A671756575656400030000C0C0C0A1310201CB3FE000000000000001C3C0C0A36A6F62C0C0C2C0C0C0DC001DCB3FE0000000000000A67375626D6974A5686F6F6B73CF1F4FC15D8B975ECBA67375626D6974C0A671756575656400030000C0C0C0A1300302CB3FE000000000000001C3C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(23,3,0.5,X'93DC001DCB3FE0000000000000A67375626D6974A563616C6C73CF5B5D31F144D1BE0BA67375626D6974C0A671756575656400030000C0A161C0C00101CB3FE000000000000001C3C0C0A36A6F62C0C0C2C0C0C0DC001DCB3FE0000000000000A67375626D6974A563616C6C73CF65A9EF38B59D7CA1A67375626D6974C0A671756575656400030000C0A161C0C00202CB3FE000000000000001C3C0C0A36A6F62C0C0C2C0C0C0DC001DCB3FE0000000000000A67375626D6974A563616C6C73CF6DFBB90B79B66242A67375626D6974C0A671756575656400030000C0A162C0C00303CB3FE000000000000001C3C0C0A36A6F62C0C0C2C0C0C0');
INSERT INTO "millpond_audit" VALUES(24,1,0.5,X'91DC001DCB3FE0000000000000A7636F6E74726F6CA563616C6C73C0C0C0C000000000C0C0C0C00000CB000000000000000001C2C0C0A0C0C0C2C0C0A770617573652062');
INSERT INTO "millpond_audit" VALUES(25,1,0.5,X'91DC001DCB3FE0000000000000A7636F6E74726F6CA5706C61696EC0C0C0C000000000C0C0C0C00000CB000000000000000001C2C0C0A0C0C0C2C0C0B7726573697A65206D61785F636F6E63757272656E743D33');
CREATE TABLE millpond_budget (              -- what pools share; how much is taken is in their rows
    name           TEXT PRIMARY KEY,
    spec           TEXT NOT NULL,           -- what is in force
    declared       TEXT NOT NULL,
    operator_limit INTEGER,
    buckets        TEXT NOT NULL,
    pools          TEXT NOT NULL,           -- who shares it, and since when
    waiting        TEXT NOT NULL
) WITHOUT ROWID;
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
INSERT INTO "millpond_ended" VALUES(1099511627777,1,'completed',1,0.0,NULL,1,1,X'22646F6E6522',NULL,0,NULL,1,0.0,0.0,4269769193876700680,0.0,0.0,NULL,0,0,NULL,NULL);
INSERT INTO "millpond_ended" VALUES(1099511627778,1,'failed',0,0.0,NULL,1,1,NULL,X'83A474797065AA56616C75654572726F72A76D657373616765A3626164A974726163656261636BD99F54726163656261636B20286D6F737420726563656E742063616C6C206C617374293A0A202046696C6520222F746D702F77742D666C6F772D6D657267652F74657374732F73746F72652F73716C6974652F6D616B655F736368656D615F312E7079222C206C696E652033362C20696E206A6F620A2020202072616973652056616C75654572726F7228776F7264290A56616C75654572726F723A206261640A',0,NULL,2,0.0,0.0,4549654887800266230,0.0,0.0,NULL,0,0,NULL,NULL);
INSERT INTO "millpond_ended" VALUES(2199023255553,2,'completed',1,0.0,NULL,1,1,X'6E756C6C',NULL,0,NULL,1,0.0,0.0,2995267637814248369,0.0,0.0,NULL,0,0,NULL,NULL);
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
INSERT INTO "millpond_group" VALUES(1048578,3,'0','','',2,0,1,0.5,1);
INSERT INTO "millpond_group" VALUES(1048579,3,'1','','',1,0,2,0.5,1);
INSERT INTO "millpond_group" VALUES(1048580,5,'a','','',2,0,1,0.5,1);
INSERT INTO "millpond_group" VALUES(1048581,5,'b','','',1,0,3,0.5,0);
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
INSERT INTO "millpond_key" VALUES(1,'order-1',0,8855125818697947224,'completed','job',7726308681867975852,NULL);
CREATE TABLE millpond_lane (
    pool      INTEGER NOT NULL,
    lane      TEXT NOT NULL,
    sequence  INTEGER NOT NULL,             -- the last that was given: gap-free, never used again
    processed INTEGER NOT NULL,
    PRIMARY KEY (pool, lane)
) WITHOUT ROWID;
INSERT INTO "millpond_lane" VALUES(3,'0',2,0);
INSERT INTO "millpond_lane" VALUES(3,'1',1,0);
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
INSERT INTO "millpond_live" VALUES(1099511627779,4023665557258395857,1,0,NULL,NULL,3,0.0,NULL,NULL,NULL,1.0,NULL,NULL,0,NULL,NULL,X'83A474797065AA56616C75654572726F72A76D657373616765A5666C616B79A974726163656261636BD9A154726163656261636B20286D6F737420726563656E742063616C6C206C617374293A0A202046696C6520222F746D702F77742D666C6F772D6D657267652F74657374732F73746F72652F73716C6974652F6D616B655F736368656D615F312E7079222C206C696E652033362C20696E206A6F620A2020202072616973652056616C75654572726F7228776F7264290A56616C75654572726F723A20666C616B790A',NULL,NULL,0,1,1,0,0,9018028124500719399,NULL,0.0,0.0,NULL,0);
INSERT INTO "millpond_live" VALUES(1099511627780,3405650180660165081,1,0,NULL,NULL,4,0.5,NULL,NULL,NULL,3600.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,0);
INSERT INTO "millpond_live" VALUES(1099511627781,7059450519812556636,1,0,NULL,NULL,5,0.5,NULL,NULL,NULL,0.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,1);
INSERT INTO "millpond_live" VALUES(3298534883329,945463280712272375,3,0,NULL,'0',1,0.5,NULL,NULL,NULL,0.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,1048578);
INSERT INTO "millpond_live" VALUES(3298534883330,8050920216505428989,3,0,NULL,'1',1,0.5,NULL,NULL,NULL,0.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,1048579);
INSERT INTO "millpond_live" VALUES(3298534883331,2256234545853980363,3,0,NULL,'0',2,0.5,NULL,NULL,NULL,0.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,1048578);
INSERT INTO "millpond_live" VALUES(5497558138881,6583473142597008907,5,0,'a',NULL,1,0.5,NULL,NULL,NULL,0.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,1048580);
INSERT INTO "millpond_live" VALUES(5497558138882,7325649295739026593,5,0,'a',NULL,2,0.5,NULL,NULL,NULL,0.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,1048580);
INSERT INTO "millpond_live" VALUES(5497558138883,7925131428226294338,5,0,'b',NULL,3,0.5,NULL,NULL,NULL,0.5,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,0,0,1,0,0,NULL,NULL,NULL,NULL,1048581);
CREATE TABLE millpond_measured (            -- how long the latest attempts waited and ran
    pool  INTEGER NOT NULL,
    upto  INTEGER NOT NULL,
    times BLOB NOT NULL,
    PRIMARY KEY (pool, upto)
) WITHOUT ROWID;
INSERT INTO "millpond_measured" VALUES(1,1,X'00000000000000000000000000000000');
INSERT INTO "millpond_measured" VALUES(1,2,X'00000000000000000000000000000000');
INSERT INTO "millpond_measured" VALUES(1,3,X'00000000000000000000000000000000');
INSERT INTO "millpond_measured" VALUES(2,1,X'00000000000000000000000000000000');
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
INSERT INTO "millpond_meta" VALUES(1,0.5,1,1048582,1,25,'vm-2500-ec4277e2',20.0,1);
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
INSERT INTO "millpond_pool" VALUES(1,'plain','{"name":"plain","max_concurrent":3,"order":{"kind":"priority","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}','{"name":"plain","max_concurrent":1,"order":{"kind":"priority","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}',2,0.0,3,0,0,0.0,5,0,3,0,0,2,1,2,0,0,2,0,3,'{"completed":1,"failed":1}',0,0,0,0,0,0,0,'[]','{}','{}','{}','',0);
INSERT INTO "millpond_pool" VALUES(2,'plain~callbacks','{"name":"plain~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}','{"name":"plain~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}',1,0.0,NULL,0,0,0.0,1,0,0,0,0,0,0,0,0,0,1,0,1,'{"completed":1}',0,0,0,0,0,0,0,'[]','{}','{}','{}','',0);
INSERT INTO "millpond_pool" VALUES(3,'hooks','{"name":"hooks","max_concurrent":2,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":2,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}','{"name":"hooks","max_concurrent":2,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":2,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}',1,0.0,NULL,0,0,0.0,3,3,3,0,0,3,3,0,0,0,0,0,0,'{}',1,1,0,0,0,0,0,'[]','{}','{}','{}','',0);
INSERT INTO "millpond_pool" VALUES(4,'hooks~callbacks','{"name":"hooks~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}','{"name":"hooks~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}',1,0.0,NULL,0,0,0.0,0,0,0,0,0,0,0,0,0,0,0,0,0,'{}',0,0,0,0,0,0,0,'[]','{}','{}','{}','',0);
INSERT INTO "millpond_pool" VALUES(5,'calls','{"name":"calls","max_concurrent":4,"order":{"kind":"priority","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":1,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}','{"name":"calls","max_concurrent":4,"order":{"kind":"priority","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":1,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}',1,0.0,NULL,0,0,0.0,3,0,3,0,0,3,3,0,0,0,0,0,0,'{}',1,1,0,0,0,0,0,'[]','{}','{}','{}','',0);
INSERT INTO "millpond_pool" VALUES(6,'calls~callbacks','{"name":"calls~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}','{"name":"calls~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}',1,0.0,NULL,0,0,0.0,0,0,0,0,0,0,0,0,0,0,0,0,0,'{}',0,0,0,0,0,0,0,'[]','{}','{}','{}','',0);
CREATE TABLE millpond_removed (             -- ids of tasks that retention took, the latest of them
    n  INTEGER PRIMARY KEY,
    id INTEGER NOT NULL UNIQUE
);
CREATE TABLE millpond_revision (            -- every configuration a pool ever had
    pool     INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    spec     TEXT NOT NULL,
    PRIMARY KEY (pool, revision)
) WITHOUT ROWID;
INSERT INTO "millpond_revision" VALUES(1,1,'{"name":"plain","max_concurrent":1,"order":{"kind":"priority","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}');
INSERT INTO "millpond_revision" VALUES(1,2,'{"name":"plain","max_concurrent":3,"order":{"kind":"priority","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}');
INSERT INTO "millpond_revision" VALUES(2,1,'{"name":"plain~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}');
INSERT INTO "millpond_revision" VALUES(3,1,'{"name":"hooks","max_concurrent":2,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":2,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}');
INSERT INTO "millpond_revision" VALUES(4,1,'{"name":"hooks~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}');
INSERT INTO "millpond_revision" VALUES(5,1,'{"name":"calls","max_concurrent":4,"order":{"kind":"priority","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":1,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}');
INSERT INTO "millpond_revision" VALUES(6,1,'{"name":"calls~callbacks","max_concurrent":16,"order":{"kind":"fifo","aging":null,"key":"key","weights":{}},"backpressure":null,"max_per_key":null,"rates":[],"rate_per_key":null,"lanes":null,"ordered":false,"max_callbacks":16,"prefetch":0,"budgets":[],"adaptive":null}');
CREATE TABLE millpond_run (
    id          INTEGER PRIMARY KEY,
    pool        TEXT NOT NULL,
    name        TEXT,
    finished_at REAL,
    state       BLOB NOT NULL
);
CREATE TABLE millpond_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    applied_at REAL NOT NULL
);
INSERT INTO "millpond_schema" VALUES(1,'tables','e9fe28f1610a11eaf923b01c4ecd2aa6e626601dbc97d4d2c34eb0b23005ee50',1.79477934412056040766e+09);
CREATE TABLE millpond_seat (                -- the fair ring
    pool    INTEGER NOT NULL,
    share   TEXT NOT NULL,
    owner   TEXT NOT NULL,
    turn    INTEGER NOT NULL,
    joined  INTEGER NOT NULL,
    resting INTEGER NOT NULL CHECK (resting IN (0, 1)),
    PRIMARY KEY (pool, share, owner)
) WITHOUT ROWID;
INSERT INTO "millpond_seat" VALUES(3,'','',0,1,0);
INSERT INTO "millpond_seat" VALUES(5,'','',0,1,0);
CREATE TABLE millpond_task (
    place INTEGER PRIMARY KEY,
    id    INTEGER NOT NULL UNIQUE,
    body  BLOB NOT NULL
);
INSERT INTO "millpond_task" VALUES(1099511627777,8855125818697947224,X'DE0007A26964CF7AE3BA0400E19858A4706F6F6CA5706C61696EA463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C40F7B22776F7264223A22646F6E65227DA564656C6179CB0000000000000000AF6964656D706F74656E63795F6B6579A76F726465722D31AB66696E6765727072696E74CF6B395CCF77C1DCACAB6F6E5F636F6D706C65746582A866756E6374696F6EA474656C6CA77061796C6F6164C4027B7D');
INSERT INTO "millpond_task" VALUES(1099511627778,6311507939643044081,X'DE0006A26964CF5796FB08037B30F1A4706F6F6CA5706C61696EA463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C40E7B22776F7264223A22626164227DA564656C6179CB0000000000000000A8617474656D70747301A76F7074696F6E73C48581A5726574727989A8617474656D70747301A7696E697469616CCB3FF0000000000000A6666163746F72CB4000000000000000A96D61785F64656C6179CB404E000000000000A66A6974746572CB3FB999999999999AAD676976655F75705F6166746572C0A56375727665AB6578706F6E656E7469616CA26F6E90A86E657665725F6F6E90');
INSERT INTO "millpond_task" VALUES(1099511627779,4023665557258395857,X'DE0003A26964CF37D6EE818B5C60D1A4706F6F6CA5706C61696EA463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C4107B22776F7264223A22666C616B79227D');
INSERT INTO "millpond_task" VALUES(1099511627780,3405650180660165081,X'DE0004A26964CF2F434CCB9F7E79D9A4706F6F6CA5706C61696EA463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C4107B22776F7264223A226C61746572227DA564656C6179CB40AC200000000000');
INSERT INTO "millpond_task" VALUES(1099511627781,7059450519812556636,X'DE0006A26964CF61F834D85EDFC75CA4706F6F6CA5706C61696EA463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C4127B22776F7264223A2277616974696E67227DA66C6162656C7381A3666F72A26D65A564656C6179CB0000000000000000AB6F6E5F636F6D706C65746582A866756E6374696F6EA474656C6CA77061796C6F6164C4027B7D');
INSERT INTO "millpond_task" VALUES(2199023255553,5782689424481234372,X'DE0006A26964CF50403D64C09CADC4A4706F6F6CAF706C61696E7E63616C6C6261636B73A463616C6C82A866756E6374696F6EA474656C6CA77061796C6F6164C4027B7DA8617474656D70747319AC7375626D69747465645F6279B87461736B3A38383535313235383138363937393437323234A76F7074696F6E73C46C8AA47461736BCF7AE3BA0400E19858A4706F6F6CA5706C61696EA866756E6374696F6EA36A6F62A36B6579C0A66C6162656C7380A6737461747573A9636F6D706C65746564A6726561736F6EC0A7617474656D707401A6726573756C74C40622646F6E6522A56572726F72C0');
INSERT INTO "millpond_task" VALUES(3298534883329,945463280712272375,X'DE0003A26964CF0D1EF5D83307C9F7A4706F6F6CA5686F6F6B73A463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C40E7B22776F7264223A226F6E65227D');
INSERT INTO "millpond_task" VALUES(3298534883330,8050920216505428989,X'DE0003A26964CF6FBA9D4803D12BFDA4706F6F6CA5686F6F6B73A463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C40E7B22776F7264223A2274776F227D');
INSERT INTO "millpond_task" VALUES(3298534883331,2256234545853980363,X'DE0003A26964CF1F4FC15D8B975ECBA4706F6F6CA5686F6F6B73A463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C4107B22776F7264223A227468726565227D');
INSERT INTO "millpond_task" VALUES(5497558138881,6583473142597008907,X'DE0005A26964CF5B5D31F144D1BE0BA4706F6F6CA563616C6C73A463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C40F7B22776F7264223A2263616C6C227DA36B6579A161A564656C6179CB0000000000000000');
INSERT INTO "millpond_task" VALUES(5497558138882,7325649295739026593,X'DE0005A26964CF65A9EF38B59D7CA1A4706F6F6CA563616C6C73A463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C40F7B22776F7264223A2263616C6C227DA36B6579A161A564656C6179CB0000000000000000');
INSERT INTO "millpond_task" VALUES(5497558138883,7925131428226294338,X'DE0005A26964CF6DFBB90B79B66242A4706F6F6CA563616C6C73A463616C6C82A866756E6374696F6EA36A6F62A77061796C6F6164C40F7B22776F7264223A2263616C6C227DA36B6579A162A564656C6179CB0000000000000000');
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
INSERT INTO "millpond_unit" VALUES(3,'0',0,0,0,0.0,0,1,NULL,NULL,NULL,NULL);
INSERT INTO "millpond_unit" VALUES(3,'1',0,0,0,0.0,0,1,NULL,NULL,NULL,NULL);
INSERT INTO "millpond_unit" VALUES(5,'a',0,0,0,0.0,0,1,NULL,NULL,NULL,NULL);
INSERT INTO "millpond_unit" VALUES(5,'b',0,1,0,0.0,0,1,NULL,NULL,NULL,NULL);
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
CREATE INDEX millpond_ended_at ON millpond_ended (pool, completed, finished_at, place);
CREATE INDEX millpond_old_key ON millpond_key (pool, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX millpond_unit_timer ON millpond_unit (pool, timer_at, timer_rank, timer_seq)
    WHERE timer_at IS NOT NULL;
CREATE INDEX millpond_unit_fading ON millpond_unit (pool, fades_at) WHERE fades_at IS NOT NULL;
CREATE INDEX millpond_unit_paused ON millpond_unit (pool) WHERE paused = 1;
CREATE INDEX millpond_shelf ON millpond_group (pool, share, owner, rank, seq) WHERE ready = 1;
CREATE INDEX millpond_turn ON millpond_seat (pool, owner, turn, joined) WHERE resting = 0;
CREATE INDEX millpond_resting ON millpond_seat (pool, turn, joined) WHERE resting = 1;
CREATE UNIQUE INDEX millpond_run_name ON millpond_run (pool, name) WHERE name IS NOT NULL;
CREATE INDEX millpond_run_open ON millpond_run (id) WHERE finished_at IS NULL;
CREATE INDEX millpond_run_over ON millpond_run (pool, finished_at) WHERE finished_at IS NOT NULL;
COMMIT;
