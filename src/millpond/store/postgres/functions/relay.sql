-- The relay: every attempt that ends is followed by a prefetched task, and all end in the order in which they
-- began. That is usual where tasks are alike. Then lists are cut and joined, and nothing is sorted.

-- Return how many tasks of each lease take part; NULL if it is not such a case. Leases that run come before
-- those that are prefetched.
CREATE FUNCTION millpond_relay_takes(
    held millpond_lease[], settled bigint[], settled_tokens bigint[],
    successors bigint[], successor_tokens bigint[]
) RETURNS integer[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    count constant integer := cardinality(settled);
    takes integer[] := '{}';
    l millpond_lease;
    size integer;
    take integer;
    over integer := 0;   -- how many of them had been running
    begun integer := 0;
    rest integer;        -- how many of those begin and end here
BEGIN
    FOREACH l IN ARRAY held LOOP
        take := 0;
        size := cardinality(l.ids);
        IF l.worker <> held[1].worker THEN
            RETURN NULL;
        ELSIF l.claims IS NOT NULL THEN
            take := least(size, count - begun);
            IF l.ids[:take] <> successors[begun + 1:begun + take]
               OR l.token <> ANY(CASE WHEN cardinality(successor_tokens) = 1 THEN successor_tokens
                                 ELSE successor_tokens[begun + 1:begun + take] END) THEN
                RETURN NULL;
            END IF;
            begun := begun + take;
        ELSIF over < count AND l.ids[1] = settled[over + 1] THEN
            take := least(size, count - over);
            IF l.ids[:take] <> settled[over + 1:over + take]
               OR l.token <> ANY(CASE WHEN cardinality(settled_tokens) = 1 THEN settled_tokens
                                 ELSE settled_tokens[over + 1:over + take] END) THEN
                RETURN NULL;
            END IF;
            over := over + take;
        END IF;
        takes := takes || take;
    END LOOP;
    rest := count - over;
    IF over = 0 OR begun < count OR settled[over + 1:] <> successors[:rest]
       OR (rest > 0
           AND CASE WHEN cardinality(settled_tokens) > 1 THEN settled_tokens[over + 1:]
               ELSE array_fill(settled_tokens[1], ARRAY[rest]) END
            <> CASE WHEN cardinality(successor_tokens) > 1 THEN successor_tokens[:rest]
               ELSE array_fill(successor_tokens[1], ARRAY[rest]) END) THEN
        RETURN NULL;
    END IF;
    RETURN takes;
END $$;

-- Take the first tasks out of a lease; return a lease of these alone.
CREATE FUNCTION millpond_cut_lease(l millpond_lease, take integer) RETURNS millpond_lease
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    size constant integer := cardinality(l.ids);
    touched bigint;
BEGIN
    IF take = size THEN
        DELETE FROM millpond_lease AS o WHERE o.token = l.token AND o.started_at = l.started_at;
        GET DIAGNOSTICS touched = ROW_COUNT;
    ELSE
        UPDATE millpond_lease AS o
           SET claims = l.claims[take + 1:], ids = l.ids[take + 1:], places = l.places[take + 1:],
               ranks = millpond_part(l.ranks, take + 1, size),
               submitted_at = millpond_part(l.submitted_at, take + 1, size),
               due = millpond_part(l.due, take + 1, size),
               keys = l.keys[take + 1:], plain = millpond_part(l.plain, take + 1, size)
         WHERE o.token = l.token AND o.started_at = l.started_at;
        GET DIAGNOSTICS touched = ROW_COUNT;
        l := millpond_lease_part(l, 1, take);
    END IF;
    IF touched <> 1 THEN PERFORM millpond_miscounted('lease', 1, touched); END IF;
    RETURN l;
END $$;

-- Return a lease of some tasks of another; their claims are left out.
CREATE FUNCTION millpond_lease_part(l millpond_lease, low integer, high integer) RETURNS millpond_lease
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    l.ids := l.ids[low:high];
    l.places := l.places[low:high];
    l.ranks := millpond_part(l.ranks, low, high);
    l.submitted_at := millpond_part(l.submitted_at, low, high);
    l.due := millpond_part(l.due, low, high);
    l.keys := l.keys[low:high];
    l.plain := millpond_part(l.plain, low, high);
    RETURN l;
END $$;

-- Add the tasks of a lease to a list of arrows (of ends, or of starts).
CREATE FUNCTION millpond_add_arrows(e millpond_ends, l millpond_lease) RETURNS millpond_ends
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    take constant integer := cardinality(l.ids);
BEGIN
    e.ids := e.ids || l.ids;
    e.places := e.places || l.places;
    e.due := e.due || millpond_each(l.due, take);
    e.tokens := e.tokens || array_fill(l.token, ARRAY[take]);
    e.keys := e.keys || millpond_each(l.keys, take);
    e.plain := e.plain || millpond_each(l.plain, take);
    RETURN e;
END $$;

-- Do it; NULL if it is not such a case.
CREATE FUNCTION millpond_relay(
    moment double precision, settled bigint[], settled_tokens bigint[], one_result bytea, results bytea[],
    successors bigint[], successor_tokens bigint[], the_pool bigint, lease_number bigint
) RETURNS millpond_ends
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    count constant integer := cardinality(settled);
    held millpond_lease[];
    takes integer[];
    l millpond_lease;
    e millpond_ends;
    b millpond_ends;      -- what begins
    take integer;
    over integer := 0;
    begun integer := 0;
    rest integer;         -- how many of those that begin end here, too
    ends integer;
BEGIN
    SELECT array_agg(o ORDER BY o.started_at, o.claims[1], array_position(settled, o.ids[1]))
      INTO held
      FROM millpond_lease AS o
     WHERE o.token = ANY(settled_tokens || successor_tokens) AND o.pool = the_pool;
    takes := CASE WHEN held IS NOT NULL
             THEN millpond_relay_takes(held, settled, settled_tokens, successors, successor_tokens) END;
    IF takes IS NULL THEN
        RETURN NULL;
    END IF;
    rest := count;
    FOR i IN 1..cardinality(held) LOOP
        IF held[i].claims IS NULL THEN rest := rest - takes[i]; END IF;
    END LOOP;
    SELECT p.measured INTO e.measured
      FROM millpond_pool AS p WHERE p.id = the_pool ORDER BY p.turn DESC LIMIT 1;
    FOR i IN 1..cardinality(held) LOOP
        take := takes[i];
        CONTINUE WHEN take = 0;
        l := millpond_cut_lease(held[i], take);
        IF l.claims IS NOT NULL THEN
            l.started_at := moment;
            ends := greatest(least(take, rest - begun), 0);
            IF ends > 0 THEN
                PERFORM millpond_store_completed(
                    l, ends, moment, one_result, results[count - rest + begun + 1:count - rest + begun + ends]);
            END IF;
            begun := begun + take;
            b := millpond_add_arrows(b, l);
            IF ends < take THEN
                l := millpond_lease_part(l, ends + 1, take);
                INSERT INTO millpond_lease
                VALUES (l.token, moment, l.pool, l.worker, NULL, NULL, l.ids, l.places, l.ranks,
                        l.submitted_at, l.due, l.keys, l.plain, lease_number);
            END IF;
        ELSE
            PERFORM millpond_store_completed(l, take, moment, one_result, results[over + 1:over + take]);
            over := over + take;
            e.measured := e.measured + take;
            INSERT INTO millpond_measured
            VALUES (l.pool, e.measured, NULL, l.due, l.started_at, moment, take);
            e := millpond_add_arrows(e, l);
        END IF;
    END LOOP;
    e.pool := l.pool;
    e.worker := l.worker;
    e.begun := count;
    e.starts := '{t}';
    -- All ends, then all starts: the audit lists each start right after the end at the same position.
    e.ids := e.ids || b.ids[:rest] || b.ids;
    e.places := e.places || b.places[:rest] || b.places;
    e.due := e.due || b.due[:rest] || b.due;
    e.tokens := e.tokens || b.tokens[:rest] || b.tokens;
    e.keys := e.keys || b.keys[:rest] || b.keys;
    e.plain := e.plain || b.plain[:rest] || b.plain;
    IF e.due[1] = ALL(e.due) THEN e.due := e.due[:1]; END IF;
    IF e.tokens[1] = ALL(e.tokens) THEN e.tokens := e.tokens[:1]; END IF;
    IF array_remove(e.keys, NULL) = '{}' THEN e.keys := '{}'; END IF;
    IF e.plain[1] = ALL(e.plain) THEN e.plain := e.plain[:1]; END IF;
    RETURN e;
END $$;
