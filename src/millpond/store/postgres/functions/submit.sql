-- Submits: new tasks of one pool, in one call.

-- Store new tasks of a pool that has room for all of them; answer those whose idempotency key is known with
-- the task that it stands for.
--
-- A list of one value holds it for every task, and an empty one means that none has it; `shares` NULL: each
-- share is the key. Where a worker could start a task, the message is sent with the commit. `last_seq`,
-- `waiting` and `queued` are the state before the call; `known_at` are the positions of known tasks. `simple` is
-- what millpond_submit_one must know of the pool; NULL = its settings bound more than what runs.
CREATE FUNCTION millpond_submit(
    at double precision, at_most double precision, asked_pool text,
    ids bigint[], bodies bytea[], plains text[], keys text[], priorities bigint[], shares text[],
    delays double precision[], run_ats double precision[], expiries double precision[],
    idempotency_keys text[], dedupes text[], functions text[], fingerprints bigint[],
    runs bigint[], opened jsonb,
    channel text, message text,
    OUT refused text, OUT moment double precision, OUT last_seq bigint, OUT waiting bigint,
    OUT queued bigint, OUT is_fifo boolean, OUT wake_at double precision,
    OUT known_at integer[], OUT known_tasks bigint[], OUT known_statuses text[],
    OUT known_sequences bigint[], OUT known_reasons text[], OUT known_lanes text[],
    OUT lanes text[], OUT sequences bigint[], OUT positions bigint[],
    OUT simple bigint[], OUT heard boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    the_pool bigint;
    m record;    -- the store
    found record;
    s record;    -- what is reserved of its numbers
    p millpond_pool;
    r millpond_rules;
    n millpond_new;
    spec jsonb;
    kind text;
    joined record;
    keys_stored boolean;
BEGIN
    the_pool := millpond_lock_pool(asked_pool, NULL);
    -- In a statement of its own: it sees what the holder before has committed.
    SELECT millpond_moment(at, at_most, o.latest, o.behind, millpond_clock()) AS moment,
           o.ctid AS spot, o.seen_upto, o.seen_open
      INTO m FROM millpond_meta AS o ORDER BY o.turn DESC LIMIT 1;
    SELECT o.ctid AS spot, o AS pool INTO found
      FROM millpond_pool AS o WHERE o.id = the_pool ORDER BY o.turn DESC LIMIT 1;
    moment := m.moment;
    p := found.pool;
    spec := p.spec::jsonb;
    kind := spec -> 'order' ->> 'kind';
    IF p.grouped = 1 THEN
        r := millpond_rules_of(p, moment);
    END IF;
    refused := CASE
        WHEN moment IS NULL THEN 'clock'
        WHEN p.id IS NULL OR right(asked_pool, 10) = '~callbacks' THEN 'unknown'
        WHEN NOT millpond_knows(spec) THEN 'unknown option'
        WHEN EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= m.seen_upto)
          OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(m.seen_open)) THEN 'inbox'
        WHEN p.closed = 1 THEN 'closed'
        WHEN p.special = 1 THEN 'flow control'
        WHEN spec -> 'order' ->> 'aging' IS NOT NULL THEN 'aging'
        WHEN p.grouped = 1 AND NOT r.grouped OR p.grouped = 0 AND kind = 'fair_round_robin' THEN 'grouped'
    END;
    n.ids := ids;
    IF refused IS NULL AND cardinality(idempotency_keys) > 0 THEN
        SELECT * INTO refused, known_at, known_tasks, known_statuses, known_sequences, known_reasons,
               known_lanes, keys_stored
          FROM millpond_known_keys(p.id, idempotency_keys, dedupes, functions, fingerprints);
    END IF;
    n := millpond_new_tasks(moment, known_at, ids, bodies, plains, keys, priorities, shares, delays, run_ats,
                            expiries, idempotency_keys, functions, fingerprints, runs);
    IF refused IS NULL AND NOT millpond_has_room(spec -> 'backpressure', p.fresh + n.count) THEN
        refused := 'bounded';
    END IF;
    IF refused IS NULL AND n.count = 0 AND opened IS NOT NULL THEN
        refused := 'run without tasks';
    END IF;
    IF p.grouped = 0 AND p.special = 0 AND kind IN ('fifo', 'priority') AND spec ->> 'backpressure' IS NULL THEN
        simple := ARRAY[the_pool, hashtextextended(p.spec, 0), (spec ->> 'max_concurrent')::bigint,
                        (spec ->> 'prefetch')::bigint, (kind = 'fifo')::integer];
    END IF;
    IF refused IS NOT NULL OR n.count = 0 THEN
        RETURN;
    END IF;
    last_seq := p.next_seq;
    waiting := p.ready + p.later + p.parked_apart;
    queued := p.live - p.running;
    is_fifo := kind = 'fifo';
    n.base := (p.id << 40) + last_seq;
    n.keys_stored := keys_stored;
    IF p.paused = 0 AND (p.running < (spec ->> 'max_concurrent')::bigint
                         OR p.claimed < (spec ->> 'prefetch')::bigint) THEN
        wake_at := CASE WHEN n.later < n.count THEN moment ELSE n.first_due END;
    END IF;
    IF r.grouped THEN
        SELECT * INTO joined FROM millpond_join_new(p, r, n, kind);
        p := joined.p;
        r := joined.r;
        n := joined.n;
        lanes := n.lanes;
        sequences := n.sequences;
        positions := n.positions;
    ELSIF n.later < n.count THEN
        SELECT * INTO p.bands, p.lows
          FROM millpond_mark_queued(kind, p.ready, p.bands, p.lows, n.base, n.priorities);
    END IF;
    IF cardinality(n.runs) > 0 THEN
        PERFORM millpond_join_runs(opened, n.runs, moment);
    END IF;
    PERFORM millpond_insert_new(n, p.id, r, kind, moment);
    PERFORM millpond_count_submitted(n, p, found.spot);
    s := millpond_reserve(m.spot, moment, n.count, 0, 0);
    INSERT INTO millpond_audit
    VALUES (s.records + n.count, n.count, s.at, NULL, 'submit', NULL, p.id, NULL, '{0}', n.ids,
            ARRAY(SELECT generate_series(n.base + 1, n.base + n.count)),
            CASE WHEN n.dues IS NULL THEN ARRAY[moment] ELSE n.dues END, n.keys, n.plains,
            CASE WHEN n.lanes IS NOT NULL THEN ARRAY(
                 SELECT json_build_object('lane', u.lane, 'sequence', u.sequence)::text
                   FROM unnest(n.lanes, n.sequences) WITH ORDINALITY AS u (lane, sequence, k) ORDER BY u.k) END);
    IF wake_at IS NOT NULL THEN
        heard := millpond_notify(channel, message);
    END IF;
