-- Order: which queued task is next. A claim reads only what could start now.

-- A value that SQLite cannot see when it plans: else it plans again each time, because it might be that of
-- an index for one value only (millpond_later).
-- name: next_of_group
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.grp = CAST(? AS BIGINT) AND l.grp > 0 ORDER BY l.rank, l.place LIMIT ?;

-- name: next_of_group_after
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.grp = CAST(? AS BIGINT) AND l.grp > 0 AND (l.rank, l.place) > (?, ?) ORDER BY l.rank, l.place LIMIT ?;

-- name: next_due
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.pool = ? AND l.grp = 0 ORDER BY l.due, l.place LIMIT ?;

-- name: next_due_after
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.pool = ? AND l.grp = 0 AND (l.due, l.place) > (?, ?) ORDER BY l.due, l.place LIMIT ?;

-- name: first_due
SELECT due FROM millpond_live WHERE pool = ? AND grp = 0 ORDER BY due, place LIMIT 1;

-- name: count_later
SELECT count(*) FROM millpond_live WHERE pool = ? AND grp = 0 AND due > ?;

-- name: count_later_of_unit
SELECT count(*) FROM millpond_live
 WHERE pool = ? AND grp = 0 AND coalesce(lane, key) = ?;

-- name: count_undue_in_lanes
SELECT count(*) FROM millpond_live WHERE pool = ? AND grp > 0 AND due > ?;

-- name: due_in_lanes
SELECT 1 FROM millpond_live
 WHERE place > ? AND place <= ? AND grp > 0 AND due <= ? ORDER BY place LIMIT 1;

-- name: queued_page
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.place > ? AND l.place <= ? AND l.grp IS NOT NULL ORDER BY l.place LIMIT ?;

-- name: queued_of_pool
SELECT l.*, t.body FROM millpond_live AS l JOIN millpond_task AS t ON t.place = l.place
 WHERE l.place > ? AND l.place <= ? AND l.grp IS NOT NULL;

-- Held, not only running: what is claimed ahead counts for its key, too.
-- name: held_per_unit
SELECT coalesce(lane, key), count(*) FROM millpond_live
 WHERE pool = ? AND worker IS NOT NULL AND coalesce(lane, key) IS NOT NULL GROUP BY 1;

-- name: held_of_unit
SELECT count(*) FROM millpond_live
 WHERE pool = ? AND worker IS NOT NULL AND coalesce(lane, key) = ?;

-- Units.

-- name: unit
SELECT running, paused, blocked, held_until, tat, groups, timer_at, timer_rank, timer_seq, fades_at
  FROM millpond_unit WHERE pool = ? AND unit = ?;

-- name: units
SELECT unit, running, paused, blocked, held_until, tat, groups,
       timer_at, timer_rank, timer_seq, fades_at
  FROM millpond_unit WHERE pool = ?;

-- name: some_units
SELECT unit, running, paused, blocked, held_until, tat, groups,
       timer_at, timer_rank, timer_seq, fades_at
  FROM millpond_unit WHERE pool = ? AND unit IN names(?);

-- name: any_unit
SELECT EXISTS (SELECT 1 FROM millpond_unit WHERE pool = ?);

-- name: save_unit
INSERT INTO millpond_unit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (pool, unit) DO UPDATE
   SET running = excluded.running, paused = excluded.paused, blocked = excluded.blocked,
       held_until = excluded.held_until, tat = excluded.tat, groups = excluded.groups,
       timer_at = excluded.timer_at, timer_rank = excluded.timer_rank,
       timer_seq = excluded.timer_seq, fades_at = excluded.fades_at;

-- The same for one that no timer and no end of its days waits for, which costs less to say.
-- name: save_untimed_unit
INSERT INTO millpond_unit
       (pool, unit, running, paused, blocked, held_until, tat, groups) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (pool, unit) DO UPDATE
   SET running = excluded.running, paused = excluded.paused, blocked = excluded.blocked,
       held_until = excluded.held_until, tat = excluded.tat, groups = excluded.groups,
       timer_at = NULL, timer_rank = NULL, timer_seq = NULL, fades_at = NULL;

