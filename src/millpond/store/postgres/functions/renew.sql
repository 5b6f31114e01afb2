-- Keep everything that a worker holds for some seconds more, and tell which of it is to be cancelled.
-- Nobody else need look because of that, so the version stays.
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
    LOOP
        -- A call of the same worker may count what it holds ahead meanwhile, and move the row to another turn.
        UPDATE millpond_worker AS w
           SET expires_at = round((moment + seconds) * 1000000) / 1000000,
               writes = w.writes + 1, turn = (w.writes + 1) >> 5
         WHERE w.id = renewing AND w.turn = (SELECT x.turn FROM millpond_worker AS x
                                              WHERE x.id = renewing ORDER BY x.turn DESC LIMIT 1);
        EXIT WHEN FOUND;
        IF NOT EXISTS (SELECT FROM millpond_worker AS x WHERE x.id = renewing) THEN
            PERFORM millpond_miscounted('worker', 1, 0);
        END IF;
    END LOOP;
    SELECT array_agg(l.id ORDER BY p.name, l.place),
           array_agg(l.id ORDER BY p.name, l.place) FILTER (WHERE l.cancel_requested > 1)
      INTO cancelled, interrupted
      FROM millpond_live AS l
     CROSS JOIN LATERAL
           (SELECT o.name FROM millpond_pool AS o WHERE o.id = l.pool ORDER BY o.turn DESC LIMIT 1) AS p
     WHERE l.worker = renewing AND l.cancel_requested > 0;
END $$;
