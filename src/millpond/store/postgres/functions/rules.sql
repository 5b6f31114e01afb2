-- What the settings of a pool say.

-- Return the rules of a pool; its budgets are read apart (millpond_read_budgets).
CREATE FUNCTION millpond_rules_of(p millpond_pool, moment double precision) RETURNS millpond_rules
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    spec constant jsonb := p.spec::jsonb;
    r millpond_rules;
BEGIN
    r.unknown := NOT millpond_knows(spec);
    r.moment := moment;
    r.ticks := round(moment * 1000000)::bigint;
    r.a_limit := (spec ->> 'max_concurrent')::bigint;
    r.prefetch := (spec ->> 'prefetch')::bigint;
    r.flow := p.special = 1 AND p.limiter = '' AND p.claimed = 0 AND r.prefetch = 0;
    IF r.flow THEN
        r.rates := spec -> 'rates';
        r.tats := p.tats::jsonb;
        r.budget_names := spec -> 'budgets';
        r.budgets := '{}';
    END IF;
    r.in_lanes := spec ->> 'lanes' IS NOT NULL OR (spec ->> 'ordered')::boolean;
    r.lanes := (spec ->> 'lanes')::bigint;
    r.fair := spec -> 'order' ->> 'kind' = 'fair_round_robin';
    r.unit_limit := CASE WHEN r.in_lanes THEN 1 ELSE (spec ->> 'max_per_key')::bigint END;
    IF r.fair THEN
        r.weights := nullif(nullif(spec -> 'order' -> 'weights', '{}'), 'null');
    END IF;
    IF spec ->> 'rate_per_key' IS NOT NULL THEN
        r.key_interval := millpond_interval(spec -> 'rate_per_key');
        r.key_depth := millpond_depth(spec -> 'rate_per_key');
    END IF;
    r.limited := r.unit_limit IS NOT NULL OR r.key_interval IS NOT NULL;
    -- An operator may stop a key where keys do not matter otherwise.
    r.grouped := p.grouped = 1 AND (r.fair OR r.limited) AND p.claimed = 0 AND (r.flow OR p.special = 0);
    RETURN r;
END $$;

-- Add what is left of the budgets of a pool, of which `running_now` tasks run.
CREATE FUNCTION millpond_read_budgets(r millpond_rules, the_pool bigint, running_now bigint)
RETURNS millpond_rules
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    shared record;
BEGIN
    FOR shared IN SELECT o.* FROM jsonb_array_elements_text(r.budget_names) AS n (name)
                   JOIN millpond_budget AS o ON o.name = n.name LOOP
        r.refused := CASE WHEN NOT millpond_knows_budget(shared.spec::jsonb) THEN 'unknown option'
                          -- An end is offered to the pool that waits, and a start asks whose turn it is.
                          WHEN shared.waiting <> '{}' THEN 'in line' END;
        EXIT WHEN r.refused IS NOT NULL;
        r.budgets := r.budgets || shared.name;
        r.budget_rates := r.budget_rates || (shared.spec::jsonb -> 'rates');
        r.budget_buckets := r.budget_buckets || shared.buckets::jsonb;
        r.budget_left := r.budget_left || (
            SELECT (shared.spec::jsonb ->> 'max_concurrent')::bigint
                   - coalesce(sum(o.running), 0)::bigint - running_now
              FROM jsonb_object_keys(shared.pools::jsonb) AS n (name)
             CROSS JOIN LATERAL (SELECT x.running FROM millpond_pool AS x
                                  WHERE x.name = n.name AND x.id <> the_pool
                                  ORDER BY x.turn DESC LIMIT 1) AS o);
    END LOOP;
    RETURN r;
END $$;

-- Charge the rates and budgets for the tasks that start; `refused` if not all of them may.
CREATE FUNCTION millpond_charge_all(r millpond_rules, starts bigint, plain text[]) RETURNS millpond_rules
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    weight bigint;
    charged record;
BEGIN
    SELECT sum((f.plain::json ->> 'weight')::bigint) INTO weight FROM unnest(plain) AS f (plain);
    IF cardinality(plain) < starts THEN
        weight := weight * starts;
    END IF;
    charged := millpond_charge(r.rates, r.tats, starts, weight, r.ticks);
    r.tats := charged.buckets;
    IF NOT charged.fits THEN
        r.refused := 'rate';
    END IF;
    FOR i IN 1..cardinality(r.budgets) LOOP
        charged := millpond_charge(r.budget_rates[i], r.budget_buckets[i], starts, weight, r.ticks);
        r.budget_buckets[i] := charged.buckets;
        IF NOT charged.fits OR starts > r.budget_left[i] THEN
            r.refused := 'budget';
        END IF;
    END LOOP;
    RETURN r;
END $$;

-- Store the buckets of the budgets.
CREATE FUNCTION millpond_store_budgets(r millpond_rules) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    touched bigint;
    expected bigint;
BEGIN
    UPDATE millpond_budget AS o SET buckets = n.buckets::text
      FROM unnest(r.budgets, r.budget_buckets) AS n (name, buckets)
     WHERE o.name = n.name AND n.buckets <> '[]';
    GET DIAGNOSTICS touched = ROW_COUNT;
    SELECT count(*) INTO expected FROM unnest(r.budget_buckets) AS b (buckets) WHERE b.buckets <> '[]';
    IF touched <> expected THEN PERFORM millpond_miscounted('budget', expected, touched); END IF;
END $$;

-- Return the share of a task, as Backlog says: in a pool with lanes these take turns.
CREATE FUNCTION millpond_share(r millpond_rules, unit text, share text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN NOT (r).fair THEN '' WHEN (r).in_lanes THEN coalesce(unit, '') ELSE coalesce(share, '') END
$$;
