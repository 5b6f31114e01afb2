-- The store's time, for all functions here. Tests give `at`; otherwise the server's clock counts. NULL =
-- that clock may have been set, so the verbs must decide (core/store_time.py). `at_most` is the latest
-- moment that the calling process can vouch for.
CREATE FUNCTION millpond_moment(
    at double precision, at_most double precision, latest double precision, behind double precision,
    wall double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF at IS NOT NULL THEN
        RETURN greatest(latest, at);
    END IF;
    IF behind <> 0 THEN
        wall := round((wall - behind) * 1000000) / 1000000;
    END IF;
    IF wall < latest - 0.05 OR (wall > latest + 60 AND wall > at_most)
       OR wall < at_most - 60 - 1 - 0.03 * (at_most - 60 - latest) THEN
        RETURN NULL;
    END IF;
    RETURN greatest(wall, latest);
END $$;
