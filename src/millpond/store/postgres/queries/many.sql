-- The same as the statements of these names say for one row, for many at once: each argument is a
-- column of all rows. One statement is planned, sent and answered once, however many rows there are.

-- name: add_task
INSERT INTO millpond_task (place, id, body, plain)
SELECT * FROM unnest(?::bigint[], ?::bigint[], ?::bytea[], ?::text[]);

-- name: drop_task
DELETE FROM millpond_task WHERE place = ANY(?::bigint[]);

-- name: add_queued
INSERT INTO millpond_live (place, id, pool, rank, key, lane, sequence, submitted_at, expires_at,
                           owner, run, due, cancel_requested, running, attempt, runs, fresh, listed,
                           token, grp)
SELECT place, id, pool, rank, nullif(key, ''), nullif(lane, ''), sequence, submitted_at,
       nullif(expires_at, '')::double precision, nullif(owner, ''), nullif(run, '')::bigint, due,
       0, 0, 0, 0, fresh, listed, 0, grp
  FROM unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[], ?::text[], ?::text[],
              ?::bigint[], ?::double precision[], ?::text[], ?::text[], ?::text[],
              ?::double precision[], ?::smallint[], ?::smallint[], ?::bigint[])
       AS n (place, id, pool, rank, key, lane, sequence, submitted_at, expires_at, owner, run, due,
             fresh, listed, grp);

-- name: add_live
INSERT INTO millpond_live
SELECT * FROM unnest(
    ?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::bigint[],
    ?::double precision[], ?::double precision[], ?::text[], ?::bigint[],
    ?::double precision[], ?::bigint[], ?::bigint[], ?::smallint[], ?::double precision[], ?::text[],
    ?::bytea[], ?::text[], ?::bytea[],
    ?::smallint[], ?::integer[], ?::integer[], ?::smallint[], ?::smallint[], ?::bigint[], ?::text[],
    ?::double precision[], ?::double precision[], ?::text[], ?::bigint[]);

-- name: update_task
UPDATE millpond_task AS t SET body = n.body, plain = n.plain
  FROM unnest(?::bytea[], ?::text[], ?::bigint[]) AS n (body, plain, place)
 WHERE t.place = n.place;

-- name: update_live
UPDATE millpond_live AS l SET rank = n.rank, expires_at = n.expires_at, grp = n.grp
  FROM unnest(?::bigint[], ?::double precision[], ?::bigint[], ?::bigint[])
       AS n (rank, expires_at, grp, place)
 CROSS JOIN LATERAL
       (SELECT o.ctid AS spot FROM millpond_live AS o WHERE o.place = n.place OFFSET 0) AS found
 WHERE l.ctid = found.spot;

-- name: change_live
UPDATE millpond_live AS l
   SET due = n.due, claim = n.claim, claim_revision = n.claim_revision,
       cancel_requested = n.cancel_requested, parked_at = n.parked_at, function = n.function,
       error = n.error, progress = n.progress, steps = n.steps, running = n.running,
       attempt = n.attempt, runs = n.runs, fresh = n.fresh, listed = n.listed, token = n.token,
       worker = n.worker, started_at = n.started_at, first_started_at = n.first_started_at,
       reason = n.reason, grp = n.grp
  FROM unnest(
       ?::double precision[], ?::bigint[], ?::bigint[], ?::smallint[], ?::double precision[],
       ?::text[], ?::bytea[], ?::text[], ?::bytea[],
       ?::smallint[], ?::integer[], ?::integer[], ?::smallint[], ?::smallint[], ?::bigint[],
       ?::text[], ?::double precision[], ?::double precision[], ?::text[], ?::bigint[], ?::bigint[])
       AS n (due, claim, claim_revision, cancel_requested, parked_at, function, error, progress,
             steps, running, attempt, runs, fresh, listed, token, worker, started_at,
             first_started_at, reason, grp, place)
 -- Each looked for by itself: where few live among many dead, a join would walk them all.
 CROSS JOIN LATERAL
       (SELECT o.ctid AS spot FROM millpond_live AS o WHERE o.place = n.place OFFSET 0) AS found
 WHERE l.ctid = found.spot;

-- name: update_result
UPDATE millpond_ended AS e SET result = n.result
  FROM unnest(?::bytea[], ?::bigint[]) AS n (result, place) WHERE e.place = n.place;

-- name: add_ended
INSERT INTO millpond_ended
SELECT * FROM unnest(
    ?::bigint[], ?::bigint[], ?::text[], ?::smallint[], ?::double precision[], ?::text[],
    ?::integer[], ?::integer[], ?::bytea[], ?::bytea[], ?::bigint[], ?::text[], ?::bigint[],
    ?::double precision[], ?::double precision[], ?::bigint[], ?::double precision[],
    ?::double precision[], ?::double precision[], ?::smallint[], ?::smallint[], ?::text[],
    ?::bytea[]);

