-- What is next in a pool with lanes, keys or shares.

-- Return the next tasks. Shares take turns, those with more weight more often; of a share the tasks of all its units
-- come in their order, as many of each unit as its limits let start.
CREATE FUNCTION millpond_next_in_turn(p millpond_pool, r millpond_rules, slots bigint)
RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    n millpond_next;
    first millpond_turn;  -- of the first that is served
    odd boolean;
BEGIN
    WITH seats AS MATERIALIZED (
        -- Until the turn of the last of so many seats, each may be served so often.
        SELECT s.*, CASE WHEN r.fair AND count(*) OVER () = slots
                         THEN least(slots, 1 + (max(s.turn) OVER () - s.turn) / s.stride) ELSE slots END AS quota
          FROM (SELECT o.ctid AS seat, o.share, o.turn, o.joined, millpond_stride(r.weights, o.share) AS stride
                  FROM millpond_seat AS o
                 WHERE o.pool = p.id AND o.owner = '' AND o.resting = 0
                   AND (o.turn, o.joined) > (p.ring_turn, p.ring_join)
                 ORDER BY o.turn, o.joined LIMIT slots) AS s
    ), reach AS MATERIALIZED (
        SELECT s.*, g.id AS grp, g.unit, u.cap, u.alone, l.*
          FROM seats AS s
          -- Where one of these is not found, rows are missing: the verbs see that, and make them again.
          LEFT JOIN LATERAL
               (SELECT o.*, row_number() OVER () AS n
                  FROM (SELECT x.id, x.unit, x.rank, x.seq FROM millpond_group AS x
                         WHERE x.pool = p.id AND x.share = s.share AND x.owner = '' AND x.ready = 1
                           AND (x.rank, x.seq) > (-9223372036854775808, 0)
                         ORDER BY x.rank, x.seq LIMIT s.quota) AS o OFFSET 0) AS g ON true
          LEFT JOIN LATERAL
               (SELECT CASE WHEN g.unit = '' THEN s.quota - g.n + 1
                            ELSE least(s.quota - g.n + 1, r.unit_limit - o.running, r.key_depth
                                       - (greatest(o.tat - r.ticks, 0) + r.key_interval - 1) / r.key_interval)
                       END AS cap, g.unit = '' OR NOT r.limited OR o.groups = 1 AS alone
                  FROM millpond_unit AS o WHERE o.pool = p.id AND o.unit = g.unit OFFSET 0) AS u ON true
          LEFT JOIN LATERAL
               (SELECT o.*, row_number() OVER () AS nth, lead(o.rank) OVER () AS next_rank,
                       lead(o.place) OVER () AS next_place, lead(o.due) OVER () AS next_due
                  FROM (SELECT x.ctid AS spot, x.rank, x.place, x.due FROM millpond_live AS x
                         WHERE x.grp = g.id AND x.grp > 0
                           -- A group stands where its first task does: before that are only those that left.
                           AND (x.rank, x.place) >= (g.rank, (p.id << 40) | g.seq)
                         ORDER BY x.rank, x.place LIMIT greatest(u.cap, 0) + 1) AS o OFFSET 0) AS l ON true
    ), served AS MATERIALIZED (
        SELECT o.*, row_number() OVER () AS n
          FROM (SELECT x.*, x.turn + x.stride * (row_number() OVER (
                                PARTITION BY x.seat ORDER BY x.rank, x.place) - 1) AS service
                  FROM reach AS x WHERE x.nth <= x.cap
                 ORDER BY service, x.joined, x.rank, x.place LIMIT slots) AS o
    ), units AS MATERIALIZED (
        SELECT x.unit, x.share, count(*) AS taken, (array_agg(x.next_rank ORDER BY x.nth DESC))[1] AS rank,
               (array_agg(x.next_place ORDER BY x.nth DESC))[1] & ((1::bigint << 40) - 1) AS seq,
               (array_agg(x.next_due ORDER BY x.nth DESC))[1] AS due FROM served AS x GROUP BY 1, 2
    ), moved AS MATERIALIZED (
        SELECT x.seat, x.share, max(x.service + x.stride) AS turn FROM served AS x GROUP BY 1, 2
    )
    SELECT (SELECT bool_or(coalesce(NOT x.alone OR x.cap < 1 OR x.spot IS NULL, true)) FROM reach AS x), array_agg(s.spot ORDER BY s.n),
           (array_agg(s.turn ORDER BY s.n))[1], (array_agg(s.joined ORDER BY s.n))[1],
           (array_agg(s.service ORDER BY s.n DESC))[1], (array_agg(s.joined ORDER BY s.n DESC))[1],
           (SELECT array_agg(x.unit) FROM units AS x), (SELECT array_agg(x.share) FROM units AS x),
           (SELECT array_agg(x.taken) FROM units AS x), (SELECT array_agg(x.rank) FROM units AS x),
           (SELECT array_agg(x.seq) FROM units AS x), (SELECT array_agg(x.due) FROM units AS x),
           (SELECT array_agg(x.seat) FROM moved AS x), (SELECT array_agg(x.share) FROM moved AS x),
           (SELECT array_agg(x.turn) FROM moved AS x)
      INTO odd, n.spots, first.turn, first.joined, n.last_turn, n.last_joined, n.units, n.unit_shares, n.taken,
           n.next_ranks, n.next_seqs, n.next_dues, n.seats, n.shares, n.turns
      FROM served AS s;
    n := millpond_read_tasks(n, r);
    IF r.fair AND (first.turn, first.joined) <= (p.passed_turn, p.passed_join) THEN
        n.refused := 'turns';
    ELSIF odd OR NOT n.simple THEN
        n.refused := 'not simple';
    END IF;
    RETURN n;
