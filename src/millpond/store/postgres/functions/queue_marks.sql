-- The marks of a queue (see millpond_pool.bands): where a claim begins to look for ready tasks. All tasks
-- before a mark have left; a task that is put in before a mark lowers it.

-- Lower the marks to tasks that the verbs have put into a queue, given by their places.
CREATE FUNCTION millpond_lower(the_pool bigint, put_in bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p record;
    b record;
    first_due double precision;
    ready_now bigint;
    touched bigint;
BEGIN
    SELECT o.ctid AS spot, o.bands, o.lows, o.undue_since, o.ready INTO p
      FROM millpond_pool AS o WHERE o.id = the_pool ORDER BY o.turn DESC LIMIT 1;
    SELECT coalesce(min(l.due) FILTER (WHERE l.grp = 0), 'infinity'),
           count(*) FILTER (WHERE l.grp = the_pool) INTO first_due, ready_now
      FROM millpond_live AS l WHERE l.place = ANY(put_in) AND l.grp IS NOT NULL;
    IF ready_now > 0 AND ready_now = p.ready AND p.bands IS NOT NULL THEN
        -- There is nothing else: whatever was there has left.
        p.bands := '{}';
        p.lows := '{}';
    END IF;
    SELECT array_agg(x.rank) AS ranks, array_agg(x.low) AS lows,
           bool_or(x.low < x.known) AS below INTO b
      FROM (SELECT y.rank, min(y.low) AS low, coalesce(min(y.known), 9223372036854775807) AS known
              FROM (SELECT u.rank, u.low, u.low AS known FROM unnest(p.bands, p.lows) AS u (rank, low)
                     UNION ALL
                    SELECT l.rank, l.place, NULL FROM millpond_live AS l
                     WHERE l.place = ANY(put_in) AND l.grp = the_pool) AS y
             GROUP BY y.rank) AS x;
    IF (p.bands IS NOT NULL AND b.below) OR first_due < p.undue_since THEN
        UPDATE millpond_pool
           SET bands = CASE WHEN bands IS NOT NULL AND coalesce(cardinality(b.ranks), 0) <= 32
                            THEN coalesce(b.ranks, '{}') END,
               lows = coalesce(b.lows, '{}'),
               undue_since = least(undue_since, first_due),
               writes = writes + 1, turn = (writes + 1) >> 5
         WHERE ctid = p.spot;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
    END IF;
END $$;

-- Return the marks of a queue after tasks were put into it at their places; `ready` were there before.
CREATE FUNCTION millpond_mark_put(
    ready bigint, INOUT bands bigint[], INOUT lows bigint[], ranks bigint[], places bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    IF bands IS NULL THEN
        RETURN;
    END IF;
    IF ready = 0 THEN
        -- Whatever was there has left.
        bands := '{}';
        lows := '{}';
    END IF;
    SELECT array_agg(x.rank), array_agg(x.low) INTO bands, lows
      FROM (SELECT y.rank, min(y.low) AS low
              FROM (SELECT * FROM unnest(bands, lows) UNION ALL SELECT * FROM unnest(ranks, places))
                   AS y (rank, low)
             GROUP BY y.rank) AS x;
    IF cardinality(bands) > 32 THEN
        bands := NULL;
    END IF;
END $$;

-- Raise the marks: no ready task stands before the given one, and none falls due before the given time.
CREATE FUNCTION millpond_raise(
    the_pool bigint, first_rank bigint, first_place bigint, first_due double precision
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p record;
BEGIN
    SELECT o.ctid AS spot, o.bands, o.lows, o.undue_since INTO p
      FROM millpond_pool AS o WHERE o.id = the_pool ORDER BY o.turn DESC LIMIT 1;
    IF p.bands IS NOT NULL AND first_rank IS NOT NULL THEN
        SELECT coalesce(array_agg(u.rank), '{}'),
               coalesce(array_agg(CASE WHEN u.rank = first_rank THEN first_place ELSE u.low END), '{}')
          INTO p.bands, p.lows
          FROM unnest(p.bands, p.lows) AS u (rank, low) WHERE u.rank >= first_rank;
    END IF;
    UPDATE millpond_pool AS o
       SET bands = p.bands, lows = p.lows, undue_since = greatest(o.undue_since, first_due),
           writes = o.writes + 1, turn = (o.writes + 1) >> 5
     WHERE o.ctid = p.spot
       -- A little is sooner walked past than written down.
       AND (o.bands IS DISTINCT FROM p.bands OR first_due > o.undue_since + 1
            OR EXISTS (SELECT FROM unnest(o.lows, p.lows) AS u (known, found)
                        WHERE u.found - 64 > u.known));
END $$;

-- Return the marks of a queue after new tasks came to its end: `base` is the place before the first of them.
CREATE FUNCTION millpond_mark_queued(
    kind text, ready bigint, INOUT bands bigint[], INOUT lows bigint[], base bigint, priorities bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF kind = 'lifo' THEN
        bands := NULL;
    ELSIF ready = 0 THEN
        bands := '{}';
        lows := '{}';
    END IF;
    IF kind = 'fifo' OR cardinality(priorities) = 1 THEN
        IF millpond_rank(kind, priorities[1], 0) <> ALL(bands) THEN
            bands := bands || millpond_rank(kind, priorities[1], 0);
            lows := lows || base + 1;
        END IF;
    ELSIF kind = 'priority' AND bands IS NOT NULL THEN
        SELECT bands || array_agg(x.rank), lows || array_agg(base + 1) INTO bands, lows
          FROM (SELECT DISTINCT -u.priority AS rank FROM unnest(priorities) AS u (priority)) AS x
         WHERE x.rank <> ALL(bands);
    END IF;
    IF cardinality(bands) > 32 THEN
        bands := NULL;
    END IF;
END $$;

-- Return the marks of a queue after its first tasks have left it: `last_place` is that of the last of them.
CREATE FUNCTION millpond_mark_taken(
    ready bigint, INOUT bands bigint[], INOUT lows bigint[], taken integer, last_rank bigint, last_place bigint
)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF bands IS NULL THEN
        RETURN;
    ELSIF ready <= taken THEN
        bands := '{}';
        lows := '{}';
    ELSIF cardinality(bands) = 1 THEN
        lows := ARRAY[last_place + 1];
    ELSE
        SELECT array_agg(u.rank), array_agg(CASE WHEN u.rank = last_rank THEN last_place + 1 ELSE u.low END)
          INTO bands, lows
          FROM unnest(bands, lows) AS u (rank, low) WHERE u.rank >= last_rank;
    END IF;
END $$;
