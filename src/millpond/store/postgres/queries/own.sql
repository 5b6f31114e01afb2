-- What PostgreSQL says in its own words: because it must, or because only it is asked.

-- When a transaction has got its turn: what time it is, who wrote since, whether the inbox holds
-- something, and what belongs to no pool.
-- name: begun
SELECT millpond_clock(), m.version,
       EXISTS (SELECT 1 FROM millpond_lease WHERE n >= m.first_lease),
       EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= m.seen_upto)
       OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(m.seen_open))
       OR m.seen_upto > pg_snapshot_xmax(pg_current_snapshot()), m.latest, m.joined,
       m.next_group, m.next_claim, m.records, m.leader, m.leader_until, m.generation, m.behind, m.since,
       m.clock
  FROM (SELECT 1) AS one
  LEFT JOIN (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m ON true;

-- Processes that wait for ends share the lock of waiters (lock.py). This tries it last: a process that takes
-- it later waits for this commit, and then reads it.
-- name: step
SELECT s.*, NOT pg_catalog.pg_try_advisory_xact_lock(?)
  FROM millpond_settle_and_lease(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) AS s;

-- name: step_simple
SELECT s.*, NOT pg_catalog.pg_try_advisory_xact_lock(?)
  FROM millpond_step_simple(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) AS s;

-- name: take
SELECT * FROM millpond_submit(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: take_one
SELECT * FROM millpond_submit_one(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: renew
SELECT * FROM millpond_renew(?, ?, ?, ?);

-- name: turn_audit
SELECT unnest(millpond_turn_audit(?, ?));

-- name: first_of_audit
SELECT at FROM millpond_audit ORDER BY position LIMIT 1;

-- name: add_removed
INSERT INTO millpond_removed (ids) VALUES (ARRAY[?::bigint]);

-- Whole pages, behind which there are enough.
-- name: cut_removed
DELETE FROM millpond_removed
 WHERE n < (SELECT max(p.n)
              FROM (SELECT r.n, sum(coalesce(cardinality(r.ids), 1)) OVER (ORDER BY r.n DESC) AS upto
                      FROM millpond_removed AS r) AS p WHERE p.upto >= ?);

-- name: mend_0_removed
UPDATE millpond_removed AS r
   SET id = NULL,
       ids = ARRAY(SELECT u.id FROM unnest(coalesce(r.ids, ARRAY[r.id])) AS u (id)
                    WHERE NOT EXISTS (SELECT FROM millpond_task AS t WHERE t.id = u.id))
 WHERE EXISTS (SELECT FROM unnest(coalesce(r.ids, ARRAY[r.id])) AS u (id)
                 JOIN millpond_task AS t ON t.id = u.id);

-- name: compact
SELECT unnest(millpond_compact(?::text[], ?, ?));

-- name: add_detours
INSERT INTO millpond_detour AS d VALUES (?, ?, ?::bigint, millpond_clock())
    ON CONFLICT (verb, reason) DO UPDATE SET n = d.n + excluded.n, last_at = excluded.last_at;

-- name: all_ways
-- What counts everything is quicker by ways that are closed to what looks for a few rows.
SELECT set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true),
       set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true);

-- name: unfold
SELECT millpond_unfold(?::bigint[]);

-- Each looked for by itself: where few live among many dead, a join would walk them all.
-- name: live_tasks
SELECT l.*, t.body FROM millpond_task AS t
 CROSS JOIN LATERAL (SELECT * FROM millpond_live AS o WHERE o.place = t.place OFFSET 0) AS l
 WHERE t.id = ANY(?::bigint[]);

-- name: add_task
INSERT INTO millpond_task (place, id, body, plain) VALUES (?, ?, ?, ?);

-- name: update_task
UPDATE millpond_task SET body = ?, plain = ? WHERE place = ?;

-- Records that the server has noted by itself look like JSON.
-- name: audit
SELECT a.position, a.records, coalesce(a.told, convert_to(json_build_object(
           'at', a.at, 'event', a.event, 'starts', a.starts, 'pool', p.name, 'worker', a.worker, 'tokens', a.tokens,
           'ids', a.ids, 'seqs', (SELECT array_agg(place & ((1::bigint << 40) - 1) ORDER BY n)
                                    FROM unnest(a.places) WITH ORDINALITY AS u (place, n)),
           'due', a.due, 'keys', a.keys, 'plain', a.plain, 'differs', a.differs)::text, 'UTF8')), a.at
  FROM millpond_audit AS a
  LEFT JOIN LATERAL
       (SELECT o.name FROM millpond_pool AS o WHERE o.id = a.pool ORDER BY o.turn DESC LIMIT 1) AS p
    ON true
 WHERE a.position > ? ORDER BY a.position LIMIT ?;

-- name: measured
SELECT coalesce(m.times, (
           SELECT string_agg(float8send(m.started_at - coalesce(m.due[k], m.due[1]))
                             || float8send(m.finished_at - m.started_at), '' ORDER BY k)
             FROM generate_series(1, m.n) AS s (k)))
  FROM millpond_measured AS m
 WHERE m.pool = $1
   AND m.upto > (SELECT p.measured - 4000 FROM millpond_pool AS p
                  WHERE p.id = $1 ORDER BY p.turn DESC LIMIT 1)
 ORDER BY m.upto DESC;

-- name: drop_measured
DELETE FROM millpond_measured WHERE pool = $1 AND upto <= $2 AND upto > $2 - 10000;

-- name: version
SELECT m.version, EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= m.seen_upto)
       OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(m.seen_open))
  FROM (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m;

-- name: meta
SELECT latest, joined, next_group, next_claim, records, leader, leader_until, generation, behind, since,
       clock
  FROM millpond_meta ORDER BY turn DESC LIMIT 1;

-- name: anything_queued
SELECT EXISTS (SELECT FROM generate_series(1, (SELECT max(id) FROM millpond_pool)) AS n (id)
                CROSS JOIN LATERAL (SELECT o.live, o.running FROM millpond_pool AS o
                                     WHERE o.id = n.id ORDER BY o.turn DESC LIMIT 1) AS p
                WHERE p.live > p.running)
       OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= m.seen_upto)
       OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(m.seen_open))
  FROM (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m;

-- The generation under which another process leads at a moment, as long as it has a registered worker.
-- name: led
SELECT m.generation FROM (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m
 WHERE m.leader <> ? AND m.leader_until > coalesce(?, millpond_clock() - m.behind)
   AND EXISTS (SELECT FROM millpond_worker AS w WHERE w.owner = m.leader);

-- Whether a worker of any release renews leases of this store over a session that was there at a moment of
-- the server's clock already; what sessions of other roles ask is not shown to every role.
-- name: renewed_since
SELECT EXISTS (SELECT FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND position(rtrim($found$millpond_renew$found$, '0123456789') IN query) > 0 AND backend_start <= to_timestamp(?));

-- A transaction that changes anything also writes this row: its version shows other processes that their
-- cached rows are old.
-- name: save_meta
UPDATE millpond_meta
   SET version = version + 1, latest = ?, joined = ?, next_group = ?, next_claim = ?, records = ?,
       leader = ?, leader_until = ?, generation = ?, behind = ?, since = ?, clock = ?,
       turn = (version + 1) >> 5
 WHERE ctid = (SELECT ctid FROM millpond_meta ORDER BY turn DESC LIMIT 1);

-- Its version is one that no process has cached.
-- name: new_meta
INSERT INTO millpond_meta (one, latest, joined, next_group, next_claim, records, leader, leader_until,
                           generation, version, leases, turn)
SELECT 1,
       coalesce((SELECT max(submitted_at) FROM millpond_live), 0.0),
       coalesce((SELECT max(number) FROM millpond_worker), 0),
       coalesce((SELECT max(id) + 1 FROM millpond_group WHERE id < 1::bigint << 40), 1048576),
       coalesce((SELECT max(claim) + 1 FROM millpond_live), 1),
       coalesce((SELECT max(position) FROM millpond_audit), 0),
       '', 0.0, coalesce((SELECT max(position) FROM millpond_audit), 0),
       (millpond_clock() * 1000000)::bigint,
       coalesce((SELECT max(n) FROM millpond_lease), 0),
       (millpond_clock() * 1000000)::bigint >> 5;

-- Pools and workers: the row of the highest turn is the one that counts.

-- name: pool
SELECT id, name, spec, declared, revision, created_at, operator_limit, paused, closed, not_before,
       next_seq, next_lane, live, running, claimed, fresh, ready, later, parked, parked_apart, kept,
       stale_settles, measured, totals, grouped, joins, passed_turn, passed_join, resting,
       unit_timers, fading, tats, holding, starved, hungry, limiter, special
  FROM millpond_pool WHERE name = ? ORDER BY turn DESC LIMIT 1;

-- name: pool_by_id
SELECT id, name, spec, declared, revision, created_at, operator_limit, paused, closed, not_before,
       next_seq, next_lane, live, running, claimed, fresh, ready, later, parked, parked_apart, kept,
       stale_settles, measured, totals, grouped, joins, passed_turn, passed_join, resting,
       unit_timers, fading, tats, holding, starved, hungry, limiter, special
  FROM millpond_pool WHERE id = ? ORDER BY turn DESC LIMIT 1;

-- name: pools
SELECT p.id, p.name, p.spec, p.declared, p.revision, p.created_at, p.operator_limit, p.paused,
       p.closed, p.not_before, p.next_seq, p.next_lane, p.live, p.running, p.claimed, p.fresh, p.ready,
       p.later, p.parked, p.parked_apart, p.kept, p.stale_settles, p.measured, p.totals, p.grouped,
       p.joins, p.passed_turn, p.passed_join, p.resting, p.unit_timers, p.fading, p.tats, p.holding,
       p.starved, p.hungry, p.limiter, p.special
  FROM generate_series(1, (SELECT max(id) FROM millpond_pool)) AS n (id)
 CROSS JOIN LATERAL
       (SELECT * FROM millpond_pool AS o WHERE o.id = n.id ORDER BY o.turn DESC LIMIT 1) AS p
 ORDER BY p.id;

-- name: queued_pools
SELECT p.id, p.name, p.spec, p.declared, p.revision, p.created_at, p.operator_limit, p.paused,
       p.closed, p.not_before, p.next_seq, p.next_lane, p.live, p.running, p.claimed, p.fresh, p.ready,
       p.later, p.parked, p.parked_apart, p.kept, p.stale_settles, p.measured, p.totals, p.grouped,
       p.joins, p.passed_turn, p.passed_join, p.resting, p.unit_timers, p.fading, p.tats, p.holding,
       p.starved, p.hungry, p.limiter, p.special
  FROM generate_series(1, (SELECT max(id) FROM millpond_pool)) AS n (id)
 CROSS JOIN LATERAL
       (SELECT * FROM millpond_pool AS o WHERE o.id = n.id ORDER BY o.turn DESC LIMIT 1) AS p
 WHERE p.live > p.running ORDER BY p.id;

-- What counts as a change is what the statement says in the end: that of a row which is known.
-- name: save_pool
WITH new AS (
    INSERT INTO millpond_pool
           (id, name, spec, declared, revision, created_at, operator_limit, paused, closed, not_before,
            next_seq, next_lane, live, running, claimed, fresh, ready, later, parked, parked_apart,
            kept, stale_settles, measured, totals, grouped, joins, passed_turn, passed_join, resting,
            unit_timers, fading, tats, holding, starved, hungry, limiter, special)
    SELECT $1::bigint, $2::text, $3::text, $4::text, $5::bigint, $6::double precision, $7::bigint,
           $8::smallint, $9::smallint, $10::double precision, $11::bigint, $12::bigint, $13::bigint,
           $14::bigint, $15::bigint, $16::bigint, $17::bigint, $18::bigint, $19::bigint, $20::bigint,
           $21::bigint, $22::bigint, $23::bigint, $24::text, $25::smallint, $26::bigint, $27::bigint,
           $28::bigint, $29::bigint, $30::bigint, $31::bigint, $32::text, $33::text, $34::text,
           $35::text, $36::text, $37::smallint
     WHERE NOT EXISTS (SELECT FROM millpond_pool WHERE id = $1 ORDER BY turn DESC LIMIT 1)
)
UPDATE millpond_pool
   SET name = $2, spec = $3, declared = $4, revision = $5, created_at = $6, operator_limit = $7,
       writes = writes + 1, turn = (writes + 1) >> 5
 WHERE ctid = (SELECT ctid FROM millpond_pool WHERE id = $1 ORDER BY turn DESC LIMIT 1);

-- name: change_pool
UPDATE millpond_pool
   SET paused = ?, closed = ?, not_before = ?, next_seq = ?, next_lane = ?, live = ?, running = ?,
       claimed = ?, fresh = ?, ready = ?, later = ?, parked = ?, parked_apart = ?, kept = ?,
       stale_settles = ?, measured = ?, totals = ?, grouped = ?, joins = ?, passed_turn = ?,
       passed_join = ?, resting = ?, unit_timers = ?, fading = ?, tats = ?, holding = ?,
       starved = ?, hungry = ?, limiter = ?, special = ?,
       writes = writes + 1, turn = (writes + 1) >> 5
 WHERE ctid = (SELECT ctid FROM millpond_pool WHERE id = ? ORDER BY turn DESC LIMIT 1);

-- name: worker
SELECT id, owner, expires_at, lease, number, functions, unknown, ahead FROM millpond_worker
 WHERE id = ? ORDER BY turn DESC LIMIT 1;

-- name: save_worker
WITH new AS (
    INSERT INTO millpond_worker (id, owner, expires_at, lease, number, functions, unknown, ahead)
    SELECT $1::text, $2::text, $3::double precision, $4::double precision, $5::bigint, $6::text,
           $7::text, $8::bigint
     WHERE NOT EXISTS (SELECT FROM millpond_worker WHERE id = $1 ORDER BY turn DESC LIMIT 1)
)
UPDATE millpond_worker
   SET owner = $2, expires_at = $3, lease = $4, number = $5, functions = $6, unknown = $7,
       ahead = $8, writes = writes + 1, turn = (writes + 1) >> 5
 WHERE ctid = (SELECT ctid FROM millpond_worker WHERE id = $1 ORDER BY turn DESC LIMIT 1);

-- Lower and raise the marks of a queue (millpond_pool.bands). These statements write: the connection must
-- not take them for queries, which it may send ahead.

-- name: lower
WITH done AS MATERIALIZED (SELECT millpond_lower(?, ?::bigint[])) SELECT 1 FROM done;

-- name: raise
WITH done AS MATERIALIZED (SELECT millpond_raise(?, ?, ?, ?)) SELECT 1 FROM done;

-- Queues with lanes, keys or shares. The group of the key that has the name of its share stands first on the shelf,
-- whatever its first task is (0005_shelf.sql): it is put among the others here.

-- name: shelf
SELECT x.id, x.unit, x.share, x.owner, x.tasks, x.rank, x.seq, x.due, x.ready
  FROM (SELECT * FROM millpond_group AS o
         WHERE o.pool = $1 AND o.share = $2 AND o.owner = $3 AND o.ready = 1
         ORDER BY o.shelf_rank, o.shelf_seq LIMIT $4::bigint + 1) AS x
 ORDER BY x.rank, x.seq LIMIT $4;

-- name: shelf_after
SELECT x.id, x.unit, x.share, x.owner, x.tasks, x.rank, x.seq, x.due, x.ready
  FROM ((SELECT * FROM millpond_group AS o
          WHERE o.pool = $1 AND o.share = $2 AND o.owner = $3 AND o.ready = 1
            AND (o.shelf_rank, o.shelf_seq) > ($4, $5)
          ORDER BY o.shelf_rank, o.shelf_seq LIMIT $6)
         UNION ALL
        SELECT * FROM millpond_group AS o
         WHERE o.pool = $1 AND o.unit = $2 AND o.share = $2 AND o.owner = $3 AND o.ready = 1
           AND o.share <> '' AND (o.rank, o.seq) > ($4, $5)) AS x
 ORDER BY x.rank, x.seq LIMIT $6;

-- name: turns_ahead
SELECT s.turn, s.joined, s.share,
       (SELECT count(*) FROM millpond_seat AS o WHERE o.pool = $1 AND o.share = s.share),
       EXISTS (SELECT 1 FROM millpond_group AS o
                WHERE o.pool = $1 AND o.share = s.share AND o.owner = '' AND o.ready = 1
                  AND (o.rank, o.seq) > (g.rank, g.seq)),
       g.id, g.unit, g.share, g.owner, g.tasks, g.rank, g.seq, g.due, g.ready,
       u.running, u.paused, u.blocked, u.held_until, u.tat, u.groups,
       u.timer_at, u.timer_rank, u.timer_seq, u.fades_at,
       n.rank, n.place, n.due,
       l.*, t.body
  FROM millpond_ring($1, '', $2, $3, $4) AS s
  LEFT JOIN millpond_group AS g ON g.id =
       (SELECT x.id FROM (SELECT o.id, o.rank, o.seq FROM millpond_group AS o
                           WHERE o.pool = $1 AND o.share = s.share AND o.owner = '' AND o.ready = 1
                           ORDER BY o.shelf_rank, o.shelf_seq LIMIT 2) AS x
         ORDER BY x.rank, x.seq LIMIT 1)
  LEFT JOIN millpond_unit AS u ON u.pool = $1 AND u.unit = g.unit
  LEFT JOIN millpond_live AS l ON l.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) >= (g.rank, (g.pool << 40) | g.seq)
         ORDER BY rank, place LIMIT 1)
  LEFT JOIN millpond_task AS t ON t.place = l.place
  LEFT JOIN millpond_live AS n ON g.tasks > 1 AND n.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) > (l.rank, l.place)
         ORDER BY rank, place LIMIT 1)
 ORDER BY s.turn, s.joined;