END $$;

-- Read the next tasks, whose rows are known.
CREATE FUNCTION millpond_read_tasks(n millpond_next, r millpond_rules) RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    SELECT count(*), array_agg(x.id), array_agg(x.place),
           CASE WHEN min(x.rank) = max(x.rank) THEN ARRAY[min(x.rank)] ELSE array_agg(x.rank) END,
           CASE WHEN min(x.submitted_at) = max(x.submitted_at) THEN ARRAY[min(x.submitted_at)]
                ELSE array_agg(x.submitted_at) END,
           CASE WHEN min(x.due) = max(x.due) THEN ARRAY[min(x.due)] ELSE array_agg(x.due) END,
           CASE WHEN count(x.key) = 0 THEN '{}' ELSE array_agg(x.key) END,
           CASE WHEN min(t.plain) = max(t.plain) THEN ARRAY[min(t.plain)] ELSE array_agg(t.plain) END,
           array_agg(t.body), bool_and(x.simple AND t.plain IS NOT NULL), coalesce(sum(x.fresh), 0),
           array_agg(x.n) FILTER (WHERE NOT x.folds),
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.attempt) END,
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.runs) END,
           CASE WHEN max(x.runs) > 0 THEN array_agg(x.first_started_at) END,
           CASE WHEN r.in_lanes THEN array_agg(x.lane) END, CASE WHEN r.in_lanes THEN array_agg(x.sequence) END
      INTO n.n, n.ids, n.places, n.ranks, n.submitted_at, n.due, n.keys, n.plain, n.bodies, n.simple, n.fresh,
           n.own_rows, n.attempts, n.runs, n.first_started_at, n.lanes, n.sequences
      FROM (SELECT l.*, u.n
              FROM unnest(n.spots) WITH ORDINALITY AS u (spot, n)
             CROSS JOIN LATERAL
                   (SELECT o.*, millpond_simple(o, r.moment) AS simple, millpond_folds(o) AS folds
                      FROM millpond_live AS o WHERE o.ctid = u.spot OFFSET 0) AS l
             ORDER BY u.n) AS x
     CROSS JOIN LATERAL
           (SELECT o.body, o.plain FROM millpond_task AS o WHERE o.place = x.place OFFSET 0) AS t;
    RETURN n;
END $$;
