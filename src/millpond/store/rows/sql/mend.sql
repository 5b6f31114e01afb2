-- Mending: rows that do not fit together are made to, so that nothing is lost from sight and nothing
-- waits for what will not come. In this order.

-- name: mend_0_removed
DELETE FROM millpond_removed WHERE id IN (SELECT id FROM millpond_task);

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
UPDATE millpond_meta SET next_group = (SELECT max(id) + 1 FROM millpond_group)
 WHERE next_group <= (SELECT max(id) FROM millpond_group);

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
       '', 0.0, coalesce((SELECT max(position) FROM millpond_audit), 0);