-- The group of tasks without a key is one of many in the one share of such a pool.
-- name: shelf_ahead
SELECT g.id, g.unit, g.share, g.owner, g.tasks, g.rank, g.seq, g.due, g.ready,
       u.running, u.paused, u.blocked, u.held_until, u.tat, u.groups,
       u.timer_at, u.timer_rank, u.timer_seq, u.fades_at,
       n.rank, n.place, n.due,
       l.*, t.body
  FROM millpond_group AS g
  LEFT JOIN millpond_unit AS u ON u.pool = g.pool AND u.unit = g.unit
  LEFT JOIN millpond_live AS l ON l.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) >= (g.rank, (g.pool << 40) | g.seq)
         ORDER BY rank, place LIMIT 1)
  LEFT JOIN millpond_task AS t ON t.place = l.place
  LEFT JOIN millpond_live AS n ON g.tasks > 1 AND n.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) > (l.rank, l.place)
         ORDER BY rank, place LIMIT 1)
 WHERE g.pool = $1 AND g.share = '' AND g.owner = '' AND g.ready = 1 AND (g.shelf_rank, g.shelf_seq) > ($2, $3)
 ORDER BY g.shelf_rank, g.shelf_seq LIMIT $4;

-- A seat whose row does not say its turn (functions/ring.sql) is read with it, and written with it where it changes.

