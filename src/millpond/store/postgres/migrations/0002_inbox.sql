-- schema-2
--
-- The inbox: tasks submitted inside transactions of others. Such a transaction may stay open for as
-- long as it likes, so it takes no lock of the store's: it only adds rows here. Whoever writes to the
-- store next moves what was committed into the queue, in the order of `n`, and deletes it by its key,
-- so a row that is committed late is never passed over. Where to look for the next ones is told by
-- transactions (millpond_meta.seen_upto, seen_open): a row of one that was open when somebody looked,
-- or came after, was not seen by him. By their numbers one could not tell.
--
-- Checked is what is committed, and what the transaction itself has submitted. What only shows when a
-- task is moved (two transactions with one idempotency key) ends there as rejected.

CREATE TABLE millpond_inbox (
    n               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              bigint NOT NULL UNIQUE,
    pool            text COLLATE "C" NOT NULL,
    at              double precision NOT NULL DEFAULT millpond_clock(),
    key             text COLLATE "C",
    idempotency_key text COLLATE "C",
    function        text COLLATE "C" NOT NULL,
    fingerprint     bigint NOT NULL,        -- 2^63 - 1: told in SQL, not to be compared
    spoken          smallint NOT NULL CHECK (spoken IN (0, 1)),  -- its body is the words of `submit`
    body            bytea NOT NULL,
    xid             xid8 NOT NULL DEFAULT pg_current_xact_id()
);

CREATE INDEX millpond_inbox_xid ON millpond_inbox (xid, n);
CREATE INDEX millpond_inbox_key ON millpond_inbox (pool, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX millpond_inbox_pool ON millpond_inbox (pool, key);

ALTER TABLE millpond_inbox SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

-- A name that no other store has: a connection to another database is known by it.
DO $make$
BEGIN
    EXECUTE format(
        'CREATE FUNCTION millpond_identity() RETURNS text LANGUAGE sql IMMUTABLE AS %L',
        format('SELECT %L::text', gen_random_uuid())
    );
END
$make$;

-- Which server this is, and how often it was recovered or promoted: where another answers, transactions are
-- numbered otherwise. NULL where it cannot be known: it is being recovered, or somebody has forbidden to ask.
CREATE FUNCTION millpond_server() RETURNS text LANGUAGE plpgsql VOLATILE AS $body$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT system_identifier::text FROM pg_control_system())
           || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN NULL;
END
$body$;

UPDATE millpond_meta SET server = coalesce(millpond_server(), '');

-- A store that was copied into another database is another one.
CREATE FUNCTION millpond_where() RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $body$
    SELECT millpond_identity() || ':' || oid FROM pg_database WHERE datname = current_database()
$body$;

-- Whom a message is for: see wake.py, where names that are too long are made short the same way.
CREATE FUNCTION millpond_channel() RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $body$
    SELECT CASE
        WHEN octet_length('millpond:' || current_schema()) <= 63
            THEN 'millpond:' || current_schema()
        ELSE 'millpond:' || left(encode(sha256(convert_to(current_schema(), 'UTF8')), 'hex'), 32)
    END
$body$;

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
    policy  jsonb;
    here    record;                         -- the pool
    standing record;                        -- what a key stands for
    answers jsonb := '[]';
    named   jsonb := '{}';                  -- what the keys of this very batch stand for
    places  bigint[] := '{}';               -- those of the tasks that are new
    place   bigint := 0;
    count_of record;
    bound   bigint;
    depth   bigint;
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
        SELECT k.task, k.status, k.function, k.fingerprint INTO standing
          FROM millpond_key AS k WHERE k.pool = here.id AND k.key = asked AND k.run = 0
           AND CASE one ->> 'dedupe'
                    WHEN 'success' THEN k.status IN ('queued', 'running', 'completed')
                    WHEN 'inflight' THEN k.status IN ('queued', 'running')
                    ELSE true
               END;
        IF NOT FOUND THEN
            SELECT i.id AS task, 'queued' AS status, i.function, i.fingerprint INTO standing
              FROM millpond_inbox AS i WHERE i.pool = called AND i.idempotency_key = asked
             ORDER BY i.n LIMIT 1;
        END IF;
        IF NOT FOUND AND named ? asked THEN
            SELECT t.task, 'queued' AS status, t.function, t.fingerprint INTO standing
              FROM jsonb_to_record(named -> asked)
                AS t (task bigint, function text, fingerprint bigint);
        END IF;
        IF NOT FOUND THEN
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

    policy := here.spec -> 'backpressure';
    depth := here.fresh + here.coming;
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
                         WHERE l.pool = here.id AND l.key = count_of.key AND l.listed = 1)
                     + (SELECT count(*) FROM millpond_inbox AS i
                         WHERE i.pool = called AND i.key = count_of.key)
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
        bound := (here.spec ->> 'max_concurrent')::bigint;
        IF here.paused = 1 OR here.busy + here.coming + cardinality(places) > bound
           OR here.not_before > millpond_clock() - here.behind THEN
            RETURN jsonb_build_object(
                'refused', 'no_capacity', 'depth', here.busy + here.coming, 'bound', bound);
        END IF;
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

    -- With the commit the workers look: a hint as wake.py sends them, from nobody.
    -- The caller's commit would fail if the queue were full: better no hint, a poll finds the task.
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(millpond_channel(), '- ' || json_build_object(
            'wakes', json_build_array(json_build_object('pool', called, 'at', 0.0)))::text);
    END IF;
    RETURN jsonb_build_object('tasks', answers, 'depth', depth + cardinality(places));
