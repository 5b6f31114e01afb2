-- Checks: what is counted somewhere is counted again from the rows. Each answers with what is wrong.

-- name: check_pool_counts
SELECT sentence('pool %s says %s live, %s running, %s claimed, %s fresh, %s ready, %s later, '
              || '%s parked, %s parked apart; its rows say %s, %s, %s, %s, %s, %s, %s, %s',
              p.name, p.live, p.running, p.claimed, p.fresh, p.ready, p.later, p.parked,
              p.parked_apart, c.live, c.running, c.claimed, c.fresh, c.ready, c.later, c.parked,
              c.parked_apart)
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, count(l.place) AS live,
               count(*) FILTER (WHERE l.running = 1) AS running, count(l.claim) AS claimed,
               count(*) FILTER (WHERE l.fresh = 1) AS fresh,
               count(*) FILTER (WHERE l.grp > 0) AS ready,
               count(*) FILTER (WHERE l.grp = 0) AS later, count(l.function) AS parked,
               count(*) FILTER (WHERE l.function IS NOT NULL AND l.grp IS NULL) AS parked_apart
          FROM millpond_pool AS o LEFT JOIN millpond_live AS l ON l.pool = o.id GROUP BY o.id) AS c
    ON c.pool = p.id
 WHERE (p.live, p.running, p.claimed, p.fresh, p.ready, p.later, p.parked, p.parked_apart)
       <> (c.live, c.running, c.claimed, c.fresh, c.ready, c.later, c.parked, c.parked_apart);

-- name: check_kept
SELECT sentence('pool %s says it keeps %s ended tasks, and there are %s', p.name, p.kept, c.kept)
  FROM millpond_pool AS p
  JOIN (SELECT o.id AS pool, count(e.place) AS kept
          FROM millpond_pool AS o LEFT JOIN millpond_ended AS e ON e.pool = o.id GROUP BY o.id) AS c
    ON c.pool = p.id
 WHERE p.kept <> c.kept;

-- name: check_places
SELECT sentence('a row of task %s stands at place %s, outside of its pool %s', id, place, pool)
  FROM millpond_live WHERE place >> 40 <> pool
 UNION ALL
SELECT sentence('an ended task stands at place %s, outside of its pool %s', place, pool)
  FROM millpond_ended WHERE place >> 40 <> pool
 UNION ALL
SELECT sentence('place %s is beyond the last of pool %s, %s', l.place, p.name, p.next_seq)
  FROM millpond_pool AS p
  JOIN millpond_task AS l ON l.place > (p.id << 40 | p.next_seq) AND l.place < (p.id + 1) << 40
 UNION ALL
SELECT sentence('place %s belongs to a pool that is not there', place)
  FROM millpond_task WHERE place >> 40 NOT IN (SELECT id FROM millpond_pool);

-- name: check_bodies
SELECT sentence('task %s has a body and is neither live nor ended', id) FROM millpond_task
 WHERE place NOT IN (SELECT place FROM millpond_live)
   AND place NOT IN (SELECT place FROM millpond_ended)
 UNION ALL
SELECT sentence('place %s is live and ended at once', place) FROM millpond_live
 WHERE place IN (SELECT place FROM millpond_ended)
 UNION ALL
SELECT sentence('task %s is live and has no body, or another', l.id)
  FROM millpond_live AS l LEFT JOIN millpond_task AS t ON t.place = l.place
 WHERE t.id IS NULL OR t.id <> l.id
 UNION ALL
SELECT sentence('the task at place %s has ended and has no body', place) FROM millpond_ended
 WHERE place NOT IN (SELECT place FROM millpond_task)
 UNION ALL
SELECT sentence('task %s is kept, and said to be removed', id) FROM millpond_removed
 WHERE id IN (SELECT id FROM millpond_task);

-- name: check_values
SELECT sentence('task %s says attempt %s of %s runs, running %s', id, attempt, runs, running)
  FROM millpond_live
 WHERE attempt < 0 OR runs < attempt OR cancel_requested NOT IN (0, 1, 2) OR running NOT IN (0, 1)
    OR (running = 1 AND (worker IS NULL OR attempt < 1));

-- A task that waits stands in the queue, unless it is held ahead, or parked and no lane's head.
-- name: check_queue
SELECT sentence('task %s waits, and stands in no queue', id) FROM millpond_live
 WHERE running = 0 AND claim IS NULL AND grp IS NULL AND function IS NULL
 UNION ALL
SELECT sentence('task %s counts for a bound that does not count it', id) FROM millpond_live
 WHERE listed = 1 AND fresh = 0;

-- name: check_plain_queues
SELECT sentence('task %s is queued in group %s, and pool %s has none but its own', l.id, l.grp, p.name)
  FROM millpond_live AS l JOIN millpond_pool AS p ON p.id = l.pool
 WHERE p.grouped = 0 AND l.grp > 0 AND l.owner IS NULL AND l.grp <> p.id
 UNION ALL