-- name: seat
SELECT s.owner, millpond_turn_of(s.turn, s.joined, p.passed_turn, p.passed_join), s.joined, s.resting
  FROM millpond_seat AS s
 CROSS JOIN LATERAL (SELECT o.passed_turn, o.passed_join FROM millpond_pool AS o
                      WHERE o.id = $1 ORDER BY o.turn DESC LIMIT 1) AS p
 WHERE s.pool = $1 AND s.share = $2;

-- name: seats
SELECT s.share, s.owner, millpond_turn_of(s.turn, s.joined, p.passed_turn, p.passed_join), s.joined, s.resting
  FROM (SELECT o.passed_turn, o.passed_join FROM millpond_pool AS o
         WHERE o.id = $1 ORDER BY o.turn DESC LIMIT 1) AS p
 CROSS JOIN LATERAL
       (SELECT o.* FROM unnest($2::text[]) AS u (share)
         CROSS JOIN LATERAL (SELECT * FROM millpond_seat AS x
                              WHERE x.pool = $1 AND x.share = u.share OFFSET 0) AS o) AS s;

-- name: turns
SELECT s.turn, s.joined, s.share FROM millpond_ring($1, $2, -1, 0, $3) AS s;

-- name: turns_after
SELECT s.turn, s.joined, s.share FROM millpond_ring($1, $2, $3, $4, $5) AS s;

