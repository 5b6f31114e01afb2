-- Queues with lanes, keys or shares, as core/order/backlog.py has them. A group holds the tasks of one unit (a lane
-- or a key) and one share; it is ready while its first task may start.

-- Let units and groups change, and place each group that was touched: it is ready, or its unit waits for a
-- moment, or it is gone. Return the pool with its counts, the shares with a group that is ready now and was not,
-- in which order these became so, and the shares with one that is ready no more.
CREATE FUNCTION millpond_flush(
    INOUT p millpond_pool, INOUT r millpond_rules, t millpond_touched,
    OUT entering text[], OUT entering_at bigint[], OUT leaving text[]
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    s constant millpond_units := millpond_units_then(p.id, r, t);
    c record;
BEGIN
    WITH coming AS MATERIALIZED (
        SELECT coalesce(x.unit, '') AS unit, coalesce(x.share, '') AS share, sum(x.tasks)::bigint AS tasks,
               min(x.at) AS at, min(x.n) AS n, (array_agg(x.rank ORDER BY x.rank, x.seq))[1] AS rank,
               (array_agg(x.seq ORDER BY x.rank, x.seq))[1] AS seq,
               (array_agg(x.due ORDER BY x.rank, x.seq))[1] AS due
          FROM unnest(t.group_units, t.group_shares, t.tasks, t.ranks, t.seqs, t.dues, t.group_at)
               WITH ORDINALITY AS x (unit, share, tasks, rank, seq, due, at, n)
         GROUP BY 1, 2
    ), addresses AS MATERIALIZED (
        SELECT k.unit, k.share FROM coming AS k
         UNION
        -- Of units of which more or fewer run, all groups.
        SELECT u.unit, x.share FROM unnest(s.units, s.touched_at) AS u (unit, at)
         CROSS JOIN LATERAL (SELECT o.share FROM millpond_group AS o
                              WHERE o.pool = p.id AND o.unit = u.unit OFFSET 0) AS x
         WHERE r.limited AND u.at IS NOT NULL AND u.unit <> ''
    ), placed AS MATERIALIZED (
        SELECT a.unit, a.share, g.spot, g.id, g.owner, k.n, least(k.at, u.at) AS at, coalesce(g.ready, 0) AS was_ready,
               coalesce(g.tasks, 0) + coalesce(k.tasks, 0) AS tasks, o.rank, o.seq, o.due,
               (coalesce(g.tasks, 0) + coalesce(k.tasks, 0) > 0 AND o.due <= r.moment
                AND u.opens <= r.moment)::integer AS ready, k.unit IS NOT NULL AS changes
          FROM addresses AS a
          JOIN unnest(s.units, s.touched_at, s.opens) AS u (unit, at, opens) ON u.unit = a.unit
          LEFT JOIN coming AS k ON k.unit = a.unit AND k.share = a.share
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.* FROM millpond_group AS x
                 WHERE x.pool = p.id AND x.unit = a.unit AND x.share = a.share OFFSET 0) AS g ON true
         CROSS JOIN LATERAL
               -- What comes may stand before all others; what leaves was the first.
               (SELECT k.rank, k.seq, k.due
                 WHERE k.tasks < 0 OR g.spot IS NULL OR (k.rank, k.seq) < (g.rank, g.seq)
                 UNION ALL
                SELECT g.rank, g.seq, g.due LIMIT 1) AS o
    ), changed AS (
        UPDATE millpond_group AS g
           SET tasks = f.tasks, rank = f.rank, seq = f.seq, due = f.due, ready = f.ready
          FROM placed AS f WHERE g.ctid = f.spot AND f.tasks > 0 AND (f.changes OR f.ready <> f.was_ready)
    ), gone AS (
        DELETE FROM millpond_group AS g USING placed AS f WHERE g.ctid = f.spot AND f.tasks = 0
    ), made AS (
        INSERT INTO millpond_group
        SELECT r.next_group - 1 + row_number() OVER (ORDER BY f.n), p.id, f.unit, f.share, '', f.tasks, f.rank,
               f.seq, f.due, f.ready
          FROM placed AS f WHERE f.spot IS NULL
    ), of_units AS (
        SELECT f.unit, count(*) FILTER (WHERE f.spot IS NULL) - count(*) FILTER (WHERE f.tasks = 0) AS more,
               (array_agg(ROW(f.rank, f.seq, f.due)::millpond_head ORDER BY f.at DESC, f.id DESC)
                FILTER (WHERE f.tasks > 0))[1] AS last
          FROM placed AS f GROUP BY f.unit
    )
    SELECT count(*) FILTER (WHERE f.spot IS NULL) AS made,
           coalesce(bool_or(f.owner <> '' OR f.tasks < 0), false) AS odd,
           array_agg(f.share ORDER BY f.at, f.id) FILTER (WHERE f.ready > f.was_ready) AS entering,
           array_agg(f.at ORDER BY f.at, f.id) FILTER (WHERE f.ready > f.was_ready) AS entering_at,
           array_agg(f.share) FILTER (WHERE f.ready < f.was_ready) AS leaving,
           (SELECT array_agg(u.unit) FROM of_units AS u) AS units,
           (SELECT array_agg(u.more) FROM of_units AS u) AS more,
           (SELECT array_agg(u.last) FROM of_units AS u) AS last
      INTO c FROM placed AS f;
    IF c.odd THEN
        RAISE EXCEPTION 'owned' USING ERRCODE = 'MP001';
    END IF;
    r.next_group := r.next_group + c.made;
    entering := c.entering;
    entering_at := c.entering_at;
    leaving := c.leaving;
    p := millpond_write_units(p, r, t.pops, s, c.units, c.more, c.last);
END $$;
