-- Units: how many of their tasks run, and when they are forgotten.

-- Count tasks that have ended for their units, and forget those that are idle, at once or when their rates and holds no
-- longer matter. Return the pool with its counts, and the units whose groups are to be placed: they were at their
-- limits, their timers are due, or the last of their groups to be placed says again in which order these are. The
-- groups of the others stay where they are.
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
               AND (o.running >= r.unit_limit AND o.running - u.ends < r.unit_limit OR o.timer_at <= r.moment
                    OR o.groups > 1 AND o.timer_at IS NOT NULL) IS TRUE AS opens
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
          FROM units AS u WHERE o.ctid = u.spot AND NOT u.is_over
    ), gone AS (
        DELETE FROM millpond_unit AS o USING units AS u WHERE o.ctid = u.spot AND u.is_over
    )
    SELECT count(*) FILTER (WHERE u.spot IS NULL OR u.running < u.ends) AS missing,
           count(*) FILTER (WHERE u.idle AND NOT u.is_over AND u.fades_at IS NULL)
           - count(*) FILTER (WHERE u.is_over AND u.fades_at IS NOT NULL) AS fading,
           array_agg(u.unit) FILTER (WHERE u.opens) AS units,
           -- A unit comes free before the task that freed it goes back.
           array_agg(2 * u.at) FILTER (WHERE u.opens) AS at
      INTO c FROM units AS u;
    IF c.missing > 0 THEN PERFORM millpond_miscounted('unit', 0, c.missing); END IF;
    p.fading := p.fading + c.fading;
    t.units := c.units;
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