-- name: lower_ring
UPDATE millpond_pool
   SET ring_turn = $2, ring_join = $3 - 1, writes = writes + 1, turn = (writes + 1) >> 5
 WHERE ctid = (SELECT ctid FROM millpond_pool WHERE id = $1 ORDER BY turn DESC LIMIT 1)
   AND (ring_turn, ring_join) >= ($2, $3);

-- name: next_of_group
SELECT l.*, t.body
  FROM (SELECT u.rank, u.low,
               CASE WHEN p.bands IS NULL THEN 9223372036854775807 ELSE u.rank END AS last_rank
          FROM (SELECT 1) AS one
          LEFT JOIN (SELECT o.bands, o.lows FROM millpond_pool AS o
                      WHERE o.id = $1 ORDER BY o.turn DESC LIMIT 1) AS p ON true
          -- A group names the place of its first task, but for the line of an owner in a pool without groups.
          -- Such a line is read by next_of_group_after.
          LEFT JOIN (SELECT o.rank, (o.pool << 40) | o.seq AS place FROM millpond_group AS o
                      WHERE o.id = $1 OFFSET 0) AS g ON true
         CROSS JOIN LATERAL
               unnest(coalesce(p.bands, ARRAY[coalesce(g.rank, -9223372036854775808)]),
                      CASE WHEN p.bands IS NULL THEN ARRAY[coalesce(g.place, 0)] ELSE p.lows END)
               AS u (rank, low)
         ORDER BY u.rank) AS b
 CROSS JOIN LATERAL
       (SELECT * FROM millpond_live AS o
         WHERE o.grp = $1 AND o.grp > 0 AND (o.rank, o.place) >= (b.rank, b.low)
           AND o.rank <= b.last_rank
         ORDER BY o.rank, o.place LIMIT $2) AS l
 CROSS JOIN LATERAL (SELECT o.body FROM millpond_task AS o WHERE o.place = l.place OFFSET 0) AS t
 LIMIT $2;