SELECT sentence('pool %s has a %s, and looks at none', p.name, x.what)
  FROM millpond_pool AS p
  JOIN (SELECT pool, 'lane or key ' || unit AS what FROM millpond_unit
         UNION ALL SELECT pool, 'share ' || share FROM millpond_seat
         UNION ALL SELECT pool, 'group ' || id FROM millpond_group WHERE owner = '') AS x
    ON x.pool = p.id
 WHERE p.grouped = 0;

-- name: check_groups
SELECT sentence('group %s of pool %s says it has %s tasks, and there are %s',
              g.id, g.pool, g.tasks, c.tasks)
  FROM millpond_group AS g
  JOIN (SELECT h.id, count(l.place) AS tasks
          FROM millpond_group AS h LEFT JOIN millpond_live AS l ON l.grp = h.id AND l.grp > 0
         GROUP BY h.id) AS c ON c.id = g.id
 WHERE g.tasks <> c.tasks OR g.tasks = 0
 UNION ALL
SELECT sentence('task %s is queued in group %s, which is not there', l.id, l.grp)
  FROM millpond_live AS l JOIN millpond_pool AS p ON p.id = l.pool
 WHERE l.grp > 0 AND (p.grouped = 1 OR l.owner IS NOT NULL)
   AND l.grp NOT IN (SELECT id FROM millpond_group)
 UNION ALL
SELECT sentence('task %s is queued in group %s, which is of another pool, key or owner', l.id, g.id)
  FROM millpond_live AS l
  JOIN millpond_group AS g ON g.id = l.grp
  JOIN millpond_pool AS p ON p.id = l.pool
 WHERE l.grp > 0
   AND (g.pool <> l.pool OR g.owner <> coalesce(l.owner, '')
        OR (p.grouped = 1 AND g.unit <> coalesce(l.lane, l.key, '')));

-- name: check_heads
SELECT sentence('group %s of pool %s stands at (%s, %s), and its first task at (%s, %s)',
              g.id, p.name, g.rank, g.seq, l.rank, l.place & 1099511627775)
  FROM millpond_group AS g
  JOIN millpond_pool AS p ON p.id = g.pool AND p.grouped = 1
  JOIN millpond_live AS l
    ON l.place = (SELECT place FROM millpond_live
                   WHERE grp = g.id AND grp > 0 ORDER BY rank, place LIMIT 1)
 WHERE (g.rank, g.seq, g.due) <> (l.rank, l.place & 1099511627775, l.due);

-- name: check_units
SELECT sentence('lane or key %s of pool %s says %s held and %s groups; its rows say %s and %s',
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
 WHERE (u.running, u.groups) <> (c.held, c.groups)
 UNION ALL
SELECT sentence('task %s is held, and its lane or key %s in pool %s is not known',
              l.id, coalesce(l.lane, l.key), p.name)
  FROM millpond_live AS l JOIN millpond_pool AS p ON p.id = l.pool AND p.grouped = 1
 WHERE l.worker IS NOT NULL AND coalesce(l.lane, l.key) IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM millpond_unit AS u
                    WHERE u.pool = l.pool AND u.unit = coalesce(l.lane, l.key))
 UNION ALL
SELECT sentence('group %s belongs to lane or key %s of pool %s, which is not known',
              g.id, g.unit, p.name)
  FROM millpond_group AS g JOIN millpond_pool AS p ON p.id = g.pool AND p.grouped = 1
 WHERE NOT EXISTS (SELECT 1 FROM millpond_unit AS u WHERE u.pool = g.pool AND u.unit = g.unit)
 UNION ALL
SELECT sentence('lane or key %s of pool %s is stopped, and group %s of it is ready',
              u.unit, p.name, g.id)
  FROM millpond_unit AS u
  JOIN millpond_pool AS p ON p.id = u.pool
  JOIN millpond_group AS g ON g.pool = u.pool AND g.unit = u.unit AND g.ready = 1
 WHERE u.paused = 1 OR u.blocked = 1;

-- name: check_timers
SELECT sentence('pool %s says %s timers, %s fading and %s resting; its rows say %s, %s and %s',
              p.name, p.unit_timers, p.fading, p.resting, c.timers, c.fading, c.resting)
  FROM millpond_pool AS p
  JOIN (SELECT o.id,
               (SELECT count(timer_at) FROM millpond_unit WHERE pool = o.id) AS timers,
               (SELECT count(fades_at) FROM millpond_unit WHERE pool = o.id) AS fading,
               (SELECT count(*) FROM millpond_seat WHERE pool = o.id AND resting = 1) AS resting
          FROM millpond_pool AS o) AS c ON c.id = p.id
 WHERE (p.unit_timers, p.fading, p.resting) <> (c.timers, c.fading, c.resting);

-- A share takes part for an owner as long as one of its groups there could start something.
-- name: check_seats
SELECT sentence('share %s of pool %s is ready for owner %s, and has no turn', g.share, p.name, g.owner)
  FROM millpond_group AS g JOIN millpond_pool AS p ON p.id = g.pool AND p.grouped = 1
 WHERE g.ready = 1
   AND NOT EXISTS (SELECT 1 FROM millpond_seat AS s
                    WHERE s.pool = g.pool AND s.share = g.share AND s.owner = g.owner
                      AND s.resting = 0)
 UNION ALL
