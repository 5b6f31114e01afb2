-- Whether these functions know all that a pool's settings say. What they do not know is refused to the
-- verbs and never guessed, and what those do not know either leaves the pool alone. A new option of a
-- pool is named here once the functions below apply it (see test_unknown_options.py).
CREATE FUNCTION millpond_knows(spec jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT spec - '{name,max_concurrent,order,backpressure,max_per_key,rates,rate_per_key,lanes,ordered,max_callbacks,prefetch,budgets,adaptive,trigger,keep,attempts}'::text[] = '{}'
       AND (spec -> 'order') - '{kind,aging,key,weights}'::text[] = '{}'
       AND spec -> 'order' ->> 'kind' IN ('priority', 'fifo', 'lifo', 'fair_round_robin')
       AND (spec ->> 'backpressure' IS NULL
            OR ((spec -> 'backpressure') - '{on_full,depth,per_key,per_lane}'::text[] = '{}'
                AND spec -> 'backpressure' ->> 'on_full' IN (
                    'block_submitter', 'fail_submitter', 'drop_oldest', 'drop_newest', 'fail_fast',
                    'ring_buffer')))
       AND (spec -> 'rates' = '[]' AND spec ->> 'rate_per_key' IS NULL
            -- Without a subquery the server puts all of this where it is called.
            OR NOT (spec @? '$.rates[*].of ? (@ != "starts" && @ != "weight")'
                    OR spec @? '$.rate_per_key.of ? (@ != "starts" && @ != "weight")'
                    OR spec @? '$.rates[*].keyvalue().key ? (@ != "n" && @ != "per" && @ != "burst" && @ != "of")'
                    OR spec @? '$.rate_per_key.keyvalue().key ? (@ != "n" && @ != "per" && @ != "burst" && @ != "of")'))
$$;

-- The same for what is stored of a budget.
CREATE FUNCTION millpond_knows_budget(spec jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT spec - '{name,max_concurrent,rates}'::text[] = '{}'
       AND (spec -> 'rates' = '[]'
            OR NOT (spec @? '$.rates[*].of ? (@ != "starts" && @ != "weight")'
                    OR spec @? '$.rates[*].keyvalue().key ? (@ != "n" && @ != "per" && @ != "burst" && @ != "of")'))
$$;

-- Where a task stands among those of its pool, lowest first, as rank() of core/order/backlog.py says. NULL for an
-- order that is not known here: no row has that, so a caller that has not asked first fails.
CREATE FUNCTION millpond_rank(kind text, priority bigint, seq bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE kind WHEN 'fifo' THEN 0 WHEN 'fair_round_robin' THEN 0
                WHEN 'priority' THEN -priority WHEN 'lifo' THEN -seq END
$$;