-- name: drop_unit
DELETE FROM millpond_unit WHERE pool = ? AND unit = ?;

-- name: unit_timers
SELECT timer_at, timer_rank, timer_seq, unit FROM millpond_unit
 WHERE pool = ? AND timer_at IS NOT NULL
 ORDER BY timer_at, timer_rank, timer_seq LIMIT ?;

-- name: unit_timers_after
SELECT timer_at, timer_rank, timer_seq, unit FROM millpond_unit
 WHERE pool = ? AND timer_at IS NOT NULL AND (timer_at, timer_rank, timer_seq) > (?, ?, ?)
 ORDER BY timer_at, timer_rank, timer_seq LIMIT ?;

-- name: fading_units
SELECT fades_at, unit FROM millpond_unit
 WHERE pool = ? AND fades_at IS NOT NULL ORDER BY fades_at, unit LIMIT ?;

-- name: fading_units_after
SELECT fades_at, unit FROM millpond_unit
 WHERE pool = ? AND fades_at IS NOT NULL AND (fades_at, unit) > (?, ?)
 ORDER BY fades_at, unit LIMIT ?;

-- name: paused_units
SELECT unit FROM millpond_unit WHERE pool = ? AND paused = 1;

-- Groups.

-- name: group
SELECT id, unit, share, owner, tasks, rank, seq, due, ready FROM millpond_group
 WHERE pool = ? AND unit = ? AND share = ? AND owner = ?;

-- name: groups_of_unit
SELECT id, unit, share, owner, tasks, rank, seq, due, ready FROM millpond_group
 WHERE pool = ? AND unit = ?;

-- name: groups_of_units
SELECT id, unit, share, owner, tasks, rank, seq, due, ready FROM millpond_group
 WHERE pool = ? AND unit IN names(?);

-- name: shelf
SELECT id, unit, share, owner, tasks, rank, seq, due, ready FROM millpond_group
 WHERE pool = ? AND share = ? AND owner = ? AND ready = 1 ORDER BY rank, seq LIMIT ?;

-- name: shelf_after
SELECT id, unit, share, owner, tasks, rank, seq, due, ready FROM millpond_group
 WHERE pool = ? AND share = ? AND owner = ? AND ready = 1 AND (rank, seq) > (?, ?)
 ORDER BY rank, seq LIMIT ?;

-- name: save_group
INSERT INTO millpond_group VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: change_group
UPDATE millpond_group SET tasks = ?, rank = ?, seq = ?, due = ?, ready = ? WHERE id = ?;

-- name: drop_group
DELETE FROM millpond_group WHERE id = ?;

-- Reading ahead: whose turn it is, with all that the claims of their first tasks will ask for, in one
-- statement. Every row has, after what is its own: the group, its unit, the place of the second task
-- of the group, its first task.

-- name: turns_ahead
SELECT s.turn, s.joined, s.share,
       (SELECT count(*) FROM millpond_seat AS o WHERE o.pool = s.pool AND o.share = s.share),
       EXISTS (SELECT 1 FROM millpond_group AS o
                WHERE o.pool = s.pool AND o.share = s.share AND o.owner = '' AND o.ready = 1
                  AND (o.rank, o.seq) > (g.rank, g.seq)),
       g.id, g.unit, g.share, g.owner, g.tasks, g.rank, g.seq, g.due, g.ready,
       u.running, u.paused, u.blocked, u.held_until, u.tat, u.groups,
       u.timer_at, u.timer_rank, u.timer_seq, u.fades_at,
       n.rank, n.place, n.due,
       l.*, t.body
  FROM millpond_seat AS s
  LEFT JOIN millpond_group AS g ON g.id =
       (SELECT id FROM millpond_group
         WHERE pool = s.pool AND share = s.share AND owner = '' AND ready = 1
         ORDER BY rank, seq LIMIT 1)
  LEFT JOIN millpond_unit AS u ON u.pool = s.pool AND u.unit = g.unit
  LEFT JOIN millpond_live AS l ON l.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) >= (g.rank, (g.pool << 40) | g.seq)
         ORDER BY rank, place LIMIT 1)
  LEFT JOIN millpond_task AS t ON t.place = l.place
  LEFT JOIN millpond_live AS n ON g.tasks > 1 AND n.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) > (l.rank, l.place)
         ORDER BY rank, place LIMIT 1)
 WHERE s.pool = ? AND s.owner = '' AND s.resting = 0 AND (s.turn, s.joined) > (?, ?)
 ORDER BY s.turn, s.joined LIMIT ?;

