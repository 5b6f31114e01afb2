-- Tasks that callers have submitted inside their own transactions, and committed.

-- For a transaction that has the writers' lock: all rows that no move has seen, up to a limit, and which
-- transactions were over by then. All are of one moment, as it is one statement.
-- name: inbox_new
SELECT i.n, i.id, i.pool, millpond_clock() - i.at, i.spoken,
       i.body, i.key, i.idempotency_key, i.function, s.upto::text, s.open::text
  FROM (SELECT pg_snapshot_xmax(now.seen) AS upto, ARRAY(SELECT pg_snapshot_xip(now.seen)) AS open
          FROM (SELECT pg_current_snapshot() AS seen) AS now) AS s,
       (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m,
       LATERAL ((SELECT * FROM millpond_inbox AS o WHERE o.xid >= m.seen_upto
                  ORDER BY o.xid, o.n LIMIT $1)
                UNION ALL
                (SELECT * FROM millpond_inbox AS o
                  WHERE o.xid = ANY(m.seen_open) AND o.xid < m.seen_upto LIMIT $1)) AS i
 ORDER BY i.n LIMIT $1;

-- Or only the first of it, in the order in which it came.
-- name: inbox_first
SELECT n, id, pool, millpond_clock() - at, spoken, body, key,
       idempotency_key, function
  FROM millpond_inbox ORDER BY n LIMIT ?;

-- name: inbox_seen
UPDATE millpond_meta SET seen_upto = ?::text::xid8, seen_open = ?::text::xid8[]
 WHERE ctid = (SELECT ctid FROM millpond_meta ORDER BY turn DESC LIMIT 1);

-- Tables that came from another server hold the transaction ids of that server: they mean nothing here.
-- name: inbox_foreign
SELECT seen_upto > pg_snapshot_xmax(pg_current_snapshot())
       OR coalesce(server <> millpond_server(), false)
  FROM millpond_meta ORDER BY turn DESC LIMIT 1;

-- name: inbox_unseen
UPDATE millpond_meta
   SET seen_upto = '0', seen_open = '{}', server = coalesce(millpond_server(), server)
 WHERE seen_upto > pg_snapshot_xmax(pg_current_snapshot())
    OR coalesce(server <> millpond_server(), false);

-- name: check_inbox
SELECT format('task %s waits in the inbox, and no writer would find it', i.id)
  FROM millpond_inbox AS i CROSS JOIN millpond_meta AS m
 WHERE i.xid < m.seen_upto AND i.xid <> ALL(m.seen_open);

-- name: inbox_drop
DELETE FROM millpond_inbox WHERE n = ANY(?::bigint[]);

-- Which of it is there, while something is read.
-- name: inbox_span
SELECT min(i.n), max(i.n)
  FROM (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m,
       LATERAL ((SELECT o.n FROM millpond_inbox AS o WHERE o.xid >= m.seen_upto)
                UNION ALL
                (SELECT o.n FROM millpond_inbox AS o
                  WHERE o.xid = ANY(m.seen_open) AND o.xid < m.seen_upto)) AS i;

-- name: store_identity
SELECT millpond_where();
