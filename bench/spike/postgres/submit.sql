-- The claim spike, PostgreSQL: submit.
-- Lock order everywhere: INTAKE (1, pool) < own holding row < CLAIM (2, pool).

-- Groups named in a submit, a settle or a promotion, in that order; p_downs says how many leases of each
-- ended. One update counts them down and lets those enter that may: dry ones, and if p_freed those that
-- stood at their limit or waited. Caller holds CLAIM. A group that only counts down keeps `ver`, so no
-- index changes and the update stays on its page.
create function enter_groups(p pool, p_gids bigint[], p_downs int[], p_freed boolean, p_now bigint)
returns void language plpgsql
set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v bigint := 0;
    least_rank bigint := case when p.marked then 0 else -9223372036854775808 end;
    counted boolean := p_downs is not null and p.per_key > 1;
begin
    if p.fair then
        select s.v1 into v from pstate s where s.pool = p.id order by s.seq desc limit 1;
    end if;
    update grp set
        ver = grp.ver + e.moves,
        running = grp.running - e.down,
        state = e.state,
        due = case when e.state = 3 then e.due else grp.due end,
        o1 = case when e.moves = 0 or e.state <> 1 then grp.o1
                  when p.fair then greatest(grp.o1, v) else e.rank end,
        o2 = case when e.moves = 0 or e.state <> 1 then grp.o2
                  when p.fair then e.joined else e.seq end
    from (
        select x.*, (x.state <> x.was or x.was = 1 and x.rank is not null)::int as moves,
               case when x.state <> x.was and x.state = 1 and p.fair then nextval('join_seq') end as joined
        from (
            select g.at, g.was, h.rank, h.seq, h.due, case when counted then u.down else 0 end as down,
                   case when not g.may then g.was when h.seq is null then 0 when h.due > p_now then 3
                        else 1 end as state
            from unnest(p_gids, p_downs) with ordinality u(gid, down, ord)
            cross join lateral (
                select k.ctid as at, k.state as was, k.state = 0 or (k.state > 1 and p_freed) as may,
                       k.o1, k.o2, k.low
                  from grp k where k.gid = u.gid order by k.ver desc limit 1) g
            left join lateral (
                select r.rank, r.seq, r.due from ready r
                 where r.gid = u.gid and (r.rank, r.seq) >= (least_rank, g.low) and (g.may or not p.fair)
                 order by r.rank, r.seq limit 1) h
                on g.may or (g.was = 1 and (h.rank, h.seq) < (g.o1, g.o2))
            order by u.ord
            offset 0
        ) x
        where x.state <> x.was or x.down > 0 or (x.was = 1 and x.rank is not null)
        offset 0
    ) e
    where grp.ctid = e.at;
end $$;

create function submit(
    p_pool int, p_ids bigint[], p_names text[], p_strides bigint[], p_ranks bigint[], p_prios int[],
    p_dues bigint[], p_payloads bytea[], p_idems text[], p_now bigint, p_repeat boolean,
    out accepted int, out refused boolean, out dup_keys text[], out dup_ids bigint[])
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan as $$
declare
    p pool;
    fresh int := cardinality(p_ids);
    entry inlog;
    gids bigint[];
