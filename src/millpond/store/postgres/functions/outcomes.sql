-- Ends of attempts of tasks that have rows of their own: of those that fail, are tried again or given back,
-- and of tasks that were tried before. What is folded is unfolded for that, task by task.

-- End attempts as millpond_end_attempts does, whatever their outcomes. `outcomes` has one object for each: its
-- event, the number of the attempt, whether it is spent, its delay and its reason; NULL = all complete the
-- first. Tasks that go back to the queue are not in it yet: `back` and `later` name them.
CREATE FUNCTION millpond_end_rows(
    moment double precision, settled bigint[], settled_tokens bigint[], one_result bytea, results bytea[],
    outcomes jsonb, errors bytea[], successors bigint[], successor_tokens bigint[], the_pool bigint
) RETURNS millpond_ends
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    ending constant integer := cardinality(settled);
    s record;
BEGIN
    PERFORM millpond_unfold_some(settled || successors, settled_tokens || successor_tokens, the_pool);
    IF successors IS NOT NULL THEN
        PERFORM millpond_begin_successors(moment, successors, successor_tokens, the_pool);
    END IF;
    WITH said AS MATERIALIZED (
        SELECT q.id, coalesce(q.token, settled_tokens[1]) AS token, q.n::integer AS n,
               coalesce(q.outcome ->> 'event', 'complete') AS event,
               coalesce((q.outcome ->> 'attempt')::integer, 1) AS attempt,
               coalesce((q.outcome ->> 'spend')::boolean, true) AS spend,
               coalesce((q.outcome ->> 'begun')::boolean, true) AS may_have_begun,
               (q.outcome ->> 'delay')::double precision AS delay, q.outcome ->> 'reason' AS reason,
               CASE WHEN results IS NULL THEN one_result ELSE q.result END AS result, q.error,
               array_position(successors, q.id) AS begun_by
          FROM ROWS FROM (unnest(settled), unnest(settled_tokens), unnest(results),
                          jsonb_array_elements(outcomes), unnest(errors)) WITH ORDINALITY
               AS q (id, token, result, outcome, error, n)
    ), held AS MATERIALIZED (
        SELECT l.*, l.ctid AS spot, s.n, s.event, s.result, s.error AS new_error, s.begun_by, t.plain,
               s.event IN ('retry', 'release') AS goes_back,
               CASE WHEN s.event = 'retry' THEN round((moment + s.delay) * 1000000) / 1000000
                    ELSE l.due END AS new_due,
               l.attempt - (NOT s.spend AND s.event <> 'fail')::integer AS new_attempt,
               CASE WHEN s.event = 'fail' THEN s.reason ELSE l.reason END AS new_reason,
               CASE WHEN s.begun_by >= s.n THEN 'stale'
                    WHEN t.plain IS NULL THEN 'callback'
                    WHEN l.cancel_requested > 0 AND s.event <> 'complete' THEN 'cancelled'
                    -- The core says what these mean: a failure (event_in_force).
                    WHEN s.event = 'retry' AND s.spend AND l.attempt >= (t.plain::json ->> 'attempts')::integer
                      OR s.event = 'release' AND s.may_have_begun AND t.plain::json ->> 'attempts' = '1'
                    THEN 'last attempt' END AS odd
          FROM said AS s
         CROSS JOIN LATERAL
               (SELECT o.place, o.plain FROM millpond_task AS o WHERE o.id = s.id OFFSET 0) AS t
         CROSS JOIN LATERAL
               (SELECT o.ctid, o.* FROM millpond_live AS o
                 WHERE o.place = t.place AND o.pool = the_pool AND o.running = 1 AND o.token = s.token
                   AND o.attempt = s.attempt OFFSET 0) AS l
    ), gone AS (
        DELETE FROM millpond_live AS l USING held AS h WHERE l.ctid = h.spot AND NOT h.goes_back
    ), stored AS (
        INSERT INTO millpond_ended
        SELECT h.place, h.pool, CASE h.event WHEN 'fail' THEN 'failed' ELSE 'completed' END,
               (h.event = 'complete')::integer, moment, h.new_reason, h.new_attempt, h.runs, h.result,
               h.new_error, h.rank, h.lane, h.sequence, h.submitted_at, h.due, h.token, h.started_at,
               h.first_started_at, h.expires_at, h.cancel_requested, h.fresh, h.progress, h.steps
          FROM held AS h WHERE NOT h.goes_back
    ), back AS (
        UPDATE millpond_live AS l
           SET running = 0, worker = NULL, due = h.new_due, attempt = h.new_attempt, error = h.new_error,
               grp = 0
          FROM held AS h WHERE l.ctid = h.spot AND h.goes_back
    ), arrows AS (
        SELECT h.n, false AS starts, h.event, h.id, h.place, h.pool, h.worker, h.new_due AS due, h.token, h.key, h.lane,
               h.sequence, h.plain, h.goes_back, h.odd, h.new_attempt AS attempt, h.runs, h.new_reason AS reason,
               CASE WHEN h.begun_by IS NULL AND h.event <> 'release'
                    THEN float8send(h.started_at - h.due) || float8send(moment - h.started_at) END AS times
          FROM held AS h
         UNION ALL
        SELECT q.n, true, 'lease', q.id, l.place, l.pool, l.worker, l.due, l.token, l.key, l.lane, l.sequence,
               t.plain, false,
               CASE WHEN t.plain IS NULL THEN 'callback' END, l.attempt, l.runs, NULL, NULL
          FROM unnest(successors) WITH ORDINALITY AS q (id, n)
         CROSS JOIN LATERAL
               (SELECT o.place, o.plain FROM millpond_task AS o WHERE o.id = q.id OFFSET 0) AS t
         CROSS JOIN LATERAL (SELECT * FROM millpond_live AS o WHERE o.place = t.place OFFSET 0) AS l
         ORDER BY n, starts
    )
    SELECT count(*) FILTER (WHERE NOT starts) AS ends, min(odd) AS odd,
           min(pool) = max(pool) AND min(worker) = max(worker) AS alike,
           ROW(min(pool), min(worker), count(*) FILTER (WHERE starts), NULL::boolean[],
               array_agg(id), array_agg(place), array_agg(due), array_agg(token), array_agg(key),
               array_agg(plain), NULL::double precision, NULL::bigint, string_agg(times, ''), count(times),
               count(*) FILTER (WHERE event IN ('complete', 'fail')), count(*) FILTER (WHERE event = 'fail'),
               array_agg(event),
               array_agg(CASE WHEN event <> 'complete' OR runs > 1 OR reason IS NOT NULL OR lane IS NOT NULL THEN
                         json_build_object('event', event, 'attempt', attempt, 'runs', runs, 'reason', reason,
                                           'lane', lane, 'sequence', sequence)::text END),
               -- What goes back to a lane holds it, due or not.
               array_agg(place) FILTER (WHERE goes_back AND (due <= moment OR lane IS NOT NULL)),
               array_agg(n) FILTER (WHERE goes_back AND (due <= moment OR lane IS NOT NULL)),
               min(n) FILTER (WHERE goes_back),
               count(*) FILTER (WHERE goes_back AND due > moment AND lane IS NULL),
               min(due) FILTER (WHERE goes_back AND due > moment),
               coalesce(bool_or(goes_back AND due <= moment), false),
               CASE WHEN count(lane) > 0 THEN array_agg(lane) END)::millpond_ends AS e
      INTO s FROM arrows;
    IF s.ends <> ending OR s.odd IS NOT NULL OR s.alike IS DISTINCT FROM true
       OR (SELECT count(DISTINCT u.id) FROM unnest(settled) AS u (id)) < ending THEN
        RAISE EXCEPTION '%', coalesce(s.odd, 'not plain') USING ERRCODE = 'MP001';
    END IF;
    RETURN s.e;
