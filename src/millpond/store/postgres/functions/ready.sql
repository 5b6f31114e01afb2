-- Tasks with rows that join the queue of their pool again: those that go back, and those that become due.

-- Put tasks into the queue of their pool, each at its place. Where there are groups, `t` says what else touches
-- them, and `at` in which order that is.
CREATE FUNCTION millpond_make_ready(
    p millpond_pool, r millpond_rules, t millpond_touched, these bigint[], at bigint[]
) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    expected constant integer := coalesce(cardinality(these), 0);
    spots tid[];
    odd boolean;
    touched bigint;
BEGIN
    IF expected > 0 THEN
        SELECT array_agg(l.spot), array_agg(u.unit), array_agg(millpond_share(r, u.unit, u.share)),
               array_agg(l.rank), array_agg(x.place & ((1::bigint << 40) - 1)), array_agg(l.due),
               -- The share of a task that is not plain stands in its body.
               bool_or(l.owner IS NOT NULL OR u.plain IS NULL AND r.fair)
          INTO spots, t.group_units, t.group_shares, t.ranks, t.seqs, t.dues, odd
          FROM unnest(these) WITH ORDINALITY AS x (place, n)
         CROSS JOIN LATERAL (SELECT y.ctid AS spot, y.* FROM millpond_live AS y
                              WHERE y.place = x.place AND y.grp = 0 OFFSET 0) AS l
         CROSS JOIN LATERAL (SELECT coalesce(l.lane, l.key, '') AS unit, y.plain,
                                    CASE WHEN y.plain::json -> 'share' IS NULL THEN l.key
                                         ELSE y.plain::json ->> 'share' END AS share
                               FROM millpond_task AS y WHERE y.place = x.place OFFSET 0) AS u;
        IF odd THEN
            RAISE EXCEPTION 'not plain' USING ERRCODE = 'MP001';
        END IF;
        p.ready := p.ready + expected;
    END IF;
    IF r.grouped THEN
        t.group_at := at;
        IF t.units IS NOT NULL OR t.group_units IS NOT NULL THEN
            p := millpond_flush_and_join(p, r, t);
        END IF;
    ELSIF expected > 0 THEN
        SELECT * INTO p.bands, p.lows
          FROM millpond_mark_put(p.ready - expected, p.bands, p.lows, t.ranks, these);
    END IF;
    IF expected > 0 THEN
        UPDATE millpond_live AS l SET grp = x.grp
          FROM (SELECT u.spot, coalesce(g.id, p.id) AS grp
                  FROM unnest(spots, t.group_units, t.group_shares) AS u (spot, unit, share)
                  LEFT JOIN LATERAL
                       (SELECT o.id FROM millpond_group AS o
                         WHERE o.pool = p.id AND o.unit = u.unit AND o.share = u.share AND o.owner = ''
                           AND r.grouped OFFSET 0) AS g ON true) AS x
         WHERE l.ctid = x.spot;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> expected THEN PERFORM millpond_miscounted('live', expected, touched); END IF;
    END IF;
    RETURN p;
END $$;

-- Make tasks ready that have become due, at most as many as the core does at once (PROMOTED_AT_ONCE), and units
-- whose timers are due.
CREATE FUNCTION millpond_promote(INOUT p millpond_pool, INOUT r millpond_rules)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at_once constant integer := 1000;
    due record;
    t millpond_touched;
BEGIN
    SELECT count(*) AS n, array_agg(x.place) AS places, max(x.due) AS last INTO due
      FROM (SELECT o.place, o.due FROM millpond_live AS o
             WHERE o.pool = p.id AND o.grp = 0 AND o.due >= p.undue_since AND o.due <= r.moment
             ORDER BY o.due, o.place LIMIT at_once) AS x;
    p.undue_since := CASE WHEN due.n < at_once THEN r.moment ELSE due.last END;
    r.promoted := due.n;
    IF p.unit_timers > 0 THEN
        SELECT array_agg(x.unit), array_agg(due.n + x.n) INTO t.units, t.unit_at
          FROM (SELECT o.unit, row_number() OVER (ORDER BY o.timer_at, o.timer_rank, o.timer_seq) AS n
                  FROM millpond_unit AS o WHERE o.pool = p.id AND o.timer_at <= r.moment) AS x;
        r.promoted := r.promoted + coalesce(cardinality(t.units), 0);
    END IF;
    IF r.promoted > 0 THEN
        p.later := p.later - due.n;
        t.pops := true;
        p := millpond_make_ready(p, r, t, due.places, ARRAY(SELECT generate_series(1, due.n)));
    END IF;
END $$;
