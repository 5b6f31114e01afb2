-- schema-2
--
-- Most tasks have no run, no callback, no owner and no lane, and wait in a pool that only counts them.
-- What their start and their completion change is then a sum, and the server does it by itself, by the
-- batch and in one go: nothing travels but what is to be run. It does what the verbs do, or nothing:
-- where anything is not plain it says so, and the verbs take over.

-- Give back a row of its own to each of these tasks that is folded into a lease; to all, if none is named.
CREATE FUNCTION millpond_unfold(these bigint[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    WITH gone AS (
        DELETE FROM millpond_lease AS l WHERE these IS NULL OR l.ids && these RETURNING l.*
    )
    INSERT INTO millpond_live
    SELECT u.place, u.id, l.pool, coalesce(u.rank, l.ranks[1]), u.key, NULL,
           u.place & ((1::bigint << 40) - 1), coalesce(u.submitted_at, l.submitted_at[1]), NULL,
           NULL, NULL, coalesce(u.due, l.due[1]), NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL,
           1, 1, 1, 0, 0, l.token, l.worker, l.started_at, l.started_at, NULL, NULL
      FROM gone AS l,
           unnest(l.ids, l.places, l.ranks, l.submitted_at, l.due, l.keys)
           AS u (id, place, rank, submitted_at, due, key)
$$;

-- A column of a lease or of a record that holds one value holds it for every task; no keys = none has one.

-- Complete plain tasks of one worker, and let it start the next of a pool.
--
-- `asked_pool` NULL: it starts none. `at` NULL: the server's clock counts. One token stands for
-- all, and one result if `results` is NULL. `refused` says why nothing was done; an error of the class MP says the same.
CREATE FUNCTION millpond_step(
    lock_number bigint,
    at double precision,
    settled bigint[],
    settled_tokens bigint[],
    one_result bytea,
    results bytea[],
    asked_pool text,
    asker text,
    new_token bigint,
    want integer,
    OUT refused text,
    OUT moment double precision,
    OUT pool_name text,
    OUT live_left bigint,
    OUT running_now bigint,
    OUT has_room boolean,
    OUT processed bigint,
    OUT next_at double precision,
    OUT ids bigint[],
    OUT places bigint[],
    OUT submitted double precision[],
    OUT bodies bytea[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    ending constant integer := coalesce(cardinality(settled), 0);
    starting integer := 0;
    told bigint;
    a_pool bigint;
    a_worker text := asker;
    p record;
    w record;
    e record;
    n record;
    a_limit bigint;
    slots bigint;
    held jsonb;
    left_held bigint;
    unfit text;
    taken_fresh bigint := 0;
    whole boolean := false;
BEGIN
    -- In a statement of its own: what comes after it sees what the holder before has committed.
    PERFORM pg_advisory_xact_lock(lock_number);
    SELECT greatest(latest, coalesce(at, extract(epoch FROM clock_timestamp())::double precision)),
           records
      INTO moment, told
      FROM millpond_meta;

    -- What ends. Their leases go; what is left of one comes back. Mostly it is one lease, and all of it.
    IF ending > 0 THEN
        IF cardinality(settled_tokens) = 1 THEN
            DELETE FROM millpond_lease AS l
             WHERE l.token = settled_tokens[1] AND l.ids = settled RETURNING l.* INTO e;
            whole := FOUND;
        END IF;
        IF whole THEN
            INSERT INTO millpond_ended
            SELECT u.place, e.pool, 'completed', 1, moment, NULL, 1, 1,
                   CASE WHEN results IS NULL THEN one_result ELSE u.result END, NULL,
                   coalesce(u.rank, e.ranks[1]), NULL, u.place & ((1::bigint << 40) - 1),
                   coalesce(u.submitted_at, e.submitted_at[1]), coalesce(u.due, e.due[1]), e.token,
                   e.started_at, e.started_at, NULL, 0, 0, NULL, NULL
              FROM unnest(e.places, e.ranks, e.submitted_at, e.due, results)
                   AS u (place, rank, submitted_at, due, result);
        ELSE
            WITH gone AS (
                DELETE FROM millpond_lease AS l WHERE l.token = ANY(settled_tokens) RETURNING l.*
            ), held AS (
                SELECT l.token, l.pool, l.worker, l.started_at, u.id, u.place,
                       coalesce(u.rank, l.ranks[1]) AS rank,
                       coalesce(u.submitted_at, l.submitted_at[1]) AS submitted_at,
                       coalesce(u.due, l.due[1]) AS due, u.key, coalesce(u.plain, l.plain[1]) AS plain
                  FROM gone AS l,
                       unnest(l.ids, l.places, l.ranks, l.submitted_at, l.due, l.keys, l.plain)
                       AS u (id, place, rank, submitted_at, due, key, plain)
            ), ends AS MATERIALIZED (
                SELECT h.*, CASE WHEN results IS NULL THEN one_result ELSE q.result END AS result, q.n
                  FROM unnest(settled, settled_tokens, results)
                       WITH ORDINALITY AS q (id, token, result, n)
                  JOIN held AS h ON h.id = q.id AND h.token = coalesce(q.token, settled_tokens[1])
                 ORDER BY q.n
            ), stays AS (
                INSERT INTO millpond_lease
                SELECT h.token, h.pool, h.worker, h.started_at, array_agg(h.id), array_agg(h.place),
                       array_agg(h.rank), array_agg(h.submitted_at), array_agg(h.due),
                       array_agg(h.key), array_agg(h.plain)
                  FROM held AS h LEFT JOIN ends AS o ON o.id = h.id
                 WHERE o.id IS NULL
                 GROUP BY h.token, h.pool, h.worker, h.started_at
            ), stored AS (
                INSERT INTO millpond_ended
                SELECT place, pool, 'completed', 1, moment, NULL, 1, 1, result, NULL,
                       rank, NULL, place & ((1::bigint << 40) - 1), submitted_at, due, token,
                       started_at, started_at, NULL, 0, 0, NULL, NULL
                  FROM ends
            )
            SELECT count(*) AS n, min(pool) AS pool, max(pool) AS last_pool,
                   min(worker) AS worker, max(worker) AS last_worker,
                   array_agg(id) AS ids, array_agg(place) AS places,
                   CASE WHEN min(due) = max(due) THEN ARRAY[min(due)] ELSE array_agg(due) END AS due,
                   CASE WHEN min(token) = max(token) THEN ARRAY[min(token)] ELSE array_agg(token) END
                   AS tokens,
                   CASE WHEN count(key) = 0 THEN '{}' ELSE array_agg(key) END AS keys,
                   CASE WHEN min(plain) = max(plain) THEN ARRAY[min(plain)] ELSE array_agg(plain) END
                   AS plain,
                   string_agg(float8send(started_at - due) || float8send(moment - started_at), '')
                   AS times
              INTO e FROM ends;
            settled_tokens := e.tokens;
            IF e.n <> ending OR e.pool <> e.last_pool OR e.worker <> e.last_worker THEN
                RAISE EXCEPTION 'not plain' USING ERRCODE = 'MP001';
            END IF;
        END IF;
        IF e.worker <> asker THEN
            RAISE EXCEPTION 'of another worker' USING ERRCODE = 'MP001';
        END IF;
        a_pool := e.pool;
        a_worker := e.worker;
    END IF;

    IF asked_pool IS NULL THEN
        SELECT * INTO p FROM millpond_pool WHERE id = a_pool;
    ELSE
        SELECT * INTO p FROM millpond_pool WHERE name = asked_pool;
        IF p.id <> a_pool THEN
            RAISE EXCEPTION 'not plain' USING ERRCODE = 'MP001';
        END IF;
    END IF;
    pool_name := p.name;
    a_limit := (p.spec::json ->> 'max_concurrent')::bigint;
    live_left := p.live - ending;
    running_now := p.running - ending;
    held := p.holding::jsonb;
    left_held := coalesce((held ->> a_worker)::bigint, 0) - ending;

    IF asked_pool IS NOT NULL THEN
        SELECT * INTO w FROM millpond_worker WHERE id = asker;
        refused := CASE
            WHEN p.id IS NULL OR w.id IS NULL THEN 'unknown'
            WHEN p.grouped = 1 OR p.tats <> '[]' THEN 'grouped'
            WHEN p.paused = 1 OR p.not_before > moment OR p.parked > 0 OR p.claimed > 0
              OR p.starved <> '{}' OR p.hungry <> '{}' OR w.ahead > 0 OR w.expires_at <= moment
              OR w.functions = '[]' THEN 'special'
            WHEN p.later > 0 AND EXISTS (
                 SELECT 1 FROM millpond_live WHERE pool = p.id AND grp = 0 AND due <= moment)
            THEN 'due'
            WHEN w.owner IS NOT NULL AND EXISTS (
                 SELECT 1 FROM millpond_group
                  WHERE pool = p.id AND unit = '' AND share = '' AND owner = w.owner)
            THEN 'owned'
            WHEN running_now >= a_limit AND p.ready > 0 AND left_held <= 0 THEN 'starved'
        END;
        slots := least(want, a_limit - running_now);
        IF refused IS NULL AND slots > 0 AND p.ready > 0 THEN
            SELECT count(*) AS n, array_agg(x.spot) AS spots, array_agg(x.id) AS ids,
                   array_agg(x.place) AS places,
                   CASE WHEN min(x.rank) = max(x.rank) THEN ARRAY[min(x.rank)]
                        ELSE array_agg(x.rank) END AS ranks,
                   CASE WHEN min(x.submitted_at) = max(x.submitted_at) THEN ARRAY[min(x.submitted_at)]
                        ELSE array_agg(x.submitted_at) END AS submitted_at,
                   CASE WHEN min(x.due) = max(x.due) THEN ARRAY[min(x.due)]
                        ELSE array_agg(x.due) END AS due,
                   CASE WHEN count(x.key) = 0 THEN '{}' ELSE array_agg(x.key) END AS keys,
                   CASE WHEN min(t.plain) = max(t.plain) THEN ARRAY[min(t.plain)]
                        ELSE array_agg(t.plain) END AS plain,
                   array_agg(t.body) AS bodies,
                   bool_and(x.simple AND t.plain IS NOT NULL) AS simple, sum(x.fresh) AS fresh
              INTO n
              FROM (SELECT l.ctid AS spot, l.id, l.place, l.rank, l.submitted_at, l.due, l.key, l.fresh,
                           l.runs = 0 AND l.attempt = 0 AND l.expires_at IS NULL AND l.reason IS NULL
                           AND l.cancel_requested = 0 AND l.listed = 0 AND l.lane IS NULL
                           AND l.run IS NULL AND l.owner IS NULL AND l.error IS NULL
                           AND l.progress IS NULL AND l.steps IS NULL AS simple
                      FROM millpond_live AS l
                     WHERE l.grp = p.id AND l.grp > 0 ORDER BY l.rank, l.place LIMIT slots) AS x
             CROSS JOIN LATERAL
                   (SELECT o.body, o.plain FROM millpond_task AS o WHERE o.place = x.place OFFSET 0)
                   AS t;
            starting := n.n;
            taken_fresh := n.fresh;
            IF starting > 0 THEN
                IF NOT n.simple THEN
                    refused := 'not simple';
                ELSIF w.functions IS NOT NULL OR w.unknown <> '[]' THEN
                    SELECT min(f.plain) INTO unfit
                      FROM unnest(n.plain) AS f (plain)
                     WHERE (w.functions IS NOT NULL
                            AND NOT w.functions::jsonb ? (f.plain::jsonb ->> 'function'))
                        OR w.unknown::jsonb ? (f.plain::jsonb ->> 'function');
                    IF unfit IS NOT NULL THEN
                        refused := 'unknown function';
                    END IF;
                END IF;
            END IF;
        END IF;
        IF refused IS NOT NULL THEN
            IF ending > 0 THEN
                RAISE EXCEPTION '%', refused USING ERRCODE = 'MP001';
            END IF;
            RETURN;
        END IF;
    END IF;

    IF ending > 0 THEN
        INSERT INTO millpond_audit
        VALUES (told + ending, ending, moment, NULL, 'complete', p.id, a_worker, settled_tokens,
                e.ids, e.places, e.due, e.keys, e.plain);
        IF whole THEN
            INSERT INTO millpond_measured
            VALUES (p.id, p.measured + ending, NULL, e.due, e.started_at, moment, ending);
        ELSE
            INSERT INTO millpond_measured VALUES (p.id, p.measured + ending, e.times);
        END IF;
        IF (p.measured + ending) % 1000 < 2 * ending THEN
            DELETE FROM millpond_measured WHERE pool = p.id AND upto <= p.measured + ending - 2000;
        END IF;
    END IF;
    IF starting > 0 THEN
        DELETE FROM millpond_live WHERE ctid = ANY(n.spots);
        INSERT INTO millpond_lease
        VALUES (new_token, p.id, asker, moment, n.ids, n.places, n.ranks, n.submitted_at, n.due,
                n.keys, n.plain);
        INSERT INTO millpond_audit
        VALUES (told + ending + starting, starting, moment, NULL, 'lease', p.id, asker,
                ARRAY[new_token], n.ids, n.places, n.due, n.keys, n.plain);
        ids := n.ids;
        places := n.places;
        submitted := n.submitted_at;
        bodies := n.bodies;
    END IF;
    running_now := running_now + starting;
    left_held := left_held + starting;
    processed := coalesce((p.totals::json ->> 'completed')::bigint, 0) + ending
                 + coalesce((p.totals::json ->> 'failed')::bigint, 0);
    has_room := running_now < a_limit OR p.claimed < (p.spec::json ->> 'prefetch')::bigint;
    IF ending + starting > 0 THEN
        UPDATE millpond_pool
           SET live = live_left, running = running_now, fresh = p.fresh - coalesce(taken_fresh, 0),
               ready = p.ready - starting, kept = p.kept + ending, measured = p.measured + ending,
               totals = CASE WHEN ending = 0 THEN p.totals ELSE
                   jsonb_set(p.totals::jsonb, '{completed}', to_jsonb(
                       coalesce((p.totals::jsonb ->> 'completed')::bigint, 0) + ending))::text END,
               holding = CASE WHEN left_held > 0 THEN held || jsonb_build_object(a_worker, left_held)
                              ELSE held - a_worker END::text
         WHERE id = p.id;
        UPDATE millpond_meta
           SET version = version + 1, latest = moment, records = told + ending + starting;
    END IF;
    IF asked_pool IS NOT NULL AND running_now < a_limit AND live_left > running_now THEN
        IF starting = slots AND EXISTS (
           SELECT 1 FROM millpond_live WHERE grp = p.id AND grp > 0 ORDER BY rank, place LIMIT 1) THEN
            next_at := moment;
        ELSIF p.later > 0 THEN
            SELECT due INTO next_at FROM millpond_live
             WHERE pool = p.id AND grp = 0 ORDER BY due, place LIMIT 1;
        END IF;
    END IF;
END $$;
