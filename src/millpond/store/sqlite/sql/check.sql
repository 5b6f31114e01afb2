-- Checks: what is counted somewhere is counted again from the rows. Each answers with what is wrong.

-- name: check_pool_counts
SELECT printf('pool %s says %d live, %d running, %d claimed, %d fresh, %d ready, %d later, '
              || '%d parked, %d parked apart; its rows say %d, %d, %d, %d, %d, %d, %d, %d',
              p.name, p.live, p.running, p.claimed, p.fresh, p.ready, p.later, p.parked,
              p.parked_apart, c.live, c.running, c.claimed, c.fresh, c.ready, c.later, c.parked,
              c.parked_apart)
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, count(l.place) AS live, total(l.running) AS running,
               count(l.claim) AS claimed, total(l.fresh) AS fresh, total(l.grp > 0) AS ready,
               total(l.grp = 0) AS later, count(l.function) AS parked,
               total(l.function IS NOT NULL AND l.grp IS NULL) AS parked_apart
          FROM millpond_pool AS o LEFT JOIN millpond_live AS l ON l.pool = o.id GROUP BY o.id) AS c
    ON c.pool = p.id
 WHERE (p.live, p.running, p.claimed, p.fresh, p.ready, p.later, p.parked, p.parked_apart)
       IS NOT (c.live, c.running, c.claimed, c.fresh, c.ready, c.later, c.parked, c.parked_apart);

-- name: check_kept
SELECT printf('pool %s says it keeps %d ended tasks, and there are %d', p.name, p.kept, c.kept)
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, count(e.place) AS kept
          FROM millpond_pool AS o LEFT JOIN millpond_ended AS e ON e.pool = o.id GROUP BY o.id) AS c
    ON c.pool = p.id
 WHERE p.kept <> c.kept;

-- name: check_places
SELECT printf('a row of task %d stands at place %d, outside of its pool %d', id, place, pool)
  FROM millpond_live WHERE place >> 40 <> pool
 UNION ALL
SELECT printf('an ended task stands at place %d, outside of its pool %d', place, pool)
  FROM millpond_ended WHERE place >> 40 <> pool
 UNION ALL
SELECT printf('place %d is beyond the last of pool %s, %d', l.place, p.name, p.next_seq)
  FROM millpond_pool AS p
  JOIN millpond_task AS l ON l.place > (p.id << 40 | p.next_seq) AND l.place < (p.id + 1) << 40
 UNION ALL
SELECT printf('place %d belongs to a pool that is not there', place)
  FROM millpond_task WHERE place >> 40 NOT IN (SELECT id FROM millpond_pool);

-- name: check_bodies
SELECT printf('task %d has a body and is neither live nor ended', id) FROM millpond_task
 WHERE place NOT IN (SELECT place FROM millpond_live)
   AND place NOT IN (SELECT place FROM millpond_ended)
 UNION ALL
SELECT printf('place %d is live and ended at once', place) FROM millpond_live
 WHERE place IN (SELECT place FROM millpond_ended)
 UNION ALL
SELECT printf('task %d is live and has no body, or another', l.id)
  FROM millpond_live AS l LEFT JOIN millpond_task AS t ON t.place = l.place WHERE t.id IS NOT l.id
 UNION ALL
SELECT printf('the task at place %d has ended and has no body', place) FROM millpond_ended
 WHERE place NOT IN (SELECT place FROM millpond_task)
 UNION ALL
SELECT printf('task %d is kept, and said to be removed', id) FROM millpond_removed
 WHERE id IN (SELECT id FROM millpond_task);

-- A task that waits stands in the queue, unless it is held ahead, or parked and no lane's head.
-- name: check_queue
SELECT printf('task %d waits, and stands in no queue', id) FROM millpond_live
 WHERE running = 0 AND claim IS NULL AND grp IS NULL AND function IS NULL
 UNION ALL
SELECT printf('task %d counts for a bound that does not count it', id) FROM millpond_live
 WHERE listed = 1 AND fresh = 0;

-- name: check_plain_queues
SELECT printf('task %d is queued in group %d, and pool %s has none but its own', l.id, l.grp, p.name)
  FROM millpond_live AS l JOIN millpond_pool AS p ON p.id = l.pool
 WHERE p.grouped = 0 AND l.grp > 0 AND l.owner IS NULL AND l.grp <> p.id
 UNION ALL
SELECT printf('pool %s has a %s, and looks at none', p.name, x.what)
  FROM millpond_pool AS p
  JOIN (SELECT pool, 'lane or key ' || unit AS what FROM millpond_unit
         UNION ALL SELECT pool, 'share ' || share FROM millpond_seat
         UNION ALL SELECT pool, 'group ' || id FROM millpond_group WHERE owner = '') AS x
    ON x.pool = p.id
 WHERE p.grouped = 0;

