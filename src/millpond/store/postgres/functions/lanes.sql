-- Lanes: each numbers its tasks without gaps, for ever.

-- Give new tasks their lanes, and their numbers there. Return the pool with the turn of its lanes: tasks without
-- a key take them in turn.
CREATE FUNCTION millpond_give_lanes(INOUT p millpond_pool, r millpond_rules, INOUT n millpond_new)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    given record;
BEGIN
    WITH coming AS MATERIALIZED (
        SELECT u.n, CASE WHEN r.lanes IS NULL THEN u.key
                         WHEN u.key IS NULL THEN ((p.next_lane - 1 + count(*) FILTER (WHERE u.key IS NULL)
                                                   OVER (ORDER BY u.n)) % r.lanes)::text
                         ELSE (millpond_crc32(u.key) % r.lanes)::text END AS lane
          FROM unnest(n.ids, n.keys) WITH ORDINALITY AS u (id, key, n)
    ), counted AS (
        INSERT INTO millpond_lane AS o
        SELECT p.id, k.lane, count(*), 0 FROM coming AS k WHERE k.lane IS NOT NULL GROUP BY k.lane
            ON CONFLICT (pool, lane) DO UPDATE SET sequence = o.sequence + excluded.sequence
        RETURNING o.lane, o.sequence
    )
    SELECT array_agg(x.lane ORDER BY x.n) AS lanes, array_agg(x.last - x.of_lane + x.number ORDER BY x.n) AS sequences,
           array_agg(x.waiting + x.number - 1 ORDER BY x.n) AS positions INTO given
      FROM (SELECT k.n, k.lane, c.sequence AS last, count(*) OVER (PARTITION BY k.lane) AS of_lane,
                   row_number() OVER (PARTITION BY k.lane ORDER BY k.n) AS number,
                   (SELECT coalesce(sum(g.tasks), 0)::bigint FROM millpond_group AS g
                     WHERE g.pool = p.id AND g.unit = k.lane) AS waiting
              FROM coming AS k LEFT JOIN counted AS c ON c.lane = k.lane) AS x;
    n.lanes := given.lanes;
    n.sequences := given.sequences;
    n.positions := given.positions;
    IF n.later > 0 THEN
        -- In a lane they hold those behind them.
        SELECT count(*) INTO n.later FROM unnest(n.dues, n.lanes) AS u (due, lane)
         WHERE u.due > r.moment AND u.lane IS NULL;
    END IF;
    IF r.lanes IS NOT NULL THEN
        p.next_lane := p.next_lane + n.count - coalesce(cardinality(array_remove(n.keys, NULL)), 0);
    END IF;
END $$;

-- Count tasks that have ended for their lanes; return the lanes that are left without any, and how many each has
-- processed.
CREATE FUNCTION millpond_end_in_lanes(the_pool bigint, e millpond_ends, OUT dry text[], OUT processed bigint[])
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    WITH counted AS (
        INSERT INTO millpond_lane AS o
        SELECT the_pool, u.lane, 0, count(*)
          FROM unnest(e.lanes, e.events) AS u (lane, event)
         WHERE u.lane IS NOT NULL AND u.event IN ('complete', 'fail') GROUP BY u.lane
            ON CONFLICT (pool, lane) DO UPDATE SET processed = o.processed + excluded.processed
        RETURNING o.lane, o.processed
    )
    SELECT coalesce(array_agg(c.lane ORDER BY c.lane), '{}'), array_agg(c.processed ORDER BY c.lane)
      INTO dry, processed
      FROM counted AS c
     WHERE NOT EXISTS (SELECT FROM millpond_unit AS u WHERE u.pool = the_pool AND u.unit = c.lane
                          AND (u.running > 0 OR u.groups > 0));
END $$;

-- Return the checksum by which a key chooses its lane, as lane_of of core/order/rank.py does.
CREATE FUNCTION millpond_crc32(key text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    bytes constant bytea := convert_to(key, 'UTF8');
    -- What four bits at the end do to the others.
    steps constant bigint[] := '{0, 498536548, 997073096, 651767980, 1994146192, 1802195444, 1303535960, 1342533948,
        3988292384, 4027552580, 3604390888, 3412177804, 2607071920, 2262029012, 2685067896, 3183342108}';
    crc bigint := 4294967295;
BEGIN
    FOR i IN 0..length(bytes) - 1 LOOP
        crc := crc # get_byte(bytes, i);
        crc := (crc >> 4) # steps[(crc & 15) + 1];
        crc := (crc >> 4) # steps[(crc & 15) + 1];
    END LOOP;
    RETURN crc # 4294967295;
END $$;
