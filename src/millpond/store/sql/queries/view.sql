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

-- What runs of a lane is the first of it.
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