SELECT sentence('share %s of pool %s has a turn for owner %s, and nothing ready',
              s.share, p.name, s.owner)
  FROM millpond_seat AS s JOIN millpond_pool AS p ON p.id = s.pool
 WHERE s.resting = 0
   AND NOT EXISTS (SELECT 1 FROM millpond_group AS g
                    WHERE g.pool = s.pool AND g.share = s.share AND g.owner = s.owner
                      AND g.ready = 1)
 UNION ALL
SELECT sentence('share %s of pool %s rests and takes turns at once', share, pool)
  FROM millpond_seat GROUP BY pool, share HAVING min(resting) <> max(resting);

-- name: check_lanes
SELECT sentence('task %s has number %s in lane %s of pool %s, whose last is %s',
              l.id, l.sequence, l.lane, l.pool, coalesce(n.sequence, 0))
  FROM millpond_live AS l
  LEFT JOIN millpond_lane AS n ON n.pool = l.pool AND n.lane = l.lane
 WHERE l.lane IS NOT NULL AND l.sequence > coalesce(n.sequence, 0);

-- name: check_holders
SELECT sentence('task %s is held by worker %s, who is not there', id, worker) FROM millpond_live
 WHERE worker IS NOT NULL AND worker NOT IN (SELECT id FROM millpond_worker)
 UNION ALL
SELECT sentence('worker %s says it holds %s ahead, and there are %s', w.id, w.ahead, c.ahead)
  FROM millpond_worker AS w
  JOIN (SELECT v.id, count(l.place) AS ahead
          FROM millpond_worker AS v
          LEFT JOIN millpond_live AS l ON l.worker = v.id AND l.claim IS NOT NULL
         GROUP BY v.id) AS c ON c.id = w.id
 WHERE w.ahead <> c.ahead;

-- name: check_keys
SELECT sentence('idempotency key %s of pool %s stands for task %s, which is not there',
              key, pool, task)
  FROM millpond_key
 WHERE ended_at IS NULL AND task NOT IN (SELECT id FROM millpond_task)
 UNION ALL
SELECT sentence('idempotency key %s of pool %s says task %s is %s, and it is not',
              k.key, k.pool, k.task, k.status)
  FROM millpond_key AS k
  JOIN millpond_task AS t ON t.id = k.task
  LEFT JOIN millpond_ended AS e ON e.place = t.place
 WHERE (e.status IS NULL AND k.status NOT IN ('queued', 'running'))
    OR (e.status IS NOT NULL AND e.status <> k.status);

-- name: check_runs
SELECT sentence('task %s is of run %s, which is not there', id, run) FROM millpond_live
 WHERE run IS NOT NULL AND run NOT IN (SELECT id FROM millpond_run);

-- name: check_run_counts
SELECT r.id, r.finished_at, r.state,
       (SELECT count(*) FROM millpond_live AS l WHERE l.run = r.id)
  FROM millpond_run AS r;

-- Numbers of groups from 2^40 on are places of tasks; no counter gives them.
-- name: check_numbers
SELECT sentence('group %s is beyond the next, %s', max(g.id), m.next_group)
  FROM millpond_meta AS m, millpond_group AS g WHERE g.id < 1099511627776
 GROUP BY m.next_group HAVING max(g.id) >= m.next_group
 UNION ALL
SELECT sentence('claim %s is beyond the next, %s', max(l.claim), m.next_claim)
  FROM millpond_meta AS m, millpond_live AS l GROUP BY m.next_claim HAVING max(l.claim) >= m.next_claim
 UNION ALL
SELECT sentence('worker number %s is beyond the last, %s', max(w.number), m.joined)
  FROM millpond_meta AS m, millpond_worker AS w GROUP BY m.joined HAVING max(w.number) > m.joined
 UNION ALL
SELECT sentence('task %s was submitted at %s, and the latest moment is %s',
                l.id, l.submitted_at, m.latest)
  FROM millpond_meta AS m JOIN millpond_live AS l ON l.submitted_at > m.latest
 UNION ALL
SELECT sentence('of the row that there must be one of there are %s', count(*)) FROM millpond_meta HAVING count(*) <> 1;

-- name: check_audit
SELECT sentence('the audit says %s records, and its last position is %s', m.records, max(a.position))
  FROM millpond_meta AS m, millpond_audit AS a GROUP BY m.records HAVING max(a.position) <> m.records
 UNION ALL
SELECT sentence('the audit has a gap before position %s', position)
  FROM (SELECT position, records, lag(position) OVER (ORDER BY position) AS before
          FROM millpond_audit) AS a
 WHERE before IS NOT NULL AND before <> position - records;

-- name: check_settings
SELECT sentence('revision %s of pool %s is not as it is in force', p.revision, p.name)
  FROM millpond_pool AS p
  LEFT JOIN millpond_revision AS r ON r.pool = p.id AND r.revision = p.revision
 WHERE r.spec IS NULL OR r.spec <> p.spec;
