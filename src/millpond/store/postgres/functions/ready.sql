-- Tasks with rows that join the queue of their pool again: those that go back, and those that become due.

-- Put tasks into the queue of their pool, each at its place. `at` says in which order their shares begin to take
-- turns, among `freed` shares that do the same.
CREATE FUNCTION millpond_make_ready(
    INOUT p millpond_pool, INOUT r millpond_rules, these bigint[], at bigint[], freed text[], freed_at bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    expected constant integer := coalesce(cardinality(these), 0);
    t record;
    joined record;
    touched bigint;
BEGIN
    IF expected > 0 THEN
        SELECT array_agg(l.spot) AS spots, array_agg(l.rank) AS ranks, array_agg(l.key) AS keys,
               array_agg(l.due) AS dues, array_agg(o.plain::json ->> 'share') AS shares,
               -- The share of a task that is not plain stands in its body.
               bool_or(l.owner IS NOT NULL OR o.plain IS NULL AND r.fair) AS odd INTO t
          FROM unnest(these) WITH ORDINALITY AS u (place, n)
         CROSS JOIN LATERAL (SELECT x.ctid AS spot, x.* FROM millpond_live AS x
                              WHERE x.place = u.place AND x.grp = 0 OFFSET 0) AS l
         CROSS JOIN LATERAL (SELECT x.plain FROM millpond_task AS x WHERE x.place = u.place OFFSET 0) AS o;
        IF t.odd THEN
            RAISE EXCEPTION 'not plain' USING ERRCODE = 'MP001';
        END IF;
        IF r.fair THEN
            SELECT * INTO joined FROM millpond_join_groups(
                p.id, r.per_key, r.moment, these, t.keys, t.shares, t.dues);
            freed := freed || joined.shares;
            freed_at := freed_at || ARRAY(SELECT at[u.n] FROM unnest(joined.ready_at) AS u (n));
        ELSE
            SELECT * INTO p.bands, p.lows FROM millpond_mark_put(p.ready, p.bands, p.lows, t.ranks, these);
        END IF;
        UPDATE millpond_live AS l SET grp = x.grp
          FROM (SELECT u.spot, coalesce(g.id, p.id) AS grp
                  FROM unnest(t.spots, t.keys, t.shares) AS u (spot, key, share)
                  LEFT JOIN LATERAL
                       (SELECT o.id FROM millpond_group AS o
                         WHERE o.pool = p.id AND o.unit = coalesce(u.key, '')
                           AND o.share = coalesce(u.share, '') AND o.owner = '' AND r.fair OFFSET 0) AS g
                    ON true) AS x
         WHERE l.ctid = x.spot;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> expected THEN PERFORM millpond_miscounted('live', expected, touched); END IF;
        p.ready := p.ready + expected;
    END IF;
    IF r.fair THEN
        p := millpond_join_ring(p, freed, freed_at);
    END IF;
END $$;

-- Make tasks ready that have become due, at most as many as the core does at once (PROMOTED_AT_ONCE).
CREATE FUNCTION millpond_promote(INOUT p millpond_pool, INOUT r millpond_rules)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at_once constant integer := 1000;
    due record;
    made record;
BEGIN
    SELECT count(*) AS n, array_agg(x.place) AS places, max(x.due) AS last INTO due
      FROM (SELECT o.place, o.due FROM millpond_live AS o
             WHERE o.pool = p.id AND o.grp = 0 AND o.due >= p.undue_since AND o.due <= r.moment
             ORDER BY o.due, o.place LIMIT at_once) AS x;
    p.undue_since := CASE WHEN due.n < at_once THEN r.moment ELSE due.last END;
    IF due.n > 0 THEN
        p.later := p.later - due.n;
        SELECT * INTO made FROM millpond_make_ready(
            p, r, due.places, ARRAY(SELECT generate_series(1, due.n)), NULL, NULL);
        p := made.p;
        r := made.r;
        r.promoted := due.n;
    END IF;
END $$;
