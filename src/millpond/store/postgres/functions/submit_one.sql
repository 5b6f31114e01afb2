-- Submits of one task, as most are: without lists, and without reading the settings of the pool.

-- Store a new task that is due, of a pool whose settings bound nothing but what runs; refuse whatever
-- millpond_submit must look at. That one returned the number of the pool, the digest of its settings, and what they
-- say; they are the same as long as the digest is. The columns are as there.
CREATE FUNCTION millpond_submit_one(
    at double precision, at_most double precision,
    known_pool bigint, digest bigint, a_limit bigint, ahead bigint, is_fifo boolean,
    new_id bigint, body bytea, plain text, new_key text, priority bigint,
    idempotency_key text, function text, fingerprint bigint,
    channel text, message text,
    OUT refused text, OUT moment double precision, OUT last_seq bigint, OUT waiting bigint,
    OUT queued bigint, OUT wake_at double precision, OUT heard boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    the_pool constant bigint := millpond_lock_pool(NULL, NULL, known_pool);
    kind constant text := CASE WHEN is_fifo THEN 'fifo' ELSE 'priority' END;
    s record;    -- the pool and the store
    r record;    -- what is reserved of its numbers
    new_place bigint;
    new_rank bigint;
    touched bigint;
BEGIN
    -- In a statement of its own: it sees what the holder before has committed.
    SELECT o.*, m.spot AS meta, millpond_moment(at, at_most, m.latest, m.behind, millpond_clock()) AS moment,
           EXISTS (SELECT 1 FROM millpond_inbox WHERE xid >= m.seen_upto)
           OR EXISTS (SELECT 1 FROM millpond_inbox WHERE xid = ANY(m.seen_open)) AS inbox
      INTO s
      FROM (SELECT x.ctid AS spot, hashtextextended(x.spec, 0) AS digest, x.closed, x.grouped, x.paused,
                   x.next_seq, x.ready, x.later, x.parked_apart, x.live, x.running, x.claimed, x.bands, x.lows
              FROM millpond_pool AS x WHERE x.id = the_pool ORDER BY x.turn DESC LIMIT 1) AS o,
           (SELECT x.ctid AS spot, x.latest, x.behind, x.seen_upto, x.seen_open
              FROM millpond_meta AS x ORDER BY x.turn DESC LIMIT 1) AS m;
    moment := s.moment;
    IF s.digest IS DISTINCT FROM digest OR moment IS NULL OR s.inbox
       OR s.closed = 1 OR s.grouped = 1 THEN
        refused := 'not simple';
        RETURN;
    END IF;
    IF idempotency_key IS NOT NULL THEN
        IF EXISTS (SELECT FROM millpond_key AS o
                    WHERE o.pool = the_pool AND o.key = idempotency_key AND o.run = 0) THEN
            refused := 'known key';
            RETURN;
        END IF;
        INSERT INTO millpond_key
        VALUES (the_pool, idempotency_key, 0, new_id, 'queued', function, fingerprint, NULL);
    END IF;
    last_seq := s.next_seq;
    waiting := s.ready + s.later + s.parked_apart;
    queued := s.live - s.running;
    new_place := (the_pool << 40) + last_seq + 1;
    new_rank := millpond_rank(kind, priority, last_seq + 1);
    IF s.paused = 0 AND (s.running < a_limit OR s.claimed < ahead) THEN
        wake_at := moment;
    END IF;
    IF s.ready = 0 OR new_rank <> ALL(s.bands) THEN
        SELECT * INTO s.bands, s.lows
          FROM millpond_mark_queued(kind, s.ready, s.bands, s.lows, new_place - 1, ARRAY[priority]);
    END IF;
    INSERT INTO millpond_task VALUES (new_place, new_id, body, plain);
    INSERT INTO millpond_live (place, id, pool, rank, key, sequence, submitted_at, due, cancel_requested, running,
                               attempt, runs, fresh, listed, token, grp)
    VALUES (new_place, new_id, the_pool, new_rank, new_key, last_seq + 1, moment, moment, 0, 0, 0, 0, 1, 0, 0,
            the_pool);
    UPDATE millpond_pool AS o
       SET next_seq = o.next_seq + 1, live = o.live + 1, fresh = o.fresh + 1, ready = o.ready + 1,
           bands = s.bands, lows = s.lows, writes = o.writes + 1, turn = (o.writes + 1) >> 5
     WHERE o.ctid = s.spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> 1 THEN PERFORM millpond_miscounted('pool', 1, touched); END IF;
    r := millpond_reserve(s.meta, moment, 1, 0, 0);
    INSERT INTO millpond_audit
    VALUES (r.records + 1, 1, r.at, NULL, 'submit', NULL, the_pool, NULL, '{0}', ARRAY[new_id], ARRAY[new_place],
            ARRAY[moment], CASE WHEN new_key IS NULL THEN '{}' ELSE ARRAY[new_key] END, ARRAY[plain]);
    IF wake_at IS NOT NULL THEN
        heard := millpond_notify(channel, message);
    END IF;
END $$;
