-- Idempotency keys: each stands for a task, and outlives it.

-- Return which of these keys are known, each with the task that it stands for and how that is.
-- `refused`: a key stands for another call, or it is given twice; the verbs know what to do. `stored`: some have
-- a row, also those that answer no longer.
CREATE FUNCTION millpond_known_keys(
    the_pool bigint, keys text[], dedupes text[], functions text[], fingerprints bigint[],
    OUT refused text, OUT known_at integer[], OUT tasks bigint[], OUT statuses text[],
    OUT sequences bigint[], OUT reasons text[], OUT lanes text[], OUT stored boolean
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    s record;
BEGIN
    SELECT CASE WHEN bool_or(k.function <> coalesce(u.function, functions[1])
                             OR (k.fingerprint <> u.fingerprint
                                 AND 9223372036854775807 NOT IN (k.fingerprint, u.fingerprint)))
                     FILTER (WHERE k.answers) THEN 'key conflict' END,
           array_agg(u.n::integer ORDER BY u.n) FILTER (WHERE k.answers),
           array_agg(k.task ORDER BY u.n) FILTER (WHERE k.answers),
           array_agg(k.status ORDER BY u.n) FILTER (WHERE k.answers), count(*) > 0
      INTO refused, known_at, tasks, statuses, stored
      FROM unnest(keys, dedupes, functions, fingerprints) WITH ORDINALITY
           AS u (key, dedupe, function, fingerprint, n)
     CROSS JOIN LATERAL (SELECT o.*, CASE coalesce(u.dedupe, dedupes[1])
                                     WHEN 'success' THEN o.status IN ('queued', 'running', 'completed')
                                     WHEN 'inflight' THEN o.status IN ('queued', 'running')
                                     ELSE true END AS answers
                           FROM millpond_key AS o
                          WHERE o.pool = the_pool AND o.key = u.key AND o.run = 0 OFFSET 0) AS k;
    IF EXISTS (SELECT FROM unnest(dedupes) AS u (dedupe)
                WHERE u.dedupe NOT IN ('forever', 'success', 'inflight')) THEN
        refused := 'dedupe';
    END IF;
    IF cardinality(keys) > 1 THEN
        IF (SELECT count(u.key) <> count(DISTINCT u.key COLLATE "C") FROM unnest(keys) AS u (key)) THEN
            refused := 'key given twice';
        END IF;
    END IF;
    IF refused IS NULL THEN
        FOR i IN 1..coalesce(cardinality(tasks), 0) LOOP
            SELECT * INTO s FROM millpond_state_of(tasks[i], statuses[i]);
            statuses[i] := s.status;
            sequences[i] := s.sequence;
            reasons[i] := s.reason;
            lanes[i] := s.lane;
            refused := s.refused;
            EXIT WHEN refused IS NOT NULL;
        END LOOP;
    END IF;
END $$;

-- Return how a task is; `known_status` if it was forgotten.
CREATE FUNCTION millpond_state_of(
    task bigint, known_status text,
    OUT status text, OUT sequence bigint, OUT reason text, OUT lane text, OUT refused text
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    at_place bigint;
BEGIN
    status := known_status;
    sequence := 0;
    SELECT t.place INTO at_place FROM millpond_task AS t WHERE t.id = task;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT CASE l.running WHEN 1 THEN 'running' ELSE 'queued' END, l.sequence, l.reason, l.lane
      INTO status, sequence, reason, lane FROM millpond_live AS l WHERE l.place = at_place;
    IF NOT FOUND THEN
        SELECT e.status, e.sequence, e.reason, e.lane
          INTO status, sequence, reason, lane FROM millpond_ended AS e WHERE e.place = at_place;
    END IF;
    IF NOT FOUND THEN
        -- It is folded.
        SELECT CASE WHEN l.claims IS NULL THEN 'running' ELSE 'queued' END,
               at_place & ((1::bigint << 40) - 1)
          INTO status, sequence
          FROM millpond_lease AS l
         WHERE l.n >= (SELECT m.first_lease FROM millpond_meta AS m ORDER BY m.turn DESC LIMIT 1)
           AND task = ANY(l.ids);
    END IF;
    IF status IS NULL THEN
        refused := 'unknown';
    END IF;
END $$;

-- Let keys stand for new tasks; NULL = a task has none. `stored`: some of them have a row.
CREATE FUNCTION millpond_store_keys(
    the_pool bigint, ids bigint[], keys text[], functions text[], fingerprints bigint[], stored boolean
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT stored THEN
        -- Without ON CONFLICT, which looks for each key once more and logs each row twice.
        INSERT INTO millpond_key
        SELECT the_pool, u.key, 0, u.id, 'queued', coalesce(u.function, functions[1]), u.fingerprint, NULL
          FROM unnest(ids, keys, functions, fingerprints) AS u (id, key, function, fingerprint)
         WHERE u.key IS NOT NULL;
        RETURN;
    END IF;
    INSERT INTO millpond_key
    SELECT the_pool, u.key, 0, u.id, 'queued', coalesce(u.function, functions[1]), u.fingerprint, NULL
      FROM unnest(ids, keys, functions, fingerprints) AS u (id, key, function, fingerprint)
     WHERE u.key IS NOT NULL
        ON CONFLICT (pool, key, run) DO UPDATE
       SET task = excluded.task, status = excluded.status, function = excluded.function,
           fingerprint = excluded.fingerprint, ended_at = NULL;
END $$;

-- Note for the keys of tasks that have ended how they did.
CREATE FUNCTION millpond_end_keys(e millpond_ends, ending integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF position('"idempotency_key":' IN array_to_string(e.plain, '')) = 0 THEN
        RETURN;
    END IF;
    UPDATE millpond_key AS k SET status = x.status
      FROM (SELECT f.spot, u.status
              FROM millpond_after(e, ending) AS u
             CROSS JOIN LATERAL
                   (SELECT o.ctid AS spot FROM millpond_key AS o
                     WHERE o.pool = e.pool AND o.key = u.plain::json ->> 'idempotency_key' AND o.run = 0
                       AND o.task = u.id OFFSET 0) AS f
             WHERE u.status <> 'queued' AND position('"idempotency_key":' IN u.plain) > 0) AS x
     WHERE k.ctid = x.spot;
END $$;
