-- What others have submitted inside their own transactions, and committed.

-- When a transaction has got its turn: the first of it, in the order in which it came.
-- name: inbox_first
SELECT n, id, pool, extract(epoch FROM clock_timestamp())::double precision - at, spoken, body
  FROM millpond_inbox ORDER BY n LIMIT ?;

-- name: inbox_drop
DELETE FROM millpond_inbox WHERE n = ANY(?::bigint[]);

-- Which of it is there, while something is read.
-- name: inbox_span
SELECT min(n), max(n) FROM millpond_inbox;

-- name: store_identity
SELECT millpond_where();
