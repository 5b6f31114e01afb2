-- schema-2
--
-- The inbox: tasks that callers submit inside their own transactions. Such a transaction may stay open
-- for any time, so it takes no lock of the store: it only adds rows here. The next writer of the store
-- moves the committed rows into the queue, in the order of `n`, and deletes them by their key, so it
-- never passes over a row that is committed late. It finds new rows by their transactions
-- (millpond_meta.seen_upto, seen_open): those that were open at the last move, or began after it. The
-- numbers `n` do not show which rows are new.
--
-- Checked is what is committed, and what the transaction itself has submitted. What only shows when a
-- task is moved (two transactions with one idempotency key) ends there as rejected.

CREATE TABLE millpond_inbox (
    n               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              bigint NOT NULL UNIQUE,
    pool            text COLLATE "C" NOT NULL,
    at              double precision NOT NULL DEFAULT millpond_clock(),
    key             text COLLATE "C",
    idempotency_key text COLLATE "C",
    function        text COLLATE "C" NOT NULL,
    fingerprint     bigint NOT NULL,        -- 2^63 - 1: submitted in SQL, not to be compared
    spoken          smallint NOT NULL CHECK (spoken IN (0, 1)),  -- its body is the words of `submit`
    body            bytea NOT NULL,
    xid             xid8 NOT NULL DEFAULT pg_current_xact_id()
);

CREATE INDEX millpond_inbox_xid ON millpond_inbox (xid, n);
CREATE INDEX millpond_inbox_key ON millpond_inbox (pool, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX millpond_inbox_pool ON millpond_inbox (pool, key);

ALTER TABLE millpond_inbox SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

-- A name that no other store has: a connection to another database is known by it.
DO $make$
BEGIN
    EXECUTE format(
        'CREATE FUNCTION millpond_identity() RETURNS text LANGUAGE sql IMMUTABLE AS %L',
        format('SELECT %L::text', gen_random_uuid())
    );
END
$make$;
