-- What is next in a pool with lanes, keys or shares.

-- Return the next tasks. Shares take turns, those with more weight more often; of a share the tasks of all its units
-- come in their order, as many of each unit as its limits let start.
CREATE FUNCTION millpond_next_in_turn(p millpond_pool, r millpond_rules, slots bigint)
RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    n millpond_next;
    first_served bigint[];
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
        SELECT s.seat, s.share, s.turn, s.joined, s.stride, g.spot AS grp, g.unit, u.spot AS unit_spot, u.alone,
               u.count_room, u.room, least(s.quota, u.room) AS cap, l.*, row_number() OVER w AS nth,
               lead(l.rank) OVER w AS next_rank, lead(l.place) OVER w AS next_place, lead(l.due) OVER w AS next_due
          FROM seats AS s
          -- Where one of these is not found, rows are missing: the verbs see that, and make them again.
          LEFT JOIN LATERAL
               -- One more than can be served says whether the share has something left to start.
               (SELECT x.ctid AS spot, x.id, x.unit, x.rank, x.seq FROM millpond_group AS x
                 WHERE x.pool = p.id AND x.share = s.share AND x.owner = '' AND x.ready = 1
                   AND (x.rank, x.seq) > (-9223372036854775808, 0)
                 ORDER BY x.rank, x.seq LIMIT s.quota + 1) AS g ON true
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, r.unit_limit - x.running AS count_room,
                       CASE WHEN g.unit <> '' THEN
                       least(r.unit_limit - x.running, r.key_depth
                             - (greatest(x.tat - r.ticks, 0) + r.key_interval - 1) / r.key_interval) END AS room,
                       (g.unit = '' OR NOT r.limited OR x.groups = 1) AND x.timer_at IS NULL AS alone
                  FROM millpond_unit AS x WHERE x.pool = p.id AND x.unit = g.unit OFFSET 0) AS u ON true
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.rank, x.place, x.due FROM millpond_live AS x
                 WHERE x.grp = g.id AND x.grp > 0
                   -- A group stands where its first task does: before that are only those that left.
                   AND (x.rank, x.place) >= (g.rank, (p.id << 40) | g.seq)
                 ORDER BY x.rank, x.place LIMIT greatest(least(s.quota, u.room), 0) + 1) AS l ON true
        WINDOW w AS (PARTITION BY g.spot ORDER BY l.rank, l.place)
    ), served AS MATERIALIZED (
        SELECT o.*, coalesce(o.next_due <= r.moment AND coalesce(o.nth < o.room, true), false) AS ready_then,
               -- Of its group: so many were taken there.
               lead(o.n) OVER (PARTITION BY o.grp ORDER BY o.nth) IS NULL AS is_last
          FROM (SELECT y.*, row_number() OVER () AS n
                  FROM (SELECT x.*, x.turn + x.stride * (row_number() OVER (
                                        PARTITION BY x.seat ORDER BY x.rank, x.place) - 1) AS service,
                               count(*) FILTER (WHERE x.nth = 1) OVER (PARTITION BY x.seat) AS groups
                          FROM reach AS x WHERE x.nth <= x.cap
                         ORDER BY service, x.joined, x.rank, x.place LIMIT slots) AS y) AS o
    )
    SELECT s.spots, s.groups, s.units, s.taken, s.entered, s.next_ranks, s.next_seqs, s.next_dues, s.ready_then,
           s.waiting, m.seats, m.turns, m.resting, s.last[1], s.last[2], s.first,
           (SELECT bool_or(coalesce(NOT x.alone OR x.cap < 1 OR x.spot IS NULL, true)) FROM reach AS x)
      INTO n.spots, n.groups, n.units, n.taken, n.entered, n.next_ranks, n.next_seqs, n.next_dues, n.ready_then,
           n.waiting, n.seats, n.turns, n.resting, n.last_turn, n.last_joined, first_served, odd
      FROM (SELECT array_agg(x.spot ORDER BY x.n) AS spots,
                   min(ARRAY[x.service, x.joined]) AS first, max(ARRAY[x.service, x.joined]) AS last,
                   array_agg(x.grp) FILTER (WHERE x.is_last) AS groups,
                   array_agg(x.unit_spot) FILTER (WHERE x.is_last) AS units,
                   array_agg(x.nth) FILTER (WHERE x.is_last) AS taken,
                   array_agg(CASE WHEN x.unit = '' THEN 0 ELSE x.nth END) FILTER (WHERE x.is_last) AS entered,
                   array_agg(x.next_rank) FILTER (WHERE x.is_last) AS next_ranks,
                   array_agg(x.next_place & ((1::bigint << 40) - 1)) FILTER (WHERE x.is_last) AS next_seqs,
                   array_agg(x.next_due) FILTER (WHERE x.is_last) AS next_dues,
                   array_agg(x.ready_then) FILTER (WHERE x.is_last) AS ready_then,
                   array_agg(x.unit) FILTER (WHERE x.is_last AND x.next_rank IS NOT NULL AND NOT x.ready_then
                                               AND coalesce(x.nth < x.count_room, true)) AS waiting
              FROM served AS x) AS s
     CROSS JOIN
           (SELECT array_agg(x.seat) AS seats, array_agg(x.turn) AS turns, array_agg(x.rests) AS resting
              FROM (SELECT x.seat, max(x.service + x.stride) AS turn,
                           count(*) FILTER (WHERE x.is_last AND NOT x.ready_then) = min(x.groups) AS rests
                      FROM served AS x GROUP BY x.seat) AS x) AS m;
    n := millpond_read_tasks(n, r);
    IF r.fair AND (first_served[1], first_served[2]) <= (p.passed_turn, p.passed_join) THEN
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
DECLARE
    all_fold boolean;
BEGIN
    SELECT count(*), array_agg(x.id), array_agg(x.place),
           CASE WHEN min(x.rank) = max(x.rank) THEN ARRAY[min(x.rank)] ELSE array_agg(x.rank) END,
           CASE WHEN min(x.submitted_at) = max(x.submitted_at) THEN ARRAY[min(x.submitted_at)]
                ELSE array_agg(x.submitted_at) END,
           CASE WHEN min(x.due) = max(x.due) THEN ARRAY[min(x.due)] ELSE array_agg(x.due) END,
           CASE WHEN count(x.key) = 0 THEN '{}' ELSE array_agg(x.key) END,
           bool_and(x.simple), bool_and(x.folds), coalesce(sum(x.fresh), 0),
           CASE WHEN r.in_lanes THEN array_agg(x.lane) END, CASE WHEN r.in_lanes THEN array_agg(x.sequence) END
      INTO n.n, n.ids, n.places, n.ranks, n.submitted_at, n.due, n.keys, n.simple, all_fold, n.fresh,
           n.lanes, n.sequences
      FROM (SELECT l.*
              FROM unnest(n.spots) WITH ORDINALITY AS u (spot, n)
             CROSS JOIN LATERAL
                   (SELECT o.id, o.place, o.rank, o.submitted_at, o.due, o.key, o.fresh, o.lane, o.sequence,
                           millpond_simple(o, r.moment) AS simple, millpond_folds(o) AS folds
                      FROM millpond_live AS o WHERE o.ctid = u.spot OFFSET 0) AS l
             ORDER BY u.n) AS x;
    IF n.n = 0 THEN
        RETURN n;
    END IF;
    n := millpond_read_bodies(n, false);
    IF NOT all_fold THEN
        n := millpond_read_attempts(n);
    END IF;
    RETURN n;
END $$;
