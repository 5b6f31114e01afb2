-- Mending: rows that do not fit together are made to, so that nothing is lost from sight and nothing
-- waits for what will not come. In this order.

-- name: mend_0_removed
DELETE FROM millpond_removed WHERE id IN (SELECT id FROM millpond_task);

-- Its body is left, and ends as that of a task that is lost.
-- name: mend_0_values
DELETE FROM millpond_live
 WHERE attempt < 0 OR runs < attempt OR cancel_requested NOT IN (0, 1, 2) OR running NOT IN (0, 1)
    OR (running = 1 AND (worker IS NULL OR attempt < 1));

-- name: mend_2_names
UPDATE millpond_live SET id = (SELECT t.id FROM millpond_task AS t WHERE t.place = millpond_live.place)
 WHERE id <> (SELECT t.id FROM millpond_task AS t WHERE t.place = millpond_live.place);

-- name: mend_3_twice
DELETE FROM millpond_live
 WHERE place IN (SELECT place FROM millpond_ended)
    OR place NOT IN (SELECT place FROM millpond_task)
    OR place >> 40 <> pool OR pool NOT IN (SELECT id FROM millpond_pool);

-- name: mend_4_ended
DELETE FROM millpond_ended
 WHERE place NOT IN (SELECT place FROM millpond_task)
    OR place >> 40 <> pool OR pool NOT IN (SELECT id FROM millpond_pool);

-- name: mend_5_nowhere
DELETE FROM millpond_task WHERE place >> 40 NOT IN (SELECT id FROM millpond_pool);

-- name: mend_6_ahead
UPDATE millpond_worker
   SET ahead = (SELECT count(*) FROM millpond_live AS l
                 WHERE l.worker = millpond_worker.id AND l.claim IS NOT NULL);

-- name: mend_7_lanes
INSERT INTO millpond_lane
SELECT pool, lane, max(sequence), 0 FROM millpond_live WHERE lane IS NOT NULL GROUP BY pool, lane
    ON CONFLICT (pool, lane) DO UPDATE SET sequence = excluded.sequence
 WHERE excluded.sequence > millpond_lane.sequence;

-- name: mend_8_places
UPDATE millpond_pool SET next_seq = last.seq
  FROM (SELECT place >> 40 AS pool, max(place & 1099511627775) AS seq
          FROM millpond_task GROUP BY place >> 40) AS last
 WHERE last.pool = millpond_pool.id AND last.seq > millpond_pool.next_seq;

-- name: mend_9_claims
UPDATE millpond_meta SET next_claim = (SELECT max(claim) + 1 FROM millpond_live)
 WHERE next_claim <= (SELECT max(claim) FROM millpond_live);

-- name: mend_9_groups
UPDATE millpond_meta SET next_group = (SELECT max(id) + 1 FROM millpond_group WHERE id < 1099511627776)
 WHERE next_group <= (SELECT max(id) FROM millpond_group WHERE id < 1099511627776);

-- name: mend_9_workers
UPDATE millpond_meta SET joined = (SELECT max(number) FROM millpond_worker)
 WHERE joined < (SELECT max(number) FROM millpond_worker);

-- What needs more than a statement.

-- name: count_of_all
SELECT coalesce(sum(live + kept), 0) FROM millpond_pool;

-- name: lost_holders
SELECT DISTINCT worker FROM millpond_live
 WHERE worker IS NOT NULL AND worker NOT IN (SELECT id FROM millpond_worker);

-- name: lost_bodies
SELECT place, id, body FROM millpond_task
 WHERE place NOT IN (SELECT place FROM millpond_live)
   AND place NOT IN (SELECT place FROM millpond_ended);

-- name: dead_of_pool
SELECT count(*) FROM millpond_ended WHERE pool = ? AND completed = 0 AND status = 'failed';

-- name: kept_of_pool
SELECT count(*) FROM millpond_ended WHERE pool = ?;

-- name: live_counts_of_runs
SELECT r.id, r.state, (SELECT count(*) FROM millpond_live AS l WHERE l.run = r.id)
  FROM millpond_run AS r;

-- name: date_run
UPDATE millpond_run SET finished_at = ? WHERE id = ?;

