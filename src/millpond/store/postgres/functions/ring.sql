-- The ring: a seat says when a share is next. In a pool that is not fair there is one share, which is always next.
--
-- The turn of a seat stands in its row, or the row says -1: then it is the first whole one (a multiple of 2^20)
-- behind the place that was served last. That is so for every share with the weight 1 from when it joins or is
-- served at a whole turn: it is served once in each round, in the order of joining, so no start writes its row.

-- Return the first whole turn that is not before a turn.
CREATE FUNCTION millpond_whole(turn bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (turn + 1048575) & -1048576
$$;

-- Return the turn of a seat, as its row has it or by the place that was served last. Clients call it.
CREATE FUNCTION millpond_turn_of(turn bigint, joined bigint, passed_turn bigint, passed_join bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN turn >= 0 THEN turn
                WHEN passed_turn & 1048575 > 0 OR joined > passed_join THEN (passed_turn + 1048575) & -1048576
                ELSE passed_turn + 1048576 END
$$;

-- Return the first seats of a ring behind a place, with their turns. `passed`: the place that was served last.
CREATE FUNCTION millpond_turns(
    the_pool bigint, the_owner text, passed_turn bigint, passed_join bigint, turn_from bigint, join_from bigint,
    most bigint, OUT spot tid, OUT share text, OUT turn bigint, OUT joined bigint, OUT stored bigint
) RETURNS SETOF record LANGUAGE sql STABLE AS $$
    SELECT x.* FROM (
        (SELECT s.ctid, s.share, s.turn, s.joined, s.turn FROM millpond_seat AS s
          WHERE s.pool = the_pool AND s.owner = the_owner AND s.resting = 0
            AND s.turn >= 0 AND (s.turn, s.joined) > (turn_from, join_from)
          ORDER BY s.turn, s.joined LIMIT most)
         UNION ALL
        (SELECT e.* FROM (
            (SELECT s.ctid, s.share, millpond_whole(passed_turn), s.joined, s.turn FROM millpond_seat AS s
              WHERE s.pool = the_pool AND s.owner = the_owner AND s.resting = 0 AND s.turn = -1
                AND s.joined > CASE WHEN millpond_whole(passed_turn) = passed_turn THEN passed_join ELSE 0 END
                AND (millpond_whole(passed_turn), s.joined) > (turn_from, join_from)
              ORDER BY s.joined LIMIT most)
             UNION ALL
            (SELECT s.ctid, s.share, passed_turn + 1048576, s.joined, s.turn FROM millpond_seat AS s
              WHERE s.pool = the_pool AND s.owner = the_owner AND s.resting = 0 AND s.turn = -1
                AND s.joined <= CASE WHEN millpond_whole(passed_turn) = passed_turn THEN passed_join ELSE 0 END
                AND (passed_turn + 1048576, s.joined) > (turn_from, join_from)
              ORDER BY s.joined LIMIT most)) AS e LIMIT most)) AS x (spot, share, turn, joined, stored)
     ORDER BY x.turn, x.joined LIMIT most
$$;

-- Return the first seats of the ring of a pool behind a place, for the verbs.
CREATE FUNCTION millpond_ring(the_pool bigint, the_owner text, turn_from bigint, join_from bigint, most bigint)
RETURNS TABLE (turn bigint, joined bigint, share text)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT s.turn, s.joined, s.share
      FROM (SELECT o.passed_turn, o.passed_join FROM millpond_pool AS o
             WHERE o.id = the_pool ORDER BY o.turn DESC LIMIT 1) AS p
     CROSS JOIN LATERAL millpond_turns(
           the_pool, the_owner, p.passed_turn, p.passed_join, turn_from, join_from, most) AS s
     ORDER BY s.turn, s.joined;
END $$;

-- Let shares take turns that have something to start now, in the order in which they are given; one may be given
-- twice. Return the pool with its ring.
CREATE FUNCTION millpond_join_ring(p millpond_pool, ready text[]) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    woken record;
    joined bigint;
BEGIN
    IF ready IS NULL THEN
        RETURN p;
    END IF;
    IF EXISTS (SELECT 1 FROM millpond_seat AS s WHERE s.pool = p.id AND s.owner > '' AND s.resting = 0) THEN
        RAISE EXCEPTION 'owned' USING ERRCODE = 'MP001';
    END IF;
    WITH changed AS (
        UPDATE millpond_seat AS s SET resting = 0
          -- Each by its key: an older server would read all seats of the pool for a list of shares.
          FROM unnest(ready) AS u (share)
         CROSS JOIN LATERAL (SELECT x.ctid AS spot FROM millpond_seat AS x
                              WHERE x.pool = p.id AND x.share = u.share AND x.owner = '' AND x.resting > 0
                             OFFSET 0) AS o
         WHERE s.ctid = o.spot
        RETURNING s.turn, s.joined
    )
    SELECT count(*) AS n,
           bool_or((c.turn, c.joined) <= (p.ring_turn, p.ring_join)) AS behind INTO woken FROM changed AS c;
    IF woken.behind THEN
        RAISE EXCEPTION 'turns' USING ERRCODE = 'MP001';
    END IF;
    p.resting := p.resting - woken.n;
    INSERT INTO millpond_seat
    SELECT p.id, b.share, '', CASE WHEN millpond_whole(p.passed_turn) = p.passed_turn THEN -1 ELSE p.passed_turn END,
           p.joins + row_number() OVER (ORDER BY b.o), 0
      FROM (SELECT x.share, min(x.o) AS o FROM unnest(ready) WITH ORDINALITY AS x (share, o)
             GROUP BY x.share) AS b
     WHERE NOT EXISTS (SELECT 1 FROM millpond_seat AS s
                        WHERE s.pool = p.id AND s.share = b.share AND s.owner = '');
    GET DIAGNOSTICS joined = ROW_COUNT;
    IF joined > 0 AND (p.ring_turn, p.ring_join) > (p.passed_turn, p.joins) THEN
        -- The order of the pool was changed: it has a new ring, and the mark belongs to the old one.
        p.ring_turn := p.passed_turn;
        p.ring_join := p.joins;
    END IF;
    p.joins := p.joins + joined;
    RETURN p;
END $$;

-- Let units and groups change, and let the shares take turns that have something to start by that.
CREATE FUNCTION millpond_flush_and_join(p millpond_pool, r millpond_rules, t millpond_touched) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    f record;
BEGIN
    f := millpond_flush(p, r, t);
    IF f.leaving THEN
        RAISE EXCEPTION 'turns' USING ERRCODE = 'MP001';
    END IF;
    RETURN millpond_join_ring(f.p, f.entering);
END $$;

-- Take the tasks that start out of their groups, count them for their units, and move their shares on in the ring:
-- behind the others, or out of it where nothing is left to start. Return the pool with its queue as it is then. A unit
-- that has a limit or a rate has one group here; only that of tasks without a lane or key can be left with nothing.
CREATE FUNCTION millpond_take_turns(p millpond_pool, r millpond_rules, n millpond_next) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    t millpond_touched;
    c record;
BEGIN
    WITH taken AS MATERIALIZED (
        SELECT * FROM unnest(n.groups, n.units, n.taken, n.entered, n.next_ranks, n.next_seqs, n.next_dues,
                             n.ready_then) AS u (grp, unit, tasks, entered, rank, seq, due, ready)
    ), units AS MATERIALIZED (
        SELECT u.unit, sum(u.entered)::bigint AS entered, count(*) FILTER (WHERE u.rank IS NULL) AS gone
          FROM taken AS u GROUP BY u.unit
    ), changed AS (
        UPDATE millpond_group AS g
           SET tasks = g.tasks - u.tasks, rank = u.rank, seq = u.seq, due = u.due, ready = u.ready::integer
          FROM taken AS u WHERE g.ctid = u.grp AND u.rank IS NOT NULL AND g.tasks > u.tasks
        RETURNING 1
    ), gone AS (
        DELETE FROM millpond_group AS g USING taken AS u
         WHERE g.ctid = u.grp AND u.rank IS NULL AND g.tasks = u.tasks
        RETURNING 1
    ), counted AS (
        UPDATE millpond_unit AS o
           SET running = o.running + u.entered, groups = o.groups - u.gone,
               tat = CASE WHEN u.entered > 0 AND r.key_interval IS NOT NULL
                          THEN greatest(o.tat, r.ticks) + u.entered * r.key_interval ELSE o.tat END
          FROM units AS u WHERE o.ctid = u.unit AND (u.entered > 0 OR o.groups > u.gone)
        RETURNING 1
    ), forgotten AS (
        DELETE FROM millpond_unit AS o USING units AS u
         WHERE o.ctid = u.unit AND u.entered = 0 AND o.groups = u.gone
        RETURNING o.fades_at
    ), moved AS (
        UPDATE millpond_seat AS s SET turn = u.turn, resting = u.rests::integer
          FROM unnest(n.seats, n.turns, n.resting) AS u (spot, turn, rests) WHERE s.ctid = u.spot
        RETURNING s.resting
    )
    SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM gone) - cardinality(n.groups) AS groups,
           (SELECT count(*) FROM counted) + (SELECT count(*) FROM forgotten) - (SELECT count(*) FROM units) AS units,
           (SELECT count(fades_at) FROM forgotten) AS fading, x.seats, x.resting INTO c
      FROM (SELECT count(*) AS seats, coalesce(sum(o.resting), 0) AS resting FROM moved AS o) AS x;
    IF c.groups <> 0 THEN PERFORM millpond_miscounted('group', 0, c.groups); END IF;
    IF c.units <> 0 THEN PERFORM millpond_miscounted('unit', 0, c.units); END IF;
    IF c.seats <> coalesce(cardinality(n.seats), 0) THEN
        PERFORM millpond_miscounted('seat', cardinality(n.seats), c.seats);
    END IF;
    p.fading := p.fading - c.fading;
    p.resting := p.resting + c.resting;
    IF n.waiting IS NOT NULL THEN
        t.units := n.waiting;
        p := millpond_flush_and_join(p, r, t);
    END IF;
    IF p.resting > 10000 THEN
        RAISE EXCEPTION 'turns' USING ERRCODE = 'MP001';
    END IF;
    IF r.fair THEN
        p := millpond_pass(p, n.last_turn, n.last_joined);
    END IF;
    RETURN p;
END $$;

-- Note which turn was served last, and forget the shares that rest and are passed by that.
CREATE FUNCTION millpond_pass(p millpond_pool, last_turn bigint, last_joined bigint) RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    forgotten bigint;
BEGIN
    IF p.resting > 0 THEN
        -- No resting seat stands before the former place, so the index is read from there.
        DELETE FROM millpond_seat AS s
         WHERE s.pool = p.id AND s.resting = 1
           AND (s.turn, s.joined) > (p.passed_turn, p.passed_join)
           AND (s.turn, s.joined) <= (last_turn, last_joined);
        GET DIAGNOSTICS forgotten = ROW_COUNT;
        p.resting := p.resting - forgotten;
    END IF;
    p.passed_turn := last_turn;
    p.passed_join := last_joined;
    p.ring_turn := last_turn;
    p.ring_join := last_joined;
    RETURN p;
END $$;

-- Return how far one start moves a share on in the ring, as Order.stride says.
CREATE FUNCTION millpond_stride(weights jsonb, share text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(round(1048576 / (weights ->> share)::double precision)::bigint, 1048576)
$$;