-- name: next_due
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.pool = $1 AND l.grp = 0
   AND l.due >= (SELECT p.undue_since FROM millpond_pool AS p
                  WHERE p.id = $1 ORDER BY p.turn DESC LIMIT 1)
 ORDER BY l.due, l.place LIMIT $2;

-- name: first_due
SELECT due FROM millpond_live
 WHERE pool = $1 AND grp = 0
   AND due >= (SELECT p.undue_since FROM millpond_pool AS p
                WHERE p.id = $1 ORDER BY p.turn DESC LIMIT 1)
 ORDER BY due, place LIMIT 1;

-- name: check_bands
SELECT format('task %s of pool %s is ready, and no claim would find it at rank %s, place %s',
              l.id, p.name, l.rank, l.place)
  FROM millpond_pool AS p JOIN millpond_live AS l ON l.grp = p.id
 WHERE p.bands IS NOT NULL
   AND NOT EXISTS (SELECT FROM unnest(p.bands, p.lows) AS u (rank, low)
                    WHERE u.rank = l.rank AND u.low <= l.place)
 UNION ALL
SELECT format('task %s of pool %s is due at %s, and no claim would find it before %s',
              l.id, p.name, l.due, p.undue_since)
  FROM millpond_pool AS p JOIN millpond_live AS l ON l.pool = p.id
 WHERE l.grp = 0 AND l.due < p.undue_since
 UNION ALL
