-- What SQLite says in its own words: because it must, or because that is faster.

-- A task to which nothing has happened yet; '' stands for none.
-- name: add_queued
INSERT INTO millpond_live (place, id, pool, rank, key, lane, sequence, submitted_at, expires_at,
                           owner, run, due, cancel_requested, running, attempt, runs, fresh, listed,
                           token, grp)
VALUES (?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, ''),
        ?, 0, 0, 0, 0, ?, ?, 0, ?);

-- A queue entry without a task: it gets a body that says nothing, and fails when its turn comes.
-- name: mend_1_bodies
INSERT INTO millpond_task
SELECT place, id, x'' FROM millpond_live WHERE place NOT IN (SELECT place FROM millpond_task)
    ON CONFLICT DO NOTHING;

-- A column takes a value of any kind here.
-- name: check_kinds
SELECT printf('task %s has a value of another kind in its row', id) FROM millpond_live
 WHERE typeof(id) <> 'integer' OR typeof(pool) <> 'integer' OR typeof(rank) <> 'integer'
    OR typeof(key) NOT IN ('text', 'null') OR typeof(lane) NOT IN ('text', 'null')
    OR typeof(sequence) <> 'integer' OR typeof(submitted_at) <> 'real'
    OR typeof(expires_at) NOT IN ('real', 'null') OR typeof(owner) NOT IN ('text', 'null')
    OR typeof(run) NOT IN ('integer', 'null') OR typeof(due) <> 'real'
    OR typeof(claim) NOT IN ('integer', 'null') OR typeof(claim_revision) NOT IN ('integer', 'null')
    OR typeof(cancel_requested) <> 'integer' OR typeof(parked_at) NOT IN ('real', 'null')
    OR typeof(function) NOT IN ('text', 'null') OR typeof(error) NOT IN ('blob', 'null')
    OR typeof(running) <> 'integer' OR typeof(attempt) <> 'integer' OR typeof(runs) <> 'integer'
    OR typeof(fresh) <> 'integer' OR typeof(listed) <> 'integer' OR typeof(token) <> 'integer'
    OR typeof(worker) NOT IN ('text', 'null') OR typeof(started_at) NOT IN ('real', 'null')
    OR typeof(first_started_at) NOT IN ('real', 'null') OR typeof(reason) NOT IN ('text', 'null')
    OR typeof(grp) NOT IN ('integer', 'null') OR abs(due) > 1e300 OR abs(expires_at) > 1e300;

-- name: mend_0_kinds
DELETE FROM millpond_live
 WHERE typeof(id) <> 'integer' OR typeof(pool) <> 'integer' OR typeof(rank) <> 'integer'
    OR typeof(key) NOT IN ('text', 'null') OR typeof(lane) NOT IN ('text', 'null')
    OR typeof(sequence) <> 'integer' OR typeof(submitted_at) <> 'real'
    OR typeof(expires_at) NOT IN ('real', 'null') OR typeof(owner) NOT IN ('text', 'null')
    OR typeof(run) NOT IN ('integer', 'null') OR typeof(due) <> 'real'
    OR typeof(claim) NOT IN ('integer', 'null') OR typeof(claim_revision) NOT IN ('integer', 'null')
    OR typeof(cancel_requested) <> 'integer' OR typeof(parked_at) NOT IN ('real', 'null')
    OR typeof(function) NOT IN ('text', 'null') OR typeof(error) NOT IN ('blob', 'null')
    OR typeof(running) <> 'integer' OR typeof(attempt) <> 'integer' OR typeof(runs) <> 'integer'
    OR typeof(fresh) <> 'integer' OR typeof(listed) <> 'integer' OR typeof(token) <> 'integer'
    OR typeof(worker) NOT IN ('text', 'null') OR typeof(started_at) NOT IN ('real', 'null')
    OR typeof(first_started_at) NOT IN ('real', 'null') OR typeof(reason) NOT IN ('text', 'null')
    OR typeof(grp) NOT IN ('integer', 'null') OR abs(due) > 1e300 OR abs(expires_at) > 1e300;

-- The counts of a pool's row are JSON, by worker.
-- name: check_holding
SELECT printf('pool %s says worker %s runs %d, and it runs %d',
              p.name, h.worker, total(h.said), total(h.counted))
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, j.key AS worker, j.value AS said, 0 AS counted
          FROM millpond_pool AS o, json_each(o.holding) AS j
         UNION ALL
        SELECT pool, worker, 0, count(*) FROM millpond_live WHERE running = 1
         GROUP BY pool, worker) AS h ON h.pool = p.id
 GROUP BY p.id, h.worker HAVING total(h.said) <> total(h.counted);

-- Fair pools write one or two of these with every task, and to replace costs a fifth less.

-- name: save_unit
INSERT OR REPLACE INTO millpond_unit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: save_untimed_unit
INSERT OR REPLACE INTO millpond_unit
       (pool, unit, running, paused, blocked, held_until, tat, groups) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: save_seat
INSERT OR REPLACE INTO millpond_seat VALUES (?, ?, ?, ?, ?, ?);

-- How many failed tasks a pool keeps stands with its totals; an older version stored no such count.
-- name: check_dead
SELECT printf('pool %s says it keeps %s failed tasks, and there are %s', p.name, json_extract(p.totals, '$.dead'), c.dead)
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, count(e.place) AS dead
          FROM millpond_pool AS o
          LEFT JOIN millpond_ended AS e ON e.pool = o.id AND e.completed = 0 AND e.status = 'failed'
         GROUP BY o.id) AS c ON c.pool = p.id
 WHERE json_extract(p.totals, '$.dead') <> c.dead;
