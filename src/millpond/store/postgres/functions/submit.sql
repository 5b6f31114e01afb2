-- Submits: new tasks of one pool, in one call.

-- Store new tasks of a pool that has room for all of them; answer those whose idempotency key is known with
-- the task that it stands for.
--
-- A list of one value holds it for every task, and an empty one means that none has it; `shares` NULL: each
-- share is the key. Where a worker could start a task, the message is sent with the commit. `last_seq`,
-- `waiting` and `queued` are the state before the call; `known_at` are the positions of known tasks.
CREATE FUNCTION millpond_submit(
    at double precision, at_most double precision, asked_pool text,
    ids bigint[], bodies bytea[], plains text[], keys text[], priorities bigint[], shares text[],
    delays double precision[], run_ats double precision[], expiries double precision[],
    idempotency_keys text[], dedupes text[], functions text[], fingerprints bigint[],
    runs bigint[], opened jsonb, channel text, message text,
    OUT refused text, OUT moment double precision, OUT last_seq bigint, OUT waiting bigint, OUT queued bigint,
    OUT is_fifo boolean, OUT wake_at double precision, OUT known_at integer[], OUT known_tasks bigint[],
    OUT known_statuses text[], OUT known_sequences bigint[], OUT known_reasons text[]
) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    the_pool bigint;
    o record;                             -- the pool and the store
    ring millpond_pool;
    r millpond_rules;
    joined record;
    n integer := cardinality(ids);        -- how many are new
    due_later integer := 0;               -- how many of them are not due
    first_due double precision;
    dues double precision[];              -- NULL = all are due
    expires double precision[];
