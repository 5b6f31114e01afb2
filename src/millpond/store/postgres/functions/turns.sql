-- What is next in a pool with lanes, keys or shares.

-- Return whether the next share has more than one group to start from.
CREATE FUNCTION millpond_has_choice(p millpond_pool) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM millpond_turns(p.id, '', p.passed_turn, p.passed_join, p.ring_turn, p.ring_join, 1) AS s
         CROSS JOIN LATERAL
               (SELECT FROM millpond_group AS o
                 WHERE o.pool = p.id AND o.share = s.share AND o.owner = '' AND o.ready = 1
                 ORDER BY o.shelf_rank, o.shelf_seq OFFSET 1 LIMIT 1) AS g);
END $$;

-- Return the next tasks where each of the next shares starts one, as in a ring of many equal shares with one key
-- each; NULL tasks: it is not so simple, and millpond_next_in_turn finds them.
CREATE FUNCTION millpond_next_of_each(p millpond_pool, r millpond_rules, slots bigint) RETURNS millpond_next
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    n millpond_next;
    first_served bigint[];
    last_served bigint[];
BEGIN
    SELECT count(*), max(x.nth) = slots AND bool_and(x.place IS NOT NULL AND x.alone AND coalesce(x.room > 0, true)
                                      AND x.folds AND x.simple AND x.plain IS NOT NULL),
           coalesce(sum(x.fresh), 0),
           array_agg(x.spot), array_agg(x.id), array_agg(x.place), array_agg(x.body),
           CASE WHEN min(x.rank) = max(x.rank) THEN ARRAY[min(x.rank)] ELSE array_agg(x.rank) END,
           CASE WHEN min(x.submitted_at) = max(x.submitted_at) THEN ARRAY[min(x.submitted_at)]
                ELSE array_agg(x.submitted_at) END,
           CASE WHEN min(x.due) = max(x.due) THEN ARRAY[min(x.due)] ELSE array_agg(x.due) END,
           CASE WHEN count(x.key) = 0 THEN '{}' ELSE array_agg(x.key) END,
           CASE WHEN min(x.plain) = max(x.plain) THEN ARRAY[min(x.plain)] ELSE array_agg(x.plain) END,
           array_agg(x.grp), array_agg(x.unit_spot), array_agg((x.unit <> '')::integer::bigint),
           array_agg(x.next_rank), array_agg(x.next_place & ((1::bigint << 40) - 1)), array_agg(x.next_due),
           array_agg(x.ready_then),
           array_agg(x.unit) FILTER (WHERE x.next_rank IS NOT NULL AND NOT x.ready_then
                                       AND coalesce(1 < x.count_room, true)),
           array_agg(x.seat) FILTER (WHERE NOT x.ready_then OR x.turn_then <> x.stored),
           array_agg(CASE WHEN x.ready_then THEN x.turn_then ELSE x.turn + 1048576 END)
               FILTER (WHERE NOT x.ready_then OR x.turn_then <> x.stored),
           array_agg(NOT x.ready_then) FILTER (WHERE NOT x.ready_then OR x.turn_then <> x.stored),
           min(ARRAY[x.turn, x.joined]), max(ARRAY[x.turn, x.joined])
      INTO n.n, n.simple, n.fresh, n.spots, n.ids, n.places, n.bodies, n.ranks, n.submitted_at, n.due, n.keys,
           n.plain, n.groups, n.units, n.entered, n.next_ranks, n.next_seqs, n.next_dues, n.ready_then, n.waiting,
           n.seats, n.turns, n.resting, first_served, last_served
      FROM (SELECT s.nth, s.spot AS seat, s.turn, s.joined, s.stored, g.spot AS grp, g.unit, u.spot AS unit_spot,
                   u.alone, u.room, u.count_room, l.*, t.body, t.plain, x.rank AS next_rank,
                   x.place AS next_place, x.due AS next_due,
                   coalesce(x.due <= r.moment AND coalesce(1 < u.room, true), false) AS ready_then,
                   CASE WHEN millpond_whole(s.turn) = s.turn THEN -1 ELSE s.turn + 1048576 END AS turn_then
              FROM (SELECT o.*, row_number() OVER () AS nth
                      FROM millpond_turns(p.id, '', p.passed_turn, p.passed_join, p.ring_turn, p.ring_join, slots) AS o)
                   AS s
              LEFT JOIN LATERAL
                   -- A second one makes more tasks than there are slots.
                   (SELECT o.ctid AS spot, o.id, o.unit, o.rank, o.seq, o.tasks FROM millpond_group AS o
                     WHERE o.pool = p.id AND o.share = s.share AND o.owner = '' AND o.ready = 1
                       AND (o.shelf_rank, o.shelf_seq) >= (-9223372036854775808, 0)
                     ORDER BY o.shelf_rank, o.shelf_seq LIMIT 2) AS g ON true
              LEFT JOIN LATERAL
                   (SELECT o.ctid AS spot, r.unit_limit - o.running AS count_room,
                           CASE WHEN g.unit <> '' THEN
                           least(r.unit_limit - o.running, r.key_depth
                                 - (greatest(o.tat - r.ticks, 0) + r.key_interval - 1) / r.key_interval) END AS room,
                           (g.unit = '' OR NOT r.limited OR o.groups = 1) AND o.timer_at IS NULL AS alone
                      FROM millpond_unit AS o WHERE o.pool = p.id AND o.unit = g.unit OFFSET 0) AS u ON true
              LEFT JOIN LATERAL
                   (SELECT o.ctid AS spot, o.id, o.place, o.rank, o.submitted_at, o.due, o.key, o.fresh,
                           millpond_simple(o, r.moment) AS simple, millpond_folds(o) AS folds
                      FROM millpond_live AS o
                     WHERE o.place = ((p.id << 40) | g.seq) AND o.grp = g.id OFFSET 0) AS l ON true
              LEFT JOIN LATERAL
                   (SELECT o.body, o.plain FROM millpond_task AS o WHERE o.place = l.place OFFSET 0) AS t ON true
              LEFT JOIN LATERAL
                   (SELECT o.rank, o.place, o.due FROM millpond_live AS o
                     WHERE g.tasks > 1 AND o.grp = g.id AND o.grp > 0 AND (o.rank, o.place) > (g.rank, l.place)
                     ORDER BY o.rank, o.place LIMIT 1) AS x ON true) AS x;
    IF n.n <> slots OR n.simple IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    n.taken := array_fill(1::bigint, ARRAY[n.n]);
    n.last_turn := last_served[1];
    n.last_joined := last_served[2];
    IF first_served <= ARRAY[p.passed_turn, p.passed_join] THEN
        n.refused := 'turns';
    END IF;
    RETURN n;
