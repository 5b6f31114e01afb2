-- Units: what is written of them.

-- Write the units of groups that were placed. One that is idle is forgotten, at once or when its rate and its hold no
-- longer matter. `pops`: the timers that are due have done their work.
CREATE FUNCTION millpond_write_units(
    p millpond_pool, moment double precision, pops boolean, placed millpond_placed[]
) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    c record;
BEGIN
    WITH units AS MATERIALIZED (
        SELECT u.*, s.*, s.idle AND u.matters <= moment AS is_over,
               -- The first task of the group that was placed last says in which order timers are due.
               CASE WHEN s.waits THEN u.first_rank END AS rank, CASE WHEN s.waits THEN u.first_seq END AS seq,
               CASE WHEN u.groups_then = 0 THEN NULL WHEN s.waits THEN greatest(u.opens, u.first_due)
                    WHEN u.first_due IS NULL OR u.timer_at <= moment THEN u.kept_timer END AS timer_then
          FROM (SELECT o.unit, o.spot, o.running, o.tat, o.timer_at, o.fades_at, o.matters, o.opens, o.stopped,
                       o.groups + sum(o.more) AS groups_then,
                       CASE WHEN pops AND o.timer_at <= moment THEN NULL ELSE o.timer_at END AS kept_timer,
                       (array_agg(o.rank ORDER BY o.touched_at DESC, o.id DESC) FILTER (WHERE o.holds))[1]
                       AS first_rank,
                       (array_agg(o.seq ORDER BY o.touched_at DESC, o.id DESC) FILTER (WHERE o.holds))[1]
                       AS first_seq,
                       (array_agg(o.due ORDER BY o.touched_at DESC, o.id DESC) FILTER (WHERE o.holds))[1]
                       AS first_due
                  FROM unnest(placed) AS o
                 GROUP BY o.unit, o.spot, o.running, o.tat, o.timer_at, o.fades_at, o.matters, o.opens, o.stopped,
                          o.groups) AS u
         CROSS JOIN LATERAL
               (SELECT u.running = 0 AND NOT u.stopped AND u.groups_then = 0 AS idle,
                       u.first_due IS NOT NULL AND u.opens < 'infinity'
                       AND greatest(u.opens, u.first_due) > moment AS waits OFFSET 0) AS s
    ), changed AS (
        UPDATE millpond_unit AS o
           SET running = u.running, groups = u.groups_then, tat = u.tat, timer_at = u.timer_then,
               timer_rank = CASE WHEN u.waits THEN u.rank WHEN u.timer_then IS NOT NULL THEN o.timer_rank END,
               timer_seq = CASE WHEN u.waits THEN u.seq WHEN u.timer_then IS NOT NULL THEN o.timer_seq END,
               fades_at = CASE WHEN u.idle THEN u.matters ELSE u.fades_at END
          FROM units AS u WHERE o.ctid = u.spot AND NOT u.is_over
    ), gone AS (
        DELETE FROM millpond_unit AS o USING units AS u WHERE o.ctid = u.spot AND u.is_over
    ), made AS (
        INSERT INTO millpond_unit
        SELECT p.id, u.unit, 0, 0, 0, 0, 0, u.groups_then, u.timer_then, u.rank, u.seq, NULL
          FROM units AS u WHERE u.spot IS NULL
    )
    SELECT count(u.timer_then) FILTER (WHERE NOT u.is_over) - count(u.timer_at) AS timers,
           count(*) FILTER (WHERE u.idle AND NOT u.is_over AND u.fades_at IS NULL)
           - count(*) FILTER (WHERE u.is_over AND u.fades_at IS NOT NULL) AS fading
      INTO c FROM units AS u;
    p.unit_timers := p.unit_timers + c.timers;
    p.fading := p.fading + c.fading;
    RETURN p;
END $$;

-- Count tasks that have ended for their units. Return the pool with its counts, and what is left to do: place the groups
-- of units that were at their limit, or whose timers are due. The groups of the others stay where they are.
CREATE FUNCTION millpond_leave_units(
    INOUT p millpond_pool, r millpond_rules, e millpond_ends, OUT t millpond_touched
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    c record;
BEGIN
    WITH units AS MATERIALIZED (
        SELECT u.*, o.spot, o.running, o.fades_at, o.matters, o.idle, o.idle AND o.matters <= r.moment AS is_over,
               r.limited AND o.groups > 0
               AND (o.running >= r.unit_limit AND o.running - u.ends < r.unit_limit OR o.timer_at <= r.moment)
               IS TRUE AS opens
          FROM (SELECT x.unit, count(*) AS ends, min(x.n) AS at
                  FROM unnest(coalesce(e.lanes, e.keys)) WITH ORDINALITY AS x (unit, n)
                 WHERE x.unit <> '' GROUP BY x.unit) AS u
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.running, x.groups, x.timer_at, x.fades_at,
                       greatest(x.held_until, x.tat::double precision / 1000000) AS matters,
                       x.running = u.ends AND x.groups = 0 AND x.paused = 0 AND x.blocked = 0 AS idle
                  FROM millpond_unit AS x WHERE x.pool = p.id AND x.unit = u.unit OFFSET 0) AS o ON true
    ), changed AS (
        UPDATE millpond_unit AS o
           SET running = o.running - u.ends, fades_at = CASE WHEN u.idle THEN u.matters ELSE o.fades_at END
          FROM units AS u WHERE o.ctid = u.spot AND NOT u.is_over AND NOT u.opens
    ), gone AS (
        DELETE FROM millpond_unit AS o USING units AS u WHERE o.ctid = u.spot AND u.is_over
    )
    SELECT count(*) FILTER (WHERE u.spot IS NULL OR u.running < u.ends) AS missing,
           count(*) FILTER (WHERE u.idle AND NOT u.is_over AND u.fades_at IS NULL)
           - count(*) FILTER (WHERE u.is_over AND u.fades_at IS NOT NULL) AS fading,
           array_agg(u.unit) FILTER (WHERE u.opens) AS units,
           array_agg(-u.ends) FILTER (WHERE u.opens) AS entered,
           -- A unit comes free before the task that freed it goes back.
           array_agg(2 * u.at) FILTER (WHERE u.opens) AS at
      INTO c FROM units AS u;
    IF c.missing > 0 THEN PERFORM millpond_miscounted('unit', 0, c.missing); END IF;
    p.fading := p.fading + c.fading;
    t.units := c.units;
    t.entered := c.entered;
    t.unit_at := c.at;
END $$;

-- Return when the rate of a unit lets its next task start, in seconds; 0 = it may now.
CREATE FUNCTION millpond_rate_opens(tat bigint, key_interval bigint, key_depth bigint, ticks bigint)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN tat + (1 - key_depth) * key_interval > ticks
                THEN (tat + (1 - key_depth) * key_interval)::double precision / 1000000 ELSE 0 END
$$;

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
