-- Pools, workers, runs, keys and what concerns the whole store.

-- name: meta
SELECT latest, joined, next_group, next_claim, records, leader, leader_until, generation, behind, since,
       clock
  FROM millpond_meta;

-- name: save_meta
UPDATE millpond_meta
   SET latest = ?, joined = ?, next_group = ?, next_claim = ?, records = ?, leader = ?,
       leader_until = ?, generation = ?, behind = ?, since = ?, clock = ?;

-- name: pool
SELECT * FROM millpond_pool WHERE name = ?;

-- name: pool_by_id
SELECT * FROM millpond_pool WHERE id = ?;

-- name: pools
SELECT * FROM millpond_pool ORDER BY id;

-- name: queued_pools
SELECT * FROM millpond_pool WHERE live > running ORDER BY id;

-- name: last_pool
SELECT coalesce(max(id), 0) FROM millpond_pool;

-- A new pool, or the settings of one that is known.
-- name: save_pool
INSERT INTO millpond_pool VALUES
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
 ?, ?)
    ON CONFLICT (id) DO UPDATE
   SET name = excluded.name, spec = excluded.spec, declared = excluded.declared,
       revision = excluded.revision, created_at = excluded.created_at,
       operator_limit = excluded.operator_limit;

-- The counts, which change with every verb; the settings hardly ever do.
-- name: change_pool
UPDATE millpond_pool
   SET paused = ?, closed = ?, not_before = ?, next_seq = ?, next_lane = ?, live = ?, running = ?,
       claimed = ?, fresh = ?, ready = ?, later = ?, parked = ?, parked_apart = ?, kept = ?,
       stale_settles = ?, measured = ?, totals = ?, grouped = ?, joins = ?, passed_turn = ?,
       passed_join = ?, resting = ?, unit_timers = ?, fading = ?, tats = ?, holding = ?,
       starved = ?, hungry = ?, limiter = ?, special = ?
 WHERE id = ?;

-- name: budgets
SELECT name, spec, declared, operator_limit, buckets, pools, waiting FROM millpond_budget
 ORDER BY name;

-- name: save_budget
INSERT INTO millpond_budget VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE
   SET spec = excluded.spec, declared = excluded.declared,
       operator_limit = excluded.operator_limit, buckets = excluded.buckets,
       pools = excluded.pools, waiting = excluded.waiting;

-- name: add_revision
INSERT INTO millpond_revision VALUES (?, ?, ?)
    ON CONFLICT (pool, revision) DO UPDATE SET spec = excluded.spec;

-- name: revision
SELECT spec FROM millpond_revision WHERE pool = ? AND revision = ?;

-- name: workers
SELECT id, owner, expires_at, lease, number, functions, unknown, ahead FROM millpond_worker
 ORDER BY number;

-- name: worker
SELECT id, owner, expires_at, lease, number, functions, unknown, ahead FROM millpond_worker
 WHERE id = ?;

-- name: save_worker
INSERT INTO millpond_worker VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE
   SET owner = excluded.owner, expires_at = excluded.expires_at, lease = excluded.lease,
       number = excluded.number, functions = excluded.functions, unknown = excluded.unknown,
       ahead = excluded.ahead;

-- name: drop_worker
DELETE FROM millpond_worker WHERE id = ?;

-- name: run
SELECT state FROM millpond_run WHERE id = ?;

-- name: rest_of_run
SELECT pool, name, finished_at, (SELECT count(*) FROM millpond_live AS l WHERE l.run = r.id)
  FROM millpond_run AS r WHERE id = ?;

-- name: holding_of_pool
SELECT worker, count(*) FROM millpond_live WHERE pool = ? AND running = 1 GROUP BY worker;

-- name: open_runs
SELECT id, state FROM millpond_run WHERE finished_at IS NULL ORDER BY id;

-- name: run_named
SELECT id FROM millpond_run WHERE pool = ? AND name = ?;

-- name: save_run
INSERT INTO millpond_run VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE
   SET pool = excluded.pool, name = excluded.name, finished_at = excluded.finished_at,
       state = excluded.state;

-- name: drop_old_runs
DELETE FROM millpond_run WHERE pool = ? AND finished_at < ?;

-- name: key
SELECT task, status, function, fingerprint FROM millpond_key
 WHERE pool = ? AND key = ? AND run = ?;

-- name: some_keys
SELECT key, run, task, status, function, fingerprint FROM millpond_key
 WHERE pool = ? AND key IN names(?);

-- name: save_key
INSERT INTO millpond_key VALUES (?, ?, ?, ?, ?, ?, ?, NULL)
    ON CONFLICT (pool, key, run) DO UPDATE
   SET task = excluded.task, status = excluded.status, function = excluded.function,
       fingerprint = excluded.fingerprint, ended_at = NULL;

-- name: drop_key
DELETE FROM millpond_key WHERE pool = ? AND key = ? AND run = ?;

-- name: age_key
UPDATE millpond_key SET ended_at = ? WHERE pool = ? AND key = ? AND run = ? AND task = ?;

-- name: drop_old_keys
DELETE FROM millpond_key
 WHERE pool = ? AND ended_at < ?
   AND NOT EXISTS (SELECT 1 FROM millpond_task WHERE millpond_task.id = millpond_key.task);

-- name: add_audit
INSERT INTO millpond_audit VALUES (?, ?, ?, ?);

-- name: audit
SELECT position, records, told, at FROM millpond_audit WHERE position > ? ORDER BY position LIMIT ?;

-- Time does not go back from one row to the next: a moment is found by halving. Given is the moment,
-- three times. The third column is when the row in the middle was written.
-- name: audit_before
SELECT max(low) FROM (WITH RECURSIVE halves (low, high, at) AS (
    SELECT CAST(0 AS bigint), m.records,
           (SELECT a.at FROM millpond_audit AS a
             WHERE a.position > m.records / 2 ORDER BY a.position LIMIT 1)
      FROM millpond_meta AS m
     UNION ALL
    SELECT CASE WHEN h.at < ? THEN (h.low + h.high) / 2 + 1 ELSE h.low END,
           CASE WHEN h.at < ? THEN h.high ELSE (h.low + h.high) / 2 END,
           (SELECT a.at FROM millpond_audit AS a
             WHERE a.position > (CASE WHEN h.at < ? THEN (h.low + h.high) / 2 + 1 + h.high
                                      ELSE h.low + (h.low + h.high) / 2 END) / 2
             ORDER BY a.position LIMIT 1)
      FROM halves AS h WHERE h.low < h.high)
SELECT low FROM halves) AS found;

-- name: drop_audit
DELETE FROM millpond_audit
 WHERE position <= (SELECT max(position) FROM
       (SELECT position, at FROM millpond_audit ORDER BY position LIMIT 10000) AS first
        WHERE at < ?);

-- name: add_measured
INSERT INTO millpond_measured VALUES (?, ?, ?);

-- name: drop_measured
DELETE FROM millpond_measured WHERE pool = ? AND upto <= ?;

-- name: measured
SELECT times FROM millpond_measured WHERE pool = ? ORDER BY upto DESC;
