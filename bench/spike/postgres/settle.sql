-- The claim spike, PostgreSQL: settle, put back, recover, renew.

-- These seqs became ready again: lower the low-water marks that stand above them. Caller holds CLAIM.
create function lower_marks(p pool, p_gids bigint[], p_seqs bigint[]) returns void language plpgsql as $$
begin
    if not p.marked then
        return;
    elsif p.grouped then
        update grp set low = x.seq
          from (select g.at, u.seq
                  from (select k.gid, min(k.seq) as seq from unnest(p_gids, p_seqs) k(gid, seq)
                         group by k.gid) u
                  cross join lateral (select k.ctid as at, k.low from grp k where k.gid = u.gid
                                       order by k.ver desc limit 1) g
                 where g.low > u.seq offset 0) x
         where grp.ctid = x.at;
    else
        update pstate s set v2 = least(s.v2, (select min(u.seq) from unnest(p_seqs) u(seq)))
         where s.pool = p.id and s.seq = (
            select k.seq from pstate k where k.pool = p.id order by k.seq desc limit 1);
    end if;
end $$;

-- Retries and lost leases rejoin at their old place: now, or when due. Caller holds CLAIM.
create function put_back(p pool, p_ids bigint[], p_atts smallint[], p_dues bigint[]) returns void
language plpgsql
set enable_nestloop = on set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    gids bigint[];
    seqs bigint[];
begin
    with back as materialized (
        select t.*, u.att, u.due from unnest(p_ids, p_atts, p_dues) u(id, att, due)
         cross join lateral (select k.id, k.gid, k.rank, k.seq from task k where k.id = u.id offset 0) t
    ), waits as (
        insert into later (pool, due, seq, id, attempt, fresh)
        select p.id, b.due, b.seq, b.id, b.att, false from back b where b.due > 0 and not p.blocks
    ), readies as (
        insert into ready (gid, rank, seq, id, due, attempt, fresh)
        select b.gid, b.rank, b.seq, b.id, b.due, b.att, false from back b where b.due = 0 or p.blocks
    )
    select array_agg(b.gid), array_agg(b.seq) into gids, seqs from back b;
    perform lower_marks(p, gids, seqs);
end $$;

-- Apply what the fence allows and answer what is still held. In a pool with groups, and whenever a task
-- is put back, the caller holds CLAIM; a plain pool's completions need no lock beyond the worker's row.
create function settle_held(
    p pool, h holding, s_ids bigint[], s_atts smallint[], s_toks bigint[], s_outs smallint[],
    s_dues bigint[], s_results bytea[], p_now bigint, out stale int, out kept holding)
language plpgsql set enable_nestloop = off as $$
declare
    good_ids bigint[];
    freed bigint[];
    downs int[];
    back_ids bigint[];
    back_atts smallint[];
    back_dues bigint[];
begin
    with held as materialized (
        select * from unnest(h.ids, h.atts, h.toks, h.gids, h.starts) u(id, att, tok, gid, start)
    ), ok as materialized (
        select s.*, u.gid, u.start
          from unnest(s_ids, s_atts, s_toks, s_outs, s_dues, s_results)
               with ordinality s(id, att, tok, out, due, result, ord)
          join held u on u.id = s.id and u.att = s.att and u.tok = s.tok
    ), ended as (
        insert into done (id, finished_at, started_at, pool, worker, status, attempt, result)
        select o.id, p_now, o.start, p.id, h.worker, o.out, o.att, o.result from ok o where o.out <> 0
    )
    select array_agg(o.id), array_agg(o.gid order by o.ord),
           array_agg(o.id order by o.ord) filter (where o.out = 0),
           array_agg(o.att order by o.ord) filter (where o.out = 0),
           array_agg(o.due order by o.ord) filter (where o.out = 0)
      into good_ids, freed, back_ids, back_atts, back_dues from ok o;
    stale := cardinality(s_ids) - coalesce(cardinality(good_ids), 0);
    kept := h;
    if cardinality(good_ids) = h.n then
        kept.n := 0;
        kept.ids := '{}'; kept.atts := '{}'; kept.toks := '{}'; kept.gids := '{}'; kept.starts := '{}';
    elsif good_ids is not null then
        select count(*), array_agg(u.id), array_agg(u.att), array_agg(u.tok), array_agg(u.gid),
               array_agg(u.start)
          into kept.n, kept.ids, kept.atts, kept.toks, kept.gids, kept.starts
          from unnest(h.ids, h.atts, h.toks, h.gids, h.starts) u(id, att, tok, gid, start)
         where not exists (select from unnest(good_ids) g(id) where g.id = u.id);
    end if;
    if back_ids is not null then
        perform put_back(p, back_ids, back_atts, back_dues);
    end if;
    if p.grouped and freed is not null then
        select array_agg(f.gid order by f.ord), array_agg(f.n order by f.ord) into freed, downs
          from (select u.gid, min(u.ord) as ord, count(*)::int as n
                  from unnest(freed) with ordinality u(gid, ord) group by u.gid) f;
        perform enter_groups(p, freed, downs, true, p_now);
    end if;
end $$;

-- One small write per interval, however many leases the worker holds.
create function renew(p_worker int, p_expires bigint) returns void language sql as $$
    insert into worker values (p_worker, p_expires)
    on conflict (id) do update set expires = excluded.expires
$$;

-- A lost worker's leases rejoin at their old place; the attempt stays spent. The row goes, so whatever
-- the worker still sends finds no fence. SKIP LOCKED: never wait for a row while holding CLAIM.
create function recover(p_pool int, p_worker int, p_now bigint) returns int
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
    p pool;
    h holding;
    kept holding;
    refused int;
begin
    select * into p from pool where id = p_pool;
    perform pg_advisory_xact_lock(2, p_pool);
    select * into h from holding k where k.pool = p_pool and k.worker = p_worker
     order by k.seq desc limit 1 for update skip locked;
    if h.n is null then
        return 0;
    end if;
    select s.stale, (s.kept).n into refused, kept.n from settle_held(p, h, h.ids, h.atts, h.toks,
        array_fill(0::smallint, array[h.n]), array_fill(0::bigint, array[h.n]),
        array_fill(null::bytea, array[h.n]), p_now) s;
    delete from holding k where k.pool = p_pool and k.worker = p_worker and k.seq = h.seq;
    return h.n;
end $$;
