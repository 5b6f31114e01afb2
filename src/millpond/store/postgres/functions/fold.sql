-- Give back a row of its own to each of these tasks that is folded; to all, if none is named.
CREATE FUNCTION millpond_unfold(these bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    from_lease constant bigint := (SELECT m.first_lease FROM millpond_meta AS m ORDER BY m.turn DESC LIMIT 1);
BEGIN
    INSERT INTO millpond_live
    SELECT f.* FROM millpond_folded AS f
     WHERE these IS NULL OR f.token IN (
           SELECT token FROM millpond_lease WHERE n >= from_lease AND ids && these);
    DELETE FROM millpond_lease
     WHERE n >= from_lease AND (these IS NULL OR token IN (
           SELECT token FROM millpond_lease WHERE n >= from_lease AND ids && these));
END $$;

-- Give back a row of its own to each of these folded tasks of a pool and to no other of their leases.
CREATE FUNCTION millpond_unfold_some(these bigint[], their_tokens bigint[], the_pool bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    l record;
    gone integer[];
BEGIN
    INSERT INTO millpond_live
    SELECT f.* FROM millpond_folded AS f
     WHERE f.token = ANY(their_tokens) AND f.id = ANY(these) AND f.pool = the_pool;
    -- Locked: another call may give them new numbers.
    FOR l IN SELECT o.ctid AS spot, o.* FROM millpond_lease AS o
              WHERE o.token = ANY(their_tokens) AND o.ids && these AND o.pool = the_pool FOR UPDATE LOOP
        gone := ARRAY(SELECT k FROM generate_subscripts(l.ids, 1) AS k WHERE l.ids[k] = ANY(these));
        IF cardinality(gone) = cardinality(l.ids) THEN
            DELETE FROM millpond_lease AS o WHERE o.ctid = l.spot;
        ELSE
            UPDATE millpond_lease AS o
               SET claims = millpond_without(l.claims, gone), ids = millpond_without(l.ids, gone),
                   places = millpond_without(l.places, gone), ranks = millpond_without(l.ranks, gone),
                   submitted_at = millpond_without(l.submitted_at, gone),
                   due = millpond_without(l.due, gone), keys = millpond_without(l.keys, gone),
                   plain = millpond_without(l.plain, gone)
             WHERE o.ctid = l.spot;
        END IF;
    END LOOP;
END $$;

-- Some of a list, in which one value may stand for all.
CREATE FUNCTION millpond_part(list anyarray, low integer, high integer) RETURNS anyarray
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(list) > 1 THEN list[low:high] ELSE list END
$$;

-- Let one value stand for all, if all are equal.
CREATE FUNCTION millpond_collapsed(list anyarray) RETURNS anyarray
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN array_remove(list, list[1]) = '{}' THEN list[1:1] ELSE list END
$$;

-- Give every task its own value: a list in which one value may stand for `n` tasks.
CREATE FUNCTION millpond_each(list anyarray, n integer) RETURNS anyarray
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(list) = n THEN list ELSE array_fill(list[1], ARRAY[n]) END
$$;

-- A list without the values at some positions; one value may stand for all.
CREATE FUNCTION millpond_without(list anyarray, gone integer[]) RETURNS anyarray
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(list) > 1 AND gone IS NOT NULL
           THEN ARRAY(SELECT list[n] FROM generate_subscripts(list, 1) AS n WHERE n <> ALL(gone) ORDER BY n)
           ELSE list END
$$;
