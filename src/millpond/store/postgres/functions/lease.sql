-- What a worker may start next: how many, whether the verbs must decide, and which tasks.

-- Return how many tasks a worker may start and prefetch; `refused` where the verbs must decide.
CREATE FUNCTION millpond_room_for(
    p millpond_pool, r millpond_rules, asker text, want integer, ahead integer,
    running_now bigint, ending integer, begun integer, from_lease bigint,
    inbox_upto xid8, inbox_open xid8[]
) RETURNS millpond_room
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    worker record;
    w millpond_room;
    left_held constant bigint := coalesce((p.holding::jsonb ->> asker)::bigint, 0) - ending + begun;
BEGIN
    SELECT o.id, o.ahead, o.expires_at, o.owner, o.functions, o.unknown INTO worker
      FROM millpond_worker AS o WHERE o.id = asker ORDER BY o.turn DESC LIMIT 1;
    w.own_claims := 0;
    IF worker.ahead > 0 THEN
        SELECT coalesce(sum(cardinality(l.ids)), 0) INTO w.own_claims FROM millpond_lease AS l
         WHERE l.n >= from_lease AND l.worker = asker AND l.pool = p.id
           AND l.claims IS NOT NULL;
    END IF;
    w.slots := greatest(least(want, r.a_limit - running_now), 0);
    w.beginning := least(w.slots, w.own_claims);
    w.slots := w.slots - w.beginning;
    w.may_claim := 0;
    IF ahead > 0 AND running_now <= r.a_limit AND r.a_limit > 0 THEN
        w.may_claim := greatest(least(ahead, r.prefetch - w.own_claims + w.beginning), 0);
    END IF;
    w.functions := worker.functions;
    w.unknown := worker.unknown;
    w.refused := CASE
        WHEN p.id IS NULL OR worker.id IS NULL THEN 'unknown'
        WHEN p.special = 1 AND NOT r.flow THEN 'flow control'
        WHEN p.grouped = 1 AND (NOT r.grouped OR w.may_claim > 0) THEN 'grouped'
        WHEN p.paused = 1 OR p.not_before > r.moment THEN 'paused'
        WHEN p.parked > 0 THEN 'parked'
        WHEN worker.expires_at <= r.moment OR worker.functions = '[]' THEN 'worker'
        WHEN p.starved <> '{}' OR p.hungry <> '{}' THEN 'starved'
        WHEN want > 0 AND w.slots + w.beginning = 0 AND left_held <= 0 AND p.ready + w.own_claims > 0
        THEN 'starved'
    END;
    IF w.refused IS NULL THEN
        w.refused := millpond_comes_first(p.id, r.grouped, asker, worker.owner,
                                          worker.ahead - begun > w.own_claims, inbox_upto, inbox_open);
    END IF;
    RETURN w;
END $$;

-- Return what the verbs must see to before anything is leased; NULL = nothing. Each question is asked by
-- itself, and only where it matters.
CREATE FUNCTION millpond_comes_first(
    the_pool bigint, grouped boolean,
    asker text, its_owner text, claims_elsewhere boolean, inbox_upto xid8, inbox_open xid8[]
) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= inbox_upto)
       -- The marks are those of another server: the tables were restored.
       OR inbox_upto > pg_snapshot_xmax(pg_current_snapshot()) THEN
        RETURN 'inbox';
    END IF;
    IF cardinality(inbox_open) > 0 THEN
        IF EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(inbox_open)) THEN
            RETURN 'inbox';
        END IF;
    END IF;
    IF claims_elsewhere THEN
        IF EXISTS (SELECT 1 FROM millpond_live
                    WHERE worker = asker AND pool = the_pool AND claim IS NOT NULL) THEN
            RETURN 'prefetched, and not folded';
        END IF;
    END IF;
    IF grouped THEN
        IF EXISTS (SELECT 1 FROM millpond_seat
                    WHERE pool = the_pool AND owner > '' AND resting = 0) THEN
            RETURN 'owned';
        END IF;
    ELSIF its_owner IS NOT NULL THEN
        IF EXISTS (SELECT 1 FROM millpond_group
                    WHERE pool = the_pool AND unit = '' AND share = '' AND owner = its_owner) THEN
            RETURN 'owned';
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- Return the first tasks of a queue without groups.
CREATE FUNCTION millpond_next_in_line(
    the_pool bigint, bands bigint[], lows bigint[], most bigint, moment double precision
) RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    n millpond_next;
    all_fold boolean;
