-- Which server this is, and how often it was recovered or promoted: where another answers, transactions are
-- numbered otherwise. NULL = unknown: the server is in recovery, or this role may not ask for it.
CREATE FUNCTION millpond_server() RETURNS text LANGUAGE plpgsql VOLATILE AS $body$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT system_identifier::text FROM pg_control_system())
           || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN NULL;
END
$body$;

-- A store that was copied into another database is another one.
CREATE FUNCTION millpond_where() RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $body$
    SELECT millpond_identity() || ':' || oid FROM pg_database WHERE datname = current_database()
$body$;

-- The channel of the hints of this schema; notify.py shortens long names in the same way.
CREATE FUNCTION millpond_channel() RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $body$
    SELECT CASE
        WHEN octet_length('millpond:' || current_schema()) <= 63
            THEN 'millpond:' || current_schema()
        ELSE 'millpond:' || left(encode(sha256(convert_to(current_schema(), 'UTF8')), 'hex'), 32)
    END
$body$;