BEGIN
    the_pool := millpond_lock_pool(asked_pool, NULL);
    -- In a statement of its own: it sees what the holder before has committed.
    SELECT s.*, p.*, (p.id << 40) + p.next_seq AS base, p.spec -> 'order' ->> 'kind' AS kind,
           p.spec -> 'backpressure' ->> 'on_full' IS NOT NULL AS bounded,
           p.paused = 0 AND (p.running < (p.spec ->> 'max_concurrent')::bigint
                             OR p.claimed < (p.spec ->> 'prefetch')::bigint) AS may_start,
           CASE WHEN s.moment IS NULL THEN 'clock'
                WHEN p.id IS NULL OR right(asked_pool, 10) = '~callbacks' THEN 'unknown'
                WHEN NOT millpond_knows(p.spec) THEN 'unknown option'
                WHEN EXISTS (SELECT 1 FROM millpond_inbox AS x WHERE x.xid >= s.seen_upto)
                  OR EXISTS (SELECT 1 FROM millpond_inbox AS x WHERE x.xid = ANY(s.seen_open)) THEN 'inbox'
                WHEN p.closed = 1 THEN 'closed'
                WHEN p.special = 1 OR p.spec -> 'order' ->> 'aging' IS NOT NULL THEN 'special'
                WHEN p.grouped = 0 AND p.spec -> 'order' ->> 'kind' = 'fair_round_robin' THEN 'grouped'
           END AS refused
      INTO o
      FROM (SELECT m.ctid AS meta_spot, m.seen_upto, m.seen_open,
                   millpond_moment(at, at_most, m.latest, m.behind, millpond_clock()) AS moment
              FROM millpond_meta AS m ORDER BY m.turn DESC LIMIT 1) AS s
      LEFT JOIN (SELECT x.ctid AS spot, x.id, x.grouped, x.closed, x.special, x.paused, x.running, x.claimed,
                        x.next_seq, x.ready, x.fresh, x.bands, x.lows, x.live - x.running AS queued,
                        x.ready + x.later + x.parked_apart AS waiting, x.spec::jsonb AS spec
                   FROM millpond_pool AS x WHERE x.id = the_pool ORDER BY x.turn DESC LIMIT 1) AS p ON true;
    moment := o.moment;
    refused := o.refused;
    IF refused IS NULL AND o.grouped = 1 THEN
        SELECT x.* INTO ring FROM millpond_pool AS x WHERE x.ctid = o.spot;
        r := millpond_rules_of(ring, moment);
        refused := CASE WHEN NOT r.fair THEN 'grouped' END;
    END IF;
    IF refused IS NULL AND cardinality(idempotency_keys) > 0 THEN
        SELECT * INTO refused, known_at, known_tasks, known_statuses, known_sequences, known_reasons
          FROM millpond_known_keys(o.id, idempotency_keys, dedupes, functions, fingerprints);
        IF known_at IS NOT NULL THEN
            n := n - cardinality(known_at);
            SELECT * INTO ids, bodies, plains, keys, priorities, shares, delays, run_ats, expiries,
                          idempotency_keys, functions, fingerprints, runs
              FROM millpond_without_known(known_at, ids, bodies, plains, keys, priorities, shares, delays, run_ats,
                                          expiries, idempotency_keys, functions, fingerprints, runs);
        END IF;
    END IF;
    IF refused IS NULL AND o.bounded AND NOT millpond_has_room(o.spec -> 'backpressure', o.fresh + n) THEN
        refused := 'bounded';
    ELSIF refused IS NULL AND n = 0 AND opened IS NOT NULL THEN
        refused := 'run without tasks';
    END IF;
    IF refused IS NOT NULL OR n = 0 THEN
        RETURN;
    END IF;
    IF cardinality(delays) + cardinality(run_ats) + cardinality(expiries) > 0 THEN
        SELECT * INTO dues, expires, due_later, first_due
          FROM millpond_times(moment, ids, delays, run_ats, expiries);
    END IF;
    last_seq := o.next_seq;
    waiting := o.waiting;
    queued := o.queued;
    is_fifo := o.kind = 'fifo';
    wake_at := CASE WHEN NOT o.may_start THEN NULL WHEN due_later < n THEN moment ELSE first_due END;
    IF r.fair AND due_later < n THEN
        SELECT * INTO joined
          FROM millpond_join_groups(o.id, r.per_key, moment, ARRAY(SELECT generate_series(o.base + 1, o.base + n)),
                                    keys, coalesce(shares, keys), dues);
        ring := millpond_join_ring(ring, joined.shares, joined.ready_at);
    ELSIF due_later < n AND (o.ready = 0 OR o.kind = 'lifo' OR cardinality(priorities) > 1
                            OR millpond_rank(o.kind, priorities[1], 0) <> ALL(o.bands)) THEN
        SELECT * INTO o.bands, o.lows
          FROM millpond_mark_queued(o.kind, o.ready, o.bands, o.lows, o.base, priorities);
    END IF;
    IF cardinality(runs) > 0 THEN PERFORM millpond_join_runs(opened, runs, moment); END IF;
    PERFORM millpond_insert_new(o.id, o.kind, o.base, n, due_later, moment, ids, bodies, plains, keys, priorities,
                                coalesce(shares, keys), dues, expires, runs);
    IF cardinality(idempotency_keys) > 0 THEN
        PERFORM millpond_store_keys(o.id, ids, idempotency_keys, functions, fingerprints);
    END IF;
    UPDATE millpond_pool AS x
       SET next_seq = x.next_seq + n, live = x.live + n, fresh = x.fresh + n,
           -- A verb that only looked may have raised it above the time of the store.
           undue_since = least(x.undue_since, first_due),
           ready = x.ready + n - due_later, later = x.later + due_later, bands = o.bands, lows = o.lows,
           joins = coalesce(ring.joins, x.joins), resting = coalesce(ring.resting, x.resting),
           ring_turn = coalesce(ring.ring_turn, x.ring_turn), ring_join = coalesce(ring.ring_join, x.ring_join),
           writes = x.writes + 1, turn = (x.writes + 1) >> 5
     WHERE x.ctid = o.spot;
    IF NOT FOUND THEN PERFORM millpond_miscounted('pool', 1, 0); END IF;
    PERFORM millpond_audit_submitted(o.meta_spot, o.id, o.base, n, moment, ids, dues, keys, plains);
    -- With a full queue the commit would fail: better no hint.
    IF wake_at IS NOT NULL AND channel IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
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