END
$body$;

-- The same for a program that knows which store it means, over whatever driver: a text, and a text.
--
-- This one, `submit` and `status` act with the rights of their owner, so that whoever may call them
-- needs no right on any table. Their search_path has the caller's temporary tables last, and nobody
-- but the owner may create anything in the schema before it.
CREATE FUNCTION millpond_enter(given text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $body$
BEGIN
    IF given::jsonb ->> 'store' <> millpond_where() THEN
        RETURN jsonb_build_object('refused', 'foreign')::text;
    END IF;
    IF current_setting('transaction_read_only')::boolean THEN
        RETURN jsonb_build_object('refused', 'read_only')::text;
    END IF;
    -- Only `submit` has looked at what it puts into words.
    IF given::jsonb @? '$.tasks[*].words' THEN
        RAISE EXCEPTION USING ERRCODE = 'ML003', MESSAGE = 'MILL-003 a task must have a body';
    END IF;
    -- Who has no right on the tables is held to what `submit` takes: 1 MiB, and what is said beside it.
    IF octet_length(given) > 1747628
       AND EXISTS (SELECT FROM jsonb_array_elements(given::jsonb -> 'tasks') AS t
                    WHERE octet_length(t ->> 'body') > 1747628)
       AND NOT has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user)::name,
                                   'millpond_inbox', 'INSERT') THEN
        RAISE EXCEPTION USING ERRCODE = 'ML014', MESSAGE =
            'MILL-014 who may only submit may submit bodies of at most 1310720 bytes';
    END IF;
    RETURN millpond_put(given::jsonb)::text;
END
$body$;

-- Submit a call, from any language and from triggers. Part of the transaction it is called in.
-- Returns the id of the task, or of the one that the idempotency key stands for. What it refuses it
-- raises; the last three characters of the SQLSTATE are the number of the error (ML001 = MILL-001).
CREATE FUNCTION submit(
    pool            text,
    function        text,
    arguments       jsonb            DEFAULT '{}',      -- by the names of the parameters
    key             text             DEFAULT NULL,
    idempotency_key text             DEFAULT NULL,
    delay           double precision DEFAULT 0,         -- seconds
    priority        integer          DEFAULT 0,
    run_at          timestamptz      DEFAULT NULL,      -- wins over delay
    expires_in      double precision DEFAULT NULL,
    timeout         double precision DEFAULT NULL,
    attempts        integer          DEFAULT 3,
    weight          integer          DEFAULT 1,
    labels          jsonb            DEFAULT '{}',
    dedupe          text             DEFAULT 'forever',
    submitted_by    text             DEFAULT 'sql'
) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $body$
#variable_conflict use_variable
DECLARE
    dice    text := replace(gen_random_uuid()::text, '-', '');
    -- 63 bits by chance; the rest of such a name says of which kind it is.
    id      bigint := ('x' || left(dice, 12) || right(dice, 4))::bit(64)::bigint & ~(1::bigint << 63);
    wrong   text;
    answer  jsonb;
