-- schema-3
--
-- Which functions are installed: each version with the digest of its text (server_functions.py). The
-- functions themselves are no part of a numbered migration: where a digest differs, the next process
-- that opens the store installs them again.
CREATE TABLE millpond_functions (
    version      integer PRIMARY KEY,
    digest       text COLLATE "C" NOT NULL,
    installed_at double precision NOT NULL
);

-- How often verbs left the fast path, which these functions are, and why.
CREATE TABLE millpond_detour (
    verb   text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    n      bigint NOT NULL,
    last_at double precision NOT NULL,
    PRIMARY KEY (verb, reason)
);
