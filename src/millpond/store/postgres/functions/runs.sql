-- Runs: tasks that belong together. The state of a run is JSON, as core/run.py has it (millpond_run.state).

-- Open new runs, and count new tasks for their runs. `opened` are the new runs, as JSON. An error of SQLSTATE
-- MP001 says that the verbs must decide: a run is known already, or takes no more tasks.
CREATE FUNCTION millpond_join_runs(
    opened jsonb, runs bigint[], moment double precision
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    joined record;
    one jsonb;
    state jsonb;
    counted bigint;
BEGIN
    PERFORM millpond_lock_runs(ARRAY(SELECT DISTINCT u.run FROM unnest(runs) AS u (run)));
    FOR one IN SELECT o.value FROM jsonb_array_elements(opened) AS o
                ORDER BY o.value ->> 'pool', o.value ->> 'name' LOOP
        IF EXISTS (SELECT 1 FROM millpond_run AS r WHERE r.id = (one ->> 'id')::bigint)
           OR EXISTS (SELECT 1 FROM millpond_run AS r
                       WHERE r.pool = one ->> 'pool' AND r.name = one ->> 'name') THEN
            RAISE EXCEPTION 'run is known' USING ERRCODE = 'MP001';
        END IF;
        SELECT count(*) INTO counted FROM unnest(runs) AS u (run) WHERE u.run = (one ->> 'id')::bigint;
        IF counted = 0 OR one ->> 'on_complete' IS NOT NULL THEN
            -- Without a holder it would be over at once. With a callback it remembers its first tasks.
            RAISE EXCEPTION 'run without tasks, or with a callback' USING ERRCODE = 'MP001';
        END IF;
        state := jsonb_build_object(
            'new', one, 'opened_at', moment, 'live', 0, 'total', 0, 'ended', '{}'::jsonb,
            'holders', CASE WHEN one ->> 'holder' IS NULL THEN '[]'::jsonb
                            ELSE jsonb_build_array(one -> 'holder') END,
            'stopped', NULL, 'failed_task', NULL, 'finished_at', NULL);
        INSERT INTO millpond_run
        VALUES ((one ->> 'id')::bigint, one ->> 'pool', one ->> 'name', NULL,
                convert_to(state::text, 'UTF8'));
    END LOOP;
    FOR joined IN SELECT u.run, count(*) AS n FROM unnest(runs) AS u (run)
                   WHERE u.run IS NOT NULL GROUP BY u.run LOOP
        SELECT convert_from(r.state, 'UTF8')::jsonb INTO state FROM millpond_run AS r
         WHERE r.id = joined.run AND r.finished_at IS NULL;
        IF state IS NULL OR state ->> 'stopped' IS NOT NULL
           OR state -> 'new' ->> 'on_complete' IS NOT NULL
           OR (state ->> 'total')::bigint + joined.n > (state -> 'new' ->> 'max_tasks')::bigint THEN
            RAISE EXCEPTION 'run takes no more' USING ERRCODE = 'MP001';
        END IF;
        state := state || jsonb_build_object('live', (state ->> 'live')::bigint + joined.n,
                                             'total', (state ->> 'total')::bigint + joined.n);
        UPDATE millpond_run AS r SET state = convert_to(joined_state.value, 'UTF8')
          FROM (SELECT state::text AS value) AS joined_state WHERE r.id = joined.run;
    END LOOP;
END $$;

-- Take tasks that have ended off their runs; return the runs that are over by that. An error of SQLSTATE MP001
-- says that the verbs must decide: a run stops, or has stopped.
CREATE FUNCTION millpond_leave_runs(
    e millpond_ends, ending integer, pool_name text, moment double precision
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gone record;
    state jsonb;
    is_over boolean;
    finished bigint[];
BEGIN
    IF position('"run":' IN array_to_string(e.plain, '')) = 0 THEN
        RETURN NULL;
    END IF;
    PERFORM millpond_lock_runs(ARRAY(SELECT DISTINCT (u.plain::json ->> 'run')::bigint
                                       FROM millpond_after(e, ending) AS u
                                      WHERE position('"run":' IN u.plain) > 0));
    FOR gone IN SELECT x.run, count(*) FILTER (WHERE x.status = 'completed') AS completed,
                       count(*) FILTER (WHERE x.status = 'failed') AS failed,
                       count(*) FILTER (WHERE x.status = 'queued') AS back
                  FROM (SELECT (u.plain::json ->> 'run')::bigint AS run, u.n, u.status
                          FROM millpond_after(e, ending) AS u
                         WHERE position('"run":' IN u.plain) > 0) AS x
                 GROUP BY x.run ORDER BY min(x.n) FILTER (WHERE x.status <> 'queued') LOOP
        SELECT convert_from(r.state, 'UTF8')::jsonb INTO state FROM millpond_run AS r
         WHERE r.id = gone.run;
        CONTINUE WHEN NOT FOUND;
        IF gone.back > 0 AND state ->> 'stopped' IS NOT NULL
           OR gone.failed > 0 AND state -> 'new' ->> 'on_error' = 'fail' AND state ->> 'stopped' IS NULL THEN
            RAISE EXCEPTION 'run stops' USING ERRCODE = 'MP001';
        END IF;
        CONTINUE WHEN gone.completed + gone.failed = 0;
        state := state || jsonb_build_object(
            'live', (state ->> 'live')::bigint - gone.completed - gone.failed,
            'ended', (state -> 'ended')
                     || millpond_more('completed', state -> 'ended', gone.completed)
                     || millpond_more('failed', state -> 'ended', gone.failed));
        is_over := state ->> 'finished_at' IS NULL AND (state ->> 'live')::bigint = 0
                   AND state -> 'holders' = '[]';
        IF is_over THEN
            IF state -> 'new' ->> 'pool' <> pool_name
               OR state -> 'new' ->> 'on_complete' IS NOT NULL THEN
                RAISE EXCEPTION 'run of another pool, or with a callback' USING ERRCODE = 'MP001';
            END IF;
            state := state || jsonb_build_object('finished_at', moment);
            finished := finished || gone.run;
        END IF;
        UPDATE millpond_run AS r
           SET state = convert_to(left_state.value, 'UTF8'),
               finished_at = CASE WHEN is_over THEN moment ELSE r.finished_at END
          FROM (SELECT state::text AS value) AS left_state WHERE r.id = gone.run;
    END LOOP;
    RETURN finished;
END $$;

-- Return a count that has grown, as a part of the counts that it stands in; nothing if it has not.
CREATE FUNCTION millpond_more(what text, counts jsonb, more bigint) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN more > 0 THEN jsonb_build_object(what, coalesce((counts ->> what)::bigint, 0) + more)
                ELSE '{}' END
$$;
