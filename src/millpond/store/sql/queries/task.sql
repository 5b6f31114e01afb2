-- Tasks: their bodies, where they are, and how they ended.
-- Lists of ids travel as one argument: one prepared statement serves every size.

-- name: live_tasks
SELECT l.*, t.body FROM millpond_task AS t JOIN millpond_live AS l ON l.place = t.place
 WHERE t.id IN ids(?);

-- name: live_task
SELECT l.*, t.body FROM millpond_task AS t JOIN millpond_live AS l ON l.place = t.place
 WHERE t.id = ?;

-- name: ended_tasks
SELECT e.*, t.id, t.body FROM millpond_task AS t JOIN millpond_ended AS e ON e.place = t.place
 WHERE t.id IN ids(?);

-- name: known_ids
SELECT id FROM millpond_task WHERE id IN ids(?);

-- name: add_task
INSERT INTO millpond_task (place, id, body) VALUES (?, ?, ?);

-- name: drop_task
DELETE FROM millpond_task WHERE place = ?;

-- name: add_live
INSERT INTO millpond_live VALUES
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- An update of a waiting task: its body, and what follows from it.
-- name: update_task
UPDATE millpond_task SET body = ? WHERE place = ?;

-- name: update_live
UPDATE millpond_live SET rank = ?, expires_at = ?, grp = ? WHERE place = ?;

-- What else may change of a live task. Its key, lane, owner and run never do.
-- name: change_live
UPDATE millpond_live
   SET due = ?, claim = ?, claim_revision = ?, cancel_requested = ?, parked_at = ?, function = ?,
       error = ?, progress = ?, steps = ?, running = ?, attempt = ?, runs = ?, fresh = ?,
       listed = ?, token = ?, worker = ?, started_at = ?, first_started_at = ?, reason = ?, grp = ?
 WHERE place = ?;

-- The start of tasks, the busiest of all changes: those of one claim start together.
-- name: start_live
UPDATE millpond_live
   SET running = 1, attempt = attempt + 1, runs = runs + 1, fresh = 0, listed = 0, token = ?,
       worker = ?, started_at = ?, first_started_at = coalesce(first_started_at, ?), reason = ?,
       grp = NULL, claim = NULL, claim_revision = NULL
 WHERE place IN ids(?);

-- The same where they stand side by side.
-- name: start_span
UPDATE millpond_live
   SET running = 1, attempt = attempt + 1, runs = runs + 1, fresh = 0, listed = 0, token = ?,
       worker = ?, started_at = ?, first_started_at = coalesce(first_started_at, ?), reason = ?,
       grp = NULL, claim = NULL, claim_revision = NULL
 WHERE place >= ? AND place <= ?;

-- Claims ahead: those of one lease are numbered in their order.
-- name: claim_live
UPDATE millpond_live
   SET claim = j.key + ?, claim_revision = ?, token = ?, worker = ?, fresh = 0, listed = 0, grp = NULL
  FROM numbered(?) AS j WHERE place = j.value;

-- The end of tasks that were completed together: when, why, result.
-- name: complete_live
INSERT INTO millpond_ended
SELECT place, pool, 'completed', 1, ?, ?, attempt, runs, ?, NULL, rank, lane, sequence,
       submitted_at, due, token, started_at, first_started_at, expires_at, cancel_requested, 0,
       progress, steps
  FROM millpond_live WHERE place IN ids(?);

-- name: complete_span
INSERT INTO millpond_ended
SELECT place, pool, 'completed', 1, ?, ?, attempt, runs, ?, NULL, rank, lane, sequence,
       submitted_at, due, token, started_at, first_started_at, expires_at, cancel_requested, 0,
       progress, steps
  FROM millpond_live WHERE place >= ? AND place <= ?;

-- The same for tasks whose start was not written yet: and their fence, when, and when first.
-- name: run_live
INSERT INTO millpond_ended
SELECT place, pool, 'completed', 1, ?, ?, attempt + 1, runs + 1, ?, NULL, rank, lane, sequence,
       submitted_at, due, ?, ?, coalesce(first_started_at, ?), expires_at, cancel_requested, 0,
       progress, steps
  FROM millpond_live WHERE place IN ids(?);

-- name: run_span
INSERT INTO millpond_ended
SELECT place, pool, 'completed', 1, ?, ?, attempt + 1, runs + 1, ?, NULL, rank, lane, sequence,
       submitted_at, due, ?, ?, coalesce(first_started_at, ?), expires_at, cancel_requested, 0,
       progress, steps
  FROM millpond_live WHERE place >= ? AND place <= ?;

-- name: update_result
UPDATE millpond_ended SET result = ? WHERE place = ?;

