-- The call of a worker: end attempts and lease the next tasks, in one transaction.
--
-- The functions below have the settings of this one (search_path, plans): only functions that a client calls
-- set them, because each setting costs some microseconds per call.

-- End attempts of plain tasks of one worker; start what it has prefetched in the slots they left (`successors`,
-- one for each or none); then lease it the next tasks of a pool.
--
-- `at` NULL: the server's clock counts. `asked_pool` NULL: no lease. One token stands for all, and one
-- result if `results` is NULL. `outcomes` (see millpond_end_rows) NULL: all complete the first attempt. It does what the verbs do, or nothing: `refused` says why, and so does an
-- error of SQLSTATE MP001, which undoes the attempts that it had ended.
CREATE FUNCTION millpond_settle_and_lease(
    at double precision, at_most double precision,
    settled bigint[], settled_tokens bigint[], one_result bytea, results bytea[],
    outcomes jsonb, errors bytea[], successors bigint[], successor_tokens bigint[],
    asked_pool text, asker text, new_token bigint, want integer, ahead integer
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
    a millpond_step_answer;
    the_pool bigint;
    m record;             -- the store
    found record;
    e millpond_ends;      -- the attempts that end
    p millpond_pool;
    r millpond_rules;     -- the rules of the pool
    w millpond_room;      -- the room for the worker
    n millpond_next;      -- the tasks it starts or prefetches
    changed record;
BEGIN
    a.starting := 0;
    a.give_back := false;
    -- In a statement of its own: what comes after it sees what the holder before has committed.
    the_pool := millpond_lock_pool(asked_pool, settled[1]);
    SELECT millpond_moment(at, at_most, o.latest, o.behind, millpond_clock()) AS moment,
           o.ctid AS spot, o.leases AS lease_number, o.first_lease, o.seen_upto, o.seen_open
      INTO m FROM millpond_meta AS o ORDER BY o.turn DESC LIMIT 1;
    a.moment := m.moment;
    IF m.moment IS NULL THEN
        a.refused := 'clock';
        RETURN a;
    END IF;
    IF ending > 0 THEN
        e := millpond_end_attempts(m.moment, settled, settled_tokens, one_result, results, outcomes, errors,
                                   successors, successor_tokens, asker, the_pool, m.lease_number);
    END IF;
    SELECT o.ctid AS spot, o AS pool INTO found
      FROM millpond_pool AS o WHERE o.id = the_pool ORDER BY o.turn DESC LIMIT 1;
    p := found.pool;
    r := millpond_rules_of(p, m.moment);
    a.refused := CASE WHEN r.unknown THEN 'unknown option'
                      -- An end is more than a count there.
                      WHEN ending > 0 AND p.special = 1 AND NOT r.flow THEN 'flow control'
                      WHEN ending > 0 AND p.grouped = 1 AND NOT r.grouped THEN 'grouped' END;
    a.simple := CASE WHEN p.grouped + p.special = 0 AND r.prefetch = 0 AND NOT r.unknown
                     THEN ARRAY[p.id, hashtextextended(p.spec, 0), r.a_limit] END;
    a.pool_name := p.name;
    a.live_left := p.live - coalesce(e.over, 0);
    a.running_now := p.running - ending + coalesce(e.begun, 0);
    IF a.refused IS NULL AND (e.first_back > 0 OR ending > 0 AND r.grouped) THEN
        p := millpond_leave(p, r, e);
        a.wake_at := CASE WHEN e.first_back < ending OR p.paused = 0 AND e.back_due THEN r.moment
                          WHEN p.paused = 0 THEN e.first_due END;
    END IF;
    IF a.refused IS NULL AND r.flow THEN
        IF ending > 0 OR p.ready > 0 AND asked_pool IS NOT NULL THEN
            PERFORM millpond_lock_budgets(r.budget_names);
        END IF;
        r := millpond_read_budgets(r, p.id, a.running_now);
        a.refused := r.refused;
    END IF;
    IF a.refused IS NULL AND asked_pool IS NOT NULL THEN
        IF p.later + p.unit_timers > 0 AND (p.grouped = 0 OR r.grouped) THEN
            changed := millpond_promote(p, r);
            p := changed.p;
            r := changed.r;
        END IF;
        w := millpond_room_for(p, r, asker, want, ahead, a.running_now, ending, coalesce(e.begun, 0),
                               m.first_lease, m.seen_upto, m.seen_open);
        a.refused := w.refused;
        IF a.refused IS NULL AND p.ready > 0 AND w.slots + w.may_claim > 0 THEN
            IF r.grouped THEN
                n := millpond_next_in_turn(p, r, w.slots);
            ELSE
                n := millpond_next_in_line(p.id, p.bands, p.lows, w.slots + w.may_claim, r.moment);
            END IF;
            a.refused := coalesce(n.refused, CASE WHEN w.slots < ANY(n.own_rows) THEN 'not simple' END,
                                  millpond_cannot_run(n.n, n.plain, w.functions, w.unknown));
            IF a.refused IS NULL AND r.flow AND n.n > 0 THEN
                r := millpond_charge_all(r, n.n, n.plain);
                a.refused := r.refused;
            END IF;
        END IF;
        IF a.refused IS NULL AND want > 0 AND w.slots > 0 AND coalesce(n.n, 0) + w.beginning = 0
           AND p.claimed > coalesce(e.begun, 0) THEN
            a.refused := 'hungry';
        END IF;
    END IF;
    IF a.refused IS NOT NULL THEN
        IF ending > 0 OR r.promoted > 0 THEN
            RAISE EXCEPTION '%', a.refused USING ERRCODE = 'MP001';
        ELSIF n.n > 0 AND NOT r.grouped THEN
            PERFORM millpond_raise(p.id, n.ranks[1], n.places[1], NULL);
        END IF;
        RETURN a;
    END IF;
    RETURN millpond_write_step(a, p, found.spot, r, w, e, n, m.spot, m.first_lease, m.lease_number, new_token,
                               ending, asked_pool IS NOT NULL, asker);
END $$;
