-- Submits: new tasks that are due at once.

-- Store new plain tasks of one pool that only counts them and has room for all of them.
--
-- A list of one value holds it for every task; no keys = none has one. Where a worker could start them,
-- the message is sent with the commit. `last_seq`, `waiting` and `queued` are the state before the call.
CREATE FUNCTION millpond_submit(
    at double precision, at_most double precision, asked_pool text,
    ids bigint[], bodies bytea[], plains text[], keys text[], priorities bigint[],
    channel text, message text,
    OUT refused text, OUT moment double precision, OUT last_seq bigint, OUT waiting bigint,
    OUT queued bigint, OUT is_fifo boolean, OUT wakes boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    count constant integer := cardinality(ids);
    m record;    -- the store
    p record;    -- the pool
    spec jsonb;
    kind text;
    base bigint;
BEGIN
    LOCK TABLE millpond_lock IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT millpond_moment(at, at_most, o.latest, o.behind, millpond_clock()) AS moment,
           o.records, o.ctid AS spot, o.seen_upto, o.seen_open
      INTO m FROM millpond_meta AS o ORDER BY o.turn DESC LIMIT 1;
    SELECT o.ctid AS spot, o.* INTO p
      FROM millpond_pool AS o WHERE o.name = asked_pool ORDER BY o.turn DESC LIMIT 1;
    moment := m.moment;
    spec := p.spec::jsonb;
    kind := spec -> 'order' ->> 'kind';
    refused := CASE
        WHEN moment IS NULL THEN 'clock'
        WHEN p.id IS NULL OR right(asked_pool, 10) = '~callbacks' THEN 'unknown'
        WHEN NOT millpond_knows(spec) OR kind NOT IN ('fifo', 'lifo', 'priority') THEN 'unknown option'
        WHEN EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= m.seen_upto)
          OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(m.seen_open)) THEN 'inbox'
        WHEN p.closed = 1 OR p.grouped = 1 OR p.special = 1 OR spec -> 'order' ->> 'aging' IS NOT NULL
        THEN 'special'
        WHEN NOT millpond_has_room(spec -> 'backpressure', p.fresh + count) THEN 'bounded'
    END;
    IF refused IS NOT NULL THEN
        RETURN;
    END IF;
    last_seq := p.next_seq;
    waiting := p.ready + p.later + p.parked_apart;
    queued := p.live - p.running;
    is_fifo := kind = 'fifo';
    wakes := p.paused = 0 AND (p.running < (spec ->> 'max_concurrent')::bigint
                               OR p.claimed < (spec ->> 'prefetch')::bigint);
    base := (p.id << 40) + last_seq;
    PERFORM millpond_insert_queued(p.id, kind, base, last_seq, moment, ids, bodies, plains, keys, priorities);
    INSERT INTO millpond_audit
    VALUES (m.records + count, count, moment, NULL, 'submit', NULL, p.id, NULL, '{0}', ids,
            ARRAY(SELECT generate_series(base + 1, base + count)), ARRAY[moment], keys, plains);
    SELECT * INTO p.bands, p.lows
      FROM millpond_mark_queued(kind, p.ready, p.bands, p.lows, base, priorities);
    PERFORM millpond_count_submitted(p.spot, m.spot, count, moment, p.bands, p.lows);
    -- With a full queue the commit would fail: better no hint.
    IF wakes AND channel IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(channel, message);
    END IF;
END $$;

-- Return whether a bounded queue takes all new tasks, so that `depth` wait; NULL = it has no bound.
CREATE FUNCTION millpond_has_room(policy jsonb, depth bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN policy ->> 'on_full' IS NOT NULL THEN
           policy ->> 'on_full' IN ('block_submitter', 'fail_submitter')
           AND policy ->> 'per_key' IS NULL AND policy ->> 'per_lane' IS NULL
           AND depth <= (policy ->> 'depth')::bigint END
$$;

-- Insert the rows of new tasks, which come after number `last_seq` of their pool.
CREATE FUNCTION millpond_insert_queued(
    the_pool bigint, kind text, base bigint, last_seq bigint, moment double precision,
    ids bigint[], bodies bytea[], plains text[], keys text[], priorities bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cardinality(ids) = 1 THEN
        -- Most submits are of one task: without a list they take 6 % less.
        INSERT INTO millpond_task VALUES (base + 1, ids[1], bodies[1], plains[1]);
        INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, due,
                                   cancel_requested, running, attempt, runs, fresh, listed, token, grp)
        VALUES (base + 1, ids[1], the_pool, millpond_rank(kind, priorities[1], last_seq + 1),
                keys[1], last_seq + 1, moment, moment, 0, 0, 0, 0, 1, 0, 0, the_pool);
        RETURN;
    END IF;
    INSERT INTO millpond_task
    SELECT base + u.n, u.id, u.body, coalesce(u.plain, plains[1])
      FROM unnest(ids, bodies, plains) WITH ORDINALITY AS u (id, body, plain, n);
    INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, due,
                               cancel_requested, running, attempt, runs, fresh, listed, token, grp)
    SELECT base + u.n, u.id, the_pool,
           millpond_rank(kind, coalesce(u.priority, priorities[1]), last_seq + u.n),
           u.key, last_seq + u.n, moment, moment, 0, 0, 0, 0, 1, 0, 0, the_pool
      FROM unnest(ids, keys, priorities) WITH ORDINALITY AS u (id, key, priority, n);
END $$;

-- Count new tasks that are due.
CREATE FUNCTION millpond_count_submitted(
    pool_spot tid, meta_spot tid, count integer, moment double precision, new_bands bigint[], new_lows bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    touched bigint;
BEGIN
    UPDATE millpond_pool AS o
       SET next_seq = o.next_seq + count, live = o.live + count, fresh = o.fresh + count,
           ready = o.ready + count, bands = new_bands, lows = new_lows,
           writes = o.writes + 1, turn = (o.writes + 1) >> 5
     WHERE o.ctid = pool_spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
    UPDATE millpond_meta AS o
       SET version = o.version + 1, turn = (o.version + 1) >> 5, latest = moment,
           records = o.records + count
     WHERE o.ctid = meta_spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('meta', 1, touched); END IF;
END $$;
