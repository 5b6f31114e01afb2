-- The writes of a step, after all was decided.

-- Write what a step does, and complete its answer.
CREATE FUNCTION millpond_write_step(
    a millpond_step_answer, p millpond_pool, spot tid, r millpond_rules, w millpond_room,
    e millpond_ends, n millpond_next, meta tid, from_lease bigint, lease_number bigint, new_token bigint,
    ending integer, asked boolean, asker text
) RETURNS millpond_step_answer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    begun constant integer := coalesce(e.begun, 0);
    beginning constant integer := coalesce(w.beginning, 0);
    taken constant integer := coalesce(n.n, 0);
    starting constant integer := least(taken, coalesce(w.slots, 0));
    a_worker constant text := coalesce(e.worker, asker);
    held jsonb := p.holding::jsonb;
    left_held constant bigint := coalesce((held ->> a_worker)::bigint, 0) - ending + begun + starting + beginning;
    own_claims constant bigint := coalesce(w.own_claims, 0) - beginning + taken - starting;
    faded bigint := 0;
    b millpond_begun;
BEGIN
    IF ending > 0 THEN
        p.measured := millpond_measure_ends(p.id, p.measured, e, ending, a.moment);
        PERFORM millpond_end_keys(e, ending);
        IF r.in_lanes THEN
            SELECT * INTO a.dry_lanes, a.dry_processed FROM millpond_end_in_lanes(p.id, e);
        END IF;
        a.finished_runs := millpond_leave_runs(e, ending, p.name, a.moment);
        p.kept := p.kept + e.over;
        p.totals := millpond_count_ended(p.totals::jsonb, e.over - e.failed, e.failed)::text;
    END IF;
    IF beginning > 0 THEN
        b := millpond_begin_claims(p.id, asker, beginning, a.moment, from_lease, lease_number);
    END IF;
    IF taken > 0 THEN
        p := millpond_remove_queued(p, r, n);
        PERFORM millpond_store_lease(n, starting, p.id, asker, a.moment, new_token, lease_number);
        a.ids := n.ids;
        a.places := n.places;
        a.submitted := n.submitted_at;
        a.dues := n.due;
        a.bodies := n.bodies;
        a.attempts := n.attempts;
        a.first_started_at := n.first_started_at;
        a.lanes := n.lanes;
        a.sequences := n.sequences;
        IF r.flow THEN
            p.tats := r.tats::text;
            PERFORM millpond_store_budgets(r);
        END IF;
    END IF;
    IF r.grouped AND p.fading > 0 THEN
        -- Not before units are written by their spots.
        faded := millpond_forget_faded(p.id, a.moment);
        p.fading := p.fading - faded;
    END IF;
    IF beginning > 0 THEN
        -- They come first: they were next before anything that is queued now.
        a.tokens := b.tokens;
        a.submitted := b.submitted_at || CASE WHEN taken > 0 THEN millpond_each(a.submitted, taken) END;
        a.dues := b.due || CASE WHEN taken > 0 THEN millpond_each(a.dues, taken) END;
        a.ids := b.ids || a.ids;
        a.places := b.places || a.places;
        a.bodies := b.bodies || a.bodies;
        IF a.attempts IS NOT NULL THEN
            a.attempts := array_fill(0, ARRAY[beginning]) || a.attempts;
            a.first_started_at := array_fill(NULL::double precision, ARRAY[beginning]) || a.first_started_at;
        END IF;
    END IF;
    a.starting := starting + beginning;
    a.running_now := a.running_now + a.starting;
    a.give_back := own_claims > 0 AND a.running_now > r.a_limit;
    a.processed := coalesce((p.totals::json ->> 'completed')::bigint, 0)
                   + coalesce((p.totals::json ->> 'failed')::bigint, 0);
    p.claimed := p.claimed - begun - beginning + taken - starting;
    a.has_room := a.running_now < r.a_limit OR p.claimed < r.prefetch;
    a.was_full := r.grouped OR r.flow OR r.prefetch > 0 OR p.running >= r.a_limit;
    p.live := a.live_left;
    p.running := a.running_now;
    p.fresh := p.fresh - coalesce(n.fresh, 0);
    p.ready := p.ready - taken;
    IF ending + taken + beginning + faded + coalesce(r.promoted, 0) > 0 THEN
        p.holding := (CASE WHEN left_held > 0 THEN held || jsonb_build_object(a_worker, left_held)
                           ELSE held - a_worker END)::text;
        IF asked AND p.later = 0 THEN
            p.undue_since := a.moment;
        END IF;
        PERFORM millpond_write_pool(p, spot);
        PERFORM millpond_number_step(meta, a, p.id, p.revision, e, b, n, ending, starting, asker, new_token,
                                     lease_number);
        IF taken - starting - begun - beginning <> 0 THEN
            PERFORM millpond_write_worker(a_worker, taken - starting - begun - beginning, NULL);
        END IF;
    END IF;
    IF asked AND a.running_now < r.a_limit AND a.live_left > a.running_now THEN
        a.next_at := millpond_next_at(p, r, taken, own_claims > 0 OR (starting = w.slots AND p.ready > 0));
    END IF;
    RETURN a;
