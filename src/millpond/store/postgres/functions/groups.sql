-- Queues with lanes, keys or shares, as core/order/backlog.py has them. A group holds the tasks of one unit (a lane
-- or a key) and one share; it is ready while its first task may start. A unit says how many of its tasks run, what
-- holds it back, when that ends by time alone (its timer), and when it is forgotten.

-- Let tasks come to their groups, and place each group that is touched, in one statement: see millpond_touched. Return
-- the pool with its counts, the shares with a group that is ready now and was not, in which order these became so,
-- and whether one was ready and is not. Groups of one unit are touched by their first tasks, as these were before.
CREATE FUNCTION millpond_flush(
    INOUT p millpond_pool, r millpond_rules, t millpond_touched,
    OUT entering text[], OUT leaving boolean
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    c record;
BEGIN
    WITH said AS MATERIALIZED (
        SELECT x.unit, x.share, min(x.at) AS at, count(x.seq) AS tasks, min(x.seq) AS first_place,
               min(ARRAY[x.rank, x.seq]) AS head, (array_agg(x.due ORDER BY x.rank, x.seq))[1] AS due
          FROM (SELECT u.unit, NULL AS share, u.at, NULL::bigint AS rank, NULL::bigint AS seq,
                       NULL::double precision AS due FROM unnest(t.units, t.unit_at) AS u (unit, at)
                 UNION ALL
                SELECT u.* FROM unnest(t.group_units, t.group_shares, t.group_at, t.ranks, t.seqs, t.dues)
                       AS u (unit, share, at, rank, seq, due)) AS x
         GROUP BY x.unit, x.share
    ), touched AS MATERIALIZED (
        SELECT s.*, o.spot AS unit_spot, coalesce(o.groups, 0) AS groups, o.timer_at, coalesce(o.opens, 0) AS opens
          FROM (SELECT x.*, min(x.at) FILTER (WHERE x.share IS NULL) OVER w AS unit_at,
                       array_agg(x.share) FILTER (WHERE x.share IS NOT NULL) OVER w AS shares
                  FROM said AS x WINDOW w AS (PARTITION BY x.unit)) AS s
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.groups, x.timer_at,
                       -- From when on it may start a task; infinity: time alone does not let it.
                       CASE WHEN x.paused = 1 OR x.blocked = 1 OR (x.unit <> '' AND x.running >= r.unit_limit)
                            THEN 'infinity'
                            ELSE greatest(x.held_until, CASE WHEN x.unit <> '' THEN millpond_rate_opens(
                                          x.tat, r.key_interval, r.key_depth, r.ticks) END) END AS opens
                  FROM millpond_unit AS x WHERE x.pool = p.id AND x.unit = s.unit OFFSET 0) AS o ON true
    ), placed AS MATERIALIZED (
        SELECT k.*, g.spot, g.rank AS was_rank, g.seq AS was_seq, g.owner, coalesce(g.ready, 0) AS was_ready,
               -- A group that is new was not there when its unit came free.
               CASE WHEN g.spot IS NULL THEN k.at ELSE least(k.at, k.unit_at) END AS touched_at,
               coalesce(g.share, k.share) AS of_share, coalesce(g.tasks, 0) + k.tasks AS tasks_then,
               h.rank AS first_rank, h.seq AS first_seq, h.due AS first_due,
               (h.due <= r.moment AND k.opens <= r.moment)::integer AS ready
          FROM touched AS k
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.* FROM millpond_group AS x
                 WHERE x.pool = p.id AND x.unit = k.unit AND x.share = k.share
                 UNION ALL
                -- Of a unit that has come free, or whose timer is due, the other groups, too.
                SELECT x.ctid, x.* FROM millpond_group AS x
                 WHERE x.pool = p.id AND x.unit = k.unit AND k.share IS NULL
                   AND (k.shares IS NULL OR x.share <> ALL(k.shares))) AS g ON true
         CROSS JOIN LATERAL
               -- What comes may stand before all others.
               (SELECT k.head[1] AS rank, k.head[2] AS seq, k.due
                 WHERE g.spot IS NULL OR (k.head[1], k.head[2]) < (g.rank, g.seq)
                 UNION ALL
                SELECT g.rank, g.seq, g.due LIMIT 1) AS h
         WHERE g.spot IS NOT NULL OR k.tasks > 0
    ), changed AS (
        UPDATE millpond_group AS g
           SET tasks = f.tasks_then, rank = f.first_rank, seq = f.first_seq, due = f.first_due, ready = f.ready
          FROM placed AS f WHERE g.ctid = f.spot AND (f.tasks > 0 OR f.ready <> f.was_ready)
    ), made AS (
        INSERT INTO millpond_group
        SELECT (p.id << 40) + f.first_place, p.id, f.unit, f.share, '', f.tasks, f.first_rank,
               f.first_seq, f.first_due, f.ready
          FROM placed AS f WHERE f.spot IS NULL
    ), units AS MATERIALIZED (
        SELECT u.*, CASE WHEN u.waits THEN greatest(u.opens, u.head_due)
                         -- A timer that is due stays until it has done its work, for the other groups of the unit.
                         WHEN u.timer_at <= r.moment AND t.pops IS NOT TRUE THEN u.timer_at END AS timer_then
          FROM (SELECT y.*, y.opens < 'infinity' AND greatest(y.opens, y.head_due) > r.moment AS waits
                  FROM (SELECT f.unit, f.unit_spot, f.groups, f.timer_at, f.opens,
                               f.groups + count(*) FILTER (WHERE f.spot IS NULL) AS groups_then,
                               -- The group that was placed last says in which order timers are due.
                               (array_agg(ARRAY[f.first_rank, f.first_seq]
                                          ORDER BY f.touched_at DESC, f.was_rank DESC, f.was_seq DESC))[1:1] AS head,
                               (array_agg(f.first_due
                                          ORDER BY f.touched_at DESC, f.was_rank DESC, f.was_seq DESC))[1] AS head_due
                          FROM placed AS f GROUP BY 1, 2, 3, 4, 5) AS y) AS u
    ), timed AS (
        UPDATE millpond_unit AS o
           SET groups = u.groups_then, timer_at = u.timer_then,
               timer_rank = CASE WHEN u.waits THEN u.head[1][1] WHEN u.timer_then IS NOT NULL THEN o.timer_rank END,
               timer_seq = CASE WHEN u.waits THEN u.head[1][2] WHEN u.timer_then IS NOT NULL THEN o.timer_seq END
          FROM units AS u
         WHERE o.ctid = u.unit_spot
           AND (u.groups_then <> u.groups OR u.waits OR u.timer_then IS DISTINCT FROM u.timer_at)
    ), new AS (
        INSERT INTO millpond_unit
        SELECT p.id, u.unit, 0, 0, 0, 0, 0, u.groups_then, u.timer_then, CASE WHEN u.waits THEN u.head[1][1] END,
               CASE WHEN u.waits THEN u.head[1][2] END, NULL
          FROM units AS u WHERE u.unit_spot IS NULL
    )
    SELECT coalesce(bool_or(f.owner <> ''), false) AS odd,
           array_agg(f.of_share ORDER BY f.touched_at, f.was_rank, f.was_seq)
           FILTER (WHERE f.ready > f.was_ready) AS entering,
           coalesce(bool_or(f.ready < f.was_ready), false) AS leaving,
           (SELECT count(u.timer_then) - count(u.timer_at) FROM units AS u) AS timers
      INTO c FROM placed AS f;
    IF c.odd THEN
        RAISE EXCEPTION 'owned' USING ERRCODE = 'MP001';
    END IF;
    p.unit_timers := p.unit_timers + c.timers;
    entering := c.entering;
    leaving := c.leaving;
END $$;