-- The same for a pool that is not fair: the groups of its one share.
-- name: shelf_ahead
SELECT g.id, g.unit, g.share, g.owner, g.tasks, g.rank, g.seq, g.due, g.ready,
       u.running, u.paused, u.blocked, u.held_until, u.tat, u.groups,
       u.timer_at, u.timer_rank, u.timer_seq, u.fades_at,
       n.rank, n.place, n.due,
       l.*, t.body
  FROM millpond_group AS g
  LEFT JOIN millpond_unit AS u ON u.pool = g.pool AND u.unit = g.unit
  LEFT JOIN millpond_live AS l ON l.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) >= (g.rank, (g.pool << 40) | g.seq)
         ORDER BY rank, place LIMIT 1)
  LEFT JOIN millpond_task AS t ON t.place = l.place
  LEFT JOIN millpond_live AS n ON g.tasks > 1 AND n.place =
       (SELECT place FROM millpond_live
         WHERE grp = g.id AND grp > 0 AND (rank, place) > (l.rank, l.place)
         ORDER BY rank, place LIMIT 1)
 WHERE g.pool = ? AND g.share = '' AND g.owner = '' AND g.ready = 1 AND (g.rank, g.seq) > (?, ?)
 ORDER BY g.rank, g.seq LIMIT ?;

-- Seats of the ring.

-- name: seat
SELECT owner, turn, joined, resting FROM millpond_seat WHERE pool = ? AND share = ?;

-- name: seats
SELECT share, owner, turn, joined, resting FROM millpond_seat
 WHERE pool = ? AND share IN names(?);

-- name: save_seat
INSERT INTO millpond_seat VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (pool, share, owner) DO UPDATE
   SET turn = excluded.turn, joined = excluded.joined, resting = excluded.resting;

-- name: drop_seat
DELETE FROM millpond_seat WHERE pool = ? AND share = ? AND owner = ?;

-- name: turns
SELECT turn, joined, share FROM millpond_seat
 WHERE pool = ? AND owner = ? AND resting = 0 ORDER BY turn, joined LIMIT ?;

-- name: turns_after
SELECT turn, joined, share FROM millpond_seat
 WHERE pool = ? AND owner = ? AND resting = 0 AND (turn, joined) > (?, ?)
 ORDER BY turn, joined LIMIT ?;

-- name: resting_seats
SELECT turn, joined, share FROM millpond_seat
 WHERE pool = ? AND resting = 1 ORDER BY turn, joined LIMIT ?;

-- name: resting_seats_after
SELECT turn, joined, share FROM millpond_seat
 WHERE pool = ? AND resting = 1 AND (turn, joined) > (?, ?) ORDER BY turn, joined LIMIT ?;

-- When lanes and keys begin to matter in a pool that already has a queue, and when its order changes.

-- name: forget_units
DELETE FROM millpond_unit WHERE pool = ?;

-- name: forget_groups
DELETE FROM millpond_group WHERE pool = ?;

-- name: forget_seats
DELETE FROM millpond_seat WHERE pool = ?;

-- Lanes.

-- name: lane
SELECT sequence, processed FROM millpond_lane WHERE pool = ? AND lane = ?;

-- name: save_lane
INSERT INTO millpond_lane VALUES (?, ?, ?, ?)
    ON CONFLICT (pool, lane) DO UPDATE
   SET sequence = excluded.sequence, processed = excluded.processed;
