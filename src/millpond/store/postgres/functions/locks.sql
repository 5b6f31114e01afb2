-- Locks: who waits for whom. A call takes them in this order, all of them or some, and reads what a lock guards
-- in a later statement than the lock:
--
--   1. the store (millpond_lock), together with all other calls: only the verbs of Python keep all other writers out;
--   2. its pool, by itself;
--   3. the budgets of the pool, in the order of their names;
--   4. runs, in the order of their ids; then new runs, in the order of their names;
--   5. the counts of the store (millpond_reserve), as late as possible: from there to the commit, one call
--      after the other;
--   6. the worker.
--
-- Nothing else is shared by two pools. Numbers of leases need not be unique, and a group has the number of its
-- first task's place.

-- Lock a pool, which is named, found by one of its tasks or known; return its number, NULL = there is none.
--
-- The lock is on an empty table, as that of the store is (lock.py). Pools share 8 of them: more calls at a time
-- would only stand in line for the counts of the store. Each has its own statement, for one that is put
-- together costs twenty times as much.
CREATE FUNCTION millpond_lock_pool(asked_pool text, of_task bigint, known bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    the_pool bigint := known;
BEGIN
    -- It keeps out the verbs of Python, and no other call. No stronger mode does that: the server takes it
    -- without looking at the locks of other sessions.
    LOCK TABLE millpond_lock IN ROW EXCLUSIVE MODE;
    IF asked_pool IS NOT NULL THEN
        SELECT o.id INTO the_pool
          FROM millpond_pool AS o WHERE o.name = asked_pool ORDER BY o.turn DESC LIMIT 1;
    ELSIF of_task IS NOT NULL THEN
        SELECT o.place >> 40 INTO the_pool FROM millpond_task AS o WHERE o.id = of_task;
    END IF;
    CASE the_pool & 7
        WHEN 0 THEN LOCK TABLE millpond_lock_0 IN SHARE UPDATE EXCLUSIVE MODE;
        WHEN 1 THEN LOCK TABLE millpond_lock_1 IN SHARE UPDATE EXCLUSIVE MODE;
        WHEN 2 THEN LOCK TABLE millpond_lock_2 IN SHARE UPDATE EXCLUSIVE MODE;
        WHEN 3 THEN LOCK TABLE millpond_lock_3 IN SHARE UPDATE EXCLUSIVE MODE;
        WHEN 4 THEN LOCK TABLE millpond_lock_4 IN SHARE UPDATE EXCLUSIVE MODE;
        WHEN 5 THEN LOCK TABLE millpond_lock_5 IN SHARE UPDATE EXCLUSIVE MODE;
        WHEN 6 THEN LOCK TABLE millpond_lock_6 IN SHARE UPDATE EXCLUSIVE MODE;
        WHEN 7 THEN LOCK TABLE millpond_lock_7 IN SHARE UPDATE EXCLUSIVE MODE;
        ELSE NULL;  -- there is no such pool
    END CASE;
    RETURN the_pool;
END $$;

-- Lock the budgets of a pool.
CREATE FUNCTION millpond_lock_budgets(names jsonb) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM millpond_budget AS o
      WHERE o.name IN (SELECT n.name COLLATE "C" FROM jsonb_array_elements_text(names) AS n (name))
      ORDER BY o.name FOR UPDATE;
END $$;

-- Lock runs; those that are not known are left out.
CREATE FUNCTION millpond_lock_runs(these bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM millpond_run AS o WHERE o.id = ANY(these) ORDER BY o.id FOR UPDATE;
END $$;

-- Count what a call writes, and keep the other calls from counting until it commits. Return the state before it:
-- how many records and leases there were, and the next claim; and a moment that is not before that of any
-- other record. `spot` is where the row stood when the call began.
CREATE FUNCTION millpond_reserve(
    spot tid, moment double precision, more_records bigint, more_claims bigint, more_leases bigint,
    OUT at double precision, OUT records bigint, OUT next_claim bigint, OUT leases bigint,
    OUT first_lease bigint
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    LOOP
        UPDATE millpond_meta AS o
           SET version = o.version + 1, turn = (o.version + 1) >> 5, latest = greatest(o.latest, moment),
               records = o.records + more_records, next_claim = o.next_claim + more_claims,
               leases = o.leases + more_leases
         WHERE o.ctid = spot
        RETURNING o.latest, o.records - more_records, o.next_claim - more_claims, o.leases - more_leases,
                  o.first_lease
             INTO at, records, next_claim, leases, first_lease;
        EXIT WHEN FOUND;
        -- Another call has written it since. While this one waits for yet another, it may move again.
        SELECT o.ctid INTO spot FROM millpond_meta AS o ORDER BY o.turn DESC LIMIT 1;
        IF NOT FOUND THEN PERFORM millpond_miscounted('meta', 1, 0); END IF;
    END LOOP;
END $$;

-- Add to the count of tasks that a worker has prefetched, and set until when it lives; NULL = as it is. A call of the
-- same worker may write its row meanwhile, and move it to another turn.
CREATE FUNCTION millpond_write_worker(a_worker text, more_ahead bigint, lives_until double precision) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    LOOP
        UPDATE millpond_worker AS o
           SET ahead = o.ahead + more_ahead, expires_at = coalesce(lives_until, o.expires_at),
               writes = o.writes + 1, turn = (o.writes + 1) >> 5
         WHERE o.id = a_worker AND o.turn = (SELECT x.turn FROM millpond_worker AS x
                                              WHERE x.id = a_worker ORDER BY x.turn DESC LIMIT 1);
        EXIT WHEN FOUND;
        IF NOT EXISTS (SELECT FROM millpond_worker AS x WHERE x.id = a_worker) THEN
            PERFORM millpond_miscounted('worker', 1, 0);
        END IF;
    END LOOP;
END $$;

-- Give old leases new numbers, so that a search for leases sees the latest thousand and not the dead. A lease
-- that another call is changing stays as it is, and so does the place where the search begins.
CREATE FUNCTION millpond_renumber_leases(first bigint, last bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE millpond_lease AS o SET n = last
     WHERE o.ctid = ANY(ARRAY(SELECT l.ctid FROM millpond_lease AS l
                               WHERE l.n >= first AND l.n < last - 512 FOR UPDATE SKIP LOCKED));
    UPDATE millpond_meta AS m
       SET first_lease = coalesce((SELECT min(l.n) FROM millpond_lease AS l
                                    WHERE l.n >= first AND l.n < last - 512), last - 512)
     WHERE m.turn = (SELECT x.turn FROM millpond_meta AS x ORDER BY x.turn DESC LIMIT 1);
END $$;