-- name: drop_span
DELETE FROM millpond_live WHERE place >= ? AND place <= ?;

-- name: drop_live
DELETE FROM millpond_live WHERE place IN ids(?);

-- name: add_ended
INSERT INTO millpond_ended VALUES
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_ended
DELETE FROM millpond_ended WHERE place = ?;

-- name: live_of_pool
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.place > ? AND l.place <= ? ORDER BY l.place LIMIT ?;

-- name: live_of_run
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.run = ?;

-- name: live_of_owner
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.owner = ?;

-- name: owns_something
SELECT EXISTS (SELECT 1 FROM millpond_live WHERE owner = ? AND NOT pool IN ids(?));

-- name: holds_something
SELECT EXISTS (SELECT 1 FROM millpond_live WHERE worker = ?);

-- name: held_by
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.worker = ? AND l.running = 1;

-- name: held_ahead_by
SELECT id, pool, claim_revision FROM millpond_live
 WHERE worker = ? AND running = 0 ORDER BY claim;

-- name: asked_to_stop
SELECT l.id, l.cancel_requested FROM millpond_live AS l JOIN millpond_pool AS p ON p.id = l.pool
 WHERE l.worker = ? AND l.cancel_requested > 0 ORDER BY p.name, l.place;

-- What time alone does, but for pools that only a newer version understands.

-- name: first_expiring
SELECT expires_at, id, pool FROM millpond_live
 WHERE expires_at IS NOT NULL AND running = 0 AND claim IS NULL AND NOT pool IN ids(?)
 ORDER BY expires_at, id LIMIT 1;

-- name: expiring_until
SELECT id, pool FROM millpond_live
 WHERE expires_at <= ? AND running = 0 AND claim IS NULL AND NOT pool IN ids(?)
 ORDER BY expires_at, id LIMIT ?;

-- name: first_parked_since
SELECT parked_at, id, pool FROM millpond_live
 WHERE parked_at IS NOT NULL AND NOT pool IN ids(?) ORDER BY parked_at, id LIMIT 1;

-- name: parked_until
SELECT id, pool FROM millpond_live WHERE parked_at <= ? AND NOT pool IN ids(?)
 ORDER BY parked_at, id LIMIT ?;

-- name: parked_functions
SELECT DISTINCT function FROM millpond_live WHERE pool = ? AND function IS NOT NULL ORDER BY function;

-- name: first_parked
SELECT id FROM millpond_live
 WHERE pool = ? AND function = ? ORDER BY rank, place LIMIT 1;

-- name: first_parked_some
SELECT id FROM millpond_live
 WHERE pool = ? AND function = ? ORDER BY rank, place LIMIT ?;

-- name: parked_of
SELECT id FROM millpond_live WHERE pool = ? AND function = ? ORDER BY rank, place;

-- name: oldest_listed
SELECT id FROM millpond_live WHERE pool = ? AND listed = 1 ORDER BY place LIMIT ?;

-- name: oldest_listed_of_key
SELECT id FROM millpond_live WHERE pool = ? AND key = ? AND listed = 1 ORDER BY place LIMIT ?;

-- name: oldest_listed_keyless
SELECT id FROM millpond_live WHERE pool = ? AND key IS NULL AND listed = 1 ORDER BY place LIMIT ?;

-- name: count_listed_of_key
SELECT count(*) FROM millpond_live WHERE pool = ? AND key = ? AND listed = 1;

-- name: oldest_listed_of_lane
SELECT id FROM millpond_live WHERE pool = ? AND lane = ? AND listed = 1 ORDER BY place LIMIT ?;

-- name: count_listed_of_lane
SELECT count(*) FROM millpond_live WHERE pool = ? AND lane = ? AND listed = 1;

-- name: count_listed_keyless
SELECT count(*) FROM millpond_live WHERE pool = ? AND key IS NULL AND listed = 1;

-- name: list_fresh
UPDATE millpond_live SET listed = ? WHERE place > ? AND place <= ? AND fresh = 1;

-- Retention.

-- name: old_ended
SELECT e.place, e.finished_at, t.id, t.body, e.status
  FROM millpond_ended AS e JOIN millpond_task AS t ON t.place = e.place
 WHERE e.pool = ? AND e.completed = ? AND e.finished_at < ?
 ORDER BY e.finished_at, e.place LIMIT ?;

-- name: add_removed
INSERT INTO millpond_removed (id) VALUES (?) ON CONFLICT (id) DO NOTHING;

-- name: cut_removed
DELETE FROM millpond_removed WHERE n <= (SELECT max(n) FROM millpond_removed) - ?;

-- name: was_removed
SELECT id FROM removed_ids() WHERE id IN ids(?);
