-- The claim spike, SQLite: lease. Same transaction as settle.sql when fused.

-- Due work first, oldest first, at most :most per call.
-- name: due_tasks
SELECT due, seq, grp, rank, id, attempt, fresh FROM later
 WHERE pool = :pool AND due <= :now ORDER BY due, seq LIMIT :most;

-- name: drop_later
DELETE FROM later WHERE pool = ? AND due = ? AND seq = ?;

-- name: due_groups
SELECT id FROM grp WHERE pool = :pool AND state = 3 AND due <= :now ORDER BY due, id LIMIT :most;

-- Plain pools: the first n of one index range, leased and deleted as a range. Four statements for any n.
-- name: plain_head
SELECT r.rank, r.seq, r.id, r.attempt, r.fresh, t.payload
  FROM ready AS r JOIN task AS t ON t.id = r.id
 WHERE r.grp = :grp ORDER BY r.rank, r.seq LIMIT :n;

-- name: plain_lease
INSERT INTO lease (id, worker, attempt, token, grp, rank, seq, started_at)
SELECT id, :worker, attempt + 1, :token, grp, rank, seq, :now
  FROM ready WHERE grp = :grp ORDER BY rank, seq LIMIT :n;

-- name: plain_delete
DELETE FROM ready WHERE grp = :grp AND (rank, seq) <= (:rank, :seq);

-- Pools with groups: the first n eligible groups; nothing behind them can be reached.
-- name: members
SELECT id, o1, o2, stride, running FROM grp
 WHERE pool = :pool AND state = 1 ORDER BY o1, o2 LIMIT :n;

-- name: group_ready
SELECT rank, seq, id, attempt, fresh FROM ready
 WHERE grp = :grp ORDER BY rank, seq LIMIT :n OFFSET :skip;

-- With as many groups as tasks wanted, one statement reads the head of each and the one behind it:
-- half the time of a query per group.
-- name: first_two
SELECT m.id, r.rank, r.seq, r.id, r.attempt, r.fresh
  FROM (SELECT id FROM grp WHERE pool = :pool AND state = 1 ORDER BY o1, o2 LIMIT :n) AS m
 CROSS JOIN ready AS r
 WHERE r.grp = m.id
   AND (r.rank, r.seq) IN (SELECT rank, seq FROM ready AS x WHERE x.grp = m.id ORDER BY rank, seq LIMIT 2);

-- name: lease_one
INSERT INTO lease (id, worker, attempt, token, grp, rank, seq, started_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: take_one
DELETE FROM ready WHERE grp = ? AND rank = ? AND seq = ?;

-- name: served
UPDATE grp SET state = ?, o1 = ?, o2 = ?, running = ? WHERE id = ?;

-- name: payloads
SELECT id, payload FROM task WHERE id IN (SELECT value FROM json_each(:ids));