END $$;

-- Start prefetched tasks in the slots of attempts that end.
CREATE FUNCTION millpond_begin_successors(
    moment double precision, successors bigint[], successor_tokens bigint[], the_pool bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    expected constant integer := cardinality(array_remove(successors, NULL));
    touched bigint;
BEGIN
    UPDATE millpond_live AS l
       SET running = 1, claim = NULL, claim_revision = NULL, attempt = 1, runs = 1, started_at = moment,
           first_started_at = moment
      FROM (SELECT coalesce(u.token, successor_tokens[1]) AS token, t.place
              FROM unnest(successors, successor_tokens) AS u (id, token)
             CROSS JOIN LATERAL
                   (SELECT o.place FROM millpond_task AS o WHERE o.id = u.id OFFSET 0) AS t) AS x
     WHERE l.place = x.place AND l.pool = the_pool AND l.token = x.token AND l.claim IS NOT NULL AND l.runs = 0
       AND l.cancel_requested = 0 AND l.reason IS NULL;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> expected THEN
        RAISE EXCEPTION 'not plain' USING ERRCODE = 'MP001';
    END IF;
END $$;

-- Let tasks whose attempts end leave their lanes or keys, and put those that go back into the queue; return the
-- pool as it is then.
CREATE FUNCTION millpond_leave(p millpond_pool, r millpond_rules, e millpond_ends) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    t millpond_touched;
    left_by record;
BEGIN
    IF r.grouped THEN
        left_by := millpond_leave_units(p, r, e);
        p := left_by.p;
        t := left_by.t;
    END IF;
    p := millpond_make_ready(p, r, t, e.back, ARRAY(SELECT 2 * u.n + 1 FROM unnest(e.back_at) AS u (n)));
    p.later := p.later + e.later;
    p.undue_since := least(p.undue_since, e.first_due);
    RETURN p;
END $$;

-- Return which tasks an end concerns: with the number and the text of each, and the status that it has then.
CREATE FUNCTION millpond_after(e millpond_ends, ending integer)
RETURNS TABLE (n bigint, id bigint, plain text, status text)
LANGUAGE sql STABLE AS $$
    SELECT u.n, u.id, coalesce(u.plain, (e).plain[1]),
           CASE (e).events[u.n] WHEN 'fail' THEN 'failed' WHEN 'retry' THEN 'queued'
                                WHEN 'release' THEN 'queued' ELSE 'completed' END
      FROM unnest((e).ids, (e).plain) WITH ORDINALITY AS u (id, plain, n)
     WHERE CASE WHEN (e).events IS NOT NULL THEN (e).events[u.n] <> 'lease'
                WHEN (e).starts IS NULL THEN true
                WHEN cardinality((e).starts) = 1 THEN u.n <= ending
                ELSE NOT (e).starts[u.n] END
$$;