begin
    select * into p from pool where id = p_pool;
    accepted := 0;
    refused := false;
    if p.bound is not null then
        perform pg_advisory_xact_lock(1, p_pool);
    end if;
    if p.grouped then
        -- Exclusive, from before the sequence to the commit: places in a group are commit-ordered.
        perform pg_advisory_xact_lock(2, p_pool);
    end if;
    if p.bound is not null then
        -- The next statement has a new snapshot: it sees what the last holder of the lock committed.
        if p_idems is not null then
            select count(*) filter (where u.idem is null)
                 + count(distinct u.idem) filter (where (
                       select i.id from idem i where i.pool = p_pool and i.key = u.idem) is null)
              into fresh from unnest(p_idems) u(idem);
        end if;
        select * into entry from inlog l where l.pool = p_pool order by l.seq desc limit 1;
        select entry.total - s.out_total + fresh > p.bound into refused
          from pstate s where s.pool = p_pool order by s.seq desc limit 1;
    end if;
    if p_idems is not null then
        if not refused then
            insert into idem (pool, key, id)
            select p_pool, u.idem, (array_agg(u.id order by u.ord))[1]
              from unnest(p_ids, p_idems) with ordinality u(id, idem, ord)
             where u.idem is not null group by u.idem order by u.idem   -- sorted: batches cannot deadlock
            on conflict do nothing;
        end if;
        select array_agg(u.idem), array_agg(i.id) into dup_keys, dup_ids
          from unnest(p_ids, p_idems) u(id, idem)
         cross join lateral (select k.id from idem k where k.pool = p_pool and k.key = u.idem offset 0) i
         where i.id <> u.id;
    end if;
    if refused then
        return;
    end if;
    if p.grouped then
        with missing as (
            select u.name, min(u.ord) as ord, min(u.stride) as stride
              from unnest(p_names, p_strides) with ordinality u(name, stride, ord)
             where (select g.gid from grp_name g where g.pool = p_pool and g.name = u.name) is null
             group by u.name order by 2 offset 0
        ), named as (
            insert into grp_name (pool, name, gid, stride)
            select p_pool, m.name, nextval('gid_seq'), m.stride from missing m
            returning grp_name.gid, grp_name.stride
        )
        insert into grp (gid, ver, o1, o2, stride, tail, due, low, pool, running, state)
        select n.gid, 0, 0, 0, n.stride, 0, 0, 0, p_pool, 0, 0 from named n;
    end if;
    -- Scalar subqueries, not EXISTS: the planner may hash an EXISTS, and would read all keys of the pool.
    with src as materialized (
        select u.*, nextval('task_seq') as seq,
               coalesce((select g.gid from grp_name g where g.pool = p_pool and g.name = u.name), p.root)
                   as gid
          from (select * from unnest(p_ids, p_names, p_ranks, p_prios, p_dues, p_payloads, p_idems)
                  with ordinality x(id, name, rank, prio, due, payload, idem, ord)
                 where (x.idem is null or (select i.id from idem i where i.pool = p_pool
                                              and i.key = x.idem) = x.id)
                   and (not p_repeat or (select t.id from task t where t.id = x.id) is null)
                 order by x.ord offset 0) u
    ), placed as materialized (
        select s.*, case when p.lifo then -s.seq else s.rank end as place,
               case when p.blocks then
                   (select k.tail from grp k where k.gid = s.gid order by k.ver desc limit 1)
                   + row_number() over (partition by s.gid order by s.seq) else 0 end as lane_seq
          from src s
    ), tasks as (
        insert into task (id, gid, rank, seq, lane_seq, submitted_at, pool, priority, payload)
        select x.id, x.gid, x.place, x.seq, x.lane_seq, p_now, p_pool, x.prio, x.payload from placed x
    ), waits as (
        insert into later (pool, due, seq, id, attempt, fresh)
        select p_pool, x.due, x.seq, x.id, 0, true from placed x where x.due > 0 and not p.blocks
    ), readies as (
        insert into ready (gid, rank, seq, id, due, attempt, fresh)
        select x.gid, x.place, x.seq, x.id, x.due, 0, true from placed x where x.due = 0 or p.blocks
    )
    select count(*), case when p.grouped then array_agg(distinct_first.gid order by distinct_first.ord)
               filter (where distinct_first.gid is not null) end
      into accepted, gids
      from (select case when x.ord = min(x.ord) over (partition by x.gid) then x.gid end as gid, x.ord
              from placed x) distinct_first;
    if p.blocks then
        update grp set tail = grp.tail + c.n, ver = grp.ver + 1
          from (select t.gid, count(*) as n from unnest(p_ids) u(id)
                  cross join lateral (select k.gid from task k where k.id = u.id offset 0) t
                 group by t.gid) c
         where grp.gid = c.gid
           and grp.ver = (select k.ver from grp k where k.gid = c.gid order by k.ver desc limit 1);
    end if;
    if p.grouped and gids is not null then
        perform enter_groups(p, gids, null, false, p_now);
    end if;
    if p.bound is not null then
        delete from inlog l where l.pool = p_pool and l.seq = entry.seq;
        insert into inlog values (p_pool, entry.seq + 1, entry.total + accepted);
    end if;
end $$;
