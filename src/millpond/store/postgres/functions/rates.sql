-- Microseconds that one unit of a rate costs, and how far it may be overdrawn, in microseconds too.
CREATE FUNCTION millpond_interval(rate jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ceil((rate ->> 'per')::double precision * 1000000 / (rate ->> 'n')::double precision)::bigint
$$;

CREATE FUNCTION millpond_depth(rate jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((rate ->> 'burst')::bigint, (rate ->> 'n')::bigint)
$$;

-- When rates let a task of some weight start: `at`, or later. All times are in microseconds.
CREATE FUNCTION millpond_ready_at(rates jsonb, buckets jsonb, weight bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(at, max((b.bucket ->> 0)::bigint
               + (CASE WHEN r.rate ->> 'of' = 'weight' THEN weight ELSE 1 END - millpond_depth(r.rate))
                 * millpond_interval(r.rate)))
      FROM ROWS FROM (jsonb_array_elements(rates), jsonb_array_elements(buckets)) AS b (rate, bucket)
     CROSS JOIN LATERAL (SELECT b.rate) AS r (rate)
$$;

-- Take what some tasks that start at one moment cost from the buckets of rates, as core/bucket.py does.
-- `fits` = they may all start; then each before the last may, too, for a cost only adds up.
CREATE FUNCTION millpond_charge(
    rates jsonb, INOUT buckets jsonb, starts bigint, weight bigint, at bigint, OUT fits boolean
)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    rate jsonb;
    tat bigint;
    cost bigint;
    step bigint;
    owed bigint;
    moments bigint[];
    debts bigint[];
    least_at integer;
    noted_at bigint;
    lows jsonb;
BEGIN
    fits := true;
    FOR i IN 0..jsonb_array_length(rates) - 1 LOOP
        rate := rates -> i;
        step := millpond_interval(rate);
        tat := (buckets -> i ->> 0)::bigint;
        lows := buckets -> i -> 1;
        cost := starts;
        IF rate ->> 'of' = 'weight' THEN
            cost := weight;
        END IF;
        IF (CASE WHEN starts > 1 THEN greatest(tat, at) ELSE tat END)
           + (cost - millpond_depth(rate)) * step > at THEN
            fits := false;
            RETURN;
        END IF;
        IF rate ->> 'of' = 'weight' THEN
            owed := greatest(tat - at, 0);
            SELECT array_agg((l.low ->> 0)::bigint ORDER BY l.n), array_agg((l.low ->> 1)::bigint ORDER BY l.n)
              INTO moments, debts
              FROM jsonb_array_elements(lows) WITH ORDINALITY AS l (low, n)
             WHERE (l.low ->> 1)::bigint < owed;
            -- They rise in both: those that are no lower stood behind all others.
            noted_at := greatest(
                at, (lows -> -1 ->> 0)::bigint * ((lows -> -1 ->> 1)::bigint >= owed)::integer);
            IF moments IS NULL OR moments[cardinality(moments)] < noted_at THEN
                moments := moments || noted_at;
                debts := debts || owed;
                IF cardinality(moments) > 16 THEN
                    SELECT n INTO least_at FROM generate_series(1, cardinality(debts) - 1) AS n
                     ORDER BY debts[n + 1] - debts[n], n LIMIT 1;
                    moments := moments[:least_at - 1] || moments[least_at + 1:];
                    debts := debts[:least_at] || debts[least_at + 2:];
                END IF;
            END IF;
            SELECT jsonb_agg(jsonb_build_array(u.moment, u.owed)) INTO lows
              FROM unnest(moments, debts) AS u (moment, owed);
        END IF;
        buckets := jsonb_set(buckets, ARRAY[i::text],
                             jsonb_build_array(greatest(tat, at) + cost * step, lows));
    END LOOP;
END $$;
