-- schema-5
--
-- Where a group stands on its shelf, for the index of shelves alone. A share mostly has one group, that of the
-- key with its name. It stands before all others there, whatever its first task is, so that a start changes no
-- column of an index: the update is HOT. Readers of a shelf put this one group among the others.
ALTER TABLE millpond_group
    ADD COLUMN shelf_rank bigint NOT NULL GENERATED ALWAYS AS
        (CASE WHEN unit = share AND share <> '' THEN -9223372036854775808 ELSE rank END) STORED,
    ADD COLUMN shelf_seq bigint NOT NULL GENERATED ALWAYS AS
        (CASE WHEN unit = share AND share <> '' THEN 0 ELSE seq END) STORED,
    SET (fillfactor = 50);
DROP INDEX millpond_shelf;
CREATE INDEX millpond_shelf ON millpond_group (pool, share, owner, shelf_rank, shelf_seq) WHERE ready = 1;
