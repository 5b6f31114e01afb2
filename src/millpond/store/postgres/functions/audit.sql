-- The audit in parts (0004): which of them is written, and when one is emptied.

-- Empty the parts whose last record is older than `emptied_before`, and go on with the next part once the first
-- record of this one is older than `turned_before`. Return the names of the parts that were emptied. Nothing
-- waits here for longer than some milliseconds, because others would wait behind it: what cannot be done now is
-- done by the next call. The part that is written is never emptied.
--
-- It runs with the rights of the owner: ALTER TABLE and TRUNCATE want them.
CREATE FUNCTION millpond_turn_audit(turned_before double precision, emptied_before double precision)
RETURNS text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
SET lock_timeout = '20ms' AS $body$
DECLARE
    parts constant integer := 12;
    written constant integer := millpond_written_part();
    following constant integer := (written + 1) % parts;
    emptied text[] := '{}';
    one text;
    first_at double precision;
BEGIN
    FOR n IN 0..parts - 1 LOOP
        one := 'millpond_audit_' || n;
        IF n <> written AND millpond_last_of_part(one) < emptied_before THEN
            BEGIN
                EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', one);
                -- A transaction may have written to it before the parts changed, and committed only now.
                IF millpond_last_of_part(one) < emptied_before THEN
                    EXECUTE format('TRUNCATE %I', one);
                    emptied := emptied || one;
                END IF;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END IF;
    END LOOP;
    EXECUTE format('SELECT at FROM %I ORDER BY position LIMIT 1', 'millpond_audit_' || written) INTO first_at;
    IF first_at < turned_before AND millpond_last_of_part('millpond_audit_' || following) IS NULL THEN
        BEGIN
            EXECUTE format('ALTER TABLE ONLY millpond_audit ALTER part SET DEFAULT %s', following);
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    RETURN emptied;
END $body$;

REVOKE EXECUTE ON FUNCTION millpond_turn_audit FROM PUBLIC;

-- Which part is written.
CREATE FUNCTION millpond_written_part() RETURNS integer
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $body$
    SELECT substring(pg_get_expr(d.adbin, d.adrelid) FROM '\d+')::integer
      FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
     WHERE d.adrelid = 'millpond_audit'::regclass AND a.attname = 'part'
$body$;

-- When the last record of a part was written; NULL = it is empty.
CREATE FUNCTION millpond_last_of_part(part text) RETURNS double precision
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $body$
DECLARE
    at double precision;
BEGIN
    EXECUTE format('SELECT at FROM %I ORDER BY position DESC LIMIT 1', part) INTO at;
    RETURN at;
END $body$;
