-- schema-1
CREATE TABLE millpond_clock (
    latest REAL NOT NULL
) STRICT;