BEGIN
    IF most <= 16 AND cardinality(bands) = 1 THEN
        n := millpond_next_few(the_pool, bands[1], lows[1], most, moment);
        IF n.simple THEN
            RETURN n;
        END IF;
        n := NULL;
    END IF;
    SELECT count(*), array_agg(x.spot), array_agg(x.id), array_agg(x.place),
           CASE WHEN min(x.rank) = max(x.rank) THEN ARRAY[min(x.rank)] ELSE array_agg(x.rank) END,
           CASE WHEN min(x.submitted_at) = max(x.submitted_at) THEN ARRAY[min(x.submitted_at)]
                ELSE array_agg(x.submitted_at) END,
           CASE WHEN min(x.due) = max(x.due) THEN ARRAY[min(x.due)] ELSE array_agg(x.due) END,
           CASE WHEN count(x.key) = 0 THEN '{}' ELSE array_agg(x.key) END,
           bool_and(x.simple), bool_and(x.folds), coalesce(sum(x.fresh), 0)
      INTO n.n, n.spots, n.ids, n.places, n.ranks, n.submitted_at, n.due, n.keys, n.simple, all_fold, n.fresh
      FROM (SELECT l.*
              -- From where there may be something on, rank by rank: a column of its own
              -- for each, or one for everything (see millpond_pool.bands).
              FROM (SELECT u.rank, u.low,
                           CASE WHEN bands IS NULL THEN 9223372036854775807 ELSE u.rank END AS last_rank
                      FROM unnest(coalesce(bands, '{-9223372036854775808}'),
                                  CASE WHEN bands IS NULL THEN '{0}' ELSE lows END) AS u (rank, low)
                     ORDER BY u.rank) AS b
             CROSS JOIN LATERAL
                   (SELECT o.ctid AS spot, o.id, o.place, o.rank, o.submitted_at, o.due, o.key, o.fresh,
                           millpond_simple(o, moment) AS simple, millpond_folds(o) AS folds
                      FROM millpond_live AS o
                     WHERE o.grp = the_pool AND o.grp > 0 AND (o.rank, o.place) >= (b.rank, b.low)
                       AND o.rank <= b.last_rank
                     ORDER BY o.rank, o.place LIMIT most) AS l
             LIMIT most) AS x;
    IF n.n = 0 THEN
        RETURN n;
    END IF;
    n := millpond_read_bodies(n, cardinality(n.ranks) = 1);
    IF NOT all_fold THEN
        n := millpond_read_attempts(n);
    END IF;
    IF NOT n.simple THEN
        n.refused := 'not simple';
    END IF;
    RETURN n;
END $$;

-- Return the first few tasks of one rank with their bodies. `simple` is true only if nothing is known of any of them
-- but its submit. One statement with few aggregates: what a short one costs is to prepare it and each of them.
CREATE FUNCTION millpond_next_few(
    the_pool bigint, the_rank bigint, low bigint, most bigint, moment double precision
) RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n millpond_next;
BEGIN
    SELECT array_agg(x.spot), array_agg(x.id), array_agg(x.place), array_agg(x.submitted_at), array_agg(x.due),
           array_agg(x.key), array_agg(t.body), array_agg(t.plain),
           bool_and(x.simple AND t.plain IS NOT NULL), sum(x.fresh)
      INTO n.spots, n.ids, n.places, n.submitted_at, n.due, n.keys, n.bodies, n.plain, n.simple, n.fresh
      FROM (SELECT o.ctid AS spot, o.id, o.place, o.submitted_at, o.due, o.key, o.fresh,
                   millpond_simple(o, moment) AND millpond_folds(o) AS simple
              FROM millpond_live AS o
             WHERE o.grp = the_pool AND o.grp > 0 AND o.rank = the_rank AND o.place >= low
             ORDER BY o.rank, o.place LIMIT most) AS x
      LEFT JOIN LATERAL
           (SELECT o.body, o.plain FROM millpond_task AS o WHERE o.place = x.place OFFSET 0) AS t ON true;
    n.n := cardinality(n.ids);
    n.ranks := ARRAY[the_rank];
    n.submitted_at := millpond_collapsed(n.submitted_at);
    n.due := millpond_collapsed(n.due);
    n.plain := millpond_collapsed(n.plain);
    IF array_remove(n.keys, NULL) = '{}' THEN
        n.keys := '{}';
    END IF;
    RETURN n;
