-- The claim spike, SQLite: settle, renew, recover.

-- The fence: the caller compares (attempt, token) of what is held now with what it was given.
-- name: held
SELECT id, attempt, token, grp, rank, seq, worker, started_at FROM lease
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: add_done
INSERT INTO done (id, pool, status, attempt, worker, started_at, finished_at, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_leases
DELETE FROM lease WHERE id IN (SELECT value FROM json_each(:ids));

-- Before the leases go: every touched group counts down once; the answer says which were at their limit.
-- name: count_down
UPDATE grp SET running = running - s.n
  FROM (SELECT grp, count(*) AS n FROM lease
         WHERE id IN (SELECT value FROM json_each(:ids)) GROUP BY grp) AS s
 WHERE grp.id = s.grp RETURNING grp.id, grp.state;

-- One small write per interval, however many leases the worker holds.
-- name: renew
INSERT INTO worker (id, expires) VALUES (:worker, :expires)
ON CONFLICT (id) DO UPDATE SET expires = excluded.expires;

-- Recovery reads the leases, never the backlog: there are at most max_concurrent of them.
-- name: leases_of
SELECT id, attempt, token FROM lease WHERE worker = :worker;
