-- schema-2
--
-- The inbox: tasks submitted inside transactions of others. Such a transaction may stay open for as
-- long as it likes, so it takes no lock of the store's: it only adds rows here. Whoever writes to the
-- store next moves what was committed into the queue, in the order of `n`, and deletes it by its key,
-- so a row that is committed late is never passed over. Where to look for the next ones is told by
-- transactions (millpond_meta.seen_upto, seen_open): a row of one that was open when somebody looked,
-- or came after, was not seen by him. By their numbers one could not tell.
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
    fingerprint     bigint NOT NULL,        -- 2^63 - 1: told in SQL, not to be compared
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