END $$;

-- Return the totals of a pool after some tasks have ended: by their status, and how many failed ones are kept.
CREATE FUNCTION millpond_count_ended(totals jsonb, completed bigint, failed bigint) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT totals || millpond_more('completed', totals, completed) || millpond_more('failed', totals, failed)
           -- Where that was not counted yet, a reader counts.
           || CASE WHEN totals ? 'dead' OR NOT totals ? 'failed' THEN millpond_more('dead', totals, failed)
                   ELSE '{}' END
$$;

-- Take tasks out of the queue of a pool; return the pool with its queue as it is then.
CREATE FUNCTION millpond_remove_queued(p millpond_pool, r millpond_rules, n millpond_next)
RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    touched bigint;
BEGIN
    IF n.own_rows IS NULL THEN
        DELETE FROM millpond_live WHERE ctid = ANY(n.spots);
    ELSE
        DELETE FROM millpond_live
         WHERE ctid = ANY(ARRAY(SELECT u.spot FROM unnest(n.spots) WITH ORDINALITY AS u (spot, k)
                                 WHERE u.k <> ALL(n.own_rows)));
    END IF;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> n.n - coalesce(cardinality(n.own_rows), 0) THEN
        PERFORM millpond_miscounted('live', n.n, touched);
    END IF;
    IF r.grouped THEN
        RETURN millpond_take_turns(p, r, n);
    END IF;
    SELECT * INTO p.bands, p.lows
      FROM millpond_mark_taken(p.ready, p.bands, p.lows, n.n, n.ranks[cardinality(n.ranks)], n.places[n.n]);
    RETURN p;
END $$;

