-- Keys of a fair pool: how many of each run, and when their rate lets the next one start.

-- Take the tasks that ended off the counts of their keys. Return the shares of keys that were at their limit and
-- have something to start now, and by which of these tasks each came free. Keys have a rate if `key_interval`
-- is given; times are in microseconds. `refused`: something else holds one of these keys back.
CREATE FUNCTION millpond_leave_keys(
    the_pool bigint,
    per_key bigint,
    key_interval bigint,
    key_depth bigint,
    at bigint,
    gone text[],
    INOUT fading bigint,
    OUT shares text[],
    OUT freed_at bigint[],
    OUT refused text
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    c record;
BEGIN
    WITH leaving AS MATERIALIZED (
        SELECT k.key, count(*) AS n, min(k.o) AS o
          FROM unnest(gone) WITH ORDINALITY AS k (key, o) WHERE k.key IS NOT NULL GROUP BY k.key
    ), found AS MATERIALIZED (
        SELECT u.*, l.o, l.n, u.running = l.n AND u.groups = 0 AS idle,
               u.groups > 0 AND u.running >= per_key AND u.running - l.n < per_key AS freed
          FROM leaving AS l
         CROSS JOIN LATERAL
               (SELECT x.ctid AS spot, x.unit, x.running, x.groups, x.tat, x.fades_at,
                       x.held_until > 0 OR x.paused = 1 OR x.blocked = 1
                       OR (x.tat <> 0 AND key_interval IS NULL) AS kept
                  FROM millpond_unit AS x WHERE x.pool = the_pool AND x.unit = l.key OFFSET 0) AS u
    ), changed AS (
        UPDATE millpond_unit AS u
           SET running = u.running - f.n,
               fades_at = CASE WHEN f.idle THEN f.tat::double precision / 1000000 ELSE u.fades_at END
          FROM found AS f WHERE u.ctid = f.spot AND NOT (f.idle AND f.tat <= at)
    ), forgotten AS (
        DELETE FROM millpond_unit AS u USING found AS f
         WHERE u.ctid = f.spot AND f.idle AND f.tat <= at
    )
    SELECT (SELECT count(*) FROM leaving) AS leaving, count(*) AS found,
           array_agg(unit ORDER BY o) FILTER (WHERE freed) AS freed,
           array_agg(o ORDER BY o) FILTER (WHERE freed) AS freed_at,
           coalesce(bool_or(kept OR (freed AND groups > 1)
                            -- Time alone lets it go on.
                            OR (groups > 0 AND (per_key IS NULL OR running - n < per_key)
                                AND tat + (1 - key_depth) * key_interval > at)), false) AS odd,
           count(*) FILTER (WHERE idle AND tat > at AND fades_at IS NULL)
           - count(*) FILTER (WHERE idle AND tat <= at AND fades_at IS NOT NULL) AS fading
      INTO c FROM found;
    IF c.found <> c.leaving THEN PERFORM millpond_miscounted('unit', c.leaving, c.found); END IF;
    IF c.odd THEN
        refused := 'grouped';
        RETURN;
    END IF;
    fading := fading + c.fading;
    IF c.freed IS NOT NULL THEN
        WITH ready AS (
            UPDATE millpond_group AS g SET ready = 1
              FROM unnest(c.freed, c.freed_at) AS f (unit, o)
             WHERE g.pool = the_pool AND g.unit = f.unit AND g.ready = 0
            RETURNING g.share, g.owner, f.o
        )
        SELECT array_agg(share), array_agg(o),
               -- Closures of a process take turns among themselves.
               CASE WHEN bool_or(owner > '') THEN 'owned' END
          INTO shares, freed_at, refused FROM ready;
        IF cardinality(c.freed) IS DISTINCT FROM cardinality(shares) THEN
            PERFORM millpond_miscounted('group', cardinality(c.freed), cardinality(shares));
        END IF;
    END IF;
END $$;

-- Count the tasks that start for their keys, and charge the rate of each. `last`: which of them are the last
-- of their group.
CREATE FUNCTION millpond_enter_keys(
    the_pool bigint, key_interval bigint, at bigint, units text[], last boolean[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    touched bigint;
    expected bigint;
BEGIN
    -- By name: millpond_leave_keys may have rewritten some of them.
    UPDATE millpond_unit AS o
       SET running = o.running + (o.unit <> '')::integer * u.n, groups = o.groups - u.last,
           tat = CASE WHEN key_interval IS NULL OR o.unit = '' THEN o.tat
                      ELSE greatest(o.tat, at) + key_interval END
      FROM (SELECT y.unit, count(*) AS n, count(*) FILTER (WHERE y.last) AS last
              FROM unnest(units, last) AS y (unit, last) GROUP BY y.unit) AS u
     WHERE o.pool = the_pool AND o.unit = u.unit;
    GET DIAGNOSTICS touched = ROW_COUNT;
    SELECT count(DISTINCT y.unit) INTO expected FROM unnest(units) AS y (unit);
    IF touched <> expected THEN PERFORM millpond_miscounted('unit', expected, touched); END IF;
    DELETE FROM millpond_unit AS o WHERE o.pool = the_pool AND o.unit = '' AND o.groups = 0;
END $$;

-- Forget keys whose rate no longer matters; return how many had waited for that.
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