-- name: drop_ended
DELETE FROM millpond_ended WHERE place = ANY(?::bigint[]);

-- name: add_removed
INSERT INTO millpond_removed (ids) SELECT ?::bigint[];

-- name: age_key
UPDATE millpond_key AS k SET ended_at = n.ended_at
  FROM unnest(?::double precision[], ?::bigint[], ?::text[], ?::bigint[], ?::bigint[])
       AS n (ended_at, pool, key, run, task)
 WHERE k.pool = n.pool AND k.key = n.key AND k.run = n.run AND k.task = n.task;

-- name: save_key
INSERT INTO millpond_key
SELECT *, NULL FROM unnest(?::bigint[], ?::text[], ?::bigint[], ?::bigint[], ?::text[], ?::text[],
                           ?::bigint[])
    ON CONFLICT (pool, key, run) DO UPDATE
   SET task = excluded.task, status = excluded.status, function = excluded.function,
       fingerprint = excluded.fingerprint, ended_at = NULL;

-- name: drop_key
DELETE FROM millpond_key AS k
 USING unnest(?::bigint[], ?::text[], ?::bigint[]) AS n (pool, key, run)
 WHERE k.pool = n.pool AND k.key = n.key AND k.run = n.run;

-- name: save_run
INSERT INTO millpond_run
SELECT * FROM unnest(?::bigint[], ?::text[], ?::text[], ?::double precision[], ?::bytea[])
    ON CONFLICT (id) DO UPDATE
   SET pool = excluded.pool, name = excluded.name, finished_at = excluded.finished_at,
       state = excluded.state;

-- name: save_unit
INSERT INTO millpond_unit
SELECT * FROM unnest(
    ?::bigint[], ?::text[], ?::bigint[], ?::smallint[], ?::smallint[], ?::double precision[],
    ?::bigint[], ?::bigint[], ?::double precision[], ?::bigint[], ?::bigint[], ?::double precision[])
    ON CONFLICT (pool, unit) DO UPDATE
   SET running = excluded.running, paused = excluded.paused, blocked = excluded.blocked,
       held_until = excluded.held_until, tat = excluded.tat, groups = excluded.groups,
       timer_at = excluded.timer_at, timer_rank = excluded.timer_rank,
       timer_seq = excluded.timer_seq, fades_at = excluded.fades_at;

-- name: save_untimed_unit
INSERT INTO millpond_unit (pool, unit, running, paused, blocked, held_until, tat, groups)
SELECT * FROM unnest(
    ?::bigint[], ?::text[], ?::bigint[], ?::smallint[], ?::smallint[], ?::double precision[],
    ?::bigint[], ?::bigint[])
    ON CONFLICT (pool, unit) DO UPDATE
   SET running = excluded.running, paused = excluded.paused, blocked = excluded.blocked,
       held_until = excluded.held_until, tat = excluded.tat, groups = excluded.groups,
       timer_at = NULL, timer_rank = NULL, timer_seq = NULL, fades_at = NULL;

-- name: drop_unit
DELETE FROM millpond_unit AS u
 USING unnest(?::bigint[], ?::text[]) AS n (pool, unit) WHERE u.pool = n.pool AND u.unit = n.unit;

-- name: save_group
INSERT INTO millpond_group
SELECT * FROM unnest(
    ?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::bigint[],
    ?::double precision[], ?::smallint[]);

-- name: change_group
UPDATE millpond_group AS g
   SET tasks = n.tasks, rank = n.rank, seq = n.seq, due = n.due, ready = n.ready
  FROM unnest(?::bigint[], ?::bigint[], ?::bigint[], ?::double precision[], ?::smallint[],
              ?::bigint[]) AS n (tasks, rank, seq, due, ready, id)
 WHERE g.id = n.id;

-- name: drop_group
DELETE FROM millpond_group WHERE id = ANY(?::bigint[]);

-- name: save_seat
INSERT INTO millpond_seat
SELECT * FROM unnest(?::bigint[], ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::smallint[])
    ON CONFLICT (pool, share, owner) DO UPDATE
   SET turn = excluded.turn, joined = excluded.joined, resting = excluded.resting;

-- name: drop_seat
DELETE FROM millpond_seat AS s
 USING unnest(?::bigint[], ?::text[], ?::text[]) AS n (pool, share, owner)
 WHERE s.pool = n.pool AND s.share = n.share AND s.owner = n.owner;

-- name: save_lane
INSERT INTO millpond_lane
SELECT * FROM unnest(?::bigint[], ?::text[], ?::bigint[], ?::bigint[])
    ON CONFLICT (pool, lane) DO UPDATE
   SET sequence = excluded.sequence, processed = excluded.processed;
