-- Fair pools: shares take turns, one task each. A seat says when a share is next, a group holds its tasks.

-- Return the next tasks of a fair pool: the first of every share whose turn it is.
CREATE FUNCTION millpond_next_in_turn(p millpond_pool, r millpond_rules, slots bigint)
RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    n millpond_next;
BEGIN
    SELECT count(*), array_agg(x.spot), array_agg(x.id), array_agg(x.place), ARRAY[0::bigint],
           CASE WHEN min(x.submitted_at) = max(x.submitted_at) THEN ARRAY[min(x.submitted_at)]
                ELSE array_agg(x.submitted_at) END,
           CASE WHEN min(x.due) = max(x.due) THEN ARRAY[min(x.due)] ELSE array_agg(x.due) END,
           CASE WHEN count(x.key) = 0 THEN '{}' ELSE array_agg(x.key) END,
           CASE WHEN min(t.plain) = max(t.plain) THEN ARRAY[min(t.plain)] ELSE array_agg(t.plain) END,
           array_agg(t.body), bool_and(x.simple AND t.plain IS NOT NULL), coalesce(sum(x.fresh), 0),
           array_agg(x.number) FILTER (WHERE NOT x.folds),
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.attempt) END,
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.runs) END,
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.first_started_at) END,
           array_agg(x.seat), array_agg(x.grp), array_agg(x.unit), array_agg(x.last),
           array_agg(x.stays), array_agg(x.next_rank), array_agg(x.next_seq), array_agg(x.next_due),
           count(*) FILTER (WHERE NOT x.stays),
           (array_agg(x.turn))[1], (array_agg(x.joined))[1],
           (array_agg(x.turn))[count(*)], (array_agg(x.joined))[count(*)]
      INTO n.n, n.spots, n.ids, n.places, n.ranks, n.submitted_at, n.due, n.keys, n.plain, n.bodies,
           n.simple, n.fresh, n.own_rows, n.attempts, n.runs, n.first_started_at, n.seats, n.groups, n.units, n.last, n.stays, n.next_rank, n.next_seq,
           n.next_due, n.resting, n.turn, n.joined, n.last_turn, n.last_joined
      FROM (SELECT s.ctid AS seat, s.turn, s.joined, g.ctid AS grp, g.unit, g.tasks = 1 AS last,
                   g.tasks > 1 AND (g.unit = '' OR (r.per_key IS NULL OR u.running + 1 < r.per_key)
                                    AND NOT coalesce(u.closed, false)) AS stays,
                   l.ctid AS spot, l.id, l.place, l.submitted_at, l.due, l.key, l.fresh, l.folds, l.attempt,
                   l.runs, l.first_started_at, row_number() OVER (ORDER BY s.turn, s.joined) AS number,
                   f.rank AS next_rank, f.place & ((1::bigint << 40) - 1) AS next_seq, f.due AS next_due,
                   l.simple AND (u.groups = 1 OR g.unit = ''
                        OR (r.per_key IS NULL AND r.key_interval IS NULL))
                   -- Time alone would let it go on.
                   AND NOT (coalesce(u.closed, false) AND g.tasks > 1 AND g.unit <> ''
                            AND (r.per_key IS NULL OR u.running + 1 < r.per_key))
                   AND (g.tasks = 1 OR f.due <= r.moment)
                   AND NOT EXISTS (
                       SELECT 1 FROM millpond_group AS o
                        WHERE o.pool = p.id AND o.share = s.share AND o.owner = ''
                          AND o.ready = 1 AND (o.rank, o.seq) > (g.rank, g.seq)) AS simple
              FROM (SELECT s.ctid, s.* FROM millpond_seat AS s
                     WHERE s.pool = p.id AND s.owner = '' AND s.resting = 0
                       AND (s.turn, s.joined) > (p.ring_turn, p.ring_join)
                     ORDER BY s.turn, s.joined LIMIT slots) AS s
             CROSS JOIN LATERAL
                   (SELECT o.ctid, o.* FROM millpond_group AS o
                     WHERE o.pool = p.id AND o.share = s.share AND o.owner = ''
                       AND o.ready = 1 ORDER BY o.rank, o.seq LIMIT 1) AS g
             CROSS JOIN LATERAL
                   (SELECT o.ctid, o.*, millpond_simple(o, r.moment) AS simple, millpond_folds(o) AS folds
                      FROM millpond_live AS o
                     WHERE o.grp = g.id AND o.grp > 0
                       -- A group stands where its first task does: before that are only those that left.
                       AND (o.rank, o.place) >= (g.rank, (g.pool << 40) | g.seq)
                     ORDER BY o.rank, o.place LIMIT 1) AS l
              LEFT JOIN LATERAL
                   (SELECT o.rank, o.place, o.due FROM millpond_live AS o
                     WHERE o.grp = g.id AND o.grp > 0 AND g.tasks > 1
                       AND (o.rank, o.place) > (l.rank, l.place)
                     ORDER BY o.rank, o.place LIMIT 1) AS f ON true
              LEFT JOIN LATERAL
                   (SELECT o.running, o.groups, greatest(o.tat, r.ticks) + r.key_interval
                           + (1 - r.key_depth) * r.key_interval > r.ticks AS closed
                      FROM millpond_unit AS o WHERE o.pool = p.id AND o.unit = g.unit) AS u ON true
             ORDER BY s.turn, s.joined) AS x
     CROSS JOIN LATERAL
           (SELECT o.body, o.plain FROM millpond_task AS o WHERE o.place = x.place OFFSET 0) AS t;
    -- Each is served once, and none of them again before all of them.
    IF n.n > 0 AND (
       ((n.turn, n.joined) <= (p.passed_turn, p.passed_join))
       OR ((n.last_turn, n.last_joined) >= (n.turn + 1048576, n.joined))
       OR (n.n < slots AND n.resting < n.n) OR p.resting + n.resting > 10000) THEN
        n.refused := 'turns';
    ELSIF n.n > 0 AND NOT n.simple THEN
        n.refused := 'not simple';
    END IF;
    RETURN n;