END $$;

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
    IF r.fair AND r.weights IS NULL AND NOT r.in_lanes AND NOT millpond_has_choice(p) THEN
        n := millpond_next_of_each(p, r, slots);
        IF n.n > 0 THEN
            RETURN n;
        END IF;
    END IF;
    WITH seats AS MATERIALIZED (
        -- Until the turn of the last of so many seats, each may be served so often.
        SELECT s.*, CASE WHEN r.fair AND count(*) OVER () = slots
                         THEN least(slots, 1 + (max(s.turn) OVER () - s.turn) / s.stride) ELSE slots END AS quota
          FROM (SELECT o.spot AS seat, o.share, o.turn, o.joined, o.stored,
                       millpond_stride(r.weights, o.share) AS stride
                  FROM millpond_turns(p.id, '', p.passed_turn, p.passed_join, p.ring_turn, p.ring_join, slots) AS o)
               AS s
    ), reach AS MATERIALIZED (
        SELECT s.seat, s.share, s.turn, s.joined, s.stored, s.stride, g.spot AS grp, g.unit, u.spot AS unit_spot,
               u.alone, u.count_room, u.room, least(s.quota, u.room) AS cap, l.*, row_number() OVER w AS nth,
               lead(l.rank) OVER w AS next_rank, lead(l.place) OVER w AS next_place, lead(l.due) OVER w AS next_due
          FROM seats AS s
          -- Where one of these is not found, rows are missing: the verbs see that, and make them again.
          LEFT JOIN LATERAL
               -- One more than can be served says whether the share has something left to start.
               (SELECT x.ctid AS spot, x.id, x.unit, x.rank, x.seq FROM millpond_group AS x
                 WHERE x.pool = p.id AND x.share = s.share AND x.owner = '' AND x.ready = 1
                   AND (x.shelf_rank, x.shelf_seq) >= (-9223372036854775808, 0)
                 ORDER BY x.shelf_rank, x.shelf_seq LIMIT s.quota + 1) AS g ON true
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
           -- Only seats whose rows change.
           (SELECT array_agg(x.seat) AS seats, array_agg(x.turn) AS turns, array_agg(x.rests) AS resting
              FROM (SELECT y.seat, y.rests, y.stored, CASE WHEN r.fair AND NOT y.rests AND y.stride = 1048576
                                AND millpond_whole(y.turn) = y.turn THEN -1 ELSE y.turn END AS turn
                      FROM (SELECT x.seat, x.stored, x.stride,
                                   CASE WHEN r.fair THEN max(x.service + x.stride) ELSE min(x.turn) END AS turn,
                                   count(*) FILTER (WHERE x.is_last AND NOT x.ready_then) = min(x.groups) AS rests
                              FROM served AS x GROUP BY x.seat, x.stored, x.stride) AS y) AS x
             WHERE x.rests OR r.fair AND x.turn <> x.stored) AS m;
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
