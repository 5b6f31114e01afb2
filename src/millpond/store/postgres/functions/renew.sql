-- Renew the lease of a worker for some seconds, and return which of its tasks it must cancel. That gives
-- other processes no reason to look, so the version stays.
CREATE FUNCTION millpond_renew(
    at double precision,
    at_most double precision,
    renewing text,
    seconds double precision,
    OUT refused text,
    OUT moment double precision,
    OUT alive boolean,
    OUT cancelled bigint[],
    OUT interrupted bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    held_ahead bigint;
BEGIN
    LOCK TABLE millpond_lock IN ROW EXCLUSIVE MODE;
    SELECT millpond_moment(at, at_most, m.latest, m.behind, millpond_clock())
      INTO moment FROM millpond_meta AS m ORDER BY m.turn DESC LIMIT 1;
    SELECT w.ahead INTO held_ahead
      FROM millpond_worker AS w WHERE w.id = renewing ORDER BY w.turn DESC LIMIT 1;
    alive := FOUND;
    IF NOT alive THEN
        RETURN;
    END IF;
    refused := CASE WHEN moment IS NULL THEN 'clock' WHEN held_ahead > 0 THEN 'held ahead' END;
    IF refused IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM millpond_write_worker(renewing, 0, round((moment + seconds) * 1000000) / 1000000);
    SELECT array_agg(l.id ORDER BY p.name, l.place),
           array_agg(l.id ORDER BY p.name, l.place) FILTER (WHERE l.cancel_requested > 1)
      INTO cancelled, interrupted
      FROM millpond_live AS l
     CROSS JOIN LATERAL
           (SELECT o.name FROM millpond_pool AS o WHERE o.id = l.pool ORDER BY o.turn DESC LIMIT 1) AS p
     WHERE l.worker = renewing AND l.cancel_requested > 0;
END $$;