END $$;

-- Send a message with the commit, if there is one, to the workers; return whether there are any. One that joins
-- later asks for work first, and verbs and calls do not run side by side: so it finds what this call stores.
CREATE FUNCTION millpond_notify(channel text, message text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM millpond_worker) THEN
        RETURN false;
    END IF;
    -- With a full queue the commit would fail: better no hint.
    IF channel IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(channel, message);
    END IF;
    RETURN true;
END $$;

-- Return whether a bounded queue takes all new tasks, so that `depth` wait; NULL = it has no bound.
CREATE FUNCTION millpond_has_room(policy jsonb, depth bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN policy ->> 'on_full' IS NOT NULL THEN
           policy ->> 'on_full' IN ('block_submitter', 'fail_submitter')
           AND policy ->> 'per_key' IS NULL AND policy ->> 'per_lane' IS NULL
           AND depth <= (policy ->> 'depth')::bigint END
$$;

-- Return the tasks of a submit that are new, without those at some positions; with their times.
CREATE FUNCTION millpond_new_tasks(
    moment double precision, known_at integer[],
    ids bigint[], bodies bytea[], plains text[], keys text[], priorities bigint[], shares text[],
    delays double precision[], run_ats double precision[], expiries double precision[],
    idempotency_keys text[], functions text[], fingerprints bigint[], runs bigint[]
) RETURNS millpond_new
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n millpond_new;
BEGIN
    n := ROW(0, cardinality(ids), 0, NULL, ids, bodies, plains, keys, priorities, coalesce(shares, keys),
             NULL, '{}', idempotency_keys, functions, fingerprints, NULL, runs);
    IF cardinality(delays) + cardinality(run_ats) + cardinality(expiries) > 0 THEN
        SELECT array_agg(CASE WHEN u.run_at IS NULL AND coalesce(u.delay, 0) = 0 THEN moment
                              ELSE greatest(moment, round(coalesce(u.run_at, moment + u.delay) * 1000000)
                                                    / 1000000) END ORDER BY u.n),
               array_agg(round((moment + u.expiry) * 1000000) / 1000000 ORDER BY u.n)
          INTO n.dues, n.expires
          FROM unnest(ids, delays, run_ats, expiries) WITH ORDINALITY AS u (id, delay, run_at, expiry, n);
    END IF;
    IF cardinality(known_at) > 0 THEN
        n.count := n.count - cardinality(known_at);
        n.ids := millpond_without(n.ids, known_at);
        n.bodies := millpond_without(n.bodies, known_at);
        n.plains := millpond_without(n.plains, known_at);
        n.keys := millpond_without(n.keys, known_at);
        n.priorities := millpond_without(n.priorities, known_at);
        n.shares := millpond_without(n.shares, known_at);
        n.dues := millpond_without(n.dues, known_at);
        n.expires := millpond_without(n.expires, known_at);
        n.idempotency_keys := millpond_without(n.idempotency_keys, known_at);
        n.functions := millpond_without(n.functions, known_at);
        n.fingerprints := millpond_without(n.fingerprints, known_at);
        n.runs := millpond_without(n.runs, known_at);
    END IF;
    IF n.dues IS NOT NULL THEN
        SELECT count(*), min(u.due) INTO n.later, n.first_due
          FROM unnest(n.dues) AS u (due) WHERE u.due > moment;
    END IF;
    RETURN n;
END $$;

-- Let new tasks join the groups of their lanes or keys, and their shares the ring.
CREATE FUNCTION millpond_join_new(INOUT p millpond_pool, INOUT r millpond_rules, INOUT n millpond_new, kind text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_seq constant bigint := n.base & ((1::bigint << 40) - 1);
    t millpond_touched;
    given record;
BEGIN
    IF r.in_lanes THEN
        SELECT * INTO given FROM millpond_give_lanes(p, r, n);
        p := given.p;
        n := given.n;
    END IF;
    SELECT array_agg(coalesce(u.lane, u.key, '')),
           array_agg(millpond_share(r, coalesce(u.lane, u.key), u.share)),
           array_agg(millpond_rank(kind, coalesce(u.priority, n.priorities[1]), last_seq + u.n)),
           array_agg(last_seq + u.n), array_agg(coalesce(u.due, r.moment)), array_agg(u.n)
      INTO t.group_units, t.group_shares, t.ranks, t.seqs, t.dues, t.group_at
      FROM unnest(n.ids, n.keys, n.priorities, n.shares, n.dues, n.lanes) WITH ORDINALITY
           AS u (id, key, priority, share, due, lane, n)
     WHERE u.due IS NULL OR u.due <= r.moment OR u.lane IS NOT NULL;
    IF t.group_units IS NOT NULL THEN
        p := millpond_flush_and_join(p, r, t);
    END IF;
    IF p.fading > 0 THEN
        p.fading := p.fading - millpond_forget_faded(p.id, r.moment);
    END IF;
END $$;

-- Insert the rows of new tasks, and their idempotency keys.
CREATE FUNCTION millpond_insert_new(
    n millpond_new, the_pool bigint, r millpond_rules, kind text, moment double precision
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_seq constant bigint := n.base & ((1::bigint << 40) - 1);
    base constant bigint := n.base;
    first_plain constant text := n.plains[1];
    rank constant bigint := millpond_rank(kind, n.priorities[1], last_seq);
BEGIN
    IF n.count = 1 AND r.grouped IS NOT TRUE THEN
        -- Most submits are of one task: without a list they take 6 % less.
        INSERT INTO millpond_task VALUES (n.base + 1, n.ids[1], n.bodies[1], n.plains[1]);
        INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, expires_at, due,
                                   cancel_requested, running, attempt, runs, fresh, listed, token, grp, run)
        VALUES (n.base + 1, n.ids[1], the_pool, millpond_rank(kind, n.priorities[1], last_seq + 1),
                n.keys[1], last_seq + 1, moment, n.expires[1], coalesce(n.dues[1], moment), 0, 0, 0, 0, 1, 0,
                0, CASE WHEN n.later = 0 THEN the_pool ELSE 0 END, n.runs[1]);
    ELSIF r.grouped IS NOT TRUE AND kind <> 'lifo' AND n.dues IS NULL
          AND cardinality(n.priorities) = 1 AND cardinality(n.keys || n.runs::text[]) = 0 THEN
        -- Nothing differs but ids, bodies and idempotency keys: without the other lists this takes a tenth less.
        INSERT INTO millpond_task
        SELECT base + u.n, u.id, u.body, coalesce(u.plain, first_plain)
          FROM unnest(n.ids, n.bodies, n.plains) WITH ORDINALITY AS u (id, body, plain, n);
        INSERT INTO millpond_live (place, id, pool, rank, sequence, submitted_at, due, cancel_requested, running,
                                   attempt, runs, fresh, listed, token, grp)
        SELECT base + u.n, u.id, the_pool, rank, last_seq + u.n, moment, moment, 0, 0, 0, 0, 1, 0, 0, the_pool
          FROM unnest(n.ids) WITH ORDINALITY AS u (id, n);
    ELSE
        INSERT INTO millpond_task
        SELECT n.base + u.n, u.id, u.body, coalesce(u.plain, n.plains[1])
          FROM unnest(n.ids, n.bodies, n.plains) WITH ORDINALITY AS u (id, body, plain, n);
        INSERT INTO millpond_live (place, id, pool, rank, key, lane, sequence, submitted_at, expires_at, due,
                                   cancel_requested, running, attempt, runs, fresh, listed, token, grp, run)
        SELECT n.base + u.n, u.id, the_pool,
               millpond_rank(kind, coalesce(u.priority, n.priorities[1]), last_seq + u.n),
               u.key, u.lane, coalesce(u.sequence, last_seq + u.n), moment, u.expires, coalesce(u.due, moment),
               0, 0, 0, 0, 1, 0, 0,
               CASE WHEN u.due > moment AND u.lane IS NULL THEN 0
                    WHEN r.grouped THEN
                         (SELECT g.id FROM millpond_group AS g
                           WHERE g.pool = the_pool AND g.unit = coalesce(u.lane, u.key, '') AND g.owner = ''
                             AND g.share = millpond_share(r, coalesce(u.lane, u.key), u.share))
                    ELSE the_pool END, u.run
          FROM unnest(n.ids, n.keys, n.priorities, n.shares, n.dues, n.expires, n.runs, n.lanes, n.sequences)
               WITH ORDINALITY AS u (id, key, priority, share, due, expires, run, lane, sequence, n);
    END IF;
    IF cardinality(n.idempotency_keys) > 0 THEN
        PERFORM millpond_store_keys(the_pool, n.ids, n.idempotency_keys, n.functions, n.fingerprints,
                                    n.keys_stored);
    END IF;
END $$;

-- Count new tasks, and write how the queue of their pool is now.
CREATE FUNCTION millpond_count_submitted(n millpond_new, p millpond_pool, pool_spot tid) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    touched bigint;
BEGIN
    UPDATE millpond_pool AS o
       SET next_seq = o.next_seq + n.count, live = o.live + n.count, fresh = o.fresh + n.count,
           -- A verb that only looked may have raised it above the time of the store.
           undue_since = least(o.undue_since, n.first_due),
           ready = o.ready + n.count - n.later, later = o.later + n.later,
           bands = p.bands, lows = p.lows, joins = p.joins, resting = p.resting,
           ring_turn = p.ring_turn, ring_join = p.ring_join, next_lane = p.next_lane, unit_timers = p.unit_timers, fading = p.fading,
           writes = o.writes + 1, turn = (o.writes + 1) >> 5
     WHERE o.ctid = pool_spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
END $$;
