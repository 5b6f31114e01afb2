-- Ends of attempts. Tasks that run are folded: one row of millpond_lease holds those of one lease.

-- End attempts of one worker in a pool, which is locked, and start the prefetched tasks that follow in their slots. What is
-- left of a lease stays. `outcomes` NULL: all complete the first attempt of their tasks. An error of SQLSTATE
-- MP001 says that the verbs must do it.
CREATE FUNCTION millpond_end_attempts(
    moment double precision, settled bigint[], settled_tokens bigint[], one_result bytea, results bytea[],
    outcomes jsonb, errors bytea[], successors bigint[], successor_tokens bigint[], asker text,
    the_pool bigint, lease_number bigint
) RETURNS millpond_ends
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ending constant integer := cardinality(settled);
    following constant integer := coalesce(cardinality(array_remove(successors, NULL)), 0);
    l millpond_lease;
    e millpond_ends;
    odd boolean;
BEGIN
    IF outcomes IS NULL AND cardinality(settled_tokens) = 1 AND successors IS NULL THEN
        -- Mostly it is one whole lease.
        DELETE FROM millpond_lease AS o
         WHERE o.token = settled_tokens[1] AND o.ids = settled AND o.claims IS NULL AND o.pool = the_pool
        RETURNING o.* INTO l;
        IF FOUND THEN
            PERFORM millpond_store_completed(l, ending, moment, one_result, results);
            e.pool := l.pool;
            e.worker := l.worker;
            e.begun := 0;
            e.ids := l.ids;
            e.places := l.places;
            e.due := l.due;
            e.tokens := settled_tokens;
            e.keys := l.keys;
            e.plain := l.plain;
            e.started_at := l.started_at;
        END IF;
    END IF;
    IF e.pool IS NULL AND outcomes IS NULL AND following = ending THEN
        e := millpond_relay(moment, settled, settled_tokens, one_result, results, successors,
                            successor_tokens, the_pool, lease_number);
    END IF;
    IF e.pool IS NULL AND (outcomes IS NOT NULL OR NOT millpond_all_folded(settled, settled_tokens)) THEN
        e := millpond_end_rows(moment, settled, settled_tokens, one_result, results, outcomes, errors,
                               successors, successor_tokens, the_pool);
    ELSIF e.pool IS NULL THEN
        SELECT the_pool, s.worker, s.begun, CASE WHEN s.begun > 0 THEN s.starts END, s.ids, s.places, s.due, s.tokens,
               s.keys, s.plain, s.times, s.timed,
               s.ended <> ending OR s.begun <> following OR s.worker <> s.last_worker
          INTO e.pool, e.worker, e.begun, e.starts, e.ids, e.places, e.due, e.tokens, e.keys, e.plain, e.times, e.timed,
               odd
          FROM millpond_end_some(moment, settled, settled_tokens, one_result, results, successors,
                                 successor_tokens, the_pool, lease_number) AS s;
        IF odd THEN
            RAISE EXCEPTION 'not plain' USING ERRCODE = 'MP001';
        END IF;
    END IF;
    IF e.events IS NULL THEN
        e.over := ending;
        e.failed := 0;
        e.later := 0;
    END IF;
    IF e.worker <> asker THEN
        RAISE EXCEPTION 'other worker' USING ERRCODE = 'MP001';
    END IF;
    RETURN e;
END $$;

-- Return whether all of these tasks are folded, those that follow each other in one slot aside.
CREATE FUNCTION millpond_all_folded(these bigint[], their_tokens bigint[]) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT count(*) = cardinality(these)
      FROM unnest(these) AS s (id)
      JOIN (SELECT unnest(l.ids) AS id FROM millpond_lease AS l
             WHERE l.token = ANY(their_tokens)) AS h ON h.id = s.id
$$;