-- Store the first `starting` tasks as running.
CREATE FUNCTION millpond_store_lease(
    n millpond_next, starting integer, the_pool bigint, asker text, moment double precision,
    new_token bigint, lease_number bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    own_rows constant integer := coalesce(cardinality(n.own_rows), 0);
    folded constant integer := starting - own_rows;
    touched bigint;
BEGIN
    IF own_rows > 0 THEN
        UPDATE millpond_live AS l
           SET running = 1, attempt = l.attempt + 1, runs = l.runs + 1, fresh = 0, token = new_token,
               worker = asker, started_at = moment, first_started_at = coalesce(l.first_started_at, moment),
               grp = NULL
         WHERE l.ctid = ANY(ARRAY(SELECT n.spots[k] FROM unnest(n.own_rows) AS k));
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> own_rows THEN PERFORM millpond_miscounted('live', own_rows, touched); END IF;
    END IF;
    IF folded = 0 THEN
        RETURN;
    END IF;
    IF own_rows > 0 THEN
        n.ids := millpond_without(n.ids, n.own_rows);
        n.places := millpond_without(n.places, n.own_rows);
        n.ranks := millpond_without(n.ranks, n.own_rows);
        n.submitted_at := millpond_without(n.submitted_at, n.own_rows);
        n.due := millpond_without(n.due, n.own_rows);
        n.keys := millpond_without(n.keys, n.own_rows);
        n.plain := millpond_without(n.plain, n.own_rows);
    END IF;
    INSERT INTO millpond_lease
    VALUES (new_token, moment, the_pool, asker, NULL, NULL, n.ids[:folded], n.places[:folded],
            n.ranks[:folded], n.submitted_at[:folded], n.due[:folded], n.keys[:folded],
            n.plain[:folded], lease_number);
END $$;

-- Write the counts of a pool.
CREATE FUNCTION millpond_write_pool(p millpond_pool, spot tid) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    touched bigint;
BEGIN
    UPDATE millpond_pool
       SET live = p.live, running = p.running, claimed = p.claimed, fresh = p.fresh, ready = p.ready,
           later = p.later, kept = p.kept, measured = p.measured, totals = p.totals, holding = p.holding,
           joins = p.joins, passed_turn = p.passed_turn, passed_join = p.passed_join,
           resting = p.resting, fading = p.fading, unit_timers = p.unit_timers, tats = p.tats, bands = p.bands, lows = p.lows,
           undue_since = p.undue_since, ring_turn = p.ring_turn, ring_join = p.ring_join,
           writes = p.writes + 1, turn = (p.writes + 1) >> 5
     WHERE ctid = spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
END $$;

-- The end of a step, which only one call of the store does at a time: number what it did, write the audit of it,
-- and store the tasks behind the first `starting` as prefetched.
CREATE FUNCTION millpond_number_step(
    meta tid, a millpond_step_answer, the_pool bigint, revision bigint, e millpond_ends, b millpond_begun,
    n millpond_next, ending integer, starting integer, asker text, new_token bigint, lease_number bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    beginning constant integer := coalesce(cardinality(b.ids), 0);
    claiming constant integer := coalesce(n.n, 0) - starting;
    low constant integer := starting + 1;
    ended constant integer := CASE WHEN ending > 0 THEN ending + e.begun ELSE 0 END;
    over constant integer := coalesce(cardinality(a.finished_runs), 0);
    s record;
    last bigint;
    differs text[];
BEGIN
    IF n.runs IS NOT NULL OR n.lanes IS NOT NULL THEN
        differs := ARRAY(SELECT CASE WHEN u.runs > 0 OR u.lane IS NOT NULL THEN
                                json_build_object('attempt', coalesce(u.attempt, 0) + 1,
                                                  'runs', coalesce(u.runs, 0) + 1,
                                                  'lane', u.lane, 'sequence', u.sequence)::text END
                           FROM unnest(n.ids[:starting], n.attempts[:starting], n.runs[:starting], n.lanes,
                                       n.sequences)
                                WITH ORDINALITY AS u (id, attempt, runs, lane, sequence, k) ORDER BY u.k);
    END IF;
    s := millpond_reserve(meta, a.moment, ended + beginning + starting + claiming + over, claiming, 1);
    last := s.records + ended + beginning + starting;
    -- Each by itself, and only those that there are: a statement for all of them costs more than two.
    IF ended > 0 THEN
        INSERT INTO millpond_audit
        VALUES (s.records + ended, ended, s.at, NULL, 'complete', e.starts, the_pool, e.worker, e.tokens, e.ids,
                e.places, e.due, e.keys, e.plain, e.differs);
    END IF;
    IF beginning > 0 THEN
        INSERT INTO millpond_audit
        VALUES (last - starting, beginning, s.at, NULL, 'lease', NULL, the_pool, asker, b.tokens, b.ids, b.places,
                b.due, b.keys, b.plain);
    END IF;
    IF starting > 0 THEN
        INSERT INTO millpond_audit
        VALUES (last, starting, s.at, NULL, 'lease', NULL, the_pool, asker, ARRAY[new_token], n.ids[:starting],
                n.places[:starting], n.due[:starting], n.keys[:starting], n.plain[:starting], differs);
    END IF;
    IF claiming > 0 THEN
        last := last + claiming;
        INSERT INTO millpond_lease
        VALUES (new_token, 'infinity', the_pool, asker, revision,
                ARRAY(SELECT generate_series(s.next_claim, s.next_claim + claiming - 1)),
                n.ids[low:], n.places[low:], millpond_part(n.ranks, low, n.n),
                millpond_part(n.submitted_at, low, n.n), millpond_part(n.due, low, n.n),
                millpond_part(n.keys, low, n.n), millpond_part(n.plain, low, n.n), lease_number);
        INSERT INTO millpond_audit
        VALUES (last, claiming, s.at, NULL, 'claim', NULL, the_pool, asker, ARRAY[new_token], n.ids[low:],
                n.places[low:], millpond_part(n.due, low, n.n), millpond_part(n.keys, low, n.n),
                millpond_part(n.plain, low, n.n));
    END IF;
    IF over > 0 THEN
        INSERT INTO millpond_audit
        VALUES (last + over, over, s.at, NULL, 'run finished', NULL, the_pool, NULL, '{}', a.finished_runs, '{}',
                '{}', '{}', '{}');
    END IF;
    IF lease_number < s.first_lease THEN
        -- So many others have come meanwhile that no search would find it.
        UPDATE millpond_lease AS o SET n = s.leases WHERE o.n = lease_number AND o.pool = the_pool;
    END IF;
    IF s.leases - s.first_lease >= 1024 THEN
        PERFORM millpond_renumber_leases(s.first_lease, s.leases);
    END IF;
END $$;
