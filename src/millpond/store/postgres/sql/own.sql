-- What PostgreSQL says in its own words: because it must, or because only it is asked.

-- When a transaction has got its turn: what time it is, who wrote since, whether the inbox holds
-- something, and what belongs to no pool.
-- name: begun
SELECT extract(epoch FROM clock_timestamp())::double precision, m.version,
       EXISTS (SELECT 1 FROM millpond_lease), EXISTS (SELECT 1 FROM millpond_inbox), m.latest, m.joined,
       m.next_group, m.next_claim, m.records, m.leader, m.leader_until, m.generation
  FROM (SELECT 1) AS one LEFT JOIN millpond_meta AS m ON true;

-- name: step
SELECT * FROM millpond_step(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: take
SELECT * FROM millpond_take(?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: renew
SELECT * FROM millpond_renew(?, ?, ?, ?);

-- name: unfold
SELECT millpond_unfold(?::bigint[]);

-- name: add_task
INSERT INTO millpond_task (place, id, body, plain) VALUES (?, ?, ?, ?);

-- Records that the server has noted by itself look like JSON.
-- name: audit
SELECT a.position, a.records, coalesce(a.told, convert_to(json_build_object(
           'at', a.at, 'event', a.event, 'starts', a.starts, 'pool', p.name, 'worker', a.worker, 'tokens', a.tokens,
           'ids', a.ids, 'seqs', (SELECT array_agg(place & ((1::bigint << 40) - 1) ORDER BY n)
                                    FROM unnest(a.places) WITH ORDINALITY AS u (place, n)),
           'due', a.due, 'keys', a.keys, 'plain', a.plain)::text, 'UTF8'))
  FROM millpond_audit AS a LEFT JOIN millpond_pool AS p ON p.id = a.pool
 WHERE a.position > ? ORDER BY a.position LIMIT ?;

-- name: measured
SELECT coalesce(m.times, (
           SELECT string_agg(float8send(m.started_at - coalesce(m.due[k], m.due[1]))
                             || float8send(m.finished_at - m.started_at), '' ORDER BY k)
             FROM generate_series(1, m.n) AS s (k)))
  FROM millpond_measured AS m WHERE m.pool = ? ORDER BY m.upto DESC;

-- name: version
SELECT version, EXISTS (SELECT FROM millpond_inbox) FROM millpond_meta;

-- name: anything_queued
SELECT EXISTS (SELECT FROM millpond_pool WHERE live > running) OR EXISTS (SELECT FROM millpond_inbox);

-- Under which generation somebody else leads at a moment: he lives, as far as is known.
-- name: led
SELECT m.generation FROM millpond_meta AS m
 WHERE m.leader <> ? AND m.leader_until > coalesce(?, extract(epoch FROM clock_timestamp())::double precision)
   AND EXISTS (SELECT FROM millpond_worker AS w WHERE w.owner = m.leader);

-- Whoever changes anything writes this row, too: the others see by it that they know too little.
-- name: save_meta
UPDATE millpond_meta
   SET version = version + 1, latest = ?, joined = ?, next_group = ?, next_claim = ?, records = ?,
       leader = ?, leader_until = ?, generation = ?;

-- Its version is one that nobody has seen.
-- name: new_meta
INSERT INTO millpond_meta
SELECT 1,
       coalesce((SELECT max(submitted_at) FROM millpond_live), 0.0),
       coalesce((SELECT max(number) FROM millpond_worker), 0),
       coalesce((SELECT max(id) + 1 FROM millpond_group), 1048576),
       coalesce((SELECT max(claim) + 1 FROM millpond_live), 1),
       coalesce((SELECT max(position) FROM millpond_audit), 0),
       '', 0.0, coalesce((SELECT max(position) FROM millpond_audit), 0),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

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
