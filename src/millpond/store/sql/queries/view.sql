-- Reading, for people and for those who wait.

-- name: ended_of_pool
SELECT e.*, t.id, t.body FROM millpond_ended AS e JOIN millpond_task AS t ON t.place = e.place
 WHERE e.place > ? AND e.place <= ? ORDER BY e.place LIMIT ?;

-- name: status_of
SELECT t.id, CASE WHEN e.status IS NOT NULL THEN e.status
                  WHEN l.running = 1 THEN 'running' ELSE 'queued' END
  FROM millpond_task AS t
  LEFT JOIN millpond_ended AS e ON e.place = t.place
  LEFT JOIN millpond_live AS l ON l.place = t.place
 WHERE t.id IN ids(?);

-- Those that have not ended have no status here.
-- name: results_of
SELECT t.id, e.status, e.attempt, e.result, e.error, e.reason
  FROM millpond_task AS t LEFT JOIN millpond_ended AS e ON e.place = t.place
 WHERE t.id IN ids(?);

-- name: oldest_queued
SELECT submitted_at FROM millpond_live
 WHERE place > ? AND place <= ? AND running = 0 ORDER BY place LIMIT 1;

-- The running task of a lane is its first.
-- name: lanes_with_work
SELECT lane, count(*) FILTER (WHERE running = 0),
       min(CASE WHEN running = 1 THEN sequence END)
  FROM millpond_live
 WHERE place > ? AND place <= ? AND lane IS NOT NULL GROUP BY lane;

-- name: worker_names
SELECT id FROM millpond_worker;

-- The plus keeps the order from being had by a walk through everything that waits.
-- name: held_in_pool
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.worker IS NOT NULL AND l.running = 1 AND l.pool = ? ORDER BY +l.place;

-- name: held_units
SELECT unit, held_until FROM millpond_unit WHERE pool = ? AND held_until > 0 AND held_until > ?
 ORDER BY held_until DESC, unit LIMIT ?;

-- Searches: each reads a page behind a place, by an index.

-- name: live_before
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.place > ? AND l.place < ? ORDER BY l.place DESC LIMIT ?;

-- name: ended_by_end
SELECT e.*, t.id, t.body FROM millpond_ended AS e JOIN millpond_task AS t ON t.place = e.place
 WHERE e.pool = ? AND e.completed = ? AND (e.finished_at, e.place) < (?, ?)
 ORDER BY e.finished_at DESC, e.place DESC LIMIT ?;

-- name: later_of_pool
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.pool = ? AND l.grp = 0 AND (l.due, l.place) > (?, ?) ORDER BY l.due, l.place LIMIT ?;

-- The plus keeps the order from being had by a walk through everything that waits.
-- name: parked_of_pool
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.pool = ? AND l.function IS NOT NULL AND l.place > ? ORDER BY +l.place;

-- All pools at once.

-- name: oldest_queued_of
SELECT j.value, (SELECT l.submitted_at FROM millpond_live AS l
                  WHERE l.place > j.value * 1099511627776
                    AND l.place <= (j.value + 1) * 1099511627776 AND l.running = 0
                  ORDER BY l.place LIMIT 1)
  FROM numbered(?) AS j;

-- name: due_of_later
SELECT j.value, (SELECT count(*) FROM
                 (SELECT 1 FROM millpond_live AS l
                   WHERE l.pool = j.value AND l.grp = 0 AND l.due <= ? LIMIT ?) AS due)
  FROM numbered(?) AS j;

-- name: all_paused_units
SELECT pool, unit FROM millpond_unit WHERE paused = 1 LIMIT ?;

-- name: first_units
SELECT unit, running, paused, held_until FROM millpond_unit WHERE pool = ? ORDER BY unit LIMIT ?;

-- name: ready_of_units
SELECT unit, share, CAST(sum(tasks) AS bigint) FROM millpond_group
 WHERE pool = ? AND unit IN names(?) GROUP BY unit, share;

-- name: latest_revisions
SELECT revision FROM millpond_revision WHERE pool = ? ORDER BY revision DESC LIMIT ?;

-- Workers and runs.

-- name: running_by_worker
SELECT worker, count(*) FROM millpond_live WHERE worker IS NOT NULL AND running = 1 GROUP BY worker;

-- name: held_first
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.worker = ? AND l.running = 1 ORDER BY l.place LIMIT ?;

-- name: runs_open
SELECT id, state FROM millpond_run
 WHERE finished_at IS NULL AND pool = ? AND id > ? ORDER BY id LIMIT ?;

-- name: runs_over
SELECT id, state FROM millpond_run
 WHERE pool = ? AND finished_at IS NOT NULL AND (finished_at, id) < (?, ?)
 ORDER BY finished_at DESC, id DESC LIMIT ?;
