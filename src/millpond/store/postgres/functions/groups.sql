-- Queues of fair pools: a group holds the tasks of one key and one share, a seat says when a share is next.

-- Put tasks that are due into their groups, each at its place. Tasks that are not due (`dues`) are left out;
-- `dues` NULL: all are due now. A new group has the number of its first place. Return the shares of new groups that
-- have something to start, and which of these tasks is the first of each. An error of SQLSTATE MP001 says that
-- something else holds one of these keys back.
CREATE FUNCTION millpond_join_groups(
    the_pool bigint, per_key bigint, moment double precision, places bigint[],
    keys text[], group_shares text[], dues double precision[],
    OUT shares text[], OUT ready_at bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    c record;
BEGIN
    WITH coming AS MATERIALIZED (
        SELECT coalesce(u.key, '') AS unit, coalesce(u.share, '') AS share, count(*) AS tasks,
               min(u.place) AS place, min(u.place) & ((1::bigint << 40) - 1) AS seq, min(u.n) AS n,
               coalesce((array_agg(u.due ORDER BY u.place))[1], moment) AS due
          FROM unnest(places, keys, group_shares, dues) WITH ORDINALITY AS u (place, key, share, due, n)
         WHERE u.due IS NULL OR u.due <= moment GROUP BY 1, 2
    ), found AS MATERIALIZED (
        SELECT k.*, g.spot, o.running, o.spot AS unit_spot,
               o.paused = 1 OR o.blocked = 1 OR o.held_until > 0 OR o.fades_at IS NOT NULL AS held,
               k.unit = '' OR per_key IS NULL OR coalesce(o.running, 0) < per_key AS open
          FROM coming AS k
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot FROM millpond_group AS x
                 WHERE x.pool = the_pool AND x.unit = k.unit AND x.share = k.share AND x.owner = '' OFFSET 0)
               AS g ON true
          LEFT JOIN LATERAL
               (SELECT x.ctid AS spot, x.* FROM millpond_unit AS x
                 WHERE x.pool = the_pool AND x.unit = k.unit OFFSET 0) AS o ON true
    ), grown AS (
        UPDATE millpond_group AS g
           SET tasks = g.tasks + f.tasks, seq = least(g.seq, f.seq),
               due = CASE WHEN f.seq < g.seq THEN f.due ELSE g.due END
          FROM found AS f WHERE g.ctid = f.spot
    ), units AS (
        INSERT INTO millpond_unit AS o
        SELECT the_pool, f.unit, 0, 0, 0, 0, 0, count(*), NULL, NULL, NULL, NULL
          FROM found AS f WHERE f.spot IS NULL GROUP BY f.unit
            ON CONFLICT (pool, unit) DO UPDATE SET groups = o.groups + excluded.groups
    ), made AS (
        INSERT INTO millpond_group
        SELECT f.place, the_pool, f.unit, f.share, '', f.tasks, 0, f.seq, f.due, f.open::integer
          FROM found AS f WHERE f.spot IS NULL
    )
    SELECT coalesce(bool_or(f.held), false) AS held,
           array_agg(f.share) FILTER (WHERE f.spot IS NULL AND f.open) AS shares,
           array_agg(f.n) FILTER (WHERE f.spot IS NULL AND f.open) AS ready_at
      INTO c FROM found AS f;
    IF c.held THEN
        RAISE EXCEPTION 'held' USING ERRCODE = 'MP001';
    END IF;
    shares := c.shares;
    ready_at := c.ready_at;
END $$;

-- Let shares take turns that have something to start now, in the order of `ready_at`. Return the pool with its
-- ring.
CREATE FUNCTION millpond_join_ring(p millpond_pool, ready text[], ready_at bigint[]) RETURNS millpond_pool
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
         -- By its key: the index of those that rest would read all of them.
         WHERE s.pool = p.id AND s.share = ANY(ready) AND s.owner = '' AND s.resting > 0
        RETURNING s.turn, s.joined
    )
    SELECT count(*) AS n,
           bool_or((c.turn, c.joined) <= (p.ring_turn, p.ring_join)) AS behind INTO woken FROM changed AS c;
    IF woken.behind THEN
        RAISE EXCEPTION 'turns' USING ERRCODE = 'MP001';
    END IF;
    p.resting := p.resting - woken.n;
    INSERT INTO millpond_seat
    SELECT p.id, b.share, '', p.passed_turn, p.joins + row_number() OVER (ORDER BY b.o), 0
      FROM (SELECT x.share, min(x.o) AS o FROM unnest(ready, ready_at) AS x (share, o)
             GROUP BY x.share) AS b
     WHERE NOT EXISTS (SELECT 1 FROM millpond_seat AS s
                        WHERE s.pool = p.id AND s.share = b.share AND s.owner = '');
    GET DIAGNOSTICS joined = ROW_COUNT;
    p.joins := p.joins + joined;
    RETURN p;
END $$;