END $$;

-- Add the bodies of tasks, in their order; `by_place` = they stand in the order of their places.
CREATE FUNCTION millpond_read_bodies(n millpond_next, by_place boolean) RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    found bigint[];
    plain boolean;
BEGIN
    IF by_place THEN
        -- In this order the index yields them, so one walk finds all.
        SELECT array_agg(t.place), array_agg(t.body), bool_and(t.plain IS NOT NULL),
               CASE WHEN min(t.plain) = max(t.plain) THEN ARRAY[min(t.plain)] ELSE array_agg(t.plain) END
          INTO found, n.bodies, plain, n.plain
          FROM millpond_task AS t WHERE t.place = ANY(n.places);
    END IF;
    IF found IS DISTINCT FROM n.places THEN
        SELECT array_agg(t.place), array_agg(t.body), bool_and(t.plain IS NOT NULL),
               CASE WHEN min(t.plain) = max(t.plain) THEN ARRAY[min(t.plain)] ELSE array_agg(t.plain) END
          INTO found, n.bodies, plain, n.plain
          FROM unnest(n.places) AS u (place)
         CROSS JOIN LATERAL
               (SELECT o.place, o.body, o.plain FROM millpond_task AS o WHERE o.place = u.place OFFSET 0) AS t;
    END IF;
    -- Without any row `plain` and `found` are NULL.
    n.simple := n.simple AND coalesce(plain AND found = n.places, false);
    RETURN n;
END $$;

-- Add the attempts of tasks, and which of them keep their rows.
CREATE FUNCTION millpond_read_attempts(n millpond_next) RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    SELECT array_agg(x.k) FILTER (WHERE NOT x.folds),
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.attempt) END,
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.runs) END,
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.first_started_at) END
      INTO n.own_rows, n.attempts, n.runs, n.first_started_at
      FROM (SELECT u.k, o.attempt, o.runs, o.first_started_at, millpond_folds(o) AS folds
              FROM unnest(n.spots) WITH ORDINALITY AS u (spot, k)
             CROSS JOIN LATERAL (SELECT l.* FROM millpond_live AS l WHERE l.ctid = u.spot OFFSET 0) AS o) AS x;
    RETURN n;
END $$;

-- Return whether a queued task can be started here, if its worker knows its function.
CREATE FUNCTION millpond_simple(l millpond_live, moment double precision) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT l.reason IS NULL AND l.cancel_requested = 0 AND l.listed = 0 AND l.owner IS NULL
       AND l.steps IS NULL AND (l.expires_at IS NULL OR l.expires_at > moment)
       AND (l.progress IS NULL OR l.progress ~ '^[0-9.e+-]+ ')
$$;

-- Return whether nothing is known of a task but its submit: then it can be folded.
CREATE FUNCTION millpond_folds(l millpond_live) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT l.runs = 0 AND l.attempt = 0 AND l.expires_at IS NULL AND l.error IS NULL AND l.progress IS NULL
       AND l.lane IS NULL
$$;

-- Return why a worker cannot run some of these tasks; NULL = it can run all.
CREATE FUNCTION millpond_cannot_run(n integer, plain text[], functions jsonb, unknown jsonb) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF n > 0 AND (functions IS NOT NULL OR unknown <> '[]')
       AND EXISTS (SELECT 1 FROM unnest(plain) AS f (plain)
                    WHERE NOT coalesce(functions ? (f.plain::json ->> 'function'), true)
                       OR unknown ? (f.plain::json ->> 'function')) THEN
        RETURN 'unknown function';
    END IF;
    RETURN NULL;
END $$;
