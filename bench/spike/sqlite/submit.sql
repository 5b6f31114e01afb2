-- The claim spike, SQLite: submit. All of it runs between BEGIN IMMEDIATE and COMMIT.
-- Lists travel as one JSON argument: one prepared statement serves every batch size.

-- name: pool
SELECT id, fair, grouped, ordered, cap, per_key, bound, running, depth, next_seq, next_join, turn, root
  FROM pool WHERE id = :pool;

-- name: save_pool
UPDATE pool
   SET running = :running, depth = :depth, next_seq = :next_seq, next_join = :next_join, turn = :turn,
       stale = stale + :stale
 WHERE id = :pool;

-- Idempotency comes first: a known key is answered even when the pool is full.
-- name: known_keys
SELECT key, id FROM idem WHERE pool = :pool AND key IN (SELECT value FROM json_each(:keys));

-- Only for a repeated submit, whose first commit may or may not have happened.
-- name: known_ids
SELECT id FROM task WHERE id IN (SELECT value FROM json_each(:ids));

-- name: groups
SELECT name, id, state, tail FROM grp
 WHERE pool = :pool AND name IN (SELECT value FROM json_each(:names));

-- A new group starts dry with no credit; `enter` puts it in.
-- name: new_group
INSERT INTO grp (pool, name, state, o1, o2, stride) VALUES (:pool, :name, 0, 0, 0, :stride);

-- name: set_tail
UPDATE grp SET tail = ? WHERE id = ?;

-- name: add_task
INSERT INTO task (id, pool, grp, rank, seq, lane_seq, priority, submitted_at, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_ready
INSERT INTO ready (grp, rank, seq, id, attempt, fresh, due) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: add_later
INSERT INTO later (pool, due, seq, grp, rank, id, attempt, fresh) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_idem
INSERT INTO idem (pool, key, id) VALUES (?, ?, ?);

-- A group that may enter: what is its head?
-- name: head
SELECT rank, seq, due FROM ready WHERE grp = :grp ORDER BY rank, seq LIMIT 1;

-- name: enter_fair
UPDATE grp SET state = 1, o1 = max(o1, :turn), o2 = :join WHERE id = :grp;

-- name: enter_by_head
UPDATE grp SET state = 1, o1 = :rank, o2 = :seq WHERE id = :grp;

-- name: leave
UPDATE grp SET state = :state, due = :due WHERE id = :grp;

-- An eligible group whose new task comes before its head moves up (not in a fair pool).
-- name: move_up
UPDATE grp SET o1 = :rank, o2 = :seq WHERE id = :grp AND state = 1 AND (:rank, :seq) < (o1, o2);
