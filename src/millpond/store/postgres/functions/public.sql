-- The same for a program that knows which store it means, over whatever driver: a text, and a text.
--
-- This one, `submit` and `status` act with the rights of their owner, so that a caller needs no right on
-- any table. Their search_path has the caller's temporary tables last, and before them a schema in which
-- only the owner may create anything.
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

-- Return how many charged runs a task of a pool has that does not say so; NULL = no such pool, or an older declaration.
CREATE FUNCTION millpond_declared_attempts(text) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT (o.spec::jsonb ->> 'attempts')::integer
      FROM millpond_pool AS o WHERE o.name = $1 ORDER BY o.turn DESC LIMIT 1
$$;

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
    attempts        integer          DEFAULT NULL,      -- as the pool declares
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
        WHEN dedupe IS NULL OR dedupe NOT IN ('forever', 'success', 'inflight', 'waiting', 'replace')
            THEN 'dedupe must be forever, success, inflight, waiting or replace'
        WHEN delay IS NULL OR NOT (delay >= 0 AND delay <= 315360000)
            THEN 'delay must be from 0 to 315360000 seconds'
        WHEN NOT (expires_in > 0 AND expires_in <= 315360000)
            THEN 'expires_in must be above 0 and at most 315360000 seconds'
        WHEN NOT (timeout > 0 AND timeout <= 315360000)
            THEN 'timeout must be above 0 and at most 315360000 seconds'
        WHEN NOT isfinite(run_at) THEN 'run_at must be finite'
        WHEN abs(extract(epoch FROM run_at)) > 7258118400
            THEN 'run_at must be before the year 2200'
        WHEN attempts < 1 THEN 'attempts must be at least 1'
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
                'timeout', timeout, 'attempts', coalesce(attempts, millpond_declared_attempts(pool), 3),
                'weight', weight, 'labels', labels,
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

-- The status of a task; NULL for one that the store does not know (any more). The submitter knows the
-- id. A caller who guesses an id learns the status of some task, and nothing else.
CREATE FUNCTION status(task bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $body$
    SELECT coalesce(
        (SELECT CASE l.running WHEN 1 THEN 'running' ELSE 'queued' END
           FROM millpond_task AS t JOIN millpond_alive AS l ON l.place = t.place WHERE t.id = $1),
        (SELECT e.status
           FROM millpond_task AS t JOIN millpond_ended AS e ON e.place = t.place WHERE t.id = $1),
        (SELECT 'queued' FROM millpond_inbox AS i WHERE i.id = $1))
$body$;
