-- Units: lanes, or keys. How many tasks of each run, what holds it back, and when it is forgotten.

-- Return the units that are touched, as they are then but for their groups.
CREATE FUNCTION millpond_units_then(the_pool bigint, r millpond_rules, t millpond_touched) RETURNS millpond_units
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    s millpond_units;
    missing bigint;
BEGIN
    SELECT array_agg(x.unit), array_agg(x.at), array_agg(o.spot), array_agg(coalesce(o.groups, 0)),
           array_agg(n.running), array_agg(n.tat), array_agg(coalesce(o.stopped, false)), array_agg(o.timer_at),
           array_agg(o.fades_at), array_agg(greatest(coalesce(o.held_until, 0), n.tat::double precision / 1000000)),
           -- When it may start a task; infinity: time alone does not let it.
           array_agg(CASE WHEN o.stopped OR (x.unit <> '' AND n.running >= r.unit_limit) THEN 'infinity'
                          ELSE greatest(coalesce(o.held_until, 0), CASE WHEN a.ticks > r.ticks
                                         THEN a.ticks::double precision / 1000000 END) END),
           count(*) FILTER (WHERE n.running < 0 OR o.spot IS NULL AND x.entered <> 0)
      INTO s.units, s.touched_at, s.spots, s.groups, s.running, s.tats, s.stopped, s.timers, s.fades, s.matter_until,
           s.opens, missing
      FROM (SELECT coalesce(y.unit, '') AS unit, sum(y.entered)::bigint AS entered, min(y.at) AS at
              FROM (SELECT k.* FROM unnest(t.units, t.entered, t.unit_at) AS k (unit, entered, at)
                     WHERE k.unit <> ''
                     UNION ALL
                    SELECT k.unit, 0, NULL FROM unnest(t.group_units) AS k (unit)) AS y
             GROUP BY 1) AS x
      LEFT JOIN LATERAL
           (SELECT y.ctid AS spot, y.*, y.paused = 1 OR y.blocked = 1 AS stopped FROM millpond_unit AS y
             WHERE y.pool = the_pool AND y.unit = x.unit OFFSET 0) AS o ON true
     CROSS JOIN LATERAL
           (SELECT coalesce(o.running, 0) + x.entered AS running,
                   CASE WHEN x.entered > 0 AND r.key_interval IS NOT NULL
                        THEN greatest(o.tat, r.ticks) + x.entered * r.key_interval
                        ELSE coalesce(o.tat, 0) END AS tat OFFSET 0) AS n
     CROSS JOIN LATERAL
           (SELECT CASE WHEN x.unit <> '' THEN n.tat + (1 - r.key_depth) * r.key_interval END AS ticks OFFSET 0) AS a;
    IF missing > 0 THEN PERFORM millpond_miscounted('unit', 0, missing); END IF;
    RETURN s;
END $$;

-- Write the units that were touched. Of those with a group that was placed: how many groups more each has, and the
-- first task of the group that was placed last. One that is idle is forgotten, at once or when its rate and its hold
-- no longer matter. `pops`: the timers that are due have done their work.
CREATE FUNCTION millpond_write_units(
    p millpond_pool, r millpond_rules, pops boolean, s millpond_units, with_groups text[], more bigint[],
    last millpond_head[]
) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    c record;
BEGIN
    WITH units AS MATERIALIZED (
        SELECT u.*, g.groups_then, y.*, u.spot IS NOT NULL AND y.idle AND u.matters <= r.moment AS is_gone
          FROM unnest(s.units, s.spots, s.groups, s.running, s.tats, s.stopped, s.timers, s.fades, s.matter_until,
                      s.opens)
               AS u (unit, spot, groups, running, tat, stopped, timer, fades, matters, opens)
          LEFT JOIN (SELECT * FROM unnest(with_groups, more, last)) AS f (unit, more, last_rank, last_seq, last_due)
                 ON f.unit = u.unit
         CROSS JOIN LATERAL (SELECT u.groups + coalesce(f.more, 0) AS groups_then,
                                    CASE WHEN pops AND u.timer <= r.moment THEN NULL ELSE u.timer END AS timer,
                                    CASE WHEN f.last_due IS NOT NULL THEN greatest(u.opens, f.last_due) END
                                    AS at OFFSET 0) AS g
         CROSS JOIN LATERAL
               (SELECT u.running = 0 AND NOT u.stopped AND g.groups_then = 0 AS idle,
                       g.at > r.moment AND g.at < 'infinity' AS waits,
                       CASE WHEN g.groups_then = 0 THEN NULL
                            WHEN g.at > r.moment AND g.at < 'infinity' THEN g.at
                            WHEN f.last_due IS NULL OR g.timer <= r.moment THEN g.timer END AS timer_then,
                       f.last_rank, f.last_seq OFFSET 0) AS y
    ), changed AS (
        UPDATE millpond_unit AS o
           SET running = u.running, groups = u.groups_then, tat = u.tat, timer_at = u.timer_then,
               timer_rank = CASE WHEN u.waits THEN u.last_rank WHEN u.timer_then > 0 THEN o.timer_rank END,
               timer_seq = CASE WHEN u.waits THEN u.last_seq WHEN u.timer_then > 0 THEN o.timer_seq END,
               fades_at = CASE WHEN u.idle THEN u.matters ELSE u.fades END
          FROM units AS u WHERE o.ctid = u.spot AND NOT u.is_gone
    ), gone AS (
        DELETE FROM millpond_unit AS o USING units AS u WHERE o.ctid = u.spot AND u.is_gone
    ), made AS (
        INSERT INTO millpond_unit
        SELECT p.id, u.unit, 0, 0, 0, 0, 0, u.groups_then, u.timer_then,
               CASE WHEN u.waits THEN u.last_rank END, CASE WHEN u.waits THEN u.last_seq END, NULL
          FROM units AS u WHERE u.spot IS NULL
    )
    SELECT count(u.timer_then) FILTER (WHERE NOT u.is_gone) - count(u.timer) AS timers,
           count(*) FILTER (WHERE u.idle AND NOT u.is_gone AND u.fades IS NULL)
           - count(*) FILTER (WHERE u.is_gone AND u.fades IS NOT NULL) AS fading
      INTO c FROM units AS u;
    p.unit_timers := p.unit_timers + c.timers;
    p.fading := p.fading + c.fading;
    RETURN p;
END $$;

-- Forget units whose rate and hold no longer matter; return how many had waited for that.
CREATE FUNCTION millpond_forget_faded(the_pool bigint, moment double precision) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    faded bigint;
BEGIN
    WITH over AS MATERIALIZED (
        SELECT o.ctid AS spot, o.running = 0 AND o.groups = 0 AND o.paused = 0 AND o.blocked = 0 AS idle
          FROM millpond_unit AS o WHERE o.pool = the_pool AND o.fades_at <= moment
    ), gone AS (
        DELETE FROM millpond_unit AS o USING over AS f WHERE o.ctid = f.spot AND f.idle
    ), kept AS (
        UPDATE millpond_unit AS o SET fades_at = NULL FROM over AS f
         WHERE o.ctid = f.spot AND NOT f.idle
    )
    SELECT count(*) INTO faded FROM over;
    RETURN faded;
END $$;
