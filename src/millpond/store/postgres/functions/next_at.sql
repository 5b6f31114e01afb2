-- When a worker should ask again.

-- Return when something may start: now, when the rates allow it, when the first is due; NULL = unknown.
-- `more`: without rates and turns, whether something can start at once.
CREATE FUNCTION millpond_next_at(p millpond_pool, r millpond_rules, taken integer, more boolean)
RETURNS double precision
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    next_at double precision;
BEGIN
    IF r.flow THEN
        next_at := millpond_rates_allow(p, r, taken);
    ELSIF r.grouped THEN
        IF EXISTS (SELECT FROM millpond_turns(
                       p.id, '', p.passed_turn, p.passed_join, p.ring_turn, p.ring_join, 1)) THEN
            RETURN r.moment;
        END IF;
    ELSIF more THEN
        RETURN r.moment;
    END IF;
    IF p.unit_timers > 0 THEN
        SELECT least(next_at, o.timer_at) INTO next_at FROM millpond_unit AS o
         WHERE o.pool = p.id AND o.timer_at IS NOT NULL ORDER BY o.timer_at, o.timer_rank, o.timer_seq LIMIT 1;
    END IF;
    IF p.later > 0 THEN
        SELECT least(next_at, o.due) INTO next_at FROM millpond_live AS o
         WHERE o.pool = p.id AND o.grp = 0 AND o.due >= p.undue_since ORDER BY o.due, o.place LIMIT 1;
    END IF;
    RETURN next_at;
END $$;

-- Return when rates and budgets let the next task start; NULL = nothing is queued.
CREATE FUNCTION millpond_rates_allow(p millpond_pool, r millpond_rules, taken integer)
RETURNS double precision
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    weight bigint;
    place bigint;
    own_at bigint;
    shared_at bigint := r.ticks;
BEGIN
    IF r.grouped THEN
        SELECT (t.plain::json ->> 'weight')::bigint, t.place INTO weight, place
          FROM millpond_turns(p.id, '', p.passed_turn, p.passed_join, p.ring_turn, p.ring_join, 1) AS s
         CROSS JOIN LATERAL
               (SELECT x.* FROM (SELECT * FROM millpond_group AS o
                                  WHERE o.pool = p.id AND o.share = s.share AND o.owner = ''
                                    AND o.ready = 1 ORDER BY o.shelf_rank, o.shelf_seq LIMIT 2) AS x
                 ORDER BY x.rank, x.seq LIMIT 1) AS g
         CROSS JOIN LATERAL
               (SELECT o.place FROM millpond_live AS o
                 WHERE o.grp = g.id AND o.grp > 0
                   AND (o.rank, o.place) >= (g.rank, (g.pool << 40) | g.seq)
                 ORDER BY o.rank, o.place LIMIT 1) AS l
         CROSS JOIN LATERAL
               (SELECT o.place, o.plain FROM millpond_task AS o WHERE o.place = l.place OFFSET 0) AS t;
    ELSE
        SELECT (t.plain::json ->> 'weight')::bigint, t.place INTO weight, place
          FROM (SELECT u.rank, u.low,
                       CASE WHEN p.bands IS NULL THEN 9223372036854775807 ELSE u.rank END AS last_rank
                  FROM unnest(coalesce(p.bands, '{-9223372036854775808}'),
                              CASE WHEN p.bands IS NULL THEN '{0}' ELSE p.lows END) AS u (rank, low)
                 ORDER BY u.rank) AS b
         CROSS JOIN LATERAL
               (SELECT o.place FROM millpond_live AS o
                 WHERE o.grp = p.id AND o.grp > 0 AND (o.rank, o.place) >= (b.rank, b.low)
                   AND o.rank <= b.last_rank ORDER BY o.rank, o.place LIMIT 1) AS l
         CROSS JOIN LATERAL
               (SELECT o.place, o.plain FROM millpond_task AS o WHERE o.place = l.place OFFSET 0) AS t
         LIMIT 1;
    END IF;
    IF place IS NULL THEN
        RETURN NULL;
    END IF;
    own_at := millpond_ready_at(r.rates, r.tats, weight, r.ticks);
    FOR i IN 1..cardinality(r.budgets) LOOP
        shared_at := greatest(shared_at, millpond_ready_at(
            r.budget_rates[i], r.budget_buckets[i], weight, r.ticks));
    END LOOP;
    IF weight IS NULL OR (own_at <= r.ticks AND (shared_at > r.ticks OR taken >= ANY(r.budget_left))) THEN
        -- It would stand in line for a budget.
        RAISE EXCEPTION 'in line' USING ERRCODE = 'MP001';
    END IF;
    RETURN greatest(own_at, shared_at)::double precision / 1000000;
END $$;
