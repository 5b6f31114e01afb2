-- What is wrong with a task that was put into words, NULL if nothing. The numbers are those of
-- core/bounds.py, and a test compares them.
CREATE FUNCTION millpond_wrong(task jsonb, spec jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $body$
DECLARE
    words jsonb := task -> 'words';
    share text;
BEGIN
    IF (task ->> 'id')::numeric NOT BETWEEN 0 AND 9223372036854775807 THEN
        RETURN 'id must be a whole number of 63 bits';
    ELSIF coalesce(octet_length(task ->> 'function'), 0) NOT BETWEEN 1 AND 256 THEN
        RETURN 'function must have 1 to 256 bytes';
    ELSIF octet_length(task ->> 'key') NOT BETWEEN 1 AND 1024 THEN
        RETURN 'key must have 1 to 1024 bytes';
    ELSIF octet_length(task ->> 'idempotency_key') NOT BETWEEN 1 AND 1024 THEN
        RETURN 'idempotency_key must have 1 to 1024 bytes';
    ELSIF octet_length(task ->> 'body') > 46137344 THEN
        RETURN 'body must have at most 34603008 bytes';
    END IF;
    IF words IS NOT NULL AND task ->> 'key' IS NULL AND spec -> 'backpressure' ->> 'per_key' IS NOT NULL THEN
        -- In Python the task's own key= would make one of the arguments, and it would be counted.
        RETURN 'key must be given: the pool bounds what waits of each key (per_key), and which key '
               'the arguments stand for is not known in SQL';
    END IF;
    IF words IS NOT NULL AND spec -> 'order' ->> 'kind' = 'fair_round_robin' THEN
        share := coalesce(words -> 'labels' ->> coalesce(spec -> 'order' ->> 'key', 'key'),
                          words -> 'arguments' ->> coalesce(spec -> 'order' ->> 'key', 'key'));
        IF octet_length(share) NOT BETWEEN 1 AND 1024 THEN
            RETURN format('%s, by which the pool shares, must have 1 to 1024 bytes',
                          coalesce(spec -> 'order' ->> 'key', 'key'));
        END IF;
    END IF;
    RETURN NULL;
END
$body$;

-- Put a batch of tasks of one pool into the inbox, whole or not at all.
--
-- Given: {"pool", "tasks": [{"id", "key", "idempotency_key", "dedupe", "function", "fingerprint",
-- "body"}]}, bodies in base64; or instead of a body the "words" of `submit`. Answered: {"tasks": [[id, is a duplicate, status], ...],
-- "depth"}, or {"refused": reason, ...}, and then nothing was done.
CREATE FUNCTION millpond_put(given jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $body$
DECLARE
    called  text := given ->> 'pool';
    asked   text;                           -- an idempotency key
    wrong   text;
    one     jsonb;
    refusal jsonb;
    here    record;                         -- the pool
    standing record;                        -- what a key stands for
    answers jsonb := '[]';
    named   jsonb := '{}';                  -- what the keys of this very batch stand for
    places  bigint[] := '{}';               -- those of the tasks that are new
    place   bigint := 0;
    counted bigint;
BEGIN
    -- Of one moment: what is moved meanwhile must not be counted twice, nor not at all.
    SELECT o.id, o.closed, o.paused, o.not_before, o.running + o.claimed + o.ready AS busy, o.fresh,
           o.spec::jsonb AS spec, m.behind,
           CASE WHEN o.spec::jsonb ->> 'backpressure' IS NOT NULL
                THEN (SELECT count(*) FROM millpond_inbox AS i
                       WHERE i.xid >= m.seen_upto AND i.pool = o.name)
                   + (SELECT count(*) FROM millpond_inbox AS i
                       WHERE i.xid = ANY(m.seen_open) AND i.xid < m.seen_upto AND i.pool = o.name)
           END AS coming
      INTO here
      FROM (SELECT * FROM millpond_meta ORDER BY turn DESC LIMIT 1) AS m,
           LATERAL (SELECT * FROM millpond_pool WHERE name = called ORDER BY turn DESC LIMIT 1) AS o;
    IF here.id IS NULL THEN
        RETURN jsonb_build_object('refused', 'unknown_pool');
    END IF;
    IF NOT millpond_knows(here.spec) THEN
        RETURN jsonb_build_object('refused', 'unknown_option');
    END IF;

    FOR one IN SELECT t FROM jsonb_array_elements(given -> 'tasks') AS t LOOP
        place := place + 1;
        wrong := millpond_wrong(one, here.spec);
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'ML003', MESSAGE = 'MILL-003 ' || wrong;
        END IF;
        asked := one ->> 'idempotency_key';
        IF asked IS NULL THEN
            places := places || place;
            answers := answers || jsonb_build_array(jsonb_build_array(one -> 'id', false, 'queued'));
            CONTINUE;
        END IF;
        standing := millpond_key_holder(here.id, called, one, named);
        IF standing.task IS NULL THEN
            named := named || jsonb_build_object(asked, jsonb_build_object(
                'task', one -> 'id', 'function', one -> 'function',
                'fingerprint', one -> 'fingerprint'));
            places := places || place;
            answers := answers || jsonb_build_array(jsonb_build_array(one -> 'id', false, 'queued'));
        ELSIF standing.function <> one ->> 'function'
              OR (standing.fingerprint <> (one ->> 'fingerprint')::bigint
                  AND 9223372036854775807 NOT IN (standing.fingerprint,
                                                  (one ->> 'fingerprint')::bigint)) THEN
            RETURN jsonb_build_object(
                'refused', 'idempotency_conflict', 'task', standing.task, 'key', asked);
        ELSE
            answers := answers || jsonb_build_array(
                jsonb_build_array(standing.task, true, standing.status));
        END IF;
    END LOOP;

    IF cardinality(places) = 0 THEN
        RETURN jsonb_build_object('tasks', answers);
    END IF;
    IF here.closed = 1 THEN
        RETURN jsonb_build_object('refused', 'closed');
    END IF;

    refusal := millpond_inbox_full(given, places, here.id, here.spec, here.fresh, here.coming, here.busy,
                                   here.paused = 1 OR here.not_before > millpond_clock() - here.behind);
    IF refusal IS NOT NULL THEN
        RETURN refusal;
    END IF;

    INSERT INTO millpond_inbox (id, pool, key, idempotency_key, function, fingerprint, spoken, body)
    SELECT (t.task ->> 'id')::bigint, called, t.task ->> 'key', t.task ->> 'idempotency_key',
           t.task ->> 'function', (t.task ->> 'fingerprint')::bigint,
           (t.task ? 'words')::integer::smallint,
           CASE WHEN t.task ? 'words' THEN convert_to((t.task -> 'words')::text, 'UTF8')
                ELSE decode(t.task ->> 'body', 'base64') END
      FROM jsonb_array_elements(given -> 'tasks') WITH ORDINALITY AS t (task, place)
     WHERE t.place = ANY (places) ORDER BY t.place;
    GET DIAGNOSTICS counted = ROW_COUNT;
    IF counted <> cardinality(places) THEN
        PERFORM millpond_miscounted('inbox', cardinality(places), counted);
    END IF;

    -- The commit sends a hint to the workers, as notify.py does; the sender `-` is no process.
    -- The caller's commit would fail if the queue were full: better no hint, a poll finds the task.
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(millpond_channel(), '- ' || json_build_object(
            'wakes', json_build_array(json_build_object('pool', called, 'at', 0.0)))::text);
    END IF;
    RETURN jsonb_build_object('tasks', answers, 'depth', here.fresh + here.coming + cardinality(places));
END
$body$;

-- Return the task that an idempotency key stands for: a task of the store, one in the inbox, or one of the
-- same batch (`named`); no task = none.
CREATE FUNCTION millpond_key_holder(
    the_pool bigint, called text, one jsonb, named jsonb,
    OUT task bigint, OUT status text, OUT function text, OUT fingerprint bigint
)
LANGUAGE plpgsql VOLATILE AS $body$
DECLARE
    asked constant text := one ->> 'idempotency_key';
BEGIN
    IF one ->> 'dedupe' IN ('waiting', 'replace') THEN
        -- Whether a task waits is known when the verbs take this one out of the inbox.
        RETURN;
    END IF;
    SELECT k.task, k.status, k.function, k.fingerprint INTO task, status, function, fingerprint
      FROM millpond_key AS k WHERE k.pool = the_pool AND k.key = asked AND k.run = 0
       AND CASE one ->> 'dedupe'
                WHEN 'success' THEN k.status IN ('queued', 'running', 'completed')
                WHEN 'inflight' THEN k.status IN ('queued', 'running')
                ELSE true
           END;
    IF NOT FOUND THEN
        SELECT i.id, 'queued', i.function, i.fingerprint INTO task, status, function, fingerprint
          FROM millpond_inbox AS i WHERE i.pool = called AND i.idempotency_key = asked
         ORDER BY i.n LIMIT 1;
    END IF;
    IF NOT FOUND AND named ? asked THEN
        SELECT t.task, 'queued', t.function, t.fingerprint INTO task, status, function, fingerprint
          FROM jsonb_to_record(named -> asked) AS t (task bigint, function text, fingerprint bigint);
    END IF;
END
$body$;

-- Return why a bounded pool takes no more (`places` are those of the new tasks in the batch); NULL = it does.
CREATE FUNCTION millpond_inbox_full(
    given jsonb, places bigint[], the_pool bigint, spec jsonb, fresh bigint, coming bigint, busy bigint,
    stopped boolean
) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $body$
DECLARE
    policy constant jsonb := spec -> 'backpressure';
    depth constant bigint := fresh + coming;
    bound bigint;
    count_of record;
    counted bigint;
BEGIN
    IF policy ->> 'on_full' IN ('block_submitter', 'fail_submitter') THEN
        IF policy ->> 'per_lane' IS NOT NULL THEN
            -- Which lane a task will come to is not known here.
            RETURN jsonb_build_object('refused', 'per_lane', 'bound', policy -> 'per_lane');
        END IF;
        bound := (policy ->> 'per_key')::bigint;
        IF bound IS NOT NULL THEN
            FOR count_of IN
                SELECT t.task ->> 'key' AS key, count(*) AS new
                  FROM jsonb_array_elements(given -> 'tasks') WITH ORDINALITY AS t (task, place)
                 WHERE t.place = ANY (places) AND t.task ->> 'key' IS NOT NULL GROUP BY 1
            LOOP
                IF count_of.new > bound THEN
                    RETURN jsonb_build_object(
                        'refused', 'batch_too_large', 'bound', bound, 'depth', count_of.new);
                END IF;
                SELECT (SELECT count(*) FROM millpond_live AS l
                         WHERE l.pool = the_pool AND l.key = count_of.key AND l.listed = 1)
                     + (SELECT count(*) FROM millpond_inbox AS i
                         WHERE i.pool = given ->> 'pool' AND i.key = count_of.key)
                  INTO counted;
                IF counted + count_of.new > bound THEN
                    RETURN jsonb_build_object('refused', 'queue_full', 'lane', count_of.key,
                                              'depth', counted, 'bound', bound);
                END IF;
            END LOOP;
        END IF;
        bound := (policy ->> 'depth')::bigint;
        IF cardinality(places) > bound THEN
            RETURN jsonb_build_object(
                'refused', 'batch_too_large', 'bound', bound, 'depth', cardinality(places));
        END IF;
        IF depth + cardinality(places) > bound THEN
            RETURN jsonb_build_object('refused', 'queue_full', 'depth', depth, 'bound', bound);
        END IF;
    ELSIF policy ->> 'on_full' = 'fail_fast' THEN
        bound := (spec ->> 'max_concurrent')::bigint;
        IF stopped OR busy + coming + cardinality(places) > bound THEN
            RETURN jsonb_build_object(
                'refused', 'no_capacity', 'depth', busy + coming, 'bound', bound);
        END IF;
    END IF;
    RETURN NULL;
END
$body$;