SELECT format('share %s of pool %s takes part at turn %s, %s, and no claim would find it there',
              s.share, p.name, s.turn, s.joined)
  FROM millpond_pool AS p JOIN millpond_seat AS s ON s.pool = p.id
 WHERE s.owner = '' AND s.resting = 0 AND s.turn >= 0 AND (s.turn, s.joined) <= (p.ring_turn, p.ring_join);

-- name: check_leases
SELECT format('a lease of worker %s has number %s, and the store reads only those from %s to %s',
              l.worker, l.n, m.first_lease, m.leases)
  FROM millpond_lease AS l CROSS JOIN (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m
 WHERE l.n < m.first_lease OR l.n > m.leases;

-- A task to which nothing has happened yet; '' stands for none.
-- name: add_queued
INSERT INTO millpond_live (place, id, pool, rank, key, lane, sequence, submitted_at, expires_at,
                           owner, run, due, cancel_requested, running, attempt, runs, fresh, listed,
                           token, grp)
VALUES (?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, ?, nullif(?::text, '')::double precision,
        nullif(?, ''), nullif(?::text, '')::bigint, ?, 0, 0, 0, 0, ?, ?, 0, ?);

-- A queue entry without a task: it gets a body that says nothing, and fails when its turn comes.
-- name: mend_1_bodies
INSERT INTO millpond_task
SELECT place, id, ''::bytea FROM millpond_live WHERE place NOT IN (SELECT place FROM millpond_task)
    ON CONFLICT DO NOTHING;

-- The marks may be wrong, too. Reset them: a ready task may then be anywhere.
-- name: mend_9_marks
UPDATE millpond_pool
   SET bands = NULL, lows = '{}', undue_since = 0, ring_turn = 0, ring_join = 0, writes = writes + 1, turn = (writes + 1) >> 5;

-- name: mend_9_inbox
UPDATE millpond_meta SET seen_upto = '0', seen_open = '{}';

-- The counts of a pool's row are JSON, by worker.
-- name: check_holding
SELECT format('pool %s says worker %s runs %s, and it runs %s',
              p.name, h.worker, sum(h.said), sum(h.counted))
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, j.key AS worker, j.value::bigint AS said, 0 AS counted
          FROM millpond_pool AS o, json_each_text(o.holding::json) AS j
         UNION ALL
        SELECT pool, worker, 0, count(*) FROM millpond_live WHERE running = 1
         GROUP BY pool, worker) AS h ON h.pool = p.id
 GROUP BY p.id, p.name, h.worker HAVING sum(h.said) <> sum(h.counted);

-- When the store's time steps back; nothing is known any more of where to look for what is due.
-- name: move_pool
UPDATE millpond_pool
   SET not_before = CASE WHEN not_before > $2 THEN round((not_before - $1) * 1000000) / 1000000
                         ELSE not_before END,
       undue_since = 0, bands = NULL, lows = '{}';

-- How many failed tasks a pool keeps stands with its totals; an older version stored no such count.
-- name: check_dead
SELECT format('pool %s says it keeps %s failed tasks, and there are %s', p.name, (p.totals::json ->> 'dead')::bigint, c.dead)
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, count(e.place) AS dead
          FROM millpond_pool AS o
          LEFT JOIN millpond_ended AS e ON e.pool = o.id AND e.completed = 0 AND e.status = 'failed'
         GROUP BY o.id) AS c ON c.pool = p.id
 WHERE (p.totals::json ->> 'dead')::bigint <> c.dead;
