-- Queues with lanes, keys or shares, as core/order/backlog.py has them. A group holds the tasks of one unit (a lane
-- or a key) and one share; it is ready while its first task may start. A unit says how many of its tasks run, what
-- holds it back, when that ends by time alone (its timer), and when it is forgotten.

-- Let units and groups change, and place each group that is touched, in one statement: see millpond_touched. Return
-- the pool with its counts, the shares with a group that is ready now and was not, in which order these became so,
-- and whether one was ready and is not.
CREATE FUNCTION millpond_flush(
    INOUT p millpond_pool, r millpond_rules, t millpond_touched,
    OUT entering text[], OUT entering_at bigint[], OUT leaving boolean
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    c record;
BEGIN
    WITH said AS MATERIALIZED (
        SELECT x.unit, x.share, min(x.at) AS at, sum(x.entered)::bigint AS entered, sum(x.tasks)::bigint AS tasks,
               min(x.seq) AS first_place, (array_agg(x.rank ORDER BY x.rank, x.seq))[1] AS rank,
               (array_agg(x.seq ORDER BY x.rank, x.seq))[1] AS seq,
               (array_agg(x.due ORDER BY x.rank, x.seq))[1] AS due
          FROM (SELECT u.unit, NULL AS share, u.at, u.entered, 0 AS tasks, NULL::bigint AS rank,
                       NULL::bigint AS seq, NULL::double precision AS due
                  FROM unnest(t.units, t.entered, t.unit_at) AS u (unit, entered, at) WHERE u.unit <> ''
                 UNION ALL
                SELECT u.unit, u.share, u.at, 0, u.tasks, u.rank, u.seq, u.due
                  FROM unnest(t.group_units, t.group_shares, t.group_at, t.tasks, t.ranks, t.seqs, t.dues)
                       AS u (unit, share, at, tasks, rank, seq, due)) AS x
         GROUP BY x.unit, x.share
    ), touched AS MATERIALIZED (
        SELECT s.*, o.spot AS unit_spot, coalesce(o.groups, 0) AS groups, coalesce(o.stopped, false) AS stopped,
               o.timer_at, o.fades_at, n.running, n.tat,
               greatest(coalesce(o.held_until, 0), n.tat::double precision / 1000000) AS matters,
               -- From when on it may start a task; infinity: time alone does not let it.
               CASE WHEN o.stopped OR (s.unit <> '' AND n.running >= r.unit_limit) THEN 'infinity'
                    ELSE greatest(coalesce(o.held_until, 0), CASE WHEN s.unit <> '' THEN
                         millpond_rate_opens(n.tat, r.key_interval, r.key_depth, r.ticks) END) END AS opens
          FROM (SELECT x.*, min(x.at) FILTER (WHERE x.share IS NULL) OVER w AS unit_at,
                       (sum(x.entered) OVER w)::bigint AS entered_then, count(x.share) OVER w > 0 AS is_named,
                       array_agg(x.share) FILTER (WHERE x.share IS NOT NULL) OVER w AS shares
                  FROM said AS x WINDOW w AS (PARTITION BY x.unit)) AS s
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.*, x.paused = 1 OR x.blocked = 1 AS stopped FROM millpond_unit AS x
                 WHERE x.pool = p.id AND x.unit = s.unit OFFSET 0) AS o ON true
         CROSS JOIN LATERAL
               (SELECT coalesce(o.running, 0) + s.entered_then AS running,
                       CASE WHEN s.entered_then > 0 AND r.key_interval IS NOT NULL
                            THEN greatest(o.tat, r.ticks) + s.entered_then * r.key_interval
                            ELSE coalesce(o.tat, 0) END AS tat OFFSET 0) AS n
    ), placed AS MATERIALIZED (
        SELECT k.*, g.spot, g.id, g.owner, least(k.at, k.unit_at) AS touched_at, coalesce(g.ready, 0) AS was_ready,
               coalesce(g.share, k.share) AS of_share, coalesce(g.tasks, 0) + k.tasks AS tasks_then,
               h.rank AS first_rank, h.seq AS first_seq, h.due AS first_due,
               (coalesce(g.tasks, 0) + k.tasks > 0 AND h.due <= r.moment AND k.opens <= r.moment)::integer AS ready
          FROM touched AS k
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.* FROM millpond_group AS x
                 WHERE x.pool = p.id AND x.unit = k.unit AND x.share = k.share
                 UNION ALL
                -- Of a unit of which fewer run, where that matters, or whose timer is due, the other groups, too.
                SELECT x.ctid, x.* FROM millpond_group AS x
                 WHERE x.pool = p.id AND x.unit = k.unit AND k.share IS NULL AND (r.limited OR t.pops)
                   AND (NOT k.is_named OR x.share <> ALL(k.shares))) AS g ON true
         CROSS JOIN LATERAL
               -- What comes may stand before all others.
               (SELECT k.rank, k.seq, k.due WHERE g.spot IS NULL OR (k.rank, k.seq) < (g.rank, g.seq)
                 UNION ALL
                SELECT g.rank, g.seq, g.due LIMIT 1) AS h
    ), changed AS (
        UPDATE millpond_group AS g
           SET tasks = f.tasks_then, rank = f.first_rank, seq = f.first_seq, due = f.first_due, ready = f.ready
          FROM placed AS f WHERE g.ctid = f.spot AND f.tasks_then > 0 AND (f.tasks <> 0 OR f.ready <> f.was_ready)
    ), made AS (
        INSERT INTO millpond_group
        SELECT (p.id << 40) + f.first_place, p.id, f.unit, f.share, '', f.tasks, f.first_rank,
               f.first_seq, f.first_due, f.ready
          FROM placed AS f WHERE f.spot IS NULL AND f.tasks > 0
    )
    SELECT array_agg(ROW(
               f.unit, f.unit_spot, f.groups, f.running, f.tat, f.stopped, f.timer_at, f.fades_at, f.matters, f.opens,
               f.first_rank, f.first_seq, f.first_due, f.touched_at, f.id, f.tasks_then > 0,
               (f.spot IS NULL AND f.tasks > 0)::integer)::millpond_placed) AS placed,
           coalesce(bool_or(f.owner <> ''), false) AS odd,
           count(*) FILTER (WHERE f.running < 0 OR f.unit_spot IS NULL AND f.entered_then <> 0)
           AS missing,
           array_agg(f.of_share ORDER BY f.touched_at, f.id) FILTER (WHERE f.ready > f.was_ready) AS entering,
           array_agg(f.touched_at ORDER BY f.touched_at, f.id) FILTER (WHERE f.ready > f.was_ready) AS entering_at,
           coalesce(bool_or(f.ready < f.was_ready), false) AS leaving
      INTO c FROM placed AS f;
    IF c.missing > 0 THEN PERFORM millpond_miscounted('unit', 0, c.missing); END IF;
    IF c.odd THEN
        RAISE EXCEPTION 'owned' USING ERRCODE = 'MP001';
    END IF;
    p := millpond_write_units(p, r.moment, t.pops, c.placed);
    entering := c.entering;
    entering_at := c.entering_at;
    leaving := c.leaving;
END $$;