-- name: share_of_group
SELECT share FROM millpond_group WHERE id = ?;

-- name: new_meta
INSERT INTO millpond_meta
SELECT 1,
       coalesce((SELECT max(submitted_at) FROM millpond_live), 0.0),
       coalesce((SELECT max(number) FROM millpond_worker), 0),
       coalesce((SELECT max(id) + 1 FROM millpond_group), 1048576),
       coalesce((SELECT max(claim) + 1 FROM millpond_live), 1),
       coalesce((SELECT max(position) FROM millpond_audit), 0),
       '', 0.0, coalesce((SELECT max(position) FROM millpond_audit), 0), 0.0, 0.0, '';

-- When the store's time steps back: rows written while it was ahead are moved along. Given are by how
-- many seconds, and the moment that is now; what is later than that was written meanwhile. In order: what
-- says when a row was written is moved last.

-- Firings of schedules that a wrong clock has armed: they are due now, and armed again.
-- name: move_0_firings
UPDATE millpond_live SET due = ?
 WHERE pool IN (SELECT id FROM millpond_pool WHERE name = '~cron') AND due > ? AND submitted_at > ?;

-- Tasks that wait for longer than the store's time goes back by: some were given a moment and no delay.
-- name: timed_ahead
SELECT l.place, t.id, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.due > ? AND l.submitted_at > ? AND l.due >= l.submitted_at + ? AND l.first_started_at IS NULL;

-- name: save_due
UPDATE millpond_live SET due = ? WHERE place = ?;

-- name: move_1_due
UPDATE millpond_live SET due = round((due - ?) * 1000000) / 1000000
 WHERE due > ? AND (submitted_at > ? OR started_at > ?);

-- name: move_2_expiry
UPDATE millpond_live SET expires_at = round((expires_at - ?) * 1000000) / 1000000 WHERE submitted_at > ?;

-- name: move_3_parked
UPDATE millpond_live SET parked_at = round((parked_at - ?) * 1000000) / 1000000 WHERE parked_at > ?;

-- name: move_4_first
UPDATE millpond_live SET first_started_at = round((first_started_at - ?) * 1000000) / 1000000
 WHERE first_started_at > ?;

-- name: move_5_start
UPDATE millpond_live SET started_at = round((started_at - ?) * 1000000) / 1000000 WHERE started_at > ?;

-- name: move_6_submit
UPDATE millpond_live SET submitted_at = round((submitted_at - ?) * 1000000) / 1000000 WHERE submitted_at > ?;

-- name: move_7_end
UPDATE millpond_ended SET finished_at = round((finished_at - ?) * 1000000) / 1000000 WHERE finished_at > ?;

-- name: move_8_key
UPDATE millpond_key SET ended_at = round((ended_at - ?) * 1000000) / 1000000 WHERE ended_at > ?;

-- name: move_9_audit
UPDATE millpond_audit SET at = round((at - ?) * 1000000) / 1000000 WHERE at > ?;

-- Holds of pools and keys, and rates: one that was written before store time was ahead may also be later
-- than now, and stays. The second argument separates the two: now and half of the step back.

-- name: move_pool
UPDATE millpond_pool SET not_before = round((not_before - ?) * 1000000) / 1000000 WHERE not_before > ?;

-- name: move_unit
UPDATE millpond_unit SET held_until = round((held_until - ?) * 1000000) / 1000000 WHERE held_until > ?;

-- name: move_tat
UPDATE millpond_unit SET tat = tat - ? WHERE tat > ?;

-- name: tats_of_pools
SELECT id, tats FROM millpond_pool;

-- name: save_tats
UPDATE millpond_pool SET tats = ? WHERE id = ?;

-- name: buckets_of_budgets
SELECT name, buckets FROM millpond_budget;

-- name: save_buckets
UPDATE millpond_budget SET buckets = ? WHERE name = ?;

-- name: move_leases
UPDATE millpond_worker SET expires_at = round((? + lease) * 1000000) / 1000000 WHERE expires_at > ?;

-- name: lengthen_leases
UPDATE millpond_worker SET expires_at = round((expires_at + ?) * 1000000) / 1000000;
