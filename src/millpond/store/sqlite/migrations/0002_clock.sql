-- schema-2
--
-- What is known of a wall clock that was set: how far store time is behind it, since when, and the
-- jumps that were noticed (core/store_time.py). Nothing of it is there as long as no clock is set.

ALTER TABLE millpond_meta ADD COLUMN behind REAL NOT NULL DEFAULT 0.0;
ALTER TABLE millpond_meta ADD COLUMN since REAL NOT NULL DEFAULT 0.0;
ALTER TABLE millpond_meta ADD COLUMN clock TEXT NOT NULL DEFAULT '';

-- Lanes and keys that are held back on their own are shown with their pool.
CREATE INDEX millpond_unit_held ON millpond_unit (pool, held_until) WHERE held_until > 0;
