-- Tables of few rows that are rewritten all the time: copied without their dead rows, which a transaction that
-- stays open keeps from vacuum, and which every look for a key would walk.

-- Copy these tables, where they have grown to `bytes_from` bytes and mostly hold dead rows. At most `rows_upto` rows each,
-- because writers wait meanwhile. It waits for its turn like the verbs, but not behind a reader: then it
-- does nothing, and the next call may. Return the tables that were copied.
--
-- It runs with the rights of the owner: TRUNCATE wants them. A transaction with an older snapshot that has
-- not read these tables yet finds them empty: so our readers lock them first (lock.py).
CREATE FUNCTION millpond_compact(small text[], bytes_from bigint, rows_upto bigint) RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
SET lock_timeout = '2s'
SET extra_float_digits = 1 AS $body$
DECLARE
    one text;
    rows_now bigint;
    kept text;
    columns text;
    grown text[];
    copied text[] := '{}';
BEGIN
    -- A row has some two hundred bytes with its share of the free space: eight times that is mostly dead rows.
    SELECT array_agg(c.relname::text ORDER BY c.relname) INTO grown
      FROM pg_class AS c
     WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind = 'r'
       AND c.relname = ANY(small) AND pg_relation_size(c.oid) >= bytes_from
       AND pg_relation_size(c.oid) >= 1600 * pg_stat_get_live_tuples(c.oid);
    IF grown IS NULL THEN
        RETURN copied;
    END IF;
    LOCK TABLE millpond_lock IN SHARE ROW EXCLUSIVE MODE;
    PERFORM set_config('lock_timeout', '20ms', true);
    FOREACH one IN ARRAY grown LOOP
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', one);
        EXECUTE format('SELECT count(*), array_agg(t)::text FROM %1$I AS t', one) INTO rows_now, kept;
        CONTINUE WHEN rows_now > rows_upto OR 1600 * rows_now > pg_relation_size(one::regclass);
        EXECUTE format('TRUNCATE %I', one);
        IF kept IS NOT NULL THEN
            SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) INTO columns
              FROM pg_attribute AS a
             WHERE a.attrelid = one::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '';
            EXECUTE format('INSERT INTO %1$I (%2$s) SELECT %2$s FROM unnest($1::%1$I[])', one, columns) USING kept;
        END IF;
        copied := copied || one;
    END LOOP;
    RETURN copied;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN '{}';
END $body$;

REVOKE EXECUTE ON FUNCTION millpond_compact FROM PUBLIC;
