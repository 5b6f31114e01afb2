-- Calls of workers in simple pools, as most are: their settings limit nothing but how many tasks run.

-- Do what millpond_settle_and_lease does if all attempts complete and nothing is prefetched; refuse
-- whatever that function must decide. It returned the number of the pool, the digest of its settings, and the
-- limit in them; they are the same as long as the digest is.
CREATE FUNCTION millpond_step_simple(
    at double precision, at_most double precision,
    settled bigint[], settled_tokens bigint[], one_result bytea, results bytea[],
    known_pool bigint, digest bigint, a_limit bigint, asker text, new_token bigint, want integer
) RETURNS millpond_step_answer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_memoize = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    ending constant integer := coalesce(cardinality(settled), 0);
    the_pool constant bigint := millpond_lock_pool(NULL, NULL, known_pool);
    a millpond_step_answer;
    s record;             -- the pool, the store and the worker
    e millpond_ends;      -- the attempts that end
    n millpond_next;      -- the tasks it starts
    slots bigint;
    held bigint;          -- how many tasks the worker still runs
    touched bigint;
BEGIN
    -- In a statement of its own: it sees what the holder before has committed.
    SELECT p.*, m.*, w.functions, w.unknown, w.expires_at,
           millpond_moment(at, at_most, m.latest, m.behind, millpond_clock()) AS moment,
           p.odd OR w.ahead > 0 OR w.functions IS NOT DISTINCT FROM '[]'
           OR EXISTS (SELECT FROM millpond_inbox AS i WHERE i.xid >= m.seen_upto)
           -- The marks are those of another server: the tables were restored.
           OR m.seen_upto > pg_snapshot_xmax(pg_current_snapshot())
           OR w.owner IS NOT NULL
              AND EXISTS (SELECT FROM millpond_group AS g
                           WHERE g.pool = the_pool AND g.unit = '' AND g.share = '' AND g.owner = w.owner) AS refused
      INTO s
      FROM (SELECT x.ctid AS spot, x.name, x.not_before, x.live, x.running, x.ready, x.kept, x.measured,
                   x.totals::jsonb AS totals, x.holding::jsonb AS holding, x.bands, x.lows,
                   hashtextextended(x.spec, 0) IS DISTINCT FROM digest OR x.paused + x.grouped + x.special > 0
                   OR x.claimed + x.later + x.parked + x.unit_timers > 0
                   OR x.starved <> '{}' OR x.hungry <> '{}' AS odd
              FROM millpond_pool AS x WHERE x.id = the_pool ORDER BY x.turn DESC LIMIT 1) AS p,
           (SELECT x.ctid AS meta, x.latest, x.behind, x.leases, x.seen_upto, x.seen_open
              FROM millpond_meta AS x ORDER BY x.turn DESC LIMIT 1) AS m,
           (SELECT x.functions, x.unknown, x.expires_at, x.ahead, x.owner
              FROM millpond_worker AS x WHERE x.id = asker ORDER BY x.turn DESC LIMIT 1) AS w;
    slots := greatest(least(want, a_limit - s.running + ending), 0);
    held := coalesce((s.holding ->> asker)::bigint, 0) - ending;
    IF cardinality(s.seen_open) > 0 THEN
        s.refused := s.refused OR EXISTS (SELECT FROM millpond_inbox AS i WHERE i.xid = ANY(s.seen_open));
    END IF;
    a.refused := 'not simple';
    IF s.refused IS DISTINCT FROM false OR s.moment IS NULL OR s.not_before > s.moment OR s.expires_at <= s.moment
       -- It gets nothing, and has nothing: others may have to give it some of theirs.
       OR want > 0 AND slots = 0 AND held <= 0 AND s.ready > 0 THEN
        RETURN a;
    END IF;
    IF s.ready > 0 AND slots > 0 THEN
        n := millpond_next_in_line(the_pool, s.bands, s.lows, slots, s.moment);
        IF n.refused IS NOT NULL OR n.own_rows IS NOT NULL
           OR millpond_cannot_run(n.n, n.plain, s.functions::jsonb, s.unknown::jsonb) IS NOT NULL THEN
            RETURN a;
        END IF;
    END IF;
    a.refused := NULL;
    a.moment := s.moment;
    a.starting := coalesce(n.n, 0);
    IF ending > 0 THEN
        e := millpond_end_attempts(s.moment, settled, settled_tokens, one_result, results, NULL, NULL, NULL, NULL,
                                   asker, the_pool, s.leases);
        s.measured := millpond_measure_ends(the_pool, s.measured, e, ending, s.moment);
        IF position('"idempotency_key":' IN array_to_string(e.plain, '')) > 0
           OR position('"run":' IN array_to_string(e.plain, '')) > 0 THEN
            PERFORM millpond_end_keys(e, ending);
            a.finished_runs := millpond_leave_runs(e, ending, s.name, s.moment);
        END IF;
        s.totals := millpond_count_ended(s.totals, ending, 0);
    END IF;
    IF a.starting > 0 THEN
        DELETE FROM millpond_live WHERE ctid = ANY(n.spots);
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> a.starting THEN PERFORM millpond_miscounted('live', a.starting, touched); END IF;
        INSERT INTO millpond_lease
        VALUES (new_token, s.moment, the_pool, asker, NULL, NULL, n.ids, n.places, n.ranks, n.submitted_at, n.due,
                n.keys, n.plain, s.leases);
        SELECT * INTO s.bands, s.lows
          FROM millpond_mark_taken(s.ready, s.bands, s.lows, n.n, n.ranks[cardinality(n.ranks)], n.places[n.n]);
        a.ids := n.ids;
        a.places := n.places;
        a.submitted := n.submitted_at;
        a.dues := n.due;
        a.bodies := n.bodies;
    END IF;
    a.pool_name := s.name;
    a.live_left := s.live - ending;
    a.running_now := s.running - ending + a.starting;
    a.has_room := a.running_now < a_limit;
    a.was_full := s.running >= a_limit;
    a.give_back := false;
    a.processed := coalesce((s.totals ->> 'completed')::bigint, 0) + coalesce((s.totals ->> 'failed')::bigint, 0);
    a.simple := ARRAY[the_pool, digest, a_limit];
    IF a.has_room AND a.starting = slots AND s.ready > a.starting THEN
        a.next_at := s.moment;
    END IF;
    held := held + a.starting;
    IF ending + a.starting > 0 THEN
        UPDATE millpond_pool AS o
           SET live = a.live_left, running = a.running_now, fresh = o.fresh - coalesce(n.fresh, 0),
               ready = o.ready - a.starting, kept = o.kept + ending, measured = s.measured, totals = s.totals::text,
               holding = (CASE WHEN held > 0 THEN s.holding || jsonb_build_object(asker, held)
                               ELSE s.holding - asker END)::text,
               bands = s.bands, lows = s.lows, undue_since = s.moment, writes = o.writes + 1,
               turn = (o.writes + 1) >> 5
         WHERE o.ctid = s.spot;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
        PERFORM millpond_number_step(s.meta, a, the_pool, NULL, e, NULL, n, ending, a.starting, asker, new_token,
                                     s.leases);
    END IF;
    RETURN a;
END $$;