BEGIN
    wrong := CASE
        WHEN pool IS NULL THEN 'pool is NULL'
        WHEN octet_length(pool) > 128 THEN 'pool must have at most 128 characters'
        WHEN coalesce(function, '') = '' THEN 'function must be the name of a task'
        WHEN octet_length(function) > 128 OR function ~ '[.][.]'
             OR function !~ '^[A-Za-z0-9][A-Za-z0-9._:@/+-]*$'
            THEN 'function must be the name of a task: 1 to 128 of A-Z a-z 0-9 . _ : @ / + -'
        WHEN jsonb_typeof(arguments) IS DISTINCT FROM 'object'
            THEN 'arguments must be a JSON object, by the names of the parameters'
        WHEN jsonb_typeof(labels) IS DISTINCT FROM 'object' OR EXISTS (
                 SELECT FROM jsonb_each(labels) AS l WHERE jsonb_typeof(l.value) <> 'string')
            THEN 'labels must be a JSON object of texts'
        WHEN (SELECT count(*) FROM jsonb_object_keys(labels)) > 64
            THEN 'labels must be at most 64'
        WHEN EXISTS (SELECT FROM jsonb_each_text(labels) AS l
                      WHERE octet_length(l.key) > 256 OR octet_length(l.value) > 1024)
            THEN 'labels must have names of at most 256 bytes and values of at most 1024'
        WHEN key = '' OR octet_length(key) > 1024 THEN 'key must have 1 to 1024 bytes'
        WHEN idempotency_key = '' OR octet_length(idempotency_key) > 1024
            THEN 'idempotency_key must have 1 to 1024 bytes'
        WHEN dedupe IS NULL OR dedupe NOT IN ('forever', 'success', 'inflight')
            THEN 'dedupe must be forever, success or inflight'
        WHEN delay IS NULL OR NOT (delay >= 0 AND delay <= 315360000)
            THEN 'delay must be from 0 to 315360000 seconds'
        WHEN NOT (expires_in > 0 AND expires_in <= 315360000)
            THEN 'expires_in must be above 0 and at most 315360000 seconds'
        WHEN NOT (timeout > 0 AND timeout <= 315360000)
            THEN 'timeout must be above 0 and at most 315360000 seconds'
        WHEN NOT isfinite(run_at) THEN 'run_at must be finite'
        WHEN abs(extract(epoch FROM run_at)) > 7258118400
            THEN 'run_at must be before the year 2200'
        WHEN coalesce(attempts, 0) < 1 THEN 'attempts must be at least 1'
        WHEN coalesce(weight, 0) < 1 THEN 'weight must be at least 1'
        WHEN priority IS NULL THEN 'priority is NULL'
        WHEN submitted_by IS NULL THEN 'submitted_by is NULL'
        WHEN octet_length(submitted_by) > 1024 THEN 'submitted_by must have at most 1024 bytes'
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ML003', MESSAGE = 'MILL-003 ' || wrong;
    END IF;
    IF octet_length(arguments::text) > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = 'ML014', MESSAGE =
            format('MILL-014 the arguments of %s have %s bytes, the limit is 1048576', function,
                   octet_length(arguments::text));
    END IF;
    answer := millpond_put(jsonb_build_object('pool', pool, 'tasks', jsonb_build_array(
        jsonb_build_object(
            'id', id, 'key', key, 'idempotency_key', idempotency_key, 'dedupe', dedupe,
            'function', function, 'fingerprint', 9223372036854775807,
            'words', jsonb_build_object(
                'function', function, 'arguments', arguments, 'key', key,
                'idempotency_key', idempotency_key, 'delay', delay, 'priority', priority,
                'run_at', extract(epoch FROM run_at), 'expires_in', expires_in,
                'timeout', timeout, 'attempts', attempts, 'weight', weight, 'labels', labels,
                'dedupe', dedupe, 'submitted_by', submitted_by)))));
    CASE answer ->> 'refused'
        WHEN 'unknown_pool' THEN
            RAISE EXCEPTION USING ERRCODE = 'ML008',
                MESSAGE = format('MILL-008 no pool named %L was declared', pool);
        WHEN 'closed' THEN
            RAISE EXCEPTION USING ERRCODE = 'ML006',
                MESSAGE = format('MILL-006 pool %L is closed and takes no more work', pool);
        WHEN 'queue_full' THEN
            RAISE EXCEPTION USING ERRCODE = 'ML001', MESSAGE = format(
                'MILL-001 pool %L is full: %s of %s waiting', pool,
                answer ->> 'depth', answer ->> 'bound');
        WHEN 'no_capacity' THEN
            RAISE EXCEPTION USING ERRCODE = 'ML002', MESSAGE = format(
                'MILL-002 pool %L has no capacity now: %s of %s taken, or paused', pool,
                answer ->> 'depth', answer ->> 'bound');
        WHEN 'idempotency_conflict' THEN
            RAISE EXCEPTION USING ERRCODE = 'ML007', MESSAGE = format(
                'MILL-007 idempotency_key %L of pool %L stands for task %s, which has another '
                'function', idempotency_key, pool, answer ->> 'task');
        WHEN 'per_lane' THEN
            RAISE EXCEPTION USING ERRCODE = 'ML003', MESSAGE = format(
                'MILL-003 per_lane=%s of pool %L bounds each lane, and a submit in SQL cannot know '
                'the lane; submit from Python, or bound the pool with per_key', answer ->> 'bound',
                pool);
        WHEN 'unknown_option' THEN
            RAISE EXCEPTION USING ERRCODE = 'ML082', MESSAGE = format(
                'MILL-082 pool %L has an option that these functions do not know; migrate the store '
                'to the version that declared it', pool);
        ELSE
            IF answer ->> 'refused' IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = 'ML003', MESSAGE = format(
                    'MILL-003 pool %L refused the task: %s', pool, answer ->> 'refused');
            END IF;
            RETURN (answer -> 'tasks' -> 0 ->> 0)::bigint;
    END CASE;
END
$body$;

-- What became of a task; NULL for one that is not known (any more). Whoever submitted it knows its
-- id; who guesses one learns of some task that it runs or has ended, and nothing else.
CREATE FUNCTION status(task bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $body$
    SELECT coalesce(
        (SELECT CASE l.running WHEN 1 THEN 'running' ELSE 'queued' END
           FROM millpond_task AS t JOIN millpond_alive AS l ON l.place = t.place WHERE t.id = $1),
        (SELECT e.status
           FROM millpond_task AS t JOIN millpond_ended AS e ON e.place = t.place WHERE t.id = $1),
        (SELECT 'queued' FROM millpond_inbox AS i WHERE i.id = $1))
$body$;

REVOKE EXECUTE ON FUNCTION submit, status, millpond_enter FROM PUBLIC;