-- name: check_groups
SELECT printf('group %d of pool %d says it has %d tasks, and there are %d',
              g.id, g.pool, g.tasks, c.tasks)
  FROM millpond_group AS g
  JOIN (SELECT h.id, count(l.place) AS tasks
          FROM millpond_group AS h LEFT JOIN millpond_live AS l ON l.grp = h.id AND l.grp > 0
         GROUP BY h.id) AS c ON c.id = g.id
 WHERE g.tasks <> c.tasks OR g.tasks = 0
 UNION ALL
SELECT printf('task %d is queued in group %d, which is not there', l.id, l.grp)
  FROM millpond_live AS l JOIN millpond_pool AS p ON p.id = l.pool
 WHERE l.grp > 0 AND (p.grouped = 1 OR l.owner IS NOT NULL)
   AND l.grp NOT IN (SELECT id FROM millpond_group)
 UNION ALL
SELECT printf('task %d is queued in group %d, which is of another pool, key or owner', l.id, g.id)
  FROM millpond_live AS l
  JOIN millpond_group AS g ON g.id = l.grp
  JOIN millpond_pool AS p ON p.id = l.pool
 WHERE l.grp > 0
   AND (g.pool <> l.pool OR g.owner <> coalesce(l.owner, '')
        OR (p.grouped = 1 AND g.unit <> coalesce(l.lane, l.key, '')));

-- name: check_heads
SELECT printf('group %d of pool %s stands at (%d, %d), and its first task at (%d, %d)',
              g.id, p.name, g.rank, g.seq, l.rank, l.place & ((1 << 40) - 1))
  FROM millpond_group AS g
  JOIN millpond_pool AS p ON p.id = g.pool AND p.grouped = 1
  JOIN millpond_live AS l
    ON l.place = (SELECT place FROM millpond_live
                   WHERE grp = g.id AND grp > 0 ORDER BY rank, place LIMIT 1)
 WHERE (g.rank, g.seq, g.due) IS NOT (l.rank, l.place & ((1 << 40) - 1), l.due);

-- name: check_units
SELECT printf('lane or key %s of pool %s says %d held and %d groups; its rows say %d and %d',
              u.unit, p.name, u.running, u.groups, c.held, c.groups)
  FROM millpond_unit AS u
  JOIN millpond_pool AS p ON p.id = u.pool
  JOIN (SELECT v.pool, v.unit,
               (SELECT count(*) FROM millpond_live AS l
                 WHERE l.pool = v.pool AND l.worker IS NOT NULL AND v.unit <> ''
                   AND coalesce(l.lane, l.key) = v.unit) AS held,
               (SELECT count(*) FROM millpond_group AS g
                 WHERE g.pool = v.pool AND g.unit = v.unit) AS groups
          FROM millpond_unit AS v) AS c ON c.pool = u.pool AND c.unit = u.unit
 WHERE (u.running, u.groups) IS NOT (c.held, c.groups)
 UNION ALL
SELECT printf('task %d is held, and its lane or key %s in pool %s is not known',
              l.id, coalesce(l.lane, l.key), p.name)
  FROM millpond_live AS l JOIN millpond_pool AS p ON p.id = l.pool AND p.grouped = 1
 WHERE l.worker IS NOT NULL AND coalesce(l.lane, l.key) IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM millpond_unit AS u
                    WHERE u.pool = l.pool AND u.unit = coalesce(l.lane, l.key))
 UNION ALL
SELECT printf('group %d belongs to lane or key %s of pool %s, which is not known',
              g.id, g.unit, p.name)
  FROM millpond_group AS g JOIN millpond_pool AS p ON p.id = g.pool AND p.grouped = 1
 WHERE NOT EXISTS (SELECT 1 FROM millpond_unit AS u WHERE u.pool = g.pool AND u.unit = g.unit)
 UNION ALL
SELECT printf('lane or key %s of pool %s is stopped, and group %d of it is ready',
              u.unit, p.name, g.id)
  FROM millpond_unit AS u
  JOIN millpond_pool AS p ON p.id = u.pool
  JOIN millpond_group AS g ON g.pool = u.pool AND g.unit = u.unit AND g.ready = 1
 WHERE u.paused = 1 OR u.blocked = 1;

-- name: check_timers
SELECT printf('pool %s says %d timers, %d fading and %d resting; its rows say %d, %d and %d',
              p.name, p.unit_timers, p.fading, p.resting, c.timers, c.fading, c.resting)
  FROM millpond_pool AS p
  JOIN (SELECT o.id,
               (SELECT count(timer_at) FROM millpond_unit WHERE pool = o.id) AS timers,
               (SELECT count(fades_at) FROM millpond_unit WHERE pool = o.id) AS fading,
               (SELECT total(resting) FROM millpond_seat WHERE pool = o.id) AS resting
          FROM millpond_pool AS o) AS c ON c.id = p.id
 WHERE (p.unit_timers, p.fading, p.resting) IS NOT (c.timers, c.fading, c.resting);