-- Return the lists of a submit without the tasks at some positions, whose keys are known.
CREATE FUNCTION millpond_without_known(
    known_at integer[], INOUT ids bigint[], INOUT bodies bytea[], INOUT plains text[], INOUT keys text[],
    INOUT priorities bigint[], INOUT shares text[], INOUT delays double precision[],
    INOUT run_ats double precision[], INOUT expiries double precision[], INOUT idempotency_keys text[],
    INOUT functions text[], INOUT fingerprints bigint[], INOUT runs bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    ids := millpond_without(ids, known_at);
    bodies := millpond_without(bodies, known_at);
    plains := millpond_without(plains, known_at);
    keys := millpond_without(keys, known_at);
    priorities := millpond_without(priorities, known_at);
    shares := millpond_without(shares, known_at);
    delays := millpond_without(delays, known_at);
    run_ats := millpond_without(run_ats, known_at);
    expiries := millpond_without(expiries, known_at);
    idempotency_keys := millpond_without(idempotency_keys, known_at);
    functions := millpond_without(functions, known_at);
    fingerprints := millpond_without(fingerprints, known_at);
    runs := millpond_without(runs, known_at);
END $$;

-- Return when new tasks are due and when they expire; how many are due later, and when the first of those.
CREATE FUNCTION millpond_times(
    moment double precision, ids bigint[], delays double precision[], run_ats double precision[],
    expiries double precision[],
    OUT dues double precision[], OUT expires double precision[], OUT later integer,
    OUT first_due double precision
)
LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(t.due ORDER BY t.n), array_agg(t.expires ORDER BY t.n),
           count(*) FILTER (WHERE t.due > moment), min(t.due) FILTER (WHERE t.due > moment)
      FROM (SELECT u.n, round((moment + u.expiry) * 1000000) / 1000000 AS expires,
                   CASE WHEN u.run_at IS NULL AND coalesce(u.delay, 0) = 0 THEN moment
                        ELSE greatest(moment, round(coalesce(u.run_at, moment + u.delay) * 1000000)
                                              / 1000000) END AS due
              FROM unnest(ids, delays, run_ats, expiries) WITH ORDINALITY
                   AS u (id, delay, run_at, expiry, n)) AS t
$$;

-- Insert the rows of new tasks, after the place `base`.
CREATE FUNCTION millpond_insert_new(
    the_pool bigint, kind text, base bigint, fresh integer, later integer, moment double precision,
    ids bigint[], bodies bytea[], plains text[], keys text[], priorities bigint[],
    shares text[], dues double precision[], expires double precision[], runs bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_seq constant bigint := base & ((1::bigint << 40) - 1);
BEGIN
    IF fresh = 1 AND kind <> 'fair_round_robin' THEN
        -- Most submits are of one task: without a list they take half the time.
        INSERT INTO millpond_task VALUES (base + 1, ids[1], bodies[1], plains[1]);
        INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, expires_at, due,
                                   cancel_requested, running, attempt, runs, fresh, listed, token, grp, run)
        VALUES (base + 1, ids[1], the_pool, millpond_rank(kind, priorities[1], last_seq + 1),
                keys[1], last_seq + 1, moment, expires[1], coalesce(dues[1], moment), 0, 0, 0, 0, 1, 0,
                0, CASE WHEN later = 0 THEN the_pool ELSE 0 END, runs[1]);
        RETURN;
    END IF;
    INSERT INTO millpond_task
    SELECT base + u.n, u.id, u.body, coalesce(u.plain, plains[1])
      FROM unnest(ids, bodies, plains) WITH ORDINALITY AS u (id, body, plain, n);
    INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, expires_at, due,
                               cancel_requested, running, attempt, runs, fresh, listed, token, grp, run)
    SELECT base + u.n, u.id, the_pool,
           millpond_rank(kind, coalesce(u.priority, priorities[1]), last_seq + u.n),
           u.key, last_seq + u.n, moment, u.expires, coalesce(u.due, moment), 0, 0, 0, 0, 1, 0, 0,
           CASE WHEN u.due > moment THEN 0
                WHEN kind = 'fair_round_robin' THEN
                     (SELECT g.id FROM millpond_group AS g
                       WHERE g.pool = the_pool AND g.unit = coalesce(u.key, '')
                         AND g.share = coalesce(u.share, '') AND g.owner = '')
                ELSE the_pool END, u.run
      FROM unnest(ids, keys, priorities, shares, dues, expires, runs) WITH ORDINALITY
           AS u (id, key, priority, share, due, expires, run, n);
END $$;

-- Count new tasks in the store, and write their audit. From here to the commit, one call after the other.
CREATE FUNCTION millpond_audit_submitted(
    spot tid, the_pool bigint, base bigint, n integer, moment double precision, ids bigint[],
    dues double precision[], keys text[], plains text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    s record;    -- what is reserved of the numbers of the store
    places bigint[] := ARRAY[base + 1];
BEGIN
    IF n > 1 THEN
        places := ARRAY(SELECT generate_series(base + 1, base + n));
    END IF;
    s := millpond_reserve(spot, moment, n, 0, 0);
    INSERT INTO millpond_audit
    VALUES (s.records + n, n, s.at, NULL, 'submit', NULL, the_pool, NULL, '{0}', ids, places,
            coalesce(dues, ARRAY[moment]), keys, plains);
END $$;