-- Store the first `ends` tasks of a lease as completed. `results` has one for each of them, or it is NULL.
CREATE FUNCTION millpond_store_completed(
    l millpond_lease, ends integer, moment double precision, one_result bytea, results bytea[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO millpond_ended
    SELECT u.place, l.pool, 'completed', 1, moment, NULL, 1, 1,
           CASE WHEN results IS NULL THEN one_result ELSE u.result END, NULL,
           coalesce(u.rank, l.ranks[1]), NULL, u.place & ((1::bigint << 40) - 1),
           coalesce(u.submitted_at, l.submitted_at[1]), coalesce(u.due, l.due[1]), l.token,
           l.started_at, l.started_at, NULL, 0, 0, NULL, NULL
      FROM unnest(l.places[:ends], millpond_part(l.ranks, 1, ends),
                  millpond_part(l.submitted_at, 1, ends), millpond_part(l.due, 1, ends), results)
           AS u (place, rank, submitted_at, due, result);
END $$;

-- Write how long attempts waited and ran; return the new millpond_pool.measured.
CREATE FUNCTION millpond_measure_ends(
    the_pool bigint, measured bigint, e millpond_ends, ending integer, moment double precision
) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF e.measured IS NOT NULL THEN
        measured := e.measured;
    ELSIF e.started_at IS NOT NULL THEN
        measured := measured + ending;
        INSERT INTO millpond_measured
        VALUES (the_pool, measured, NULL, e.due, e.started_at, moment, ending);
    ELSIF e.timed > 0 THEN
        measured := measured + e.timed;
        INSERT INTO millpond_measured VALUES (the_pool, measured, e.times);
    END IF;
    IF measured % 1000 < 2 * ending THEN
        -- An earlier call removed all older rows.
        DELETE FROM millpond_measured AS o
         WHERE o.pool = the_pool AND o.upto <= measured - 2000
           AND o.upto > measured - 4000 - 2 * ending;
    END IF;
    RETURN measured;
END $$;

-- End some of what is folded, and start successors in their slots: the general case. Many meet many here, so
-- they are joined as sets. It sets its own ways to join, which are wrong for everything else.
CREATE FUNCTION millpond_end_some(
    moment double precision, settled bigint[], settled_tokens bigint[], one_result bytea, results bytea[],
    successors bigint[], successor_tokens bigint[], the_pool bigint, lease_number bigint,
    OUT ended bigint, OUT begun bigint, OUT worker text, OUT last_worker text, OUT starts boolean[], OUT ids bigint[], OUT places bigint[],
    OUT due double precision[], OUT tokens bigint[], OUT keys text[], OUT plain text[],
    OUT times bytea, OUT timed bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_hashjoin = on
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    WITH said AS MATERIALIZED (
        SELECT q.id, coalesce(q.token, settled_tokens[1]) AS token, q.successor,
               coalesce(q.successor_token, successor_tokens[1]) AS successor_token,
               CASE WHEN results IS NULL THEN one_result ELSE q.result END AS result, q.n
          FROM unnest(settled, settled_tokens, results, successors, successor_tokens)
               WITH ORDINALITY AS q (id, token, result, successor, successor_token, n)
    ), gone AS (
        DELETE FROM millpond_lease AS l
         WHERE l.token = ANY(settled_tokens || successor_tokens) AND l.pool = the_pool RETURNING l.*
    ), held AS MATERIALIZED (
        SELECT l.token, l.pool, l.worker, l.started_at, l.revision, u.claim, u.id, u.place,
               coalesce(u.rank, l.ranks[1]) AS rank,
               coalesce(u.submitted_at, l.submitted_at[1]) AS submitted_at,
               coalesce(u.due, l.due[1]) AS due, u.key, coalesce(u.plain, l.plain[1]) AS plain
          FROM gone AS l,
               unnest(l.ids, l.places, l.ranks, l.submitted_at, l.due, l.keys, l.plain, l.claims)
               AS u (id, place, rank, submitted_at, due, key, plain, claim)
    ), begun AS MATERIALIZED (
        SELECT h.*, s.n FROM said AS s
          JOIN held AS h ON h.id = s.successor AND h.token = s.successor_token
           AND h.claim IS NOT NULL
    ), ends AS MATERIALIZED (
        SELECT h.*, s.result, s.n, b.n AS begun_by,
               CASE WHEN b.n IS NULL THEN h.started_at ELSE moment END AS began_at
          FROM said AS s
          JOIN held AS h ON h.id = s.id AND h.token = s.token
          LEFT JOIN begun AS b ON b.id = h.id
         WHERE h.claim IS NULL OR b.n < s.n
    ), stays AS (
        INSERT INTO millpond_lease
        SELECT h.token, CASE WHEN b.n IS NULL THEN h.started_at ELSE moment END, h.pool,
               h.worker, CASE WHEN b.n IS NULL THEN h.revision END,
               CASE WHEN min(h.claim) FILTER (WHERE b.n IS NULL) IS NOT NULL
                    THEN array_agg(h.claim ORDER BY h.claim) END,
               array_agg(h.id ORDER BY h.claim), array_agg(h.place ORDER BY h.claim),
               array_agg(h.rank ORDER BY h.claim), array_agg(h.submitted_at ORDER BY h.claim),
               array_agg(h.due ORDER BY h.claim), array_agg(h.key ORDER BY h.claim),
               array_agg(h.plain ORDER BY h.claim), lease_number
          FROM held AS h LEFT JOIN ends AS o ON o.id = h.id LEFT JOIN begun AS b ON b.id = h.id
         WHERE o.id IS NULL
         GROUP BY 1, 2, 3, 4, 5
    ), stored AS (
        INSERT INTO millpond_ended
        SELECT place, pool, 'completed', 1, moment, NULL, 1, 1, result, NULL,
               rank, NULL, place & ((1::bigint << 40) - 1), submitted_at, due, token,
               began_at, began_at, NULL, 0, 0, NULL, NULL
          FROM ends
    ), arrows AS (
        SELECT worker, false AS start, n, id, place, due, token, key, plain,
               CASE WHEN begun_by IS NULL
                    THEN float8send(started_at - due) || float8send(moment - started_at) END
               AS times
          FROM ends
         UNION ALL
        SELECT worker, true, n, id, place, due, token, key, plain, NULL FROM begun
         ORDER BY n, start
    )
    SELECT count(*) FILTER (WHERE NOT start) AS ended, count(*) FILTER (WHERE start) AS begun,
           min(worker) AS worker, max(worker) AS last_worker,
           array_agg(start) AS starts, array_agg(id) AS ids, array_agg(place) AS places,
           CASE WHEN min(due) = max(due) THEN ARRAY[min(due)] ELSE array_agg(due) END AS due,
           CASE WHEN min(token) = max(token) THEN ARRAY[min(token)] ELSE array_agg(token) END
           AS tokens,
           CASE WHEN count(key) = 0 THEN '{}' ELSE array_agg(key) END AS keys,
           CASE WHEN min(plain) = max(plain) THEN ARRAY[min(plain)] ELSE array_agg(plain) END
           AS plain,
           string_agg(times, '') AS times, count(times) AS timed
      INTO ended, begun, worker, last_worker, starts, ids, places, due, tokens, keys,
           plain, times, timed
      FROM arrows;
END $$;
