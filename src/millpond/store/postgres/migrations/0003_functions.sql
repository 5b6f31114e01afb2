-- schema-3
--
-- Which functions are installed: each version with the digest of its text (functions.py). The functions
-- themselves are no part of a numbered migration: they are made anew where their digest differs.
CREATE TABLE millpond_functions (
    version      integer PRIMARY KEY,
    digest       text COLLATE "C" NOT NULL,
    installed_at double precision NOT NULL
);