END $$;

-- Move the shares of the tasks that start behind the others, and take the tasks out of their groups.
-- Return the pool with its ring as it is then.
CREATE FUNCTION millpond_take_turns(p millpond_pool, r millpond_rules, n millpond_next)
RETURNS millpond_pool
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    touched bigint;
    forgotten bigint;
BEGIN
    UPDATE millpond_seat AS s
       SET turn = s.turn + 1048576, resting = 1 - u.stays::integer
      FROM unnest(n.seats, n.stays) AS u (spot, stays)
     WHERE s.ctid = u.spot;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> n.n THEN PERFORM millpond_miscounted('seat', n.n, touched); END IF;
    p.resting := p.resting + n.resting;
    IF p.resting > 0 THEN
        -- None of them stands before what was served last.
        DELETE FROM millpond_seat AS s
         WHERE s.pool = p.id AND s.resting = 1
           AND (s.turn, s.joined) > (p.passed_turn, p.passed_join)
           AND (s.turn, s.joined) <= (n.last_turn, n.last_joined);
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
       SET tasks = g.tasks - 1, rank = u.rank, seq = u.seq, due = u.due, ready = u.stays::integer
      FROM unnest(n.groups, n.last, n.stays, n.next_rank, n.next_seq, n.next_due)
           AS u (spot, last, stays, rank, seq, due)
     WHERE g.ctid = u.spot AND NOT u.last;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF forgotten + touched <> n.n THEN
        PERFORM millpond_miscounted('group', n.n, forgotten + touched);
    END IF;
    PERFORM millpond_enter_keys(p.id, r.key_interval, r.ticks, n.units, n.last);
    RETURN p;
END $$;
