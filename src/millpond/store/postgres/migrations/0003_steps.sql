-- schema-3
--
-- Most tasks have no run, no callback, no owner and no lane, and wait in a pool that only counts them.
-- What their start and their completion change is then a sum, and the server does it by itself, by the
-- batch and in one go: nothing travels but what is to be run. It does what the verbs do, or nothing:
-- where anything is not plain it says so, and the verbs take over.

-- Every write that must touch a number of rows counts them, and this undoes the transaction where it
-- touched others: a count that is wrong would stay wrong for ever. The caller then leaves it to the verbs,
-- and says so. A row is written by its ctid only where nothing in the same function has written to its
-- table since the ctid was read: a second write would find no row.
CREATE FUNCTION millpond_miscounted(what text, expected bigint, touched bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'wrote % row(s) of %, not %', touched, what, expected USING ERRCODE = 'MP002';
END $$;

-- Give back a row of its own to each of these tasks that is folded; to all, if none is named.
CREATE FUNCTION millpond_unfold(these bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    first_lease constant bigint := (SELECT leases - 1023 FROM millpond_meta ORDER BY turn DESC LIMIT 1);
BEGIN
    INSERT INTO millpond_live
    SELECT f.* FROM millpond_folded AS f
     WHERE these IS NULL OR f.token IN (
           SELECT token FROM millpond_lease WHERE n >= first_lease AND ids && these);
    DELETE FROM millpond_lease
     WHERE n >= first_lease AND (these IS NULL OR token IN (
           SELECT token FROM millpond_lease WHERE n >= first_lease AND ids && these));
END $$;

-- Let what the verbs have put into a queue be found there: it may stand before where others begin to
-- look. It is told by its places.
CREATE FUNCTION millpond_lower(the_pool bigint, put_in bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p record;
    b record;
    first_due double precision;
    ready_now bigint;
    touched bigint;
BEGIN
    SELECT o.ctid AS spot, o.bands, o.lows, o.undue_since, o.ready INTO p
      FROM millpond_pool AS o WHERE o.id = the_pool ORDER BY o.turn DESC LIMIT 1;
    SELECT coalesce(min(l.due) FILTER (WHERE l.grp = 0), 'infinity'),
           count(*) FILTER (WHERE l.grp = the_pool) INTO first_due, ready_now
      FROM millpond_live AS l WHERE l.place = ANY(put_in) AND l.grp IS NOT NULL;
    IF ready_now > 0 AND ready_now = p.ready AND p.bands IS NOT NULL THEN
        -- There is nothing else: whatever was there has left.
        p.bands := '{}';
        p.lows := '{}';
    END IF;
    SELECT array_agg(x.rank) AS ranks, array_agg(x.low) AS lows,
           bool_or(x.low < x.known) AS below INTO b
      FROM (SELECT y.rank, min(y.low) AS low, coalesce(min(y.known), 9223372036854775807) AS known
              FROM (SELECT u.rank, u.low, u.low AS known FROM unnest(p.bands, p.lows) AS u (rank, low)
                     UNION ALL
                    SELECT l.rank, l.place, NULL FROM millpond_live AS l
                     WHERE l.place = ANY(put_in) AND l.grp = the_pool) AS y
             GROUP BY y.rank) AS x;
    IF (p.bands IS NOT NULL AND b.below) OR first_due < p.undue_since THEN
        UPDATE millpond_pool
           SET bands = CASE WHEN bands IS NOT NULL AND coalesce(cardinality(b.ranks), 0) <= 32
                            THEN coalesce(b.ranks, '{}') END,
               lows = coalesce(b.lows, '{}'),
               undue_since = least(undue_since, first_due),
               writes = writes + 1, turn = (writes + 1) >> 5
         WHERE ctid = p.spot;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
    END IF;
END $$;

-- Note that there is nothing in a queue before what was found first, or before a time.
CREATE FUNCTION millpond_raise(
    the_pool bigint, first_rank bigint, first_place bigint, first_due double precision
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p record;
BEGIN
    SELECT o.ctid AS spot, o.bands, o.lows, o.undue_since INTO p
      FROM millpond_pool AS o WHERE o.id = the_pool ORDER BY o.turn DESC LIMIT 1;
    IF p.bands IS NOT NULL AND first_rank IS NOT NULL THEN
        SELECT coalesce(array_agg(u.rank), '{}'),
               coalesce(array_agg(CASE WHEN u.rank = first_rank THEN first_place ELSE u.low END), '{}')
          INTO p.bands, p.lows
          FROM unnest(p.bands, p.lows) AS u (rank, low) WHERE u.rank >= first_rank;
    END IF;
    UPDATE millpond_pool AS o
       SET bands = p.bands, lows = p.lows, undue_since = greatest(o.undue_since, first_due),
           writes = o.writes + 1, turn = (o.writes + 1) >> 5
     WHERE o.ctid = p.spot
       -- A little is sooner walked past than written down.
       AND (o.bands IS DISTINCT FROM p.bands OR first_due > o.undue_since + 1
            OR EXISTS (SELECT FROM unnest(o.lows, p.lows) AS u (known, found)
                        WHERE u.found - 64 > u.known));
END $$;

-- What time it is: the one rule of all functions here. `at` is told in tests; else the server's clock
-- counts, as far as nobody has set it: NULL = that is for the verbs to say (core/store_time.py).
-- `at_most` is as much as the asking process can vouch for.
CREATE FUNCTION millpond_moment(
    at double precision, at_most double precision, latest double precision, behind double precision,
    wall double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF at IS NOT NULL THEN
        RETURN greatest(latest, at);
    END IF;
    IF behind <> 0 THEN
        wall := round((wall - behind) * 1000000) / 1000000;
    END IF;
    IF wall < latest - 0.05 OR (wall > latest + 60 AND wall > at_most)
       OR wall < at_most - 60 - 1 - 0.03 * (at_most - 60 - latest) THEN
        RETURN NULL;
    END IF;
    RETURN greatest(wall, latest);
END $$;

-- Keep everything that a worker holds for some seconds more, and tell which of it is to be cancelled.
-- Nobody else need look because of that, so the version stays.
CREATE FUNCTION millpond_renew(
    at double precision,
    at_most double precision,
    renewing text,
    seconds double precision,
    OUT refused text,
    OUT moment double precision,
    OUT alive boolean,
    OUT cancelled bigint[],
    OUT interrupted bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    held_ahead bigint;
    spot tid;
    touched bigint;
BEGIN
    LOCK TABLE millpond_lock IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT millpond_moment(at, at_most, m.latest, m.behind, millpond_clock())
      INTO moment FROM millpond_meta AS m ORDER BY m.turn DESC LIMIT 1;
    SELECT w.ahead, w.ctid INTO held_ahead, spot
      FROM millpond_worker AS w WHERE w.id = renewing ORDER BY w.turn DESC LIMIT 1;
    alive := FOUND;
    IF NOT alive THEN
        RETURN;
    END IF;
    refused := CASE WHEN moment IS NULL THEN 'clock' WHEN held_ahead > 0 THEN 'held ahead' END;
    IF refused IS NOT NULL THEN
        RETURN;
    END IF;
    UPDATE millpond_worker AS w
       SET expires_at = round((moment + seconds) * 1000000) / 1000000,
           writes = w.writes + 1, turn = (w.writes + 1) >> 5
     WHERE w.ctid = spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('worker', 1, touched); END IF;
    SELECT array_agg(l.id ORDER BY p.name, l.place),
           array_agg(l.id ORDER BY p.name, l.place) FILTER (WHERE l.cancel_requested > 1)
      INTO cancelled, interrupted
      FROM millpond_live AS l
     CROSS JOIN LATERAL
           (SELECT o.name FROM millpond_pool AS o WHERE o.id = l.pool ORDER BY o.turn DESC LIMIT 1) AS p
     WHERE l.worker = renewing AND l.cancel_requested > 0;
END $$;

-- Whether these functions know all that a pool's settings say. What they do not know is refused to the
-- verbs and never guessed, and what those do not know either leaves the pool alone. A new option of a
-- pool is named here once the functions below heed it (see test_unknown_options.py).
CREATE FUNCTION millpond_knows(spec jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT spec - '{name,max_concurrent,order,backpressure,max_per_key,rates,rate_per_key,lanes,ordered,max_callbacks,prefetch,budgets,adaptive,trigger,keep}'::text[] = '{}'
       AND (spec -> 'order') - '{kind,aging,key,weights}'::text[] = '{}'
       AND spec -> 'order' ->> 'kind' IN ('priority', 'fifo', 'lifo', 'fair_round_robin')
       AND (spec ->> 'backpressure' IS NULL
            OR ((spec -> 'backpressure') - '{on_full,depth,per_key,per_lane}'::text[] = '{}'
                AND spec -> 'backpressure' ->> 'on_full' IN (
                    'block_submitter', 'fail_submitter', 'drop_oldest', 'drop_newest', 'fail_fast',
                    'ring_buffer')))
       AND (spec -> 'rates' = '[]' AND spec ->> 'rate_per_key' IS NULL
            -- Without a subquery the server puts all of this where it is called.
            OR NOT (spec @? '$.rates[*].of ? (@ != "starts" && @ != "weight")'
                    OR spec @? '$.rate_per_key.of ? (@ != "starts" && @ != "weight")'
                    OR spec @? '$.rates[*].keyvalue().key ? (@ != "n" && @ != "per" && @ != "burst" && @ != "of")'
                    OR spec @? '$.rate_per_key.keyvalue().key ? (@ != "n" && @ != "per" && @ != "burst" && @ != "of")'))
$$;

-- The same for what is stored of a budget.
CREATE FUNCTION millpond_knows_budget(spec jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT spec - '{name,max_concurrent,rates}'::text[] = '{}'
       AND (spec -> 'rates' = '[]'
            OR NOT (spec @? '$.rates[*].of ? (@ != "starts" && @ != "weight")'
                    OR spec @? '$.rates[*].keyvalue().key ? (@ != "n" && @ != "per" && @ != "burst" && @ != "of")'))
$$;

-- Where a task stands among those of its pool, lowest first, as rank() of core/order/backlog.py says. NULL for an
-- order that is not known here: no row has that, so a caller that has not asked first fails.
CREATE FUNCTION millpond_rank(kind text, priority bigint, seq bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE kind WHEN 'fifo' THEN 0 WHEN 'priority' THEN -priority WHEN 'lifo' THEN -seq END
$$;

-- Take in new plain tasks that are due at once, for a pool that only counts them and has room for all.
--
-- A list of one value holds it for every task; no keys = none has one. Where somebody could start them,
-- the message is sent with the commit.
CREATE FUNCTION millpond_take(
    at double precision,
    at_most double precision,
    asked_pool text,
    ids bigint[],
    bodies bytea[],
    plains text[],
    keys text[],
    priorities bigint[],
    channel text,
    message text,
    OUT refused text,
    OUT moment double precision,
    OUT last_seq bigint,
    OUT waiting bigint,
    OUT queued bigint,
    OUT is_fifo boolean,
    OUT wakes boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    count constant integer := cardinality(ids);
    told bigint;
    meta tid;
    inbox_upto xid8;
    inbox_open xid8[];
    p record;
    spec jsonb;
    kind text;
    base bigint;
    touched bigint;
BEGIN
    LOCK TABLE millpond_lock IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT millpond_moment(at, at_most, latest, behind, millpond_clock()),
           records, ctid, seen_upto, seen_open
      INTO moment, told, meta, inbox_upto, inbox_open
      FROM millpond_meta ORDER BY turn DESC LIMIT 1;
    SELECT o.ctid AS spot, o.* INTO p
      FROM millpond_pool AS o WHERE o.name = asked_pool ORDER BY o.turn DESC LIMIT 1;
    spec := p.spec::jsonb;
    kind := spec -> 'order' ->> 'kind';
    refused := CASE
        WHEN moment IS NULL THEN 'clock'
        WHEN p.id IS NULL OR right(asked_pool, 10) = '~callbacks' THEN 'unknown'
        WHEN NOT millpond_knows(spec) OR kind NOT IN ('fifo', 'lifo', 'priority') THEN 'unknown option'
        WHEN EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= inbox_upto)
          OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(inbox_open)) THEN 'inbox'
        WHEN p.closed = 1 OR p.grouped = 1 OR p.special = 1 OR spec -> 'order' ->> 'aging' IS NOT NULL
        THEN 'special'
        WHEN spec ->> 'backpressure' IS NOT NULL AND NOT (
             spec -> 'backpressure' ->> 'on_full' IN ('block_submitter', 'fail_submitter')
             AND spec -> 'backpressure' ->> 'per_key' IS NULL
             AND spec -> 'backpressure' ->> 'per_lane' IS NULL
             AND p.fresh + count <= (spec -> 'backpressure' ->> 'depth')::bigint)
        THEN 'bounded'
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
    IF count = 1 THEN
        -- Most submits are of one task: without a list they take 6 % less.
        INSERT INTO millpond_task VALUES (base + 1, ids[1], bodies[1], plains[1]);
        INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, due,
                                   cancel_requested, running, attempt, runs, fresh, listed, token, grp)
        VALUES (base + 1, ids[1], p.id,
                millpond_rank(kind, priorities[1], last_seq + 1),
                keys[1], last_seq + 1, moment, moment, 0, 0, 0, 0, 1, 0, 0, p.id);
    ELSE
        INSERT INTO millpond_task
        SELECT base + u.n, u.id, u.body, coalesce(u.plain, plains[1])
          FROM unnest(ids, bodies, plains) WITH ORDINALITY AS u (id, body, plain, n);
        INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, due,
                                   cancel_requested, running, attempt, runs, fresh, listed, token, grp)
        SELECT base + u.n, u.id, p.id,
               millpond_rank(kind, coalesce(u.priority, priorities[1]), last_seq + u.n),
               u.key, last_seq + u.n, moment, moment, 0, 0, 0, 0, 1, 0, 0, p.id
          FROM unnest(ids, keys, priorities) WITH ORDINALITY AS u (id, key, priority, n);
    END IF;
    INSERT INTO millpond_audit
    VALUES (told + count, count, moment, NULL, 'submit', NULL, p.id, NULL, '{0}', ids,
            ARRAY(SELECT generate_series(base + 1, base + count)), ARRAY[moment], keys, plains);
    -- Where to look for them.
    IF kind = 'lifo' THEN
        p.bands := NULL;
    ELSIF p.ready = 0 THEN
        p.bands := '{}';
        p.lows := '{}';
    END IF;
    IF kind = 'fifo' THEN
        IF 0 <> ALL(p.bands) THEN
            p.bands := p.bands || 0::bigint;
            p.lows := p.lows || base + 1;
        END IF;
    ELSIF kind = 'priority' AND p.bands IS NOT NULL THEN
        SELECT p.bands || array_agg(x.rank), p.lows || array_agg(base + 1) INTO p.bands, p.lows
          FROM (SELECT DISTINCT -u.priority AS rank FROM unnest(priorities) AS u (priority)) AS x
         WHERE x.rank <> ALL(p.bands);
        IF cardinality(p.bands) > 32 THEN
            p.bands := NULL;
        END IF;
    END IF;
    UPDATE millpond_pool
       SET next_seq = last_seq + count, live = p.live + count, fresh = p.fresh + count,
           ready = p.ready + count, bands = p.bands, lows = p.lows,
           writes = p.writes + 1, turn = (p.writes + 1) >> 5
     WHERE ctid = p.spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
    UPDATE millpond_meta
       SET version = version + 1, turn = (version + 1) >> 5, latest = moment, records = told + count
     WHERE ctid = meta;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('meta', 1, touched); END IF;
    -- With a full queue the commit would fail: better no hint.
    IF wakes AND channel IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(channel, message);
    END IF;
END $$;

-- Microseconds that one unit of a rate costs, and how far it may be overdrawn, in microseconds too.
CREATE FUNCTION millpond_interval(rate jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ceil((rate ->> 'per')::double precision * 1000000 / (rate ->> 'n')::double precision)::bigint
$$;

CREATE FUNCTION millpond_depth(rate jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((rate ->> 'burst')::bigint, (rate ->> 'n')::bigint)
$$;

-- When rates let a task of some weight start: `at`, or later. All is told in microseconds.
CREATE FUNCTION millpond_ready_at(rates jsonb, buckets jsonb, weight bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(at, max((b.bucket ->> 0)::bigint
               + (CASE WHEN r.rate ->> 'of' = 'weight' THEN weight ELSE 1 END - millpond_depth(r.rate))
                 * millpond_interval(r.rate)))
      FROM ROWS FROM (jsonb_array_elements(rates), jsonb_array_elements(buckets)) AS b (rate, bucket)
     CROSS JOIN LATERAL (SELECT b.rate) AS r (rate)
$$;

-- Take what some tasks that start at one moment cost from the buckets of rates, as core/bucket.py does.
-- `fits` = they may all start; then each before the last may, too, for a cost only adds up.
CREATE FUNCTION millpond_charge(
    rates jsonb, INOUT buckets jsonb, starts bigint, weight bigint, at bigint, OUT fits boolean
)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    rate jsonb;
    tat bigint;
    cost bigint;
    step bigint;
    owed bigint;
    moments bigint[];
    debts bigint[];
    least_at integer;
    noted_at bigint;
    lows jsonb;
BEGIN
    fits := true;
    FOR i IN 0..jsonb_array_length(rates) - 1 LOOP
        rate := rates -> i;
        step := millpond_interval(rate);
        tat := (buckets -> i ->> 0)::bigint;
        lows := buckets -> i -> 1;
        cost := starts;
        IF rate ->> 'of' = 'weight' THEN
            cost := weight;
        END IF;
        IF (CASE WHEN starts > 1 THEN greatest(tat, at) ELSE tat END)
           + (cost - millpond_depth(rate)) * step > at THEN
            fits := false;
            RETURN;
        END IF;
        IF rate ->> 'of' = 'weight' THEN
            owed := greatest(tat - at, 0);
            SELECT array_agg((l.low ->> 0)::bigint ORDER BY l.n), array_agg((l.low ->> 1)::bigint ORDER BY l.n)
              INTO moments, debts
              FROM jsonb_array_elements(lows) WITH ORDINALITY AS l (low, n)
             WHERE (l.low ->> 1)::bigint < owed;
            -- They rise in both: those that are no lower stood behind all others.
            noted_at := greatest(
                at, (lows -> -1 ->> 0)::bigint * ((lows -> -1 ->> 1)::bigint >= owed)::integer);
            IF moments IS NULL OR moments[cardinality(moments)] < noted_at THEN
                moments := moments || noted_at;
                debts := debts || owed;
                IF cardinality(moments) > 16 THEN
                    SELECT n INTO least_at FROM generate_series(1, cardinality(debts) - 1) AS n
                     ORDER BY debts[n + 1] - debts[n], n LIMIT 1;
                    moments := moments[:least_at - 1] || moments[least_at + 1:];
                    debts := debts[:least_at] || debts[least_at + 2:];
                END IF;
            END IF;
            SELECT jsonb_agg(jsonb_build_array(u.moment, u.owed)) INTO lows
              FROM unnest(moments, debts) AS u (moment, owed);
        END IF;
        buckets := jsonb_set(buckets, ARRAY[i::text],
                             jsonb_build_array(greatest(tat, at) + cost * step, lows));
    END LOOP;
END $$;

-- Count the tasks of a fair pool that ended off their keys; those that were at their limit take part
-- again, in the order in which that happened. Keys have a rate if it has an interval; the time is told
-- in microseconds. `odd` = something else keeps one of these keys. It has its caller's settings.
CREATE FUNCTION millpond_leave_keys(
    the_pool bigint,
    per_key bigint,
    key_interval bigint,
    key_depth bigint,
    at bigint,
    gone text[],
    passed_turn bigint,
    INOUT joins bigint,
    INOUT resting bigint,
    INOUT fading bigint,
    OUT odd boolean
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    c record;
    back text[];
    woken bigint;
BEGIN
    WITH leaving AS MATERIALIZED (
        SELECT k.key, count(*) AS n, min(k.o) AS o
          FROM unnest(gone) WITH ORDINALITY AS k (key, o) WHERE k.key IS NOT NULL GROUP BY k.key
    ), found AS MATERIALIZED (
        SELECT u.*, l.o, l.n, u.running = l.n AND u.groups = 0 AS idle,
               u.groups > 0 AND u.running >= per_key AS freed
          FROM leaving AS l
         CROSS JOIN LATERAL
               (SELECT x.ctid AS spot, x.unit, x.running, x.groups, x.tat, x.fades_at,
                       x.held_until > 0 OR x.paused = 1 OR x.blocked = 1
                       OR (x.tat <> 0 AND key_interval IS NULL) AS kept
                  FROM millpond_unit AS x WHERE x.pool = the_pool AND x.unit = l.key OFFSET 0) AS u
    ), changed AS (
        UPDATE millpond_unit AS u
           SET running = u.running - f.n,
               fades_at = CASE WHEN f.idle THEN f.tat::double precision / 1000000 ELSE u.fades_at END
          FROM found AS f WHERE u.ctid = f.spot AND NOT (f.idle AND f.tat <= at)
    ), forgotten AS (
        DELETE FROM millpond_unit AS u USING found AS f
         WHERE u.ctid = f.spot AND f.idle AND f.tat <= at
    )
    SELECT (SELECT count(*) FROM leaving) AS leaving, count(*) AS found,
           array_agg(unit ORDER BY o) FILTER (WHERE freed) AS freed,
           coalesce(bool_or(kept OR (freed AND groups > 1)
                            -- Time alone lets it go on.
                            OR (groups > 0 AND (per_key IS NULL OR running - n < per_key)
                                AND tat + (1 - key_depth) * key_interval > at)), false) AS odd,
           count(*) FILTER (WHERE idle AND tat > at AND fades_at IS NULL)
           - count(*) FILTER (WHERE idle AND tat <= at AND fades_at IS NOT NULL) AS fading
      INTO c FROM found;
    IF c.found <> c.leaving THEN PERFORM millpond_miscounted('unit', c.leaving, c.found); END IF;
    odd := c.odd;
    IF odd THEN
        RETURN;
    END IF;
    fading := fading + c.fading;
    IF c.freed IS NOT NULL THEN
        WITH ready AS (
            UPDATE millpond_group AS g SET ready = 1
              FROM unnest(c.freed) WITH ORDINALITY AS f (unit, o)
             WHERE g.pool = the_pool AND g.unit = f.unit AND g.ready = 0
            RETURNING g.share, f.o
        )
        SELECT array_agg(share ORDER BY o) INTO back FROM ready;
        IF cardinality(c.freed) IS DISTINCT FROM cardinality(back) THEN
            PERFORM millpond_miscounted('group', cardinality(c.freed), cardinality(back));
        END IF;
        UPDATE millpond_seat AS s SET resting = 0
         WHERE s.pool = the_pool AND s.share = ANY(back) AND s.owner = '' AND s.resting = 1;
        GET DIAGNOSTICS woken = ROW_COUNT;
        resting := resting - woken;
        IF woken < cardinality(back) THEN
            INSERT INTO millpond_seat
            SELECT the_pool, b.share, '', passed_turn, joins + row_number() OVER (ORDER BY b.o), 0
              FROM (SELECT share, min(o) AS o FROM unnest(back) WITH ORDINALITY AS x (share, o)
                     GROUP BY share) AS b
             WHERE NOT EXISTS (SELECT 1 FROM millpond_seat AS s
                                WHERE s.pool = the_pool AND s.share = b.share AND s.owner = '');
            GET DIAGNOSTICS woken = ROW_COUNT;
            joins := joins + woken;
        END IF;
    END IF;
END $$;

-- End some of what is folded, and start successors in their slots: the part of a step that has to sort
-- things out. Many meet many here, so nothing may be looked for one by one.
CREATE FUNCTION millpond_end_some(
    moment double precision,
    settled bigint[],
    settled_tokens bigint[],
    one_result bytea,
    results bytea[],
    successors bigint[],
    successor_tokens bigint[],
    lease_number bigint,
    OUT ended bigint,
    OUT begun bigint,
    OUT pool bigint,
    OUT last_pool bigint,
    OUT worker text,
    OUT last_worker text,
    OUT starts boolean[],
    OUT ids bigint[],
    OUT places bigint[],
    OUT due double precision[],
    OUT tokens bigint[],
    OUT keys text[],
    OUT plain text[],
    OUT times bytea,
    OUT timed bigint
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
         WHERE l.token = ANY(settled_tokens || successor_tokens) RETURNING l.*
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
        SELECT pool, worker, false AS start, n, id, place, due, token, key, plain,
               CASE WHEN begun_by IS NULL
                    THEN float8send(started_at - due) || float8send(moment - started_at) END
               AS times
          FROM ends
         UNION ALL
        SELECT pool, worker, true, n, id, place, due, token, key, plain, NULL FROM begun
         ORDER BY n, start
    )
    SELECT count(*) FILTER (WHERE NOT start) AS ended, count(*) FILTER (WHERE start) AS begun,
           min(pool) AS pool, max(pool) AS last_pool,
           min(worker) AS worker, max(worker) AS last_worker,
           array_agg(start) AS starts, array_agg(id) AS ids, array_agg(place) AS places,
           CASE WHEN min(due) = max(due) THEN ARRAY[min(due)] ELSE array_agg(due) END AS due,
           CASE WHEN min(token) = max(token) THEN ARRAY[min(token)] ELSE array_agg(token) END
           AS tokens,
           CASE WHEN count(key) = 0 THEN '{}' ELSE array_agg(key) END AS keys,
           CASE WHEN min(plain) = max(plain) THEN ARRAY[min(plain)] ELSE array_agg(plain) END
           AS plain,
           string_agg(times, '') AS times, count(times) AS timed
      INTO ended, begun, pool, last_pool, worker, last_worker, starts, ids, places, due, tokens, keys,
           plain, times, timed
      FROM arrows;
END $$;

-- Some of a list, in which one value may stand for all.
CREATE FUNCTION millpond_part(list anyarray, low integer, high integer) RETURNS anyarray
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(list) > 1 THEN list[low:high] ELSE list END
$$;

-- The same where every end is followed by a start, and all end in the order in which they began, as
-- they do where tasks are alike: then lists are cut and joined, and nothing has to be sorted out.
-- `done` says whether that was so.
CREATE FUNCTION millpond_relay(
    moment double precision,
    settled bigint[],
    settled_tokens bigint[],
    one_result bytea,
    results bytea[],
    successors bigint[],
    successor_tokens bigint[],
    lease_number bigint,
    OUT done boolean,
    OUT pool bigint,
    OUT worker text,
    OUT ids bigint[],
    OUT places bigint[],
    OUT due double precision[],
    OUT tokens bigint[],
    OUT keys text[],
    OUT plain text[],
    OUT measured bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    count constant integer := cardinality(settled);
    held millpond_lease[];
    takes integer[] := '{}';
    l millpond_lease;
    size integer;
    take integer;
    over integer := 0;  -- how many of them had been running
    begun integer := 0;
    rest integer;       -- how many of those begin and end here
    ends integer;
    first integer;
    was_held boolean;
    begun_ids bigint[] := '{}';
    begun_places bigint[] := '{}';
    begun_due double precision[] := '{}';
    begun_tokens bigint[] := '{}';
    begun_keys text[] := '{}';
    begun_plain text[] := '{}';
    touched bigint;
BEGIN
    done := false;
    SELECT array_agg(o ORDER BY o.started_at, o.claims[1], array_position(settled, o.ids[1]))
      INTO held
      FROM millpond_lease AS o
     WHERE o.token = ANY(settled_tokens || successor_tokens);
    IF held IS NULL THEN
        RETURN;
    END IF;
    FOREACH l IN ARRAY held LOOP
        take := 0;
        size := cardinality(l.ids);
        IF l.pool <> held[1].pool OR l.worker <> held[1].worker THEN
            RETURN;
        ELSIF l.claims IS NOT NULL THEN
            take := least(size, count - begun);
            IF l.ids[:take] <> successors[begun + 1:begun + take]
               OR l.token <> ANY(CASE WHEN cardinality(successor_tokens) = 1 THEN successor_tokens
                                 ELSE successor_tokens[begun + 1:begun + take] END) THEN
                RETURN;
            END IF;
            begun := begun + take;
        ELSIF over < count AND l.ids[1] = settled[over + 1] THEN
            take := least(size, count - over);
            IF l.ids[:take] <> settled[over + 1:over + take]
               OR l.token <> ANY(CASE WHEN cardinality(settled_tokens) = 1 THEN settled_tokens
                                 ELSE settled_tokens[over + 1:over + take] END) THEN
                RETURN;
            END IF;
            over := over + take;
        END IF;
        takes := takes || take;
    END LOOP;
    rest := count - over;
    IF over = 0 OR begun < count OR settled[over + 1:] <> successors[:rest]
       OR (rest > 0
           AND CASE WHEN cardinality(settled_tokens) > 1 THEN settled_tokens[over + 1:]
               ELSE array_fill(settled_tokens[1], ARRAY[rest]) END
            <> CASE WHEN cardinality(successor_tokens) > 1 THEN successor_tokens[:rest]
               ELSE array_fill(successor_tokens[1], ARRAY[rest]) END) THEN
        RETURN;
    END IF;

    done := true;
    pool := held[1].pool;
    worker := held[1].worker;
    ids := '{}';
    places := '{}';
    due := '{}';
    tokens := '{}';
    keys := '{}';
    plain := '{}';
    SELECT p.measured INTO measured
      FROM millpond_pool AS p WHERE p.id = held[1].pool ORDER BY p.turn DESC LIMIT 1;
    over := 0;
    begun := 0;
    FOR at IN 1..cardinality(held) LOOP
        l := held[at];
        take := takes[at];
        CONTINUE WHEN take = 0;
        size := cardinality(l.ids);
        was_held := l.claims IS NOT NULL;
        IF take = size THEN
            DELETE FROM millpond_lease AS o WHERE o.token = l.token AND o.started_at = l.started_at;
            GET DIAGNOSTICS touched = ROW_COUNT;
        ELSE
            UPDATE millpond_lease AS o
               SET claims = l.claims[take + 1:], ids = l.ids[take + 1:], places = l.places[take + 1:],
                   ranks = millpond_part(l.ranks, take + 1, size),
                   submitted_at = millpond_part(l.submitted_at, take + 1, size),
                   due = millpond_part(l.due, take + 1, size),
                   keys = l.keys[take + 1:], plain = millpond_part(l.plain, take + 1, size)
             WHERE o.token = l.token AND o.started_at = l.started_at;
            GET DIAGNOSTICS touched = ROW_COUNT;
            l.ids := l.ids[:take];
            l.places := l.places[:take];
            l.ranks := millpond_part(l.ranks, 1, take);
            l.submitted_at := millpond_part(l.submitted_at, 1, take);
            l.due := millpond_part(l.due, 1, take);
            l.keys := l.keys[:take];
            l.plain := millpond_part(l.plain, 1, take);
        END IF;
        IF touched <> 1 THEN PERFORM millpond_miscounted('lease', 1, touched); END IF;
        IF was_held THEN
            l.started_at := moment;
            ends := greatest(least(take, rest - begun), 0);
            first := count - rest + begun;
            begun := begun + take;
            begun_ids := begun_ids || l.ids;
            begun_places := begun_places || l.places;
            begun_due := begun_due || CASE WHEN cardinality(l.due) = take THEN l.due
                ELSE array_fill(l.due[1], ARRAY[take]) END;
            begun_tokens := begun_tokens || array_fill(l.token, ARRAY[take]);
            begun_keys := begun_keys || CASE WHEN cardinality(l.keys) = take THEN l.keys
                ELSE array_fill(NULL::text, ARRAY[take]) END;
            begun_plain := begun_plain || CASE WHEN cardinality(l.plain) = take THEN l.plain
                ELSE array_fill(l.plain[1], ARRAY[take]) END;
        ELSE
            ends := take;
            first := over;
            over := over + take;
            measured := measured + take;
            INSERT INTO millpond_measured
            VALUES (l.pool, measured, NULL, l.due, l.started_at, moment, take);
            ids := ids || l.ids;
            places := places || l.places;
            due := due || CASE WHEN cardinality(l.due) = take THEN l.due
                ELSE array_fill(l.due[1], ARRAY[take]) END;
            tokens := tokens || array_fill(l.token, ARRAY[take]);
            keys := keys || CASE WHEN cardinality(l.keys) = take THEN l.keys
                ELSE array_fill(NULL::text, ARRAY[take]) END;
            plain := plain || CASE WHEN cardinality(l.plain) = take THEN l.plain
                ELSE array_fill(l.plain[1], ARRAY[take]) END;
        END IF;
        IF ends > 0 THEN
            INSERT INTO millpond_ended
            SELECT u.place, l.pool, 'completed', 1, moment, NULL, 1, 1,
                   CASE WHEN results IS NULL THEN one_result ELSE u.result END, NULL,
                   coalesce(u.rank, l.ranks[1]), NULL, u.place & ((1::bigint << 40) - 1),
                   coalesce(u.submitted_at, l.submitted_at[1]), coalesce(u.due, l.due[1]), l.token,
                   l.started_at, l.started_at, NULL, 0, 0, NULL, NULL
              FROM unnest(l.places[:ends], millpond_part(l.ranks, 1, ends),
                          millpond_part(l.submitted_at, 1, ends), millpond_part(l.due, 1, ends),
                          results[first + 1:first + ends])
                   AS u (place, rank, submitted_at, due, result);
        END IF;
        IF ends < take THEN
            INSERT INTO millpond_lease
            VALUES (l.token, moment, l.pool, l.worker, NULL, NULL, l.ids[ends + 1:],
                    l.places[ends + 1:], millpond_part(l.ranks, ends + 1, take),
                    millpond_part(l.submitted_at, ends + 1, take),
                    millpond_part(l.due, ends + 1, take), l.keys[ends + 1:],
                    millpond_part(l.plain, ends + 1, take), lease_number);
        END IF;
    END LOOP;
    -- All ends, then all starts: each is to be told right after the end that stands as far from the front.
    ids := ids || begun_ids[:rest] || begun_ids;
    places := places || begun_places[:rest] || begun_places;
    due := due || begun_due[:rest] || begun_due;
    tokens := tokens || begun_tokens[:rest] || begun_tokens;
    keys := keys || begun_keys[:rest] || begun_keys;
    plain := plain || begun_plain[:rest] || begun_plain;
    IF due[1] = ALL(due) THEN due := due[:1]; END IF;
    IF tokens[1] = ALL(tokens) THEN tokens := tokens[:1]; END IF;
    IF array_remove(keys, NULL) = '{}' THEN keys := '{}'; END IF;
    IF plain[1] = ALL(plain) THEN plain := plain[:1]; END IF;
END $$;

-- Start the first tasks that a worker holds ahead of a pool, in the order in which it claimed them.
CREATE FUNCTION millpond_begin_claims(
    the_pool bigint,
    asker text,
    most bigint,
    moment double precision,
    lease_number bigint,
    OUT n bigint,
    OUT ids bigint[],
    OUT places bigint[],
    OUT tokens bigint[],
    OUT submitted_at double precision[],
    OUT due double precision[],
    OUT keys text[],
    OUT plain text[],
    OUT bodies bytea[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    WITH gone AS (
        DELETE FROM millpond_lease AS l
         WHERE l.n >= lease_number - 1024 AND l.worker = asker AND l.pool = the_pool
           AND l.claims IS NOT NULL RETURNING l.*
    ), held AS MATERIALIZED (
        SELECT l.token, l.revision, u.claim, u.id, u.place, coalesce(u.rank, l.ranks[1]) AS rank,
               coalesce(u.submitted_at, l.submitted_at[1]) AS submitted_at,
               coalesce(u.due, l.due[1]) AS due, u.key, coalesce(u.plain, l.plain[1]) AS plain,
               row_number() OVER (ORDER BY u.claim) <= most AS starts
          FROM gone AS l,
               unnest(l.ids, l.places, l.ranks, l.submitted_at, l.due, l.keys, l.plain, l.claims)
               AS u (id, place, rank, submitted_at, due, key, plain, claim)
         ORDER BY u.claim
    ), stays AS (
        INSERT INTO millpond_lease
        SELECT h.token, CASE WHEN h.starts THEN moment ELSE 'infinity' END, the_pool, asker,
               CASE WHEN NOT h.starts THEN h.revision END,
               CASE WHEN NOT h.starts THEN array_agg(h.claim) END, array_agg(h.id),
               array_agg(h.place), array_agg(h.rank), array_agg(h.submitted_at), array_agg(h.due),
               array_agg(h.key), array_agg(h.plain), lease_number
          FROM held AS h GROUP BY h.token, h.starts, h.revision
    )
    SELECT count(*), array_agg(h.id), array_agg(h.place), array_agg(h.token),
           array_agg(h.submitted_at), array_agg(h.due), array_agg(h.key), array_agg(h.plain),
           array_agg(t.body)
      INTO n, ids, places, tokens, submitted_at, due, keys, plain, bodies
      FROM held AS h
     CROSS JOIN LATERAL
           (SELECT o.body FROM millpond_task AS o WHERE o.place = h.place OFFSET 0) AS t
     WHERE h.starts;
END $$;

-- Complete plain tasks of one worker; start what it held ahead in the slots they left (`successors`, one
-- for each or none); let it start the next of a pool, and hold others ahead.
--
-- `asked_pool` NULL: it takes none. `at` NULL: the server's clock counts. One token stands for all, and
-- one result if `results` is NULL. The first `starting` of what is returned are started, the others held
-- ahead; of the first of them, which were held ahead before, `tokens` are the tokens. `refused` says why nothing was done; an error of the class MP says the same.
CREATE FUNCTION millpond_step(
    at double precision,
    at_most double precision,
    settled bigint[],
    settled_tokens bigint[],
    one_result bytea,
    results bytea[],
    successors bigint[],
    successor_tokens bigint[],
    asked_pool text,
    asker text,
    new_token bigint,
    want integer,
    ahead integer,
    OUT refused text,
    OUT moment double precision,
    OUT pool_name text,
    OUT live_left bigint,
    OUT running_now bigint,
    OUT has_room boolean,
    OUT processed bigint,
    OUT next_at double precision,
    OUT give_back boolean,
    OUT starting integer,
    OUT tokens bigint[],
    OUT ids bigint[],
    OUT places bigint[],
    OUT submitted double precision[],
    OUT dues double precision[],
    OUT bodies bytea[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_memoize = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    ending constant integer := coalesce(cardinality(settled), 0);
    relayed integer := 0;
    taken integer := 0;
    beginning integer := 0;  -- of what was held ahead
    claiming integer := 0;
    told bigint;
    claim_number bigint;
    a_pool bigint;
    a_worker text := asker;
    starts boolean[];
    whole boolean := false;
    meta tid;
    inbox_upto xid8;
    inbox_open xid8[];
    lease_number bigint;
    last_rank bigint;
    last_place bigint;
    in_order boolean := false;
    p record;  -- the pool
    w record;  -- the worker
    e record;  -- what ends
    n record;  -- what is next
    b record;  -- what was held ahead
    a_limit bigint;
    slots bigint := 0;
    may_claim bigint := 0;
    own_claims bigint := 0;
    taken_fresh bigint := 0;
    held jsonb;
    left_held bigint;
    fair boolean := false;
    per_key bigint;
    k record;  -- what became of keys
    forgotten bigint;
    faded bigint := 0;
    spec jsonb;
    flow boolean;      -- it has rates or budgets
    ticks bigint;      -- the moment, in microseconds
    key_interval bigint;
    key_depth bigint;
    shared record;     -- a budget
    budgets text[] := '{}';
    budget_rates jsonb[] := '{}';
    budget_buckets jsonb[] := '{}';
    budget_left bigint[] := '{}';
    weight bigint;     -- of all that start; then of what would be next
    charged record;
    own_at bigint;
    shared_at bigint;
    functions jsonb;  -- what the worker knows; NULL = all
    unknown jsonb;
    touched bigint;
    expected bigint;
BEGIN
    starting := 0;
    give_back := false;
    -- In a statement of its own: what comes after it sees what the holder before has committed.
    LOCK TABLE millpond_lock IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT millpond_moment(at, at_most, latest, behind, millpond_clock()),
           records, next_claim, leases + 1, ctid, seen_upto, seen_open
      INTO moment, told, claim_number, lease_number, meta, inbox_upto, inbox_open
      FROM millpond_meta ORDER BY turn DESC LIMIT 1;
    IF moment IS NULL THEN
        refused := 'clock';
        RETURN;
    END IF;

    -- What ends. Their leases go; what is left of one comes back. Mostly it is one lease, and all of it.
    IF ending > 0 THEN
        IF cardinality(settled_tokens) = 1 AND successors IS NULL THEN
            DELETE FROM millpond_lease AS l
             WHERE l.token = settled_tokens[1] AND l.ids = settled AND l.claims IS NULL
            RETURNING l.* INTO e;
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
            IF cardinality(array_remove(successors, NULL)) = ending THEN
                SELECT * INTO e
                  FROM millpond_relay(moment, settled, settled_tokens, one_result, results, successors,
                                      successor_tokens, lease_number);
                in_order := e.done;
            END IF;
        END IF;
        IF in_order THEN
            settled_tokens := e.tokens;
            relayed := ending;
            starts := '{t}';
        ELSIF NOT whole THEN
            SELECT * INTO e
              FROM millpond_end_some(moment, settled, settled_tokens, one_result, results, successors,
                                     successor_tokens, lease_number);
            settled_tokens := e.tokens;
            relayed := e.begun;
            IF relayed > 0 THEN
                starts := e.starts;
            END IF;
            IF e.ended <> ending OR relayed <> cardinality(array_remove(successors, NULL))
               OR e.pool <> e.last_pool OR e.worker <> e.last_worker THEN
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
        SELECT o.ctid AS spot, o.* INTO p
          FROM millpond_pool AS o WHERE o.id = a_pool ORDER BY o.turn DESC LIMIT 1;
    ELSE
        SELECT o.ctid AS spot, o.* INTO p
          FROM millpond_pool AS o WHERE o.name = asked_pool ORDER BY o.turn DESC LIMIT 1;
        IF p.id <> a_pool THEN
            RAISE EXCEPTION 'of another pool' USING ERRCODE = 'MP001';
        END IF;
    END IF;
    pool_name := p.name;
    spec := p.spec::jsonb;
    flow := p.special = 1 AND p.limiter = '' AND p.claimed = 0 AND (spec ->> 'prefetch')::bigint = 0;
    IF NOT millpond_knows(spec) THEN
        IF ending > 0 THEN
            RAISE EXCEPTION 'unknown option' USING ERRCODE = 'MP001';
        END IF;
        refused := 'unknown option';
        RETURN;
    END IF;
    IF ending > 0 AND p.special = 1 AND NOT flow THEN
        -- An end tells others than its counts.
        RAISE EXCEPTION 'special' USING ERRCODE = 'MP001';
    END IF;
    ticks := round(moment * 1000000)::bigint;
    a_limit := (spec ->> 'max_concurrent')::bigint;
    live_left := p.live - ending;
    running_now := p.running - ending + relayed;
    held := p.holding::jsonb;
    left_held := coalesce((held ->> a_worker)::bigint, 0) - ending + relayed;
    IF p.grouped = 1 THEN
        -- Shares of equal weight that take turns, and perhaps a limit for each key.
        fair := spec @> '{"order": {"kind": "fair_round_robin"}, "ordered": false, "lanes": null}'
                AND coalesce(spec -> 'order' -> 'weights', '{}') IN ('{}', 'null', '[]')
                AND p.unit_timers = 0 AND p.claimed = 0 AND (flow OR p.special = 0 AND p.fading = 0);
        per_key := (spec ->> 'max_per_key')::bigint;
        IF spec ->> 'rate_per_key' IS NOT NULL THEN
            key_interval := millpond_interval(spec -> 'rate_per_key');
            key_depth := millpond_depth(spec -> 'rate_per_key');
        END IF;
        IF fair AND ending > 0 THEN
            k := millpond_leave_keys(p.id, per_key, key_interval, key_depth, ticks, e.keys,
                                     p.passed_turn, p.joins, p.resting, p.fading);
            p.joins := k.joins;
            p.resting := k.resting;
            p.fading := k.fading;
            fair := NOT k.odd;
        END IF;
        IF ending > 0 AND NOT fair THEN
            RAISE EXCEPTION 'grouped' USING ERRCODE = 'MP001';
        END IF;
    END IF;

    IF flow THEN
        FOR shared IN SELECT o.* FROM jsonb_array_elements_text(spec -> 'budgets') AS n (name)
                   JOIN millpond_budget AS o ON o.name = n.name LOOP
            IF NOT millpond_knows_budget(shared.spec::jsonb) THEN
                IF ending > 0 THEN
                    RAISE EXCEPTION 'unknown option' USING ERRCODE = 'MP001';
                END IF;
                refused := 'unknown option';
                RETURN;
            END IF;
            IF shared.waiting <> '{}' THEN
                -- An end is offered to who waits, and a start asks whose turn it is.
                IF ending > 0 THEN
                    RAISE EXCEPTION 'in line' USING ERRCODE = 'MP001';
                END IF;
                refused := 'in line';
                RETURN;
            END IF;
            budgets := budgets || shared.name;
            budget_rates := budget_rates || (shared.spec::jsonb -> 'rates');
            budget_buckets := budget_buckets || shared.buckets::jsonb;
            budget_left := budget_left || (
                SELECT (shared.spec::jsonb ->> 'max_concurrent')::bigint
                       - coalesce(sum(o.running), 0)::bigint - running_now
                  FROM jsonb_object_keys(shared.pools::jsonb) AS n (name)
                 CROSS JOIN LATERAL (SELECT x.running FROM millpond_pool AS x
                                      WHERE x.name = n.name AND x.id <> p.id
                                      ORDER BY x.turn DESC LIMIT 1) AS o);
        END LOOP;
    END IF;

    IF asked_pool IS NOT NULL THEN
        SELECT o.ctid AS spot, o.* INTO w
          FROM millpond_worker AS o WHERE o.id = asker ORDER BY o.turn DESC LIMIT 1;
        IF w.ahead > 0 THEN
            SELECT coalesce(sum(cardinality(l.ids)), 0) INTO own_claims FROM millpond_lease AS l
             WHERE l.n >= lease_number - 1024 AND l.worker = asker AND l.pool = p.id
               AND l.claims IS NOT NULL;
        END IF;
        slots := greatest(least(want, a_limit - running_now), 0);
        beginning := least(slots, own_claims);
        slots := slots - beginning;
        IF ahead > 0 AND running_now <= a_limit AND a_limit > 0 THEN
            may_claim := least(ahead, (spec ->> 'prefetch')::bigint - own_claims
                                      + beginning);
        END IF;
        refused := CASE
            WHEN p.id IS NULL OR w.id IS NULL THEN 'unknown'
            WHEN (p.grouped = 1 AND (NOT fair OR may_claim > 0)) OR (p.special = 1 AND NOT flow)
            THEN 'grouped'
            WHEN p.paused = 1 OR p.not_before > moment OR p.parked > 0 OR p.starved <> '{}'
              OR p.hungry <> '{}' OR w.expires_at <= moment OR w.functions = '[]' THEN 'special'
            WHEN want > 0 AND slots + beginning = 0 AND left_held <= 0 AND p.ready + own_claims > 0
            THEN 'starved'
        END;
        -- Each question by itself, and only where it matters.
        IF refused IS NULL AND (EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= inbox_upto)
                                -- The marks are those of another server: the tables were restored.
                                OR inbox_upto > pg_snapshot_xmax(pg_current_snapshot())) THEN
            refused := 'inbox';
        END IF;
        IF refused IS NULL AND cardinality(inbox_open) > 0 THEN
            IF EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(inbox_open)) THEN
                refused := 'inbox';
            END IF;
        END IF;
        IF refused IS NULL AND w.ahead - relayed > own_claims THEN
            IF EXISTS (SELECT 1 FROM millpond_live
                        WHERE worker = asker AND pool = p.id AND claim IS NOT NULL) THEN
                refused := 'held ahead, and not folded';
            END IF;
        END IF;
        IF refused IS NULL AND p.later > 0 THEN
            IF EXISTS (SELECT 1 FROM millpond_live
                        WHERE pool = p.id AND grp = 0 AND due >= p.undue_since AND due <= moment) THEN
                refused := 'due';
            END IF;
        END IF;
        IF refused IS NULL AND fair THEN
            IF EXISTS (SELECT 1 FROM millpond_seat
                        WHERE pool = p.id AND owner > '' AND resting = 0) THEN
                refused := 'owned';
            END IF;
        ELSIF refused IS NULL AND w.owner IS NOT NULL THEN
            IF EXISTS (SELECT 1 FROM millpond_group
                        WHERE pool = p.id AND unit = '' AND share = '' AND owner = w.owner) THEN
                refused := 'owned';
            END IF;
        END IF;
        IF refused IS NULL AND p.ready > 0 AND greatest(slots, 0) + greatest(may_claim, 0) > 0 THEN
            IF fair THEN
                SELECT count(*) AS n, array_agg(x.spot) AS spots, array_agg(x.id) AS ids,
                       array_agg(x.place) AS places,
                       ARRAY[0::bigint] AS ranks,
                       CASE WHEN min(x.submitted_at) = max(x.submitted_at)
                            THEN ARRAY[min(x.submitted_at)] ELSE array_agg(x.submitted_at) END
                       AS submitted_at,
                       CASE WHEN min(x.due) = max(x.due) THEN ARRAY[min(x.due)]
                            ELSE array_agg(x.due) END AS due,
                       CASE WHEN count(x.key) = 0 THEN '{}' ELSE array_agg(x.key) END AS keys,
                       CASE WHEN min(t.plain) = max(t.plain) THEN ARRAY[min(t.plain)]
                            ELSE array_agg(t.plain) END AS plain,
                       array_agg(t.body) AS bodies,
                       bool_and(x.simple AND t.plain IS NOT NULL) AS simple, sum(x.fresh) AS fresh,
                       array_agg(x.seat) AS seats, array_agg(x.grp) AS groups,
                       array_agg(x.unit) AS units, array_agg(x.last) AS last,
                       array_agg(x.stays) AS stays, array_agg(x.next_rank) AS next_rank,
                       array_agg(x.next_seq) AS next_seq, array_agg(x.next_due) AS next_due,
                       count(*) FILTER (WHERE NOT x.stays) AS resting,
                       (array_agg(x.turn))[1] AS turn, (array_agg(x.joined))[1] AS joined,
                       (array_agg(x.turn))[count(*)] AS last_turn,
                       (array_agg(x.joined))[count(*)] AS last_joined
                  INTO n
                  FROM (SELECT s.ctid AS seat, s.turn, s.joined, g.ctid AS grp, g.unit,
                               g.tasks = 1 AS last,
                               g.tasks > 1 AND (g.unit = '' OR (per_key IS NULL OR u.running + 1 < per_key)
                                                AND NOT coalesce(u.closed, false)) AS stays,
                               l.ctid AS spot, l.id, l.place, l.submitted_at, l.due, l.key, l.fresh,
                               f.rank AS next_rank, f.place & ((1::bigint << 40) - 1) AS next_seq,
                               f.due AS next_due,
                               l.runs = 0 AND l.attempt = 0 AND l.expires_at IS NULL
                               AND l.reason IS NULL AND l.cancel_requested = 0 AND l.listed = 0
                               AND l.lane IS NULL AND l.run IS NULL AND l.owner IS NULL
                               AND l.error IS NULL AND l.progress IS NULL AND l.steps IS NULL
                               AND (u.groups = 1 OR g.unit = ''
                                    OR (per_key IS NULL AND key_interval IS NULL))
                               -- Time alone would let it go on.
                               AND NOT (coalesce(u.closed, false) AND g.tasks > 1 AND g.unit <> ''
                                        AND (per_key IS NULL OR u.running + 1 < per_key))
                               AND (g.tasks = 1 OR f.due <= moment)
                               AND NOT EXISTS (
                                   SELECT 1 FROM millpond_group AS o
                                    WHERE o.pool = p.id AND o.share = s.share AND o.owner = ''
                                      AND o.ready = 1 AND (o.rank, o.seq) > (g.rank, g.seq))
                               AS simple
                          FROM (SELECT s.ctid, s.* FROM millpond_seat AS s
                                 WHERE s.pool = p.id AND s.owner = '' AND s.resting = 0
                                   AND (s.turn, s.joined) > (p.ring_turn, p.ring_join)
                                 ORDER BY s.turn, s.joined LIMIT slots) AS s
                         CROSS JOIN LATERAL
                               (SELECT o.ctid, o.* FROM millpond_group AS o
                                 WHERE o.pool = p.id AND o.share = s.share AND o.owner = ''
                                   AND o.ready = 1 ORDER BY o.rank, o.seq LIMIT 1) AS g
                         CROSS JOIN LATERAL
                               (SELECT o.ctid, o.* FROM millpond_live AS o
                                 WHERE o.grp = g.id AND o.grp > 0 ORDER BY o.rank, o.place LIMIT 1) AS l
                          LEFT JOIN LATERAL
                               (SELECT o.rank, o.place, o.due FROM millpond_live AS o
                                 WHERE o.grp = g.id AND o.grp > 0 AND g.tasks > 1
                                 ORDER BY o.rank, o.place OFFSET 1 LIMIT 1) AS f ON true
                          LEFT JOIN LATERAL
                               (SELECT o.running, o.groups, greatest(o.tat, ticks) + key_interval
                                       + (1 - key_depth) * key_interval > ticks AS closed FROM millpond_unit AS o
                                 WHERE o.pool = p.id AND o.unit = g.unit) AS u ON true
                         ORDER BY s.turn, s.joined) AS x
                 CROSS JOIN LATERAL
                       (SELECT o.body, o.plain FROM millpond_task AS o WHERE o.place = x.place OFFSET 0)
                       AS t;
                -- Each is served once, and none of them again before all of them.
                IF n.n > 0 AND (
                   ((n.turn, n.joined) <= (p.passed_turn, p.passed_join))
                   OR ((n.last_turn, n.last_joined) >= (n.turn + 1048576, n.joined))
                   OR (n.n < slots AND n.resting < n.n) OR p.resting + n.resting > 10000) THEN
                    refused := 'turns';
                END IF;
            ELSE
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
                          -- From where there may be something on, rank by rank: a column of its own
                          -- for each, or one for everything (see millpond_pool.bands).
                          FROM (SELECT u.rank, u.low,
                                       CASE WHEN p.bands IS NULL THEN 9223372036854775807
                                            ELSE u.rank END AS last_rank
                                  FROM unnest(coalesce(p.bands, '{-9223372036854775808}'),
                                              CASE WHEN p.bands IS NULL THEN '{0}' ELSE p.lows END)
                                       AS u (rank, low)
                                 ORDER BY u.rank) AS b
                         CROSS JOIN LATERAL
                               (SELECT o.ctid, o.* FROM millpond_live AS o
                                 WHERE o.grp = p.id AND o.grp > 0 AND (o.rank, o.place) >= (b.rank, b.low)
                                   AND o.rank <= b.last_rank
                                 ORDER BY o.rank, o.place
                                 LIMIT greatest(slots, 0) + greatest(may_claim, 0)) AS l
                         LIMIT greatest(slots, 0) + greatest(may_claim, 0)) AS x
                 CROSS JOIN LATERAL
                       (SELECT o.body, o.plain FROM millpond_task AS o WHERE o.place = x.place OFFSET 0)
                       AS t;
            END IF;
            taken := n.n;
            taken_fresh := coalesce(n.fresh, 0);
            starting := least(taken, greatest(slots, 0));
            claiming := taken - starting;
            IF refused IS NOT NULL THEN
                NULL;
            ELSIF taken > 0 AND NOT n.simple THEN
                refused := 'not simple';
            ELSIF taken > 0 AND (w.functions IS NOT NULL OR w.unknown <> '[]') THEN
                functions := w.functions::jsonb;
                unknown := w.unknown::jsonb;
                IF cardinality(n.plain) = 1 THEN
                    IF NOT coalesce(functions ? (n.plain[1]::json ->> 'function'), true)
                       OR unknown ? (n.plain[1]::json ->> 'function') THEN
                        refused := 'unknown function';
                    END IF;
                ELSIF EXISTS (SELECT 1 FROM unnest(n.plain) AS f (plain)
                               WHERE NOT coalesce(functions ? (f.plain::json ->> 'function'), true)
                                  OR unknown ? (f.plain::json ->> 'function')) THEN
                    refused := 'unknown function';
                END IF;
            END IF;
            IF refused IS NULL AND flow AND taken > 0 THEN
                SELECT sum((f.plain::json ->> 'weight')::bigint) INTO weight FROM unnest(n.plain) AS f (plain);
                IF cardinality(n.plain) < taken THEN
                    weight := weight * taken;
                END IF;
                charged := millpond_charge(spec -> 'rates', p.tats::jsonb, taken, weight, ticks);
                p.tats := charged.buckets::text;
                IF NOT charged.fits THEN
                    refused := 'rate';
                END IF;
                FOR i IN 1..cardinality(budgets) LOOP
                    charged := millpond_charge(budget_rates[i], budget_buckets[i], taken, weight, ticks);
                    budget_buckets[i] := charged.buckets;
                    IF NOT charged.fits OR taken > budget_left[i] THEN
                        refused := 'budget';
                    END IF;
                END LOOP;
            END IF;
        END IF;
        IF refused IS NULL AND want > 0 AND slots > 0 AND starting + beginning = 0
           AND p.claimed > relayed THEN
            refused := 'hungry';
        END IF;
        IF refused IS NOT NULL THEN
            IF ending > 0 THEN
                RAISE EXCEPTION '%', refused USING ERRCODE = 'MP001';
            END IF;
            IF taken > 0 AND NOT fair THEN
                PERFORM millpond_raise(p.id, n.ranks[1], n.places[1], NULL);
            END IF;
            RETURN;
        END IF;
        own_claims := own_claims - beginning + claiming;
        give_back := own_claims > 0 AND running_now + beginning + starting > a_limit;
    END IF;

    IF fair AND p.fading > 0 THEN
        -- Keys whose rate no longer matters.
        WITH over AS MATERIALIZED (
            SELECT o.ctid AS spot, o.running = 0 AND o.groups = 0 AND o.paused = 0 AND o.blocked = 0 AS idle
              FROM millpond_unit AS o WHERE o.pool = p.id AND o.fades_at <= moment
        ), gone AS (
            DELETE FROM millpond_unit AS o USING over AS f WHERE o.ctid = f.spot AND f.idle
        ), kept AS (
            UPDATE millpond_unit AS o SET fades_at = NULL FROM over AS f
             WHERE o.ctid = f.spot AND NOT f.idle
        )
        SELECT count(*) INTO faded FROM over;
        p.fading := p.fading - faded;
    END IF;
    IF ending > 0 THEN
        told := told + ending + relayed;
        INSERT INTO millpond_audit
        VALUES (told, ending + relayed, moment, NULL, 'complete',
                starts, p.id, a_worker, settled_tokens, e.ids, e.places, e.due, e.keys, e.plain);
        IF whole THEN
            INSERT INTO millpond_measured
            VALUES (p.id, p.measured + ending, NULL, e.due, e.started_at, moment, ending);
            p.measured := p.measured + ending;
        ELSIF in_order THEN
            p.measured := e.measured;
        ELSIF e.timed > 0 THEN
            INSERT INTO millpond_measured VALUES (p.id, p.measured + e.timed, e.times);
            p.measured := p.measured + e.timed;
        END IF;
        IF p.measured % 1000 < 2 * ending THEN
            -- What was there before was removed before.
            DELETE FROM millpond_measured
             WHERE pool = p.id AND upto <= p.measured - 2000
               AND upto > p.measured - 4000 - 2 * ending;
        END IF;
    END IF;
    IF beginning > 0 THEN
        SELECT * INTO b FROM millpond_begin_claims(p.id, asker, beginning, moment, lease_number);
        IF b.n <> beginning THEN
            RAISE EXCEPTION 'claims are not folded' USING ERRCODE = 'MP001';
        END IF;
        told := told + beginning;
        INSERT INTO millpond_audit
        VALUES (told, beginning, moment, NULL, 'lease', NULL, p.id, asker, b.tokens, b.ids, b.places,
                b.due, b.keys, b.plain);
    END IF;
    IF taken > 0 THEN
        DELETE FROM millpond_live WHERE ctid = ANY(n.spots);
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> taken THEN PERFORM millpond_miscounted('live', taken, touched); END IF;
        IF NOT fair AND p.bands IS NOT NULL THEN
            -- What stood before the last of them has left.
            last_rank := n.ranks[cardinality(n.ranks)];
            last_place := n.places[taken];
            IF p.ready <= taken THEN
                p.bands := '{}';
                p.lows := '{}';
            ELSIF cardinality(p.bands) = 1 THEN
                p.lows := ARRAY[last_place + 1];
            ELSE
                SELECT array_agg(u.rank),
                       array_agg(CASE WHEN u.rank = last_rank THEN last_place + 1 ELSE u.low END)
                  INTO p.bands, p.lows
                  FROM unnest(p.bands, p.lows) AS u (rank, low) WHERE u.rank >= last_rank;
            END IF;
        END IF;
        IF fair THEN
            UPDATE millpond_seat AS s
               SET turn = s.turn + 1048576, resting = 1 - u.stays::integer
              FROM unnest(n.seats, n.stays) AS u (spot, stays)
             WHERE s.ctid = u.spot;
            GET DIAGNOSTICS touched = ROW_COUNT;
            IF touched <> taken THEN PERFORM millpond_miscounted('seat', taken, touched); END IF;
            p.resting := p.resting + n.resting;
            IF p.resting > 0 THEN
                -- None of them stands before what was served last.
                DELETE FROM millpond_seat
                 WHERE pool = p.id AND resting = 1
                   AND (turn, joined) > (p.passed_turn, p.passed_join)
                   AND (turn, joined) <= (n.last_turn, n.last_joined);
                GET DIAGNOSTICS forgotten = ROW_COUNT;
                p.resting := p.resting - forgotten;
            END IF;
            p.passed_turn := n.last_turn;
            p.passed_join := n.last_joined;
            p.ring_turn := n.last_turn;
            p.ring_join := n.last_joined;
            DELETE FROM millpond_group WHERE ctid = ANY(
                ARRAY(SELECT u.spot FROM unnest(n.groups, n.last) AS u (spot, last) WHERE u.last));
            GET DIAGNOSTICS forgotten = ROW_COUNT;
            UPDATE millpond_group AS g
               SET tasks = g.tasks - 1, rank = u.rank, seq = u.seq, due = u.due,
                   ready = u.stays::integer
              FROM unnest(n.groups, n.last, n.stays, n.next_rank, n.next_seq, n.next_due)
                   AS u (spot, last, stays, rank, seq, due)
             WHERE g.ctid = u.spot AND NOT u.last;
            GET DIAGNOSTICS touched = ROW_COUNT;
            IF forgotten + touched <> taken THEN
                PERFORM millpond_miscounted('group', taken, forgotten + touched);
            END IF;
            -- By name: what stands above may have rewritten some of them.
            UPDATE millpond_unit AS o
               SET running = o.running + (o.unit <> '')::integer * u.n, groups = o.groups - u.last,
                   tat = CASE WHEN key_interval IS NULL OR o.unit = '' THEN o.tat
                              ELSE greatest(o.tat, ticks) + key_interval END
              FROM (SELECT y.unit, count(*) AS n, count(*) FILTER (WHERE y.last) AS last
                      FROM unnest(n.units, n.last) AS y (unit, last) GROUP BY y.unit) AS u
             WHERE o.pool = p.id AND o.unit = u.unit;
            GET DIAGNOSTICS touched = ROW_COUNT;
            SELECT count(DISTINCT y.unit) INTO expected FROM unnest(n.units) AS y (unit);
            IF touched <> expected THEN PERFORM millpond_miscounted('unit', expected, touched); END IF;
            DELETE FROM millpond_unit WHERE pool = p.id AND unit = '' AND groups = 0;
        END IF;
        ids := n.ids;
        places := n.places;
        submitted := n.submitted_at;
        dues := n.due;
        bodies := n.bodies;
        IF starting > 0 THEN
            told := told + starting;
            INSERT INTO millpond_lease
            VALUES (new_token, moment, p.id, asker, NULL, NULL, ids[:starting], places[:starting],
                    n.ranks[:starting], n.submitted_at[:starting], n.due[:starting], n.keys[:starting],
                    n.plain[:starting], lease_number);
            INSERT INTO millpond_audit
            VALUES (told, starting, moment, NULL, 'lease', NULL, p.id, asker, ARRAY[new_token],
                    ids[:starting], places[:starting], n.due[:starting], n.keys[:starting],
                    n.plain[:starting]);
        END IF;
        IF claiming > 0 THEN
            told := told + claiming;
            -- A column of one value is as good for a part of them.
            IF starting > 0 THEN
                n.ids := ids[starting + 1:];
                n.places := places[starting + 1:];
                IF cardinality(n.ranks) > 1 THEN n.ranks := n.ranks[starting + 1:]; END IF;
                IF cardinality(n.submitted_at) > 1 THEN
                    n.submitted_at := n.submitted_at[starting + 1:];
                END IF;
                IF cardinality(n.due) > 1 THEN n.due := n.due[starting + 1:]; END IF;
                IF cardinality(n.keys) > 1 THEN n.keys := n.keys[starting + 1:]; END IF;
                IF cardinality(n.plain) > 1 THEN n.plain := n.plain[starting + 1:]; END IF;
            END IF;
            INSERT INTO millpond_lease
            VALUES (new_token, 'infinity', p.id, asker, p.revision,
                    ARRAY(SELECT generate_series(claim_number, claim_number + claiming - 1)),
                    n.ids, n.places, n.ranks, n.submitted_at, n.due, n.keys, n.plain, lease_number);
            INSERT INTO millpond_audit
            VALUES (told, claiming, moment, NULL, 'claim', NULL, p.id, asker, ARRAY[new_token],
                    n.ids, n.places, n.due, n.keys, n.plain);
            claim_number := claim_number + claiming;
        END IF;
    END IF;
    IF beginning > 0 THEN
        -- They come first: they were next before anything that is queued now.
        tokens := b.tokens;
        IF taken > 0 THEN
            submitted := b.submitted_at || CASE WHEN cardinality(submitted) = taken THEN submitted
                ELSE array_fill(submitted[1], ARRAY[taken]) END;
            dues := b.due || CASE WHEN cardinality(dues) = taken THEN dues
                ELSE array_fill(dues[1], ARRAY[taken]) END;
        ELSE
            submitted := b.submitted_at;
            dues := b.due;
        END IF;
        ids := b.ids || ids;
        places := b.places || places;
        bodies := b.bodies || bodies;
        starting := starting + beginning;
    END IF;
    running_now := running_now + starting;
    left_held := left_held + starting;
    processed := coalesce((p.totals::json ->> 'completed')::bigint, 0) + ending
                 + coalesce((p.totals::json ->> 'failed')::bigint, 0);
    p.claimed := p.claimed - relayed - beginning + claiming;
    has_room := running_now < a_limit OR p.claimed < (spec ->> 'prefetch')::bigint;
    IF taken > 0 AND cardinality(budgets) > 0 THEN
        UPDATE millpond_budget AS o SET buckets = n.buckets::text
          FROM unnest(budgets, budget_buckets) AS n (name, buckets)
         WHERE o.name = n.name AND n.buckets <> '[]';
        GET DIAGNOSTICS touched = ROW_COUNT;
        SELECT count(*) INTO expected FROM unnest(budget_buckets) AS b (buckets) WHERE b.buckets <> '[]';
        IF touched <> expected THEN PERFORM millpond_miscounted('budget', expected, touched); END IF;
    END IF;
    IF ending + taken + beginning + faded > 0 THEN
        UPDATE millpond_pool
           SET live = live_left, running = running_now, claimed = p.claimed,
               joins = p.joins, passed_turn = p.passed_turn, passed_join = p.passed_join,
               fading = p.fading, tats = p.tats, ring_turn = p.ring_turn, ring_join = p.ring_join,
               resting = p.resting, fresh = p.fresh - taken_fresh, ready = p.ready - taken, kept = p.kept + ending,
               measured = p.measured,
               totals = CASE WHEN ending = 0 THEN p.totals ELSE
                   jsonb_set(p.totals::jsonb, '{completed}', to_jsonb(
                       coalesce((p.totals::jsonb ->> 'completed')::bigint, 0) + ending))::text END,
               holding = CASE WHEN left_held > 0 THEN held || jsonb_build_object(a_worker, left_held)
                              ELSE held - a_worker END::text,
               bands = p.bands, lows = p.lows,
               -- It was seen above that nothing is due, where anybody asked.
               undue_since = CASE WHEN asked_pool IS NULL THEN p.undue_since ELSE moment END,
               writes = p.writes + 1, turn = (p.writes + 1) >> 5
         WHERE ctid = p.spot;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
        UPDATE millpond_meta
           SET version = version + 1, latest = moment, records = told, next_claim = claim_number,
               leases = lease_number, turn = (version + 1) >> 5
         WHERE ctid = meta;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> 1 THEN PERFORM millpond_miscounted('meta', 1, touched); END IF;
        IF relayed + beginning <> claiming THEN
            UPDATE millpond_worker
               SET ahead = ahead - relayed - beginning + claiming,
                   writes = writes + 1, turn = (writes + 1) >> 5
             WHERE ctid = (SELECT ctid FROM millpond_worker
                            WHERE id = a_worker ORDER BY turn DESC LIMIT 1);
            GET DIAGNOSTICS touched = ROW_COUNT;
            IF touched <> 1 THEN PERFORM millpond_miscounted('worker', 1, touched); END IF;
        END IF;
        IF lease_number % 512 = 0 THEN
            -- Those that stay stand among the recent again.
            UPDATE millpond_lease SET n = lease_number
             WHERE n >= lease_number - 1024 AND n <= lease_number - 512;
        END IF;
    END IF;
    IF asked_pool IS NOT NULL AND running_now < a_limit AND live_left > running_now THEN
        IF flow THEN
            -- What would be next, and when the rates allow it.
            IF fair THEN
                SELECT (t.plain::json ->> 'weight')::bigint, t.place INTO weight, last_place
                  FROM (SELECT * FROM millpond_seat AS o
                         WHERE o.pool = p.id AND o.owner = '' AND o.resting = 0
                           AND (o.turn, o.joined) > (p.ring_turn, p.ring_join)
                         ORDER BY o.turn, o.joined LIMIT 1) AS s
                 CROSS JOIN LATERAL
                       (SELECT * FROM millpond_group AS o
                         WHERE o.pool = p.id AND o.share = s.share AND o.owner = ''
                           AND o.ready = 1 ORDER BY o.rank, o.seq LIMIT 1) AS g
                 CROSS JOIN LATERAL
                       (SELECT o.place FROM millpond_live AS o
                         WHERE o.grp = g.id AND o.grp > 0 ORDER BY o.rank, o.place LIMIT 1) AS l
                 CROSS JOIN LATERAL
                       (SELECT o.place, o.plain FROM millpond_task AS o WHERE o.place = l.place OFFSET 0)
                       AS t;
            ELSE
                SELECT (t.plain::json ->> 'weight')::bigint, t.place INTO weight, last_place
                  FROM (SELECT u.rank, u.low,
                               CASE WHEN p.bands IS NULL THEN 9223372036854775807 ELSE u.rank END AS last_rank
                          FROM unnest(coalesce(p.bands, '{-9223372036854775808}'),
                                      CASE WHEN p.bands IS NULL THEN '{0}' ELSE p.lows END)
                               AS u (rank, low)
                         ORDER BY u.rank) AS b
                 CROSS JOIN LATERAL
                       (SELECT o.place FROM millpond_live AS o
                         WHERE o.grp = p.id AND o.grp > 0 AND (o.rank, o.place) >= (b.rank, b.low)
                           AND o.rank <= b.last_rank ORDER BY o.rank, o.place LIMIT 1) AS l
                 CROSS JOIN LATERAL
                       (SELECT o.place, o.plain FROM millpond_task AS o WHERE o.place = l.place OFFSET 0)
                       AS t LIMIT 1;
            END IF;
            IF last_place IS NOT NULL THEN
                own_at := millpond_ready_at(spec -> 'rates', p.tats::jsonb, weight, ticks);
                shared_at := ticks;
                FOR i IN 1..cardinality(budgets) LOOP
                    shared_at := greatest(shared_at, millpond_ready_at(
                        budget_rates[i], budget_buckets[i], weight, ticks));
                END LOOP;
                IF weight IS NULL OR (own_at <= ticks AND (shared_at > ticks OR taken >= ANY(budget_left)))
                THEN
                    -- It would stand in line for a budget.
                    RAISE EXCEPTION 'in line' USING ERRCODE = 'MP001';
                END IF;
                next_at := greatest(own_at, shared_at)::double precision / 1000000;
            END IF;
            IF p.later > 0 THEN
                SELECT least(next_at, o.due) INTO next_at FROM millpond_live AS o
                 WHERE o.pool = p.id AND o.grp = 0 ORDER BY o.due, o.place LIMIT 1;
            END IF;
        ELSIF fair THEN
            IF EXISTS (SELECT 1 FROM millpond_seat
                        WHERE pool = p.id AND owner = '' AND resting = 0
                          AND (turn, joined) > (p.ring_turn, p.ring_join) LIMIT 1) THEN
                next_at := moment;
            ELSIF p.later > 0 THEN
                SELECT due INTO next_at FROM millpond_live
                 WHERE pool = p.id AND grp = 0 ORDER BY due, place LIMIT 1;
            END IF;
        ELSIF own_claims > 0 OR (starting - beginning = slots AND p.ready > taken) THEN
            next_at := moment;
        ELSIF p.later > 0 THEN
            SELECT due INTO next_at FROM millpond_live
             WHERE pool = p.id AND grp = 0 ORDER BY due, place LIMIT 1;
        END IF;
    END IF;
END $$;