-- A share takes part for an owner as long as one of its groups there could start something.
-- name: check_seats
SELECT printf('share %s of pool %s is ready for owner %s, and has no turn', g.share, p.name, g.owner)
  FROM millpond_group AS g JOIN millpond_pool AS p ON p.id = g.pool AND p.grouped = 1
 WHERE g.ready = 1
   AND NOT EXISTS (SELECT 1 FROM millpond_seat AS s
                    WHERE s.pool = g.pool AND s.share = g.share AND s.owner = g.owner
                      AND s.resting = 0)
 UNION ALL
SELECT printf('share %s of pool %s has a turn for owner %s, and nothing ready',
              s.share, p.name, s.owner)
  FROM millpond_seat AS s JOIN millpond_pool AS p ON p.id = s.pool
 WHERE s.resting = 0
   AND NOT EXISTS (SELECT 1 FROM millpond_group AS g
                    WHERE g.pool = s.pool AND g.share = s.share AND g.owner = s.owner
                      AND g.ready = 1)
 UNION ALL
SELECT printf('share %s of pool %d rests and takes turns at once', share, pool)
  FROM millpond_seat GROUP BY pool, share HAVING min(resting) <> max(resting);

-- name: check_lanes
SELECT printf('task %d has number %d in lane %s of pool %d, whose last is %d',
              l.id, l.sequence, l.lane, l.pool, coalesce(n.sequence, 0))
  FROM millpond_live AS l
  LEFT JOIN millpond_lane AS n ON n.pool = l.pool AND n.lane = l.lane
 WHERE l.lane IS NOT NULL AND l.sequence > coalesce(n.sequence, 0);

-- name: check_holders
SELECT printf('task %d is held by worker %s, who is not there', id, worker) FROM millpond_live
 WHERE worker IS NOT NULL AND worker NOT IN (SELECT id FROM millpond_worker)
 UNION ALL
SELECT printf('worker %s says it holds %d ahead, and there are %d', w.id, w.ahead, c.ahead)
  FROM millpond_worker AS w
  JOIN (SELECT v.id, count(l.place) AS ahead
          FROM millpond_worker AS v
          LEFT JOIN millpond_live AS l ON l.worker = v.id AND l.claim IS NOT NULL
         GROUP BY v.id) AS c ON c.id = w.id
 WHERE w.ahead <> c.ahead;

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

-- name: check_keys
SELECT printf('idempotency key %s of pool %d stands for task %d, which is not there',
              key, pool, task)
  FROM millpond_key
 WHERE ended_at IS NULL AND task NOT IN (SELECT id FROM millpond_task)
 UNION ALL
SELECT printf('idempotency key %s of pool %d says task %d is %s, and it is not',
              k.key, k.pool, k.task, k.status)
  FROM millpond_key AS k
  JOIN millpond_task AS t ON t.id = k.task
  LEFT JOIN millpond_ended AS e ON e.place = t.place
 WHERE (e.status IS NULL AND k.status NOT IN ('queued', 'running'))
    OR (e.status IS NOT NULL AND e.status <> k.status);

-- name: check_runs
SELECT printf('task %d is of run %d, which is not there', id, run) FROM millpond_live
 WHERE run IS NOT NULL AND run NOT IN (SELECT id FROM millpond_run);

-- name: check_run_counts
SELECT r.id, r.finished_at, r.state,
       (SELECT count(*) FROM millpond_live AS l WHERE l.run = r.id)
  FROM millpond_run AS r;

-- name: check_numbers
SELECT printf('group %d is beyond the next, %d', max(g.id), m.next_group)
  FROM millpond_meta AS m, millpond_group AS g HAVING max(g.id) >= m.next_group
 UNION ALL
SELECT printf('claim %d is beyond the next, %d', max(l.claim), m.next_claim)
  FROM millpond_meta AS m, millpond_live AS l HAVING max(l.claim) >= m.next_claim
 UNION ALL
SELECT printf('worker number %d is beyond the last, %d', max(w.number), m.joined)
  FROM millpond_meta AS m, millpond_worker AS w HAVING max(w.number) > m.joined
 UNION ALL
SELECT printf('task %d was submitted at %f, and the latest moment is %f', l.id, l.submitted_at, m.latest)
  FROM millpond_meta AS m JOIN millpond_live AS l ON l.submitted_at > m.latest
 UNION ALL
SELECT printf('%d rows are in millpond_meta', count(*)) FROM millpond_meta HAVING count(*) <> 1;

-- name: check_audit
SELECT printf('the audit says %d records, and its last position is %d', m.records, max(a.position))
  FROM millpond_meta AS m, millpond_audit AS a HAVING max(a.position) <> m.records
 UNION ALL
SELECT printf('the audit has a gap before position %d', position)
  FROM (SELECT position, records, lag(position) OVER (ORDER BY position) AS before
          FROM millpond_audit)
 WHERE before IS NOT NULL AND before <> position - records;

-- name: check_settings
SELECT printf('revision %d of pool %s is not as it is in force', p.revision, p.name)
  FROM millpond_pool AS p
  LEFT JOIN millpond_revision AS r ON r.pool = p.id AND r.revision = p.revision
 WHERE r.spec IS NOT p.spec;
