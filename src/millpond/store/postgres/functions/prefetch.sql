-- Tasks that a worker holds ahead of their start.

-- Start the first tasks that a worker has prefetched of a pool, in the order in which it claimed them.
CREATE FUNCTION millpond_begin_claims(
    the_pool bigint, asker text, most bigint, moment double precision, from_lease bigint, lease_number bigint
) RETURNS millpond_begun
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    b millpond_begun;
BEGIN
    WITH gone AS (
        DELETE FROM millpond_lease AS l
         WHERE l.n >= from_lease AND l.worker = asker AND l.pool = the_pool
           AND l.claims IS NOT NULL RETURNING l.*
    ), held AS MATERIALIZED (
        SELECT l.token, l.revision, u.claim, u.id, u.place, coalesce(u.rank, l.ranks[1]) AS rank,
               coalesce(u.submitted_at, l.submitted_at[1]) AS submitted_at,
               coalesce(u.due, l.due[1]) AS due, u.key, coalesce(u.plain, l.plain[1]) AS plain,
               row_number() OVER (ORDER BY u.claim) <= most AS starts
          FROM gone AS l,
               unnest(l.ids, l.places, l.ranks, l.submitted_at, l.due, l.keys, l.plain, l.claims)
               AS u (id, place, rank, submitted_at, due, key, plain, claim)
         ORDER BY u.claim
    ), stays AS (
        INSERT INTO millpond_lease
        SELECT h.token, CASE WHEN h.starts THEN moment ELSE 'infinity' END, the_pool, asker,
               CASE WHEN NOT h.starts THEN h.revision END,
               CASE WHEN NOT h.starts THEN array_agg(h.claim) END, array_agg(h.id),
               array_agg(h.place), array_agg(h.rank), array_agg(h.submitted_at), array_agg(h.due),
               array_agg(h.key), array_agg(h.plain), lease_number
          FROM held AS h GROUP BY h.token, h.starts, h.revision
    )
    SELECT array_agg(h.id), array_agg(h.place), array_agg(h.token),
           array_agg(h.submitted_at), array_agg(h.due), array_agg(h.key), array_agg(h.plain),
           array_agg(t.body)
      INTO b FROM held AS h
     CROSS JOIN LATERAL
           (SELECT o.body FROM millpond_task AS o WHERE o.place = h.place OFFSET 0) AS t
     WHERE h.starts;
    IF cardinality(b.ids) IS DISTINCT FROM most THEN
        RAISE EXCEPTION 'claims are not folded' USING ERRCODE = 'MP001';
    END IF;
    RETURN b;
END $$;
